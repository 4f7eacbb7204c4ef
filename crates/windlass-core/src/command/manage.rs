use crate::command::check_items;
use crate::command::create::Placed;
use crate::command::work::Ripple;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId, Version, WorkerId};
use crate::job::Job;
use crate::name::{Key, TypeName};
use crate::record::{ClosedAs, Status};
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// Names a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// By its id.
    Chain(ChainId),
    /// By one of its jobs. Trigger means this very job.
    Job(JobId),
    /// By the key that points at it.
    Key(TypeName, Key),
}

impl Target {
    /// The chain of type `J` that this key points at.
    pub fn key<J: Job>(key: impl AsRef<str>) -> Result<Self> {
        Ok(Self::Key(TypeName::of::<J>()?, Key::new(key)?))
    }
}

impl From<ChainId> for Target {
    fn from(chain: ChainId) -> Self {
        Self::Chain(chain)
    }
}

/// Calls chains off. See [`Store::cancel`](crate::Store::cancel).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The chains.
    pub chains: Vec<Target>,
    /// What to do with one that runs.
    pub mode: CancelMode,
}

/// What a cancel does with a running job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CancelMode {
    /// Leaves it alone. The default.
    #[default]
    UnlessRunning,
    /// Asks it to stop. Its chain stays open until the attempt is settled or reaped.
    Ask,
}

/// The reply to [`Cancel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelReply {
    /// What became of each.
    pub chains: Vec<Cancelled>,
    /// What followed.
    pub ripple: Ripple,
}

/// What became of a chain to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled; see the reply's ripple for what belongs to it.
    Cancelled {
        /// The chain.
        chain: ChainId,
        /// Its latest job.
        job: JobId,
    },
    /// It runs and was asked to stop.
    Asked {
        /// The chain.
        chain: ChainId,
        /// Its running job.
        job: JobId,
        /// Who runs it.
        worker: WorkerId,
    },
    /// It runs and was left alone.
    Running {
        /// The chain.
        chain: ChainId,
    },
    /// It had closed before.
    Closed {
        /// The chain.
        chain: ChainId,
        /// How.
        closed_as: ClosedAs,
    },
    /// There is no such chain.
    NotFound,
    /// Somebody's open transaction has the row: try it again.
    Busy,
}

/// Makes pending jobs due at once. See [`Store::trigger`](crate::Store::trigger).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The jobs, or the chains whose latest job is meant.
    pub jobs: Vec<Target>,
}

/// The reply to [`Trigger`]: all, or none and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerReply {
    /// All are due now, in the order given.
    Triggered(Vec<Triggered>),
    /// Nothing was written. For each target, why it stood in the way, or none.
    Refused(Vec<Option<Untriggerable>>),
}

/// A job that is due now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Triggered {
    /// The job.
    pub job: Placed,
    /// Its type.
    pub job_type: TypeName,
    /// Its chain's type.
    pub chain_type: TypeName,
}

/// Why a job cannot be triggered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untriggerable {
    /// There is no such job.
    NotFound,
    /// It is not pending.
    NotPending(Status),
    /// Somebody's open transaction has the row: try it again.
    Busy,
}

/// Reopens chains that failed or were cancelled. See [`Store::retry`](crate::Store::retry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The chains, by their closed jobs.
    pub chains: Vec<RetryTarget>,
}

/// A chain to reopen, named by the job that failed or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryTarget {
    /// The job that the caller looked at.
    pub job: JobId,
    /// Its version then, so that a repeated call does not retry twice.
    pub version: Version,
}

/// The reply to [`Retry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryReply {
    /// What became of each.
    pub chains: Vec<Retried>,
    /// See [`Ripple::deferred`].
    pub deferred: bool,
}

/// What became of a chain to retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retried {
    /// It is open again.
    Retried {
        /// The job, pending or blocked.
        job: Placed,
        /// Its type.
        job_type: TypeName,
        /// Its chain's type.
        chain_type: TypeName,
    },
    /// The end that the caller saw was retried before.
    AlreadyRetried,
    /// The job has neither failed nor was it cancelled.
    NotRetriable(Status),
    /// There is no such job.
    NotFound,
    /// It cannot be retried: its key was taken, or a blocker is gone or failed.
    Refused(Refusal),
    /// Somebody's open transaction has the row: try it again.
    Busy,
}

/// Removes chains. See [`Store::delete`](crate::Store::delete).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// The chains.
    pub chains: Vec<Target>,
    /// Also the chains that they wait for or waited for, and so on.
    pub cascade: bool,
}

/// The reply to [`Delete`]: all, or none and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteReply {
    /// All that were stored are gone.
    Deleted(Deleted),
    /// Nothing was deleted.
    Refused(Vec<Refusal>),
    /// Somebody's open transaction has a row: try again.
    Busy,
}

/// What a delete removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The chains, the targets first and in their order.
    pub chains: Vec<DeletedChain>,
}

/// A chain that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedChain {
    /// The chain.
    pub chain: ChainId,
    /// Its type.
    pub chain_type: TypeName,
    /// Where it stood.
    pub status: Status,
    /// Its job that was running, and the worker that is to be told.
    pub running: Option<(JobId, WorkerId)>,
}

/// Changes how long closed chains stay. See [`Store::set_retention`](crate::Store::set_retention).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRetention {
    /// The chains.
    pub chains: Vec<Target>,
    /// How long from now.
    pub retention: Millis,
}

/// The reply to [`SetRetention`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRetentionReply {
    /// What became of each.
    pub chains: Vec<RetentionSet>,
}

/// What became of a chain whose retention was to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionSet {
    /// It stays until this time.
    Until(Timestamp),
    /// It is open.
    NotClosed,
    /// There is no such chain.
    NotFound,
    /// Somebody's open transaction has the row: try it again.
    Busy,
}

/// Stops or resumes the acquiring of types. See [`Store::pause`](crate::Store::pause).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The types.
    pub types: Vec<TypeName>,
    /// Whether they are to be paused.
    pub paused: bool,
}

/// The reply to [`Pause`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseReply {
    /// For each type whether it had been paused before.
    pub were_paused: Vec<bool>,
}

/// Removes what is kept no longer. See [`Store::expire`](crate::Store::expire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expire {
    /// At most this many jobs; 2 at least, since a chain's first and latest job leave together.
    pub max: u32,
}

impl Expire {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        if self.max < 2 {
            return Err(Error::new(ErrorKind::Invalid, "expire at least 2 jobs at once"));
        }
        check_items("jobs to expire", self.max as usize)
    }
}

/// The reply to [`Expire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpireReply {
    /// The chains that are gone.
    pub chains: Vec<Expired>,
    /// How many jobs went with them or out of long chains.
    pub jobs: u32,
    /// Whether there may be more to remove: call again.
    pub more: bool,
}

/// A chain that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The chain.
    pub chain: ChainId,
    /// Its type.
    pub chain_type: TypeName,
    /// How it had closed.
    pub closed_as: ClosedAs,
}
