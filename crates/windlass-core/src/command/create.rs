use crate::command::Size;
use crate::error::Result;
use crate::id::{ChainId, JobId};
use crate::limit::BLOCKERS_MAX;
use crate::name::{ErrorText, Key, TraceContext, TypeName};
use crate::payload::Payload;
use crate::record::{KeyHold, OnBlockerFailure, Retention, Status};
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// Request to start chains. See [`Store::create`](crate::Store::create).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The chains to start, in order.
    pub chains: Vec<NewChain>,
}

/// A chain to start, with its first job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChain {
    /// A new id. The caller chooses it, so that a repeated command is recognized.
    pub id: ChainId,
    /// The first job.
    pub job: NewJob,
    /// The deduplication key.
    pub key: Option<NewKey>,
    /// How long the chain is kept after it closes.
    pub retention: Retention,
    /// The trace context of the chain.
    pub trace: Option<TraceContext>,
}

/// A job to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// The job's type.
    pub job_type: TypeName,
    /// The job's input.
    pub input: Payload,
    /// When the job is due.
    pub schedule: DueTime,
    /// The priority: jobs with higher priority run first. Default: 0.
    pub priority: i8,
    /// The maximum number of attempts: the last one's failure is final. `None` means no limit.
    pub max_attempts: Option<u32>,
    /// The chains that the job waits for.
    pub blockers: Vec<NewBlocker>,
    /// What the job does when a blocker fails or is cancelled.
    pub on_blocker_failure: OnBlockerFailure,
    /// The trace context of the job.
    pub trace: Option<TraceContext>,
}

impl NewJob {
    /// Creates a job that is due immediately, with default settings.
    #[must_use]
    pub fn new(job_type: TypeName, input: Payload) -> Self {
        Self {
            job_type,
            input,
            schedule: DueTime::Now,
            priority: 0,
            max_attempts: None,
            blockers: Vec::new(),
            on_blocker_failure: OnBlockerFailure::default(),
            trace: None,
        }
    }

    /// Validates the job without access to the store. Every store calls this before it writes.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] if `max_attempts` is 0 or if there are too many blockers.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.max_attempts == Some(0) {
            return Err(Refusal::NoAttempts);
        }
        if self.blockers.len() > BLOCKERS_MAX {
            return Err(Refusal::TooManyBlockers);
        }
        Ok(())
    }

    pub(crate) fn size(&self) -> Size {
        Size { items: 1, bytes: self.input.bytes().len(), blockers: self.blockers.len() }
    }
}

impl NewChain {
    /// Creates a chain that has only a first job: no key, default retention.
    #[must_use]
    pub fn new(id: ChainId, job: NewJob) -> Self {
        Self { id, job, key: None, retention: Retention::default(), trace: None }
    }

    /// Validates the chain without access to the store. Every store calls this before it writes.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] if the first job is invalid, or if the chain is its own blocker.
    pub fn check(&self) -> Result<(), Refusal> {
        self.job.check()?;
        match self.job.blockers.iter().find(|blocker| blocker.chain == self.id) {
            Some(blocker) => Err(Refusal::WaitsForItself(blocker.chain)),
            None => Ok(()),
        }
    }
}

impl Create {
    /// Checks the size of the batch. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the batch exceeds a limit.
    pub fn check(&self) -> Result<()> {
        let size = self.chains.iter().fold(Size::default(), |size, chain| size.and(chain.job.size()));
        size.check("chains")
    }
}

/// When a job is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DueTime {
    /// Immediately.
    #[default]
    Now,
    /// At this time, or now if the time has passed. A time in the past does not move the job ahead of jobs
    /// that are already due.
    At(Timestamp),
    /// After this delay.
    After(Millis),
}

impl DueTime {
    /// Returns the due time: never earlier than `now`.
    #[must_use]
    pub fn due(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::At(at) => at.max(now),
            Self::After(delay) => now + delay,
        }
    }
}

/// A blocker: a chain that a new job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBlocker {
    /// A stored chain, or a chain earlier in the same command. If creating the earlier chain returned an
    /// existing chain with the same key, the job waits for that existing chain.
    pub chain: ChainId,
    /// The trace context of the wait.
    pub trace: Option<TraceContext>,
}

impl From<ChainId> for NewBlocker {
    fn from(chain: ChainId) -> Self {
        Self { chain, trace: None }
    }
}

/// A deduplication key. Keys are scoped to a chain type: chains of two types may use the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    /// The key.
    pub key: Key,
    /// Which outcomes hold the key after the chain has closed.
    pub hold: KeyHold,
    /// The maximum time that the key is held, counted from the chain's creation. `None` means no maximum.
    pub window: Option<Millis>,
    /// If this chain holds the key, the new chain takes over the key.
    pub replaces: Option<ChainId>,
}

impl NewKey {
    /// Creates a key that is held while its chain is open.
    #[must_use]
    pub const fn new(key: Key) -> Self {
        Self { key, hold: KeyHold::Open, window: None, replaces: None }
    }
}

/// The reply to [`Create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateReply {
    /// The result for each chain.
    pub chains: Vec<Created>,
    /// How durable the write is when the reply arrives.
    pub durability: Durability,
    /// See [`Ripple::deferred`](crate::command::Ripple::deferred).
    pub deferred: bool,
}

/// The result of creating one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The chain is stored.
    New {
        /// The first job as created; or, on a repeated call, the current state of the latest job.
        job: JobSummary,
        /// Whether an earlier call already stored the chain.
        repeated: bool,
    },
    /// Another chain holds the key. Nothing was written.
    Existing(Existing),
    /// Another open transaction has locked a row that decides the result. Nothing was written. Try again, and
    /// replace each blocker that turned out to be [`Existing`](Self::Existing) with the existing chain.
    Busy,
    /// The chain was refused. Nothing was written.
    Refused(Refusal),
}

impl Created {
    /// Returns the stored chain: the new one or the existing one.
    #[must_use]
    pub const fn chain(&self) -> Option<ChainId> {
        match self {
            Self::New { job, .. } => Some(job.chain),
            Self::Existing(existing) => Some(existing.chain),
            Self::Busy | Self::Refused(_) => None,
        }
    }
}

/// A job with its current status and due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSummary {
    /// The job's id.
    pub job: JobId,
    /// The job's chain.
    pub chain: ChainId,
    /// The job's status.
    pub status: Status,
    /// The time at which the job is due.
    pub due_at: Timestamp,
}

/// The chain that holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// The chain's id.
    pub chain: ChainId,
    /// The chain's status.
    pub status: Status,
    /// The type of the chain's latest job, which determines the type of `output`.
    pub job_type: TypeName,
    /// The chain's output, if it has completed.
    pub output: Option<Payload>,
    /// The latest job's error.
    pub error: Option<ErrorText>,
    /// The chain's trace context.
    pub trace: Option<TraceContext>,
}

/// How durable a write is when it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Lost when the process ends.
    Volatile,
    /// Survives a crash of the process, but possibly not a power failure.
    Buffered,
    /// Written to the store's disk.
    Synced,
    /// Also written to this many other machines.
    Replicated(u32),
}
