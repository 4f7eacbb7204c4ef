//! An attempt of a job of any type, and the job that a worker holds for it.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use super::abort::{Abort, AbortSignal, Abortable};
use super::followed::Followed;
use crate::command::{Acquired, BlockerOutput};
use crate::id::{Fence, JobId, Occurrence, WorkerId};
use crate::name::{Key, TraceContext, WorkerName};
use crate::observer::{About, AboutWorker};
use crate::record::{JobRecord, Retention};
use crate::time::Timestamp;

/// An attempt of a job of any type, for middleware, hooks, and handlers of types that are named at run time.
pub struct AnyAttempt {
    pub(super) held: Arc<HeldJob>,
    abort: Abort,
    extensions: BTreeMap<TypeId, Box<dyn Any + Send + Sync>>,
}

/// A job that a worker holds. The attempt shares it with its slot and its settlement.
pub(crate) struct HeldJob {
    pub(super) acquired: Acquired,
    pub(super) worker: AboutWorker,
    /// Asks the attempt to stop.
    pub(super) signal: AbortSignal,
    /// The attempt as observers follow it. Empty if none of them does.
    pub(super) followed: OnceLock<Followed>,
}

impl Abortable for HeldJob {
    fn signal(&self) -> &AbortSignal {
        &self.signal
    }
}

impl HeldJob {
    #[inline]
    pub(super) fn new(acquired: Acquired, worker: AboutWorker) -> Arc<Self> {
        Arc::new(Self { acquired, worker, signal: AbortSignal::default(), followed: OnceLock::new() })
    }

    pub(super) const fn id(&self) -> (JobId, Fence) {
        (self.acquired.job.id, self.acquired.job.fence)
    }
}

impl AnyAttempt {
    pub(super) fn new(held: Arc<HeldJob>) -> Self {
        let abort = Abort::of(Arc::<HeldJob>::clone(&held));
        Self { held, abort, extensions: BTreeMap::new() }
    }

    /// Returns the job as it was acquired.
    #[must_use]
    pub fn job(&self) -> &JobRecord {
        &self.held.acquired.job
    }

    /// Returns the number of this attempt, counted from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.held.acquired.job.attempt
    }

    /// Whether this is the last allowed attempt: if it fails, the job fails.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.job().max_attempts.is_some_and(|max| self.attempt() >= max)
    }

    /// Returns the key of the job's chain.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.held.acquired.key.as_ref().map(Key::as_str)
    }

    /// Returns the trace context that is stored with the job, or else that of its chain. Jobs of a chain that is not sampled
    /// need none of their own.
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.held.acquired.job.trace.as_ref().or(self.held.acquired.chain_trace.as_ref())
    }

    /// Returns when the job's chain was created.
    #[must_use]
    pub fn chain_created_at(&self) -> Timestamp {
        self.held.acquired.chain_created_at
    }

    /// Returns the occurrence that the job's chain was started for, if a schedule started it: the planned time.
    #[must_use]
    pub fn occurrence(&self) -> Option<Occurrence> {
        self.job().chain.occurrence()
    }

    /// Returns how long the job's chain is kept after it closes.
    #[must_use]
    pub fn retention(&self) -> Retention {
        self.held.acquired.retention
    }

    /// Returns the outputs of the job's blockers, in the order in which they were declared.
    #[must_use]
    pub fn blockers(&self) -> &[BlockerOutput] {
        &self.held.acquired.blockers
    }

    /// Returns the id of the worker that runs the attempt.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.held.worker.id
    }

    /// Returns the name of the worker that runs the attempt, if it has one.
    #[must_use]
    pub fn worker_name(&self) -> Option<&WorkerName> {
        self.held.worker.name.as_ref()
    }

    pub(crate) fn about(&self, at: Timestamp) -> About {
        self.held.about(at)
    }

    /// Returns the signal that asks the attempt to stop.
    #[must_use]
    pub const fn aborted(&self) -> &Abort {
        &self.abort
    }

    /// Passes a value to inner middleware, to hooks and to the handler. There is one value per type: returns
    /// the previous value of this type, if any.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        let former = self.extensions.insert(TypeId::of::<T>(), Box::new(value))?;
        former.downcast().ok().map(|former| *former)
    }

    /// Returns the value of this type that middleware inserted.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

impl fmt::Debug for AnyAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyAttempt")
            .field("job", &self.job().id)
            .field("job_type", &self.job().job_type)
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
