use crate::command::Size;
use crate::error::Result;
use crate::id::{ChainId, JobId};
use crate::limit::BLOCKERS_MAX;
use crate::name::{ErrorText, Key, TraceContext, TypeName};
use crate::payload::Payload;
use crate::record::{KeyHold, OnBlockerFailure, Retention, Status};
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// Starts chains. See [`Store::create`](crate::Store::create).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The chains, in order.
    pub chains: Vec<NewChain>,
}

/// A chain to start, with its first job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChain {
    /// A fresh id, chosen by the caller so that the command can be repeated.
    pub id: ChainId,
    /// Its first job.
    pub job: NewJob,
    /// Its deduplication key.
    pub key: Option<NewKey>,
    /// How long it stays after it closed.
    pub retention: Retention,
    /// The trace context of the chain.
    pub trace: Option<TraceContext>,
}

/// A job to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Its type.
    pub job_type: TypeName,
    /// What it takes.
    pub input: Payload,
    /// When it may run.
    pub schedule: Schedule,
    /// Higher runs first; 0 is the default.
    pub priority: i8,
    /// After this many attempts a failure is final; no limit if none.
    pub max_attempts: Option<u32>,
    /// The chains it waits for.
    pub blockers: Vec<NewBlocker>,
    /// What it does when one of them does not complete.
    pub on_blocker_failure: OnBlockerFailure,
    /// The trace context of the job.
    pub trace: Option<TraceContext>,
}

impl NewJob {
    /// A job that may run at once, with the defaults.
    #[must_use]
    pub fn new(job_type: TypeName, input: Payload) -> Self {
        Self {
            job_type,
            input,
            schedule: Schedule::Now,
            priority: 0,
            max_attempts: None,
            blockers: Vec::new(),
            on_blocker_failure: OnBlockerFailure::default(),
            trace: None,
        }
    }

    /// Checks what can be checked without the store. Every store does so before it writes.
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
    /// A chain with nothing but a first job.
    #[must_use]
    pub fn new(id: ChainId, job: NewJob) -> Self {
        Self { id, job, key: None, retention: Retention::default(), trace: None }
    }

    /// Checks what can be checked without the store. Every store does so before it writes.
    pub fn check(&self) -> Result<(), Refusal> {
        self.job.check()?;
        match self.job.blockers.iter().find(|blocker| blocker.chain == self.id) {
            Some(blocker) => Err(Refusal::WaitsForItself(blocker.chain)),
            None => Ok(()),
        }
    }
}

impl Create {
    /// Refuses a batch over its limits. Every store does so first.
    pub fn check(&self) -> Result<()> {
        let size = self.chains.iter().fold(Size::default(), |size, chain| size.and(chain.job.size()));
        size.check("chains")
    }
}

/// When a job may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// At once.
    #[default]
    Now,
    /// At this time, or at once if it is past: an early time does not overtake jobs that are ready.
    At(Timestamp),
    /// After this delay.
    After(Millis),
}

impl Schedule {
    /// The time it means, never before `now`.
    #[must_use]
    pub fn due(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::At(at) => at.max(now),
            Self::After(delay) => now + delay,
        }
    }
}

/// A chain to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBlocker {
    /// A stored chain, or one that stands earlier in the same command. If that one turned out to exist under
    /// its key, the existing chain is meant.
    pub chain: ChainId,
    /// The trace context of the wait.
    pub trace: Option<TraceContext>,
}

impl From<ChainId> for NewBlocker {
    fn from(chain: ChainId) -> Self {
        Self { chain, trace: None }
    }
}

/// A deduplication key. It is its chain's type's: two types may use the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    /// The key.
    pub key: Key,
    /// Which outcomes hold it after the chain closed.
    pub hold: KeyHold,
    /// It is held no longer than this after the chain's creation.
    pub window: Option<Millis>,
    /// If exactly this chain holds the key, the new chain takes it over.
    pub replaces: Option<ChainId>,
}

impl NewKey {
    /// A key that is held while its chain is open.
    #[must_use]
    pub const fn new(key: Key) -> Self {
        Self { key, hold: KeyHold::Open, window: None, replaces: None }
    }
}

/// The reply to [`Create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateReply {
    /// What became of each chain.
    pub chains: Vec<Created>,
    /// How safe it is now.
    pub durability: Durability,
    /// See [`Ripple::deferred`](crate::command::Ripple::deferred).
    pub deferred: bool,
}

/// What became of a chain to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// It is stored.
    New {
        /// Its first job, as created; or, on a repeated call, its latest job as it stands now.
        job: Placed,
        /// Whether an earlier call had stored it already.
        repeated: bool,
    },
    /// Another chain holds its key. Nothing was written.
    Existing(Existing),
    /// Somebody's open transaction has a row that decides it: try it again, with [`Existing`](Self::Existing) chains in
    /// the place of the blockers that they stand for. Nothing was written.
    Busy,
    /// It was refused. Nothing was written.
    Refused(Refusal),
}

impl Created {
    /// The chain that is stored: the new one or the existing one.
    #[must_use]
    pub const fn chain(&self) -> Option<ChainId> {
        match self {
            Self::New { job, .. } => Some(job.chain),
            Self::Existing(existing) => Some(existing.chain),
            Self::Busy | Self::Refused(_) => None,
        }
    }
}

/// Where a job was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The job.
    pub job: JobId,
    /// Its chain.
    pub chain: ChainId,
    /// Where it stands.
    pub status: Status,
    /// Not before this time.
    pub due_at: Timestamp,
}

/// The chain that holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// The chain.
    pub chain: ChainId,
    /// Where it stands.
    pub status: Status,
    /// Its latest job's type, which its output is of.
    pub job_type: TypeName,
    /// Its output, once completed.
    pub output: Option<Payload>,
    /// Its latest job's error.
    pub error: Option<ErrorText>,
    /// Its trace context.
    pub trace: Option<TraceContext>,
}

/// How safe a write is when it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Gone with the process.
    Volatile,
    /// Survives the process, but perhaps not the machine's power.
    Buffered,
    /// On the store's disk.
    Synced,
    /// On this many further machines too.
    Replicated(u32),
}
