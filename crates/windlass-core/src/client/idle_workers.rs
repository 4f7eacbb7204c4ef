//! Wakes an idle worker for jobs that are on their way to the store.
//!
//! (`create_and_acquire.rs` acquires for the worker instead, on stores where this is cheaper.)
//!
//! A store that executes commands in the order in which they are sent ([`Capabilities::is_ordered`]) finds a new job even
//! if the acquire was sent before the creation was answered. A worker of the same client then need not wait for the reply
//! and for a hint: the acquire follows the creation directly. If the store writes both to the disk together, a single job
//! waits for the disk once instead of twice.
//!
//! An [`Expectation`] connects the two commands. It withholds the hints of the created jobs until the acquire is answered,
//! and then publishes those of the jobs that the acquire did not return. So a job that was acquired in this way costs no
//! hint and no other acquire, and one that was not is announced as usual.
//!
//! [`Capabilities::is_ordered`]: crate::store::Capabilities::is_ordered

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::create_and_acquire::AcquireSource;
use super::{Announcements, Dispatcher};
use crate::command::{DueTime, NewChain};
use crate::id::ChainId;
use crate::name::TypeName;
use crate::time::Timestamp;

/// A job that was created, and when it is due.
pub(super) type Scheduled = (ChainId, TypeName, Timestamp);

/// The idle workers of a client.
#[derive(Debug, Default)]
pub(super) struct IdleWorkers {
    workers: Mutex<Vec<Weak<IdleWorker>>>,
    /// When creations may acquire again: see `create_and_acquire.rs`.
    pub(super) joins_at: Mutex<Option<Instant>>,
}

impl IdleWorkers {
    /// Adds the worker of a loop that runs on the current runtime.
    pub(super) fn add(&self, types: Vec<TypeName>, source: Weak<dyn AcquireSource>) -> Arc<IdleWorker> {
        let worker = Arc::new(IdleWorker {
            types,
            source,
            runtime: Handle::current().id(),
            state: Mutex::default(),
            woken: Notify::new(),
        });
        let mut workers = self.lock();
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&worker));
        worker
    }

    /// Wakes a worker that waits for jobs of a type among `chains`, whose creation was sent to the store. Returns what it
    /// expects, or `None` if no worker waits.
    pub(super) fn wake(&self, chains: &[NewChain], dispatcher: &Dispatcher) -> Option<Arc<Expectation>> {
        for worker in self.here() {
            // A job that would wait for a busy handler is announced: another worker may run it earlier.
            if !worker.source.upgrade().is_some_and(|source| source.can_start()) {
                continue;
            }
            let expected: Vec<_> = worker.runnable(chains).map(|new| new.id).collect();
            let mut idle = worker.state();
            if expected.is_empty() || !std::mem::take(&mut idle.is_waiting) {
                continue;
            }
            let (state, dispatcher) = (Mutex::default(), dispatcher.weak());
            let reported = Notify::new();
            let expectation = Arc::new(Expectation { chains: expected, state, reported, dispatcher });
            idle.expected = Some(Expected(Arc::clone(&expectation)));
            drop(idle);
            worker.woken.notify_one();
            return Some(expectation);
        }
        None
    }

    /// Returns the workers of the current runtime. One of a runtime that is not driven would withhold jobs from the others.
    pub(super) fn here(&self) -> Vec<Arc<IdleWorker>> {
        let runtime = Handle::current().id();
        let workers = self.lock();
        workers.iter().filter_map(Weak::upgrade).filter(|worker| worker.runtime == runtime).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<IdleWorker>>> {
        // No code panics in the middle of a change under this lock.
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker that may wait for jobs.
#[derive(Debug)]
pub(crate) struct IdleWorker {
    types: Vec<TypeName>,
    /// Returns acquires for this worker.
    pub(super) source: Weak<dyn AcquireSource>,
    runtime: Id,
    state: Mutex<IdleState>,
    woken: Notify,
}

/// Both fields change under one lock. Otherwise a worker could end its wait between the two, and what it expects would
/// withhold hints until its next wait.
#[derive(Debug, Default)]
struct IdleState {
    /// Whether the worker waits, and has room for a job.
    is_waiting: bool,
    expected: Option<Expected>,
}

impl IdleWorker {
    /// Waits until jobs are on their way to the store.
    pub(crate) async fn woken(&self) {
        let _waiting = Waiting::new(self);
        self.woken.notified().await;
    }

    /// Whether the worker has been woken, and has not acquired since.
    pub(crate) fn is_woken(&self) -> bool {
        self.state().expected.is_some()
    }

    /// Returns what the worker has been woken for, if anything.
    pub(crate) fn take(&self) -> Option<Expected> {
        self.state().expected.take()
    }

    /// Returns those of these chains whose jobs the worker could acquire once they are created.
    pub(super) fn runnable<'c>(&self, chains: &'c [NewChain]) -> impl Iterator<Item = &'c NewChain> {
        let is_due = |new: &NewChain| new.job.blockers.is_empty() && new.job.schedule == DueTime::Now;
        chains.iter().filter(move |new| is_due(new) && self.types.contains(&new.job.job_type))
    }

    /// Whether the worker waits, and has room for a job.
    pub(super) fn is_waiting(&self) -> bool {
        self.state().is_waiting
    }

    fn state(&self) -> MutexGuard<'_, IdleState> {
        // No code panics in the middle of a change under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a worker as waiting until it is dropped: the worker may stop waiting for any reason.
struct Waiting<'w>(&'w IdleWorker);

