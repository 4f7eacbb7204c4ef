//! Stored jobs and chains, as stores return them.
//!
//! The records are deliberately not `#[non_exhaustive]`: stores construct them, and the compiler should report each place
//! that does not fill a new field.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::{ChainId, Fence, JobId, RequestId, Version, WorkerId};
use crate::name::{ErrorText, Key, TraceContext, TypeName, WorkerName};
use crate::payload::Payload;
use crate::time::{Millis, Timestamp};

/// The status of a job. A chain has the status of its latest job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The job waits for blocker chains.
    Blocked,
    /// The job waits for its due time and a free worker.
    Pending,
    /// A worker holds the job's lease.
    Running,
    /// The job ended with an output or was continued by the next job of its chain.
    Completed,
    /// The job ended without an output. It can be retried.
    Failed,
    /// The job was cancelled. It can be retried.
    Cancelled,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Blocked => "blocked",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

impl Status {
    /// All statuses, in order.
    pub const ALL: [Self; 6] =
        [Self::Blocked, Self::Pending, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether the job has not ended yet: blocked, pending or running.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Blocked | Self::Pending | Self::Running)
    }

    /// Returns how the job ended, or `None` if it is open.
    #[must_use]
    pub const fn closed_as(self) -> Option<ClosedAs> {
        match self {
            Self::Completed => Some(ClosedAs::Completed),
            Self::Failed => Some(ClosedAs::Failed),
            Self::Cancelled => Some(ClosedAs::Cancelled),
            Self::Blocked | Self::Pending | Self::Running => None,
        }
    }
}

/// How a job or chain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClosedAs {
    /// It completed.
    Completed,
    /// It failed, without further attempts.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl From<ClosedAs> for Status {
    fn from(closed_as: ClosedAs) -> Self {
        match closed_as {
            ClosedAs::Completed => Self::Completed,
            ClosedAs::Failed => Self::Failed,
            ClosedAs::Cancelled => Self::Cancelled,
        }
    }
}

/// What a job does when a blocker chain fails or is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnBlockerFailure {
    /// The job keeps waiting, because the blocker can be retried. The default.
    #[default]
    Wait,
    /// The job fails, and its chain with it.
    Fail,
    /// The job runs, and its handler receives the failure as a value.
    Receive,
}

/// Which outcomes of a chain hold its key after the chain has closed.
///
/// A held key prevents another chain from being created with it. The hold ends with the chain's retention or
/// with the key's window. An open chain always holds its key, unless the window has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyHold {
    /// No outcome: the key is free as soon as the chain closes. The default.
    #[default]
    Open,
    /// A completed chain holds its key.
    Completed,
    /// A completed or failed chain holds its key.
    CompletedOrFailed,
    /// Every closed chain holds its key.
    Any,
}

impl KeyHold {
    /// Whether a chain that ended this way still holds its key.
    #[must_use]
    pub const fn holds(self, closed_as: ClosedAs) -> bool {
        match self {
            Self::Open => false,
            Self::Completed => matches!(closed_as, ClosedAs::Completed),
            Self::CompletedOrFailed => matches!(closed_as, ClosedAs::Completed | ClosedAs::Failed),
            Self::Any => true,
        }
    }
}

/// How long a closed chain is kept, by outcome.
///
/// ```
/// use std::time::Duration;
/// use windlass::Retention;
/// use windlass::time::Millis;
///
/// let hour = Duration::from_secs(60 * 60);
/// let retention = Retention::all(hour).failed(24 * hour);
/// assert_eq!(Duration::from(retention.completed), hour);
/// assert_eq!(retention.failed, Millis::from_days(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retention {
    /// Time to keep a completed chain.
    pub completed: Millis,
    /// Time to keep a failed chain.
    pub failed: Millis,
    /// Time to keep a cancelled chain.
    pub cancelled: Millis,
}

impl Retention {
    /// Keeps chains for this time, however they ended. A time above 100 years counts as 100 years.
    #[must_use]
    pub fn all(keep: Duration) -> Self {
        let keep = at_most(keep);
        Self { completed: keep, failed: keep, cancelled: keep }
    }

    /// Sets how long completed chains are kept.
    #[must_use]
    pub fn completed(self, keep: Duration) -> Self {
        Self { completed: at_most(keep), ..self }
    }

    /// Sets how long failed chains are kept.
    #[must_use]
    pub fn failed(self, keep: Duration) -> Self {
        Self { failed: at_most(keep), ..self }
    }

    /// Sets how long cancelled chains are kept.
    #[must_use]
    pub fn cancelled(self, keep: Duration) -> Self {
        Self { cancelled: at_most(keep), ..self }
    }

    /// Returns how long a chain that ended this way is kept.
    #[must_use]
    pub const fn of(self, closed_as: ClosedAs) -> Millis {
        match closed_as {
            ClosedAs::Completed => self.completed,
            ClosedAs::Failed => self.failed,
            ClosedAs::Cancelled => self.cancelled,
        }
    }
}

fn at_most(keep: Duration) -> Millis {
    Millis::try_from(keep).unwrap_or(Millis::MAX)
}

impl Default for Retention {
    /// Keeps completed and cancelled chains for 7 days and failed ones for 30 days.
    fn default() -> Self {
        Self {
            completed: Millis::from_days(7),
            failed: Millis::from_days(30),
            cancelled: Millis::from_days(7),
        }
    }
}

