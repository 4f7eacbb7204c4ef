//! The [`Observer`] trait, which receives lifecycle events.

mod activity;
mod buffered;
mod log;
mod scope;

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub use activity::{Activity, StoreCall};
pub use buffered::Buffered;
pub use log::Log;
pub use scope::AttemptScope;

use crate::error::ErrorKind;
use crate::id::{ChainId, JobId, WorkerId};
use crate::name::{ErrorText, Key, TraceContext, TypeName, WorkerName};
use crate::record::{ClosedAs, JobRecord};
use crate::time::Timestamp;

/// Receives the lifecycle events of jobs, chains and workers. Logs, metrics, spans and event subscriptions
/// are based on it.
///
/// An event that reports a write arrives after the write has been committed. If the write is rolled back, even to a
/// savepoint, the event never arrives. All other events arrive immediately.
///
/// The client calls an observer on the thread that does the work, so an observer must not block. Wrap one that may block
/// in [`Buffered`]. The client catches panics of observers, so they never affect jobs.
///
/// [`observe`](Self::observe) receives events of jobs, chains and workers. [`measure`](Self::measure) receives activities
/// of the client itself, such as calls to the store. [`attempt`](Self::attempt) follows one attempt from its start to its
/// end.
pub trait Observer: Send + Sync + fmt::Debug + 'static {
    /// Receives an event.
    fn observe(&self, event: &Event);

    /// Returns whether the observer currently wants events. The client does not create events that no observer or
    /// subscriber wants. An observer that returns `false` may still receive events that others want.
    fn is_on(&self) -> bool {
        true
    }

    /// Returns the trace context to store with a new chain, job or wait. Called before the write. Later replies of the
    /// store contain this context.
    fn trace_context(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        let _ = (traced, about);
        None
    }

    /// Called if a write for which [`trace_context`](Self::trace_context) was called did not happen. End its spans here.
    /// `about` contains the ids, the types and the time, but no trace contexts. If it is unknown whether the write
    /// happened, the client calls [`unreported`](Self::unreported) instead.
    fn rolled_back(&self, traced: Traced, about: &About, why: NotWritten) {
        let _ = (traced, about, why);
    }

    /// Called instead of [`rolled_back`](Self::rolled_back) if nothing was written because the chain `existing` holds the
    /// key. `existing_trace` is the trace context that is stored with that chain. Default: calls `rolled_back`.
    fn existed(
        &self,
        traced: Traced,
        about: &About,
        existing: ChainId,
        existing_trace: Option<&TraceContext>,
    ) {
        let _ = (existing, existing_trace);
        self.rolled_back(traced, about, NotWritten::Existed);
    }

    /// Called if an item for which [`trace_context`](Self::trace_context) was called may be stored, but no event is
    /// expected to report it. These are the possible reasons:
    ///
    /// - An earlier call has already written the item.
    /// - The caller stopped waiting for the reply. An event may still follow.
    /// - The store did not answer, so it is unknown whether the write or the commit happened.
    /// - Its transaction reports no events, because no observer was [on](Self::is_on) when it began.
    ///
    /// End the spans of the item here. Default: does nothing.
    fn unreported(&self, traced: Traced, about: &About) {
        let _ = (traced, about);
    }

    /// Called when one call starts several chains, after their trace contexts were requested and before the write. When
    /// the call has ended, the client calls the returned function, with the kind of error if the call failed. If the caller
    /// stops waiting, the client drops the function. Called only while [`is_on`](Self::is_on) returns `true`.
    fn batch(&self, batch: &BatchStart<'_>) -> Option<BatchEnd> {
        let _ = batch;
        None
    }

    /// Called after [`Event::JobCreated`], if the job was created with blockers. If the observer returns a function, the
    /// client queries the chains in [`blockers`](AboutJob::blockers) in the background, and calls the function with the
    /// trace contexts that are stored with them. Return `None` if the contexts are not needed: a query costs a call to the
    /// store. If the query is not possible, the client drops the function. Called only while [`is_on`](Self::is_on)
    /// returns `true`.
    fn find_blockers(&self, about: &About) -> Option<BlockersFound> {
        let _ = about;
        None
    }

    /// Receives an activity of the client. Called only while [`is_on`](Self::is_on) returns `true`.
    fn measure(&self, activity: &Activity) {
        let _ = activity;
    }

    /// Returns whether the observer reads this event. The client asks each added observer once, when the client is
    /// built, and does not create an event that nobody reads. An observer that returns `false` may still receive the
    /// event. Default: `true`.
    fn wants(&self, event: Frequent) -> bool {
        let _ = event;
        true
    }

    /// Called when an attempt starts, before [`Event::AttemptStarted`]. The returned scope follows the attempt to its
    /// end. Called only while [`is_on`](Self::is_on) returns `true`.
    fn attempt(&self, about: &About) -> Option<Box<dyn AttemptScope>> {
        let _ = about;
        None
    }
}

