//! Passes the outputs of chains to waits of the same client, without a query.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::command::{Outcome, Settled};
use crate::id::ChainId;
use crate::name::TypeName;
use crate::payload::Payload;
use crate::record::JobRecord;

/// Passes the outputs of chains that a worker of this client completes to the waits of the same client.
///
/// Such a wait needs no query after the settlement. This is only a shortcut: a wait that misses the output finds the closed
/// chain with its next query.
///
/// An output is passed on after the settlement is announced: a caller that has its answer may close the client, and the
/// announcements of the chain would be lost.
#[derive(Debug, Default)]
pub(super) struct LocalOutputs {
    waits: Mutex<HashMap<ChainId, Vec<oneshot::Sender<Completed>>>>,
    /// The number of waits. Most settlements find none, and skip the lock.
    count: AtomicUsize,
}

/// A chain that a worker of this client has completed.
#[derive(Clone, Debug)]
pub(crate) struct Completed {
    pub(super) chain: ChainId,
    pub(super) chain_type: TypeName,
    /// The type of the last job.
    pub(super) job_type: TypeName,
    pub(crate) output: Payload,
}

impl Completed {
    /// Returns the chain of `job` if this settlement has completed it.
    pub(crate) fn by(job: &JobRecord, outcome: &Outcome, settled: &Settled) -> Option<Self> {
        let (Outcome::Complete { output, .. }, Settled::Applied(_)) = (outcome, settled) else { return None };
        let JobRecord { chain, chain_type, job_type, .. } = job;
        let (chain_type, job_type) = (chain_type.clone(), job_type.clone());
        Some(Self { chain: *chain, chain_type, job_type, output: output.clone() })
    }
}

impl LocalOutputs {
    /// Registers a wait until the returned guard is dropped.
    pub(super) fn register(&self, chain: ChainId) -> LocalOutput<'_> {
        let (sender, receiver) = oneshot::channel();
        self.lock().entry(chain).or_default().push(sender);
        self.count.fetch_add(1, Ordering::Release);
        LocalOutput { results: self, chain, receiver }
    }

    /// Returns the number of waits.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Passes completed chains on to their waits.
    pub(super) fn deliver(&self, chains: impl Iterator<Item = Completed>) {
        if self.count() == 0 {
            return;
        }
        for completed in chains {
            let waits = self.lock().remove(&completed.chain);
            for wait in waits.into_iter().flatten() {
                // The wait may have ended in the meantime.
                let _ = wait.send(completed.clone());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChainId, Vec<oneshot::Sender<Completed>>>> {
        // No code panics in the middle of a change under this lock.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered wait.
#[derive(Debug)]
pub(crate) struct LocalOutput<'c> {
    results: &'c LocalOutputs,
    chain: ChainId,
    receiver: oneshot::Receiver<Completed>,
}

impl LocalOutput<'_> {
    /// Waits until a worker of this client has completed the chain. Call this only until it has returned.
    pub(super) async fn received(&mut self) -> Completed {
        (&mut self.receiver).await.expect("a sender stays registered until it sends")
    }
}

impl Drop for LocalOutput<'_> {
    fn drop(&mut self) {
        self.receiver.close();
        let mut waits = self.results.lock();
        if let Some(others) = waits.get_mut(&self.chain) {
            others.retain(|other| !other.is_closed());
            if others.is_empty() {
                waits.remove(&self.chain);
            }
        }
        self.results.count.fetch_sub(1, Ordering::Release);
    }
}
