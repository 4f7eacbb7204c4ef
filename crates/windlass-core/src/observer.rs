//! The observer: told what happened.

mod log;

use std::fmt;
use std::time::Duration;

pub use log::Log;

use crate::id::{ChainId, JobId, WorkerId};
use crate::name::{ErrorText, Key, TraceContext, TypeName};
use crate::record::ClosedAs;
use crate::time::Timestamp;

/// Is told what happens to jobs, chains and workers; logs, metrics, spans and subscriptions derive from it.
///
/// Events that claim a write arrive after its commit, and never if it was rolled back (to a savepoint too).
/// The others arrive at once. An observer must not block, and what it does never harms the work.
pub trait Observer: Send + Sync + fmt::Debug + 'static {
    /// Something happened.
    fn observe(&self, event: &Event);

    /// Whether it wants to be told at all at the moment. Events that nobody wants are not made.
    fn is_on(&self) -> bool {
        true
    }

    /// Asked before something is written: the trace context to store with it. Replies bring the stored ones
    /// back.
    fn trace_context(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        let _ = (traced, about);
        None
    }

    /// What [`trace_context`](Self::trace_context) was asked about was rolled back: its spans can end.
    fn rolled_back(&self, traced: Traced, about: &About) {
        let _ = (traced, about);
    }
}

/// What a trace context is stored with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traced {
    /// The chain that the job starts.
    Chain,
    /// The job.
    Job,
    /// The job's wait for this chain.
    Wait(ChainId),
}

/// An observer that looks away.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn observe(&self, _: &Event) {}

    fn is_on(&self) -> bool {
        false
    }
}

/// The job that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The job.
    pub job: JobId,
    /// Its type.
    pub job_type: TypeName,
    /// Its chain.
    pub chain: ChainId,
    /// Its chain's type.
    pub chain_type: TypeName,
    /// Its chain's key, where it is known: not of a job that was reaped or closed with others.
    pub key: Option<Key>,
    /// The attempt, if there is one.
    pub attempt: Option<u32>,
    /// The worker, if there is one.
    pub worker: Option<WorkerId>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A worker started.
    WorkerStarted(WorkerId),
    /// A worker's loop met an error and goes on.
    WorkerFailed(WorkerId, ErrorText),
    /// A worker takes no more jobs.
    WorkerStopping(WorkerId),
    /// A worker stopped.
    WorkerStopped(WorkerId),
    /// A chain was created.
    ChainCreated(About),
    /// A job was created.
    JobCreated(About),
    /// A job waits for blockers.
    JobBlocked(About),
    /// A job waits no longer.
    JobUnblocked(About),
    /// A job was made due at once.
    JobTriggered(About),
    /// An attempt started.
    AttemptStarted(About),
    /// A lease was renewed.
    LeaseRenewed(About),
    /// An attempt took longer than its type's timeout: it is told to stop, and its lease is renewed no longer.
    AttemptTimedOut(About),
    /// An attempt found that it had lost its job.
    AttemptLost(About),
    /// An attempt failed; the job is tried again at this time.
    AttemptFailed(About, ErrorText, Timestamp),
    /// An attempt asked to be run again at this time.
    AttemptRescheduled(About, Timestamp),
    /// An attempt was given back uncounted.
    AttemptReleased(About),
    /// An attempt's lease expired: its job was put back, or failed if that was its last attempt.
    AttemptReaped(About),
    /// A job completed; its chain goes on with this one, if any.
    JobCompleted(About, Option<JobId>),
    /// A job failed for good.
    JobFailed(About, ErrorText),
    /// A job was cancelled.
    JobCancelled(About),
    /// A chain closed.
    ChainClosed(About, ClosedAs),
    /// A failed chain was opened again.
    ChainRetried(About),
    /// A chain was deleted.
    ChainDeleted(ChainId, TypeName),
    /// A chain's retention was over.
    ChainExpired(ChainId, TypeName),
    /// A handler held the transaction that ends its job open for so long.
    TransactionLong(About, Duration),
    /// A middleware failed after the attempt's end was written.
    MiddlewareFailed(About, ErrorText),
    /// A hook after execution failed: the job ends as if there were none.
    HookFailed(About, ErrorText),
    /// A store's command failed.
    StoreFailed(&'static str, ErrorText),
    /// A notifier's call failed.
    NotifierFailed(&'static str, ErrorText),
}
