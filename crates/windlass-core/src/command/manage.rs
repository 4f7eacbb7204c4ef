use crate::command::check_items;
use crate::command::create::JobSummary;
use crate::command::work::Ripple;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId, Version, WorkerId};
use crate::job::Job;
use crate::name::{Key, TypeName};
use crate::record::{ChainRecord, ClosedAs, Status};
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// Identifies a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The chain with this id.
    Chain(ChainId),
    /// The chain of this job. A trigger applies to this job itself.
    Job(JobId),
    /// The chain that this key of this chain type points at.
    Key(TypeName, Key),
}

impl Target {
    /// Returns the target for the chain of type `J` that `key` points at.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the key or the name of `J` is invalid.
    pub fn key<J: Job>(key: impl AsRef<str>) -> Result<Self> {
        Ok(Self::Key(TypeName::of::<J>()?, Key::new(key)?))
    }
}

impl From<ChainId> for Target {
    fn from(chain: ChainId) -> Self {
        Self::Chain(chain)
    }
}

/// Request to cancel chains. See [`Store::cancel`](crate::Store::cancel).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The chains to cancel.
    pub chains: Vec<Target>,
    /// What to do with a running chain.
    pub mode: CancelMode,
}

/// What a cancel does with a running job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CancelMode {
    /// Leaves the job alone. The default.
    #[default]
    UnlessRunning,
    /// Asks the job to stop. The chain stays open until the attempt is settled or reaped.
    Ask,
}

/// The reply to [`Cancel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelReply {
    /// The result for each chain.
    pub chains: Vec<Cancelled>,
    /// The jobs that were unblocked and the chains that were closed.
    pub ripple: Ripple,
}

/// The result of a cancel for one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The chain is cancelled. The reply's `ripple` lists it among the closed chains.
    Cancelled {
        /// The chain's id.
        chain: ChainId,
        /// The chain's latest job.
        job: JobId,
    },
    /// The chain is running and was asked to stop.
    Asked {
        /// The chain's id.
        chain: ChainId,
        /// The running job.
        job: JobId,
        /// The worker that runs the job.
        worker: WorkerId,
    },
    /// The chain is running and was left alone.
    Running {
        /// The chain's id.
        chain: ChainId,
    },
    /// The chain was already closed.
    Closed {
        /// The chain's id.
        chain: ChainId,
        /// How the chain ended.
        closed_as: ClosedAs,
    },
    /// The chain is not stored.
    NotFound,
    /// Another open transaction has locked the row. Try again.
    Busy,
}

/// Request to make pending jobs due now. See [`Store::trigger`](crate::Store::trigger).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The jobs to trigger. For a chain, its latest job.
    pub jobs: Vec<Target>,
}

/// The reply to [`Trigger`]: either all jobs were triggered, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerReply {
    /// All jobs are due now, in the order of the request.
    Triggered(Vec<Triggered>),
    /// Nothing was written. For each target: why it cannot be triggered, or `None` if it could be.
    Refused(Vec<Option<Untriggerable>>),
}

/// A job that was triggered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Triggered {
    /// The job and its new due time.
    pub job: JobSummary,
    /// The job's type.
    pub job_type: TypeName,
    /// The type of the job's chain.
    pub chain_type: TypeName,
}

/// Why a job cannot be triggered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untriggerable {
    /// The job or chain is not stored.
    NotFound,
    /// The job is not pending.
    NotPending(Status),
    /// Another open transaction has locked the row. Try again.
    Busy,
}

/// Request to reopen chains that failed or were cancelled. See [`Store::retry`](crate::Store::retry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The chains to reopen, each identified by its closed job.
    pub chains: Vec<RetryTarget>,
}

/// A chain to reopen, identified by the job that failed or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryTarget {
    /// The failed or cancelled job.
    pub job: JobId,
    /// The job's version when the caller read it. It prevents a repeated call from retrying twice.
    pub version: Version,
}

/// The reply to [`Retry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryReply {
    /// The result for each chain.
    pub chains: Vec<Retried>,
    /// See [`Ripple::deferred`].
    pub deferred: bool,
}

