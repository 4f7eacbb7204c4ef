//! Acquires jobs for an idle worker with the command that creates them.
//!
//! On some stores, a creation and an acquire in one command cost less than two commands, because both are committed together
//! ([`Capabilities::is_joining`]). If a worker of the same client waits for jobs of a type that a creation contains, the
//! creation acquires for it. A single job then waits for one commit instead of two, and for no hint, before its handler
//! starts.
//!
//! The acquire is one of the worker's own: it reserves the slots that it may fill, and if its reply is lost, the worker's
//! main loop repeats it. So the creation may fail or be repeated alone, and no job is lost. After a failure, chains are
//! created alone for a while.
//!
//! [`Capabilities::is_joining`]: crate::store::Capabilities::is_joining

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::idle_workers::{IdleWorker, IdleWorkers};
use crate::command::{Acquire, AcquireReply, NewChain};

/// A worker that can start attempts of jobs that others acquire for it.
pub(crate) trait AcquireSource: Send + Sync {
    /// Whether a job that is acquired now starts at once.
    fn can_start(&self) -> bool;

    /// Returns an acquire for the handlers of the worker that are idle, and what to do with the reply. Returns `None` if no
    /// handler is idle, or if the worker is stopping or acquires by itself.
    fn request(self: Arc<Self>) -> Option<(Acquire, Box<dyn PendingAcquire>)>;
}

/// An acquire that is in flight. Dropping it means that the reply is lost.
pub(crate) trait PendingAcquire: Send {
    /// Starts an attempt of each acquired job.
    fn answered(self: Box<Self>, reply: AcquireReply);
}

/// How long chains are created alone after a joined creation has failed or found a row locked. Otherwise a row that stays
/// locked would reserve the slots of the worker for each retry, and delay every creation.
const PAUSE: Duration = Duration::from_secs(1);

impl IdleWorkers {
    /// Returns an acquire for a worker that waits for jobs of a type among `chains`, or `None` if no worker waits.
    pub(super) fn join(&self, chains: &[NewChain]) -> Option<(Acquire, Box<dyn PendingAcquire>)> {
        if self.joins_at().is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let waits = |worker: &IdleWorker| worker.is_waiting() && worker.runnable(chains).next().is_some();
        let mut workers = self.here();
        workers.retain(|worker| waits(worker));
        // Not always the same worker.
        let count = workers.len();
        if count > 1 {
            workers.rotate_left(fastrand::usize(..count));
        }
        workers.into_iter().find_map(|worker| worker.source.upgrade()?.request())
    }

    /// Creates chains alone for a while.
    pub(super) fn pause_joins(&self) {
        *self.joins_at() = Some(Instant::now() + PAUSE);
    }

    fn joins_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.joins_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