/// A frequent event that repeats another call to the observer. See [`Observer::wants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frequent {
    /// [`Event::ChainCreated`]. The [`Event::JobCreated`] of the chain's first job follows it.
    ChainCreated,
    /// [`Event::AttemptStarted`]. [`Observer::attempt`] is called before it.
    AttemptStarted,
    /// [`Event::JobCompleted`] of a job that an attempt completed. [`AttemptScope::ended`] is called after it. An event
    /// without a worker is always created: no scope reports it.
    JobCompleted,
}

/// A call that starts several chains.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BatchStart<'a> {
    /// The number of chains.
    pub chains: usize,
    /// The type of the chains, if they all have the same type.
    pub chain_type: Option<&'a TypeName>,
    /// The trace contexts that will be stored with the chains.
    pub traces: Vec<&'a TraceContext>,
}

/// Called when the call described by a [`BatchStart`] has ended. Receives the kind of error if the call failed.
pub type BatchEnd = Box<dyn FnOnce(Option<ErrorKind>) + Send>;

/// Receives the trace contexts of a new job's blockers: of the chains that exist and have one.
pub type BlockersFound = Box<dyn FnOnce(&[BlockerTrace]) + Send>;

/// A chain that a new job waits for, and its trace context.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockerTrace {
    /// The chain's id.
    pub chain: ChainId,
    /// The chain's type.
    pub chain_type: TypeName,
    /// The trace context that is stored with the chain.
    pub trace: TraceContext,
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

/// Why an item was not written. See [`Observer::rolled_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotWritten {
    /// Its transaction was rolled back, or the part of it after a savepoint.
    RolledBack,
    /// The store refused the item, or the command failed, with this kind of error. A refused item has the kind
    /// [`Invalid`](ErrorKind::Invalid), and an item of an attempt that lost its job the kind
    /// [`LeaseLost`](ErrorKind::LeaseLost).
    Failed(ErrorKind),
    /// A chain with the same key exists. Only the default implementation of [`Observer::existed`] passes this.
    Existed,
}

impl NotWritten {
    /// Returns the reason for a command that failed. `None` if the write may have happened: the reply was lost or could not
    /// be read.
    pub(crate) const fn of(error: ErrorKind) -> Option<Self> {
        match error {
            ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::Corrupt => None,
            kind => Some(Self::Failed(kind)),
        }
    }
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

/// The job that an event concerns, and when it happened. All events of a job that one call reports, and all events of
/// an attempt, share one [`AboutJob`], so a clone copies little.
///
/// The fields of [`AboutJob`] are read as if they were fields of this type: `about.job_type`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    pub(crate) shared: Arc<AboutJob>,
    /// When the event happened, on the store's clock. The client estimates this time from the latest time that the
    /// store returned. Until the store has returned a time, the client uses this machine's clock.
    pub at: Timestamp,
    /// How long the job was due before the attempt started, if the event concerns an attempt of this process.
    pub waited: Option<Duration>,
    /// How long the attempt has run, if the event concerns an attempt of this process that has started.
    pub ran: Option<Duration>,
    /// The time since the job was created, if known.
    pub job_age: Option<Duration>,
    /// The time since the chain was created, if known.
    pub chain_age: Option<Duration>,
}

impl Deref for About {
    type Target = AboutJob;

    fn deref(&self) -> &AboutJob {
        &self.shared
    }
}

/// The part of [`About`] that does not change from one event to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AboutJob {
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
    /// How often the job has been acquired, including this attempt, if the event concerns an attempt of this process.
    /// Unlike `attempt`, this number also counts attempts that were rescheduled or released. It may be larger after the
    /// store's clock has gone back.
    pub delivery: Option<u64>,
    /// The worker, if the event concerns one.
    pub worker: Option<WorkerId>,
    /// The worker's name, if it has one and the event comes from the worker itself.
    pub worker_name: Option<WorkerName>,
    /// The trace context that is stored with the job, if known.
    pub trace: Option<TraceContext>,
    /// The trace context that is stored with the chain, if known.
    pub chain_trace: Option<TraceContext>,
    /// The chains that the job was created to wait for, if the event reports its creation.
    pub blockers: Vec<ChainId>,
    /// The trace contexts that are stored with the job's waits for its blockers, if known.
    pub wait_traces: Vec<TraceContext>,
    /// The trace contexts of the cause: the job that continued with this one, or the chains whose end unblocked it.
    pub cause_traces: Vec<TraceContext>,
}

impl About {
    /// Describes a job at this time of the store, without durations.
    pub(crate) const fn new(at: Timestamp, shared: Arc<AboutJob>) -> Self {
        Self { shared, at, waited: None, ran: None, job_age: None, chain_age: None }
    }

    /// Describes a job that was read from the store.
    pub(crate) fn of(at: Timestamp, job: &JobRecord) -> Self {
        Self {
            job_age: Some(at.since(job.created_at)),
            chain_age: (job.index == 0).then(|| at.since(job.created_at)),
            ..Self::new(at, Arc::new(AboutJob::of(job)))
        }
    }

