//! The [`Observer`] trait: receives lifecycle events.

mod log;

use std::fmt;
use std::time::Duration;

pub use log::Log;

use crate::id::{ChainId, JobId, WorkerId};
use crate::name::{ErrorText, Key, TraceContext, TypeName, WorkerName};
use crate::record::ClosedAs;
use crate::time::Timestamp;

/// Receives the lifecycle events of jobs, chains and workers. Logs, metrics, spans and event subscriptions
/// are based on it.
///
/// An event that reports a write arrives after the write has been committed, and never if it was rolled back,
/// even to a savepoint. All other events arrive immediately. An observer must not block. Its panics are
/// caught and never affect jobs.
pub trait Observer: Send + Sync + fmt::Debug + 'static {
    /// Receives an event.
    fn observe(&self, event: &Event);

    /// Whether the observer currently wants events. If no observer or subscriber wants them, events are not
    /// created. An observer that returns `false` may still receive events that others want.
    fn is_on(&self) -> bool {
        true
    }

    /// Returns the trace context to store with a new chain, job or wait. Called before the write. Replies
    /// return the stored context.
    fn trace_context(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        let _ = (traced, about);
        None
    }

    /// Called if the write that [`trace_context`](Self::trace_context) was called for did not happen. Spans
    /// for it can end.
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

/// An observer that ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn observe(&self, _: &Event) {}

    fn is_on(&self) -> bool {
        false
    }
}

/// The job that an event concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// The job's id.
    pub job: JobId,
    /// The job's type.
    pub job_type: TypeName,
    /// The job's chain.
    pub chain: ChainId,
    /// The type of the job's chain.
    pub chain_type: TypeName,
    /// The chain's key, if known. Unknown for a job that was reaped, or that was closed as a consequence of
    /// another command.
    pub key: Option<Key>,
    /// The number of the attempt, if the event concerns one.
    pub attempt: Option<u32>,
    /// The worker, if the event concerns one.
    pub worker: Option<WorkerId>,
    /// The worker's name, if it has one and the event comes from the worker itself.
    pub worker_name: Option<WorkerName>,
}

/// The worker that an event concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AboutWorker {
    /// The worker's id.
    pub id: WorkerId,
    /// The worker's name, if it has one.
    pub name: Option<WorkerName>,
}

/// A lifecycle event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A worker started.
    WorkerStarted(AboutWorker),
    /// A worker's main loop encountered an error. The worker continues.
    WorkerFailed(AboutWorker, ErrorText),
    /// A worker is stopping and acquires no more jobs.
    WorkerStopping(AboutWorker),
    /// A worker stopped.
    WorkerStopped(AboutWorker),
    /// A chain was created.
    ChainCreated(About),
    /// A job was created.
    JobCreated(About),
    /// A job waits for blockers.
    JobBlocked(About),
    /// A job no longer waits for blockers.
    JobUnblocked(About),
    /// A job still waits for this chain, although the chain failed or was cancelled. The job runs once the chain
    /// has been retried and completes.
    ///
    /// The client whose command closed the chain reports this, after it has queried the store for the waiting
    /// jobs. The event is lost if the process is killed in between. A job that is created later is not reported.
    BlockerFailed(About, ChainId, ClosedAs),
    /// A job was made due immediately.
    JobTriggered(About),
    /// An attempt started.
    AttemptStarted(About),
    /// A lease was renewed.
    LeaseRenewed(About),
    /// An attempt exceeded the timeout of its job type. It is asked to stop, and its lease is no longer
    /// renewed.
    AttemptTimedOut(About),
    /// An attempt no longer holds its job.
    AttemptLost(About),
    /// A worker acquired a job for which it has no handler. The worker reschedules the job.
    HandlerMissing(About),
    /// An attempt failed. The job is retried at this time.
    AttemptFailed(About, ErrorText, Timestamp),
    /// An attempt rescheduled its job to this time. The attempt does not count.
    AttemptRescheduled(About, Timestamp),
    /// The worker requeued the job because it was stopping. The attempt does not count.
    AttemptReleased(About),
    /// The lease of an attempt expired. The job was requeued, failed if this was its last attempt, or
    /// cancelled if it was asked to stop.
    AttemptReaped(About),
    /// A job completed. If the chain continues, has the id of the next job.
    JobCompleted(About, Option<JobId>),
    /// A job failed, without further attempts.
    JobFailed(About, ErrorText),
    /// A job was cancelled.
    JobCancelled(About),
    /// A chain closed.
    ChainClosed(About, ClosedAs),
    /// A failed or cancelled chain was reopened.
    ChainRetried(About),
    /// A chain was deleted.
    ChainDeleted(ChainId, TypeName),
    /// A chain was removed because its retention ended.
    ChainExpired(ChainId, TypeName),
    /// A handler kept the transaction that ends its job open for this long: 5 s or longer.
    TransactionLong(About, Duration),
    /// A middleware failed after the outcome of the attempt had been written.
    MiddlewareFailed(About, ErrorText),
    /// A hook that runs after the handler failed. The job ends as if there were no hook.
    HookFailed(About, ErrorText),
    /// A store command failed. Has the name of the command.
    StoreFailed(&'static str, ErrorText),
    /// A call to the notifier failed. Has the name of the call.
    NotifierFailed(&'static str, ErrorText),
}