impl<'w> Waiting<'w> {
    fn new(worker: &'w IdleWorker) -> Self {
        worker.state().is_waiting = true;
        Self(worker)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().is_waiting = false;
    }
}

/// Jobs that are on their way to the store while a worker acquires.
#[derive(Debug)]
pub(super) struct Expectation {
    chains: Vec<ChainId>,
    state: Mutex<State>,
    /// Notified when the creation has been reported to the observers.
    reported: Notify,
    dispatcher: Weak<Dispatcher>,
}

#[derive(Debug, Default)]
struct State {
    /// The chains whose jobs the acquire has returned.
    acquired: Vec<ChainId>,
    /// The jobs that were created, until the acquire is answered.
    created: Vec<Scheduled>,
    is_answered: bool,
}

impl Expectation {
    /// Whether the worker expects this chain, so that its hint is withheld.
    pub(super) fn withholds(&self, chain: ChainId) -> bool {
        self.chains.contains(&chain)
    }

    /// Passes on the jobs that were created. Their hints are published when the acquire is answered.
    pub(super) fn created(&self, created: Vec<Scheduled>) {
        self.reported.notify_one();
        let mut state = self.state();
        state.created = created;
        if state.is_answered {
            self.publish_missing(state);
        }
    }

    /// Publishes the hints of the created jobs that were not acquired.
    fn publish_missing(&self, mut state: MutexGuard<'_, State>) {
        let mut left = std::mem::take(&mut state.created);
        left.retain(|(chain, ..)| !state.acquired.contains(chain));
        drop(state);
        if let Some(dispatcher) = self.dispatcher.upgrade() {
            let left = left.into_iter().map(|(_, job_type, due_at)| (job_type, due_at));
            Announcements::scheduled(left).send(&dispatcher);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The worker's part of an expectation. Dropping it means that the acquire is answered, or was not sent.
#[derive(Debug)]
pub(crate) struct Expected(Arc<Expectation>);

impl Expected {
    /// Returns the creation if one of these chains is part of it.
    pub(crate) fn creation_of(&self, mut chains: impl Iterator<Item = ChainId>) -> Option<Creation> {
        chains.any(|chain| self.0.withholds(chain)).then(|| Creation(Arc::clone(&self.0)))
    }

    /// Notes that the acquire has returned the job of this chain.
    pub(crate) fn acquired(&self, chain: ChainId) {
        if self.0.withholds(chain) {
            self.0.state().acquired.push(chain);
        }
    }
}

/// The creation that a worker expects.
pub(crate) struct Creation(Arc<Expectation>);

impl Creation {
    /// Waits until the creation has been reported to the observers. It may fail, and is not reported then.
    pub(crate) async fn reported(&self) {
        self.0.reported.notified().await;
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_answered = true;
        self.0.publish_missing(state);
    }
}