    /// Returns the shared part to change it. Copies it first if other events share it.
    pub(crate) fn shared_mut(&mut self) -> &mut AboutJob {
        Arc::make_mut(&mut self.shared)
    }

    /// Describes a job at this time of the store, without durations. Uses the description that was
    /// [kept](Self::keep) on this thread, so that most events need no allocation.
    pub(crate) fn reuse(at: Timestamp, job: &Described<'_>) -> Self {
        let shared = match KEPT.try_with(Cell::take) {
            Ok(Some(mut kept)) => {
                Arc::make_mut(&mut kept).describe(job);
                kept
            }
            _ => {
                let names = (job.job_type.clone(), job.chain_type.clone());
                let mut new = AboutJob::new((job.job, names.0), (job.chain, names.1));
                new.describe(job);
                Arc::new(new)
            }
        };
        Self::new(at, shared)
    }

    /// Keeps the description for the next event on this thread.
    pub(crate) fn keep(self) {
        // Fails only while the thread ends.
        let _ = KEPT.try_with(|kept| kept.set(Some(self.shared)));
    }
}

thread_local! {
    /// The description of the latest event, to be used again. An observer that still holds it makes the next event copy it.
    static KEPT: Cell<Option<Arc<AboutJob>>> = const { Cell::new(None) };
}

/// What most events say about a job. See [`AboutJob`].
pub(crate) struct Described<'a> {
    pub(crate) job: JobId,
    pub(crate) job_type: &'a TypeName,
    pub(crate) chain: ChainId,
    pub(crate) chain_type: &'a TypeName,
    pub(crate) key: Option<&'a Key>,
    /// The number of the attempt, and how often the job has been acquired.
    pub(crate) attempt: Option<(u32, u64)>,
    pub(crate) worker: Option<&'a AboutWorker>,
    pub(crate) trace: Option<&'a TraceContext>,
    pub(crate) chain_trace: Option<&'a TraceContext>,
}

impl AboutJob {
    /// Describes a job by the fields that are always known.
    pub(crate) fn new((job, job_type): (JobId, TypeName), (chain, chain_type): (ChainId, TypeName)) -> Self {
        Self {
            job,
            job_type,
            chain,
            chain_type,
            key: None,
            attempt: None,
            delivery: None,
            worker: None,
            worker_name: None,
            trace: None,
            chain_trace: None,
            blockers: Vec::new(),
            wait_traces: Vec::new(),
            cause_traces: Vec::new(),
        }
    }

    /// Describes another job.
    fn describe(&mut self, new: &Described<'_>) {
        /// Most jobs have no key, and most workers no name.
        fn replace<T: Clone>(old: &mut Option<T>, new: Option<&T>) {
            if old.is_some() || new.is_some() {
                *old = new.cloned();
            }
        }
        // Without `..`, so that no field is forgotten.
        let Self {
            job,
            job_type,
            chain,
            chain_type,
            key,
            attempt,
            delivery,
            worker,
            worker_name,
            trace,
            chain_trace,
            blockers,
            wait_traces,
            cause_traces,
        } = self;
        (*job, *chain) = (new.job, new.chain);
        if !job_type.is(new.job_type) {
            job_type.clone_from(new.job_type);
        }
        if !chain_type.is(new.chain_type) {
            chain_type.clone_from(new.chain_type);
        }
        replace(key, new.key);
        (*attempt, *delivery) = new.attempt.unzip();
        *worker = new.worker.map(|worker| worker.id);
        replace(worker_name, new.worker.and_then(|worker| worker.name.as_ref()));
        replace(trace, new.trace);
        replace(chain_trace, new.chain_trace);
        blockers.clear();
        wait_traces.clear();
        cause_traces.clear();
    }

    /// Describes a job that was read from the store.
    pub(crate) fn of(job: &JobRecord) -> Self {
        Self {
            trace: job.trace.clone(),
            wait_traces: job.blockers.iter().filter_map(|blocker| blocker.trace.clone()).collect(),
            ..Self::new((job.id, job.job_type.clone()), (job.chain, job.chain_type.clone()))
        }
    }
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
    /// A job completed. If the chain continues, contains the id of the next job.
    JobCompleted(About, Option<JobId>),
    /// A job failed permanently.
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
    /// A store command failed. Contains the name of the command.
    StoreFailed(&'static str, ErrorText),
    /// A call to the notifier failed. Contains the name of the call.
    NotifierFailed(&'static str, ErrorText),
}

impl Event {
    /// Returns the description of the job, if the event is about one, so that the next event can use it.
    pub(crate) fn into_about(self) -> Option<About> {
        match self {
            Self::ChainCreated(about)
            | Self::JobCreated(about)
            | Self::JobCompleted(about, _)
            | Self::JobFailed(about, _)
            | Self::JobCancelled(about)
            | Self::AttemptFailed(about, ..)
            | Self::AttemptRescheduled(about, _)
            | Self::AttemptReleased(about)
            | Self::ChainClosed(about, _) => Some(about),
            _ => None,
        }
    }
}