/// A stored job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// The job's id.
    pub id: JobId,
    /// The chain that the job belongs to.
    pub chain: ChainId,
    /// The job's position in the chain, starting at 0.
    pub index: u32,
    /// The job's type.
    pub job_type: TypeName,
    /// The type of the chain's first job.
    pub chain_type: TypeName,
    /// The job's status.
    pub status: Status,
    /// The job's input.
    pub input: Payload,
    /// The job's output. `None` if the job was continued by another job.
    pub output: Option<Payload>,
    /// The latest error. Cleared when the job completes.
    pub error: Option<ErrorText>,
    /// The priority: jobs with higher priority run first.
    pub priority: i8,
    /// The time at which the job is due.
    pub due_at: Timestamp,
    /// The number of the latest attempt, starting at 1. 0 before the first attempt.
    pub attempt: u32,
    /// The maximum number of attempts: the last one's failure is final. `None` means no limit.
    pub max_attempts: Option<u32>,
    /// The fence of the latest acquire. Before the first acquire, see [`Fence::at_creation`].
    pub fence: Fence,
    /// The number of changes to the job; see [`Version`] for what counts.
    pub version: Version,
    /// The lease on the job. `Some` exactly while the job is running.
    pub lease: Option<Lease>,
    /// Whether a running job was asked to stop.
    pub cancel_requested: bool,
    /// The chains that the job waits or waited for, in the order in which they were declared.
    pub blockers: Arc<[Blocker]>,
    /// What the job does when a blocker fails or is cancelled.
    pub on_blocker_failure: OnBlockerFailure,
    /// When the job was created.
    pub created_at: Timestamp,
    /// When the latest attempt started.
    pub started_at: Option<Timestamp>,
    /// When the job was closed.
    pub closed_at: Option<Timestamp>,
    /// The worker whose attempt closed the job. `None` if no attempt did: the job was completed from outside,
    /// reaped, cancelled while it was not running, or failed with a blocker.
    pub closed_by: Option<WorkerId>,
    /// The trace context in which the job was created.
    pub trace: Option<TraceContext>,
}

/// A worker's hold on a running job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The worker that holds the lease.
    pub worker: WorkerId,
    /// The worker's name, if it has one.
    pub worker_name: Option<WorkerName>,
    /// The acquire request that created the lease.
    pub request: RequestId,
    /// When the lease expires, unless it is renewed.
    pub until: Timestamp,
}

/// A chain that a job waits or waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocker {
    /// The chain's id.
    pub chain: ChainId,
    /// Whether the job no longer waits for the chain.
    pub resolved: bool,
    /// The trace context of the wait.
    pub trace: Option<TraceContext>,
}

/// A stored chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRecord {
    /// The chain's id, which is the id of its first job.
    pub id: ChainId,
    /// The type of the first job.
    pub chain_type: TypeName,
    /// The key that the chain was created with.
    pub key: Option<ChainKey>,
    /// How long the chain is kept after it closes.
    pub retention: Retention,
    /// When the chain was created.
    pub created_at: Timestamp,
    /// When and how the chain closed. `None` while it is open.
    pub closed: Option<Closed>,
    /// The trace context in which the chain was created.
    pub trace: Option<TraceContext>,
    /// The first job.
    pub first: JobRecord,
    /// The latest job. Equal to `first` if the chain has only one job.
    pub latest: JobRecord,
}

impl ChainRecord {
    /// Returns the chain's status, which is that of its latest job.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.latest.status
    }

    /// Returns the chain's output, if it has completed.
    #[must_use]
    pub const fn output(&self) -> Option<&Payload> {
        self.latest.output.as_ref()
    }
}

/// A chain's key and how long the chain holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainKey {
    /// The key.
    pub key: Key,
    /// Which outcomes hold the key after the chain has closed.
    pub hold: KeyHold,
    /// The maximum time that the key is held, counted from the chain's creation. `None` means no maximum.
    pub window: Option<Millis>,
    /// Whether the key still points at this chain. It does until the chain is removed or another chain takes
    /// the key. Whether the key prevents another chain from being created depends on `hold` and `window`.
    pub held: bool,
}

/// When and how a chain closed, and how long it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Closed {
    /// When the chain closed.
    pub at: Timestamp,
    /// How the chain ended.
    pub closed_as: ClosedAs,
    /// When the retention ends. The chain is removed afterwards, unless an open or failed job still needs it.
    pub retain_until: Timestamp,
}

/// An attempt of a job, ended or running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The attempt number. A requeued or rescheduled attempt does not count, so the next attempt may have the
    /// same number.
    pub attempt: u32,
    /// The fence of the attempt.
    pub fence: Fence,
    /// The worker that made the attempt.
    pub worker: WorkerId,
    /// The worker's name, if it has one.
    pub worker_name: Option<WorkerName>,
    /// When the attempt started.
    pub started_at: Timestamp,
    /// When the attempt ended. `None` while it is running.
    pub ended_at: Option<Timestamp>,
    /// How the attempt ended.
    pub end: AttemptEnd,
    /// The error of the attempt.
    pub error: Option<ErrorText>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptEnd {
    /// The attempt is still running.
    Running,
    /// The job completed.
    Completed,
    /// The job completed and was continued by the next job of its chain.
    Continued,
    /// The attempt failed, and the job will be retried.
    Retried,
    /// The attempt rescheduled the job. It does not count.
    Rescheduled,
    /// The job failed, without further attempts.
    Failed,
    /// The attempt failed, and it was the last allowed attempt.
    Exhausted,
    /// The worker requeued the job because it was stopping. The attempt does not count.
    Released,
    /// The lease expired.
    Reaped,
    /// The job was cancelled.
    Cancelled,
    /// The job was completed from outside while the attempt ran.
    Displaced,
}