/// The result of retrying one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retried {
    /// The chain is open again.
    Retried {
        /// The job, pending or blocked.
        job: JobSummary,
        /// The job's type.
        job_type: TypeName,
        /// The type of the job's chain.
        chain_type: TypeName,
    },
    /// The failure or cancellation that the caller saw has already been retried.
    AlreadyRetried,
    /// The job has neither failed nor been cancelled.
    NotRetriable(Status),
    /// The job is not stored.
    NotFound,
    /// The chain cannot be retried: another chain holds its key, or a blocker is no longer stored or has
    /// failed.
    Refused(Refusal),
    /// Another open transaction has locked the row. Try again.
    Busy,
}

/// Request to remove chains. See [`Store::delete`](crate::Store::delete).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// The chains to remove.
    pub chains: Vec<Target>,
    /// Whether to also remove the chains that the removed jobs wait or waited for, recursively.
    pub cascade: bool,
    /// The states of the chains as the caller has read them: the latest job of each chain. If set, the command is refused
    /// if one of the chains to remove is in another state. Default: remove the chains in any state.
    pub seen: Option<Vec<SeenJob>>,
}

/// The latest job of a chain, as the caller has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenJob {
    /// The job.
    pub job: JobId,
    /// The job's version.
    pub version: Version,
}

impl From<&ChainRecord> for SeenJob {
    fn from(chain: &ChainRecord) -> Self {
        Self { job: chain.latest.id, version: chain.latest.version }
    }
}

/// The reply to [`Delete`]: either all chains were removed, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteReply {
    /// All targets that were stored are removed.
    Deleted(Deleted),
    /// Nothing was removed.
    Refused(Vec<Refusal>),
    /// Another open transaction has locked a row. Try again.
    Busy,
}

/// The chains that a delete removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The removed chains, targets first and in the order of the request.
    pub chains: Vec<DeletedChain>,
}

/// A removed chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedChain {
    /// The chain's id.
    pub chain: ChainId,
    /// The chain's type.
    pub chain_type: TypeName,
    /// The chain's status before it was removed.
    pub status: Status,
    /// The job that was running and its worker, which should be notified.
    pub running: Option<(JobId, WorkerId)>,
}

/// Request to change how long closed chains are kept. See
/// [`Store::set_retention`](crate::Store::set_retention).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRetention {
    /// The chains.
    pub chains: Vec<Target>,
    /// How long to keep the chains, counted from now.
    pub retention: Millis,
}

/// The reply to [`SetRetention`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRetentionReply {
    /// The result for each chain.
    pub chains: Vec<RetentionSet>,
}

/// The result of changing the retention of one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionSet {
    /// The chain is kept until this time.
    Until(Timestamp),
    /// The chain is open; nothing was changed.
    NotClosed,
    /// The chain is not stored.
    NotFound,
    /// Another open transaction has locked the row. Try again.
    Busy,
}

/// Request to pause or resume job types. See [`Store::pause`](crate::Store::pause).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The job types.
    pub types: Vec<TypeName>,
    /// Whether to pause the types (`true`) or resume them (`false`).
    pub paused: bool,
}

/// The reply to [`Pause`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseReply {
    /// For each type, whether it was paused before.
    pub were_paused: Vec<bool>,
}

/// Request to remove chains and jobs whose retention has ended. See [`Store::expire`](crate::Store::expire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expire {
    /// The maximum number of jobs to remove. At least 2, because the first and the latest job of a chain are
    /// removed together.
    pub max: u32,
}

impl Expire {
    /// Checks `max` against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `max` is less than 2 or too large.
    pub fn check(&self) -> Result<()> {
        if self.max < 2 {
            let text = format!("max jobs to expire must be at least 2, got {}", self.max);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        check_items("jobs to expire", self.max as usize)
    }
}

/// The reply to [`Expire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpireReply {
    /// The removed chains.
    pub chains: Vec<Expired>,
    /// The number of removed jobs, including those removed from chains that remain.
    pub jobs: u32,
    /// Whether there may be more to remove. If so, call again.
    pub more: bool,
}

/// A chain that was removed because its retention ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The chain's id.
    pub chain: ChainId,
    /// The chain's type.
    pub chain_type: TypeName,
    /// How the chain ended.
    pub closed_as: ClosedAs,
}
