//! Stored jobs and chains, as stores give them back.

use std::fmt;
use std::sync::Arc;

use crate::id::{ChainId, Fence, JobId, RequestId, Version, WorkerId};
use crate::name::{ErrorText, Key, TraceContext, TypeName};
use crate::payload::Payload;
use crate::time::{Millis, Timestamp};

/// Where a job stands. A chain's status is its latest job's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Waits for blocker chains.
    Blocked,
    /// Waits for its time and a free worker.
    Pending,
    /// A worker holds its lease.
    Running,
    /// Ended with an output, or handed over to a continuation.
    Completed,
    /// Ended without an output; can be retried.
    Failed,
    /// Was called off.
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
    /// All statuses, in their order.
    pub const ALL: [Self; 6] =
        [Self::Blocked, Self::Pending, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether there is still something to do.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Blocked | Self::Pending | Self::Running)
    }

    /// How it ended, if it did.
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
    /// With an output.
    Completed,
    /// With an error and no more attempts.
    Failed,
    /// Called off.
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

/// What a job does whose blocker chain failed or was cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnBlockerFailure {
    /// It waits: a failed chain can be retried. The default.
    #[default]
    Wait,
    /// It fails too, and its chain with it.
    Fail,
    /// It runs, and its handler receives the failure as a value.
    Receive,
}

/// Which outcomes of its chain hold a key after the chain closed, until its retention or the key's window
/// ends: a held key keeps another chain from being created. An open chain always holds its key, unless its
/// window ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyHold {
    /// None: the key is free as soon as the chain closes. The default.
    #[default]
    Open,
    /// A completed chain holds it.
    Completed,
    /// A completed or failed chain holds it.
    CompletedOrFailed,
    /// Every closed chain holds it.
    Any,
}

impl KeyHold {
    /// Whether a chain that ended so still holds its key.
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

/// How long a closed chain stays stored, by its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retention {
    /// After it completed.
    pub completed: Millis,
    /// After it failed.
    pub failed: Millis,
    /// After it was cancelled.
    pub cancelled: Millis,
}

impl Retention {
    /// How long a chain that ended so stays.
    #[must_use]
    pub const fn of(self, closed_as: ClosedAs) -> Millis {
        match closed_as {
            ClosedAs::Completed => self.completed,
            ClosedAs::Failed => self.failed,
            ClosedAs::Cancelled => self.cancelled,
        }
    }
}

impl Default for Retention {
    /// Completed and cancelled chains stay 7 days, failed ones 30.
    fn default() -> Self {
        Self {
            completed: Millis::from_days(7),
            failed: Millis::from_days(30),
            cancelled: Millis::from_days(7),
        }
    }
}

/// One stored job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// Its id.
    pub id: JobId,
    /// The chain it belongs to.
    pub chain: ChainId,
    /// Its place in the chain, from 0.
    pub index: u32,
    /// Its type.
    pub job_type: TypeName,
    /// The type of its chain's first job.
    pub chain_type: TypeName,
    /// Where it stands.
    pub status: Status,
    /// What it takes.
    pub input: Payload,
    /// What it gave; none for a job that handed over to a continuation.
    pub output: Option<Payload>,
    /// The latest error. A completion clears it.
    pub error: Option<ErrorText>,
    /// Higher runs first.
    pub priority: i8,
    /// Not before this time.
    pub due_at: Timestamp,
    /// The number of the latest attempt; 0 before the first.
    pub attempt: u32,
    /// After this many attempts a failure is final; no limit if none.
    pub max_attempts: Option<u32>,
    /// The fence of the latest acquisition; before the first, see [`Fence::at_creation`].
    pub fence: Fence,
    /// Counts changes other than renewals.
    pub version: Version,
    /// Who holds it. Present exactly while it runs.
    pub lease: Option<Lease>,
    /// Whether a running job was asked to stop.
    pub cancel_requested: bool,
    /// The chains it waits for, in the order given.
    pub blockers: Arc<[Blocker]>,
    /// What it does when one of them does not complete.
    pub on_blocker_failure: OnBlockerFailure,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its latest attempt began.
    pub started_at: Option<Timestamp>,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
    /// The worker that closed it; none if nobody's attempt did: from outside, by a reap, with a blocker.
    pub closed_by: Option<WorkerId>,
    /// The trace context it was created in.
    pub trace: Option<TraceContext>,
}

/// A worker's hold on a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Who holds it.
    pub worker: WorkerId,
    /// The acquire that took it.
    pub request: RequestId,
    /// Until when, unless renewed.
    pub until: Timestamp,
}

/// One chain that a job waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocker {
    /// The chain.
    pub chain: ChainId,
    /// Whether the job waits for it no longer.
    pub resolved: bool,
    /// The trace context of the wait.
    pub trace: Option<TraceContext>,
}

/// One stored chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRecord {
    /// Its id: its first job's.
    pub id: ChainId,
    /// Its first job's type.
    pub chain_type: TypeName,
    /// The key it was created with.
    pub key: Option<ChainKey>,
    /// How long it stays after it closed.
    pub retention: Retention,
    /// When it was created.
    pub created_at: Timestamp,
    /// When and how it closed; none while it is open.
    pub closed: Option<Closed>,
    /// The trace context it was created in.
    pub trace: Option<TraceContext>,
    /// Its first job.
    pub first: JobRecord,
    /// Its latest job: the first one's equal while there is no other.
    pub latest: JobRecord,
}

impl ChainRecord {
    /// Where it stands: its latest job's status.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.latest.status
    }

    /// What it gave, once completed.
    #[must_use]
    pub const fn output(&self) -> Option<&Payload> {
        self.latest.output.as_ref()
    }
}

/// The key of a chain and the terms on which it is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainKey {
    /// The key.
    pub key: Key,
    /// Which outcomes hold it.
    pub hold: KeyHold,
    /// It is held no longer than this after the chain's creation.
    pub window: Option<Millis>,
    /// Whether the key still points at this chain: until it leaves or another chain takes the key. Whether it
    /// keeps another chain from being created is a matter of `hold` and `window`.
    pub held: bool,
}

/// When and how a chain closed, and until when it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Closed {
    /// When.
    pub at: Timestamp,
    /// How.
    pub closed_as: ClosedAs,
    /// It leaves after this time, unless a job that is open or failed still needs it.
    pub retain_until: Timestamp,
}

/// One ended or current attempt of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Its number. A release or reschedule gives the number back, so that two records may share one.
    pub attempt: u32,
    /// Its fence.
    pub fence: Fence,
    /// Who made it.
    pub worker: WorkerId,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended; none while it runs.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub end: AttemptEnd,
    /// Its error.
    pub error: Option<ErrorText>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptEnd {
    /// It runs.
    Running,
    /// The job completed.
    Completed,
    /// The job handed over to a continuation.
    Continued,
    /// It failed, and the job was put back to be tried again.
    Retried,
    /// It asked to be run again at another time, uncounted.
    Rescheduled,
    /// The job failed for good.
    Failed,
    /// It failed, and it was the last attempt of the job's maximum.
    Exhausted,
    /// The worker gave it back, uncounted.
    Released,
    /// Its lease expired.
    Reaped,
    /// The job was cancelled.
    Cancelled,
    /// The job was completed from outside while the attempt ran.
    Displaced,
}
