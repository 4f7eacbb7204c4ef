use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::id::ChainId;

/// Waits for chains that a worker of the same client is about to close.
///
/// A store that executes commands in the order in which they are sent returns a closed chain to a query that follows the
/// settlement, even if the settlement is not answered yet. So a wait is woken when the settlement is sent, instead of when
/// it is announced. If the settlement does not close the chain, the query finds it open, and the wait goes on.
#[derive(Debug, Default)]
pub(super) struct Closings {
    waits: Mutex<HashMap<ChainId, Vec<Arc<Notify>>>>,
    /// The number of waits. Most settlements find none, and skip the lock.
    count: AtomicUsize,
}

impl Closings {
    /// Registers a wait until the returned guard is dropped.
    pub(super) fn wait(&self, chain: ChainId) -> Closing<'_> {
        let woken = Arc::new(Notify::new());
        let mut waits = self.lock();
        waits.entry(chain).or_default().push(Arc::clone(&woken));
        self.count.fetch_add(1, Ordering::Release);
        Closing { closings: self, chain, woken }
    }

    /// Returns the number of waits.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Wakes the waits for these chains.
    pub(super) fn wake(&self, chains: impl Iterator<Item = ChainId>) {
        if self.count() == 0 {
            return;
        }
        let waits = self.lock();
        for woken in chains.filter_map(|chain| waits.get(&chain)).flatten() {
            woken.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChainId, Vec<Arc<Notify>>>> {
        // No code panics in the middle of a change under this lock.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered wait.
#[derive(Debug)]
pub(crate) struct Closing<'c> {
    closings: &'c Closings,
    chain: ChainId,
    woken: Arc<Notify>,
}

impl Closing<'_> {
    /// Waits until a settlement of the chain's job is on its way to the store.
    pub(super) async fn sent(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut waits = self.closings.lock();
        if let Some(others) = waits.get_mut(&self.chain) {
            others.retain(|other| !Arc::ptr_eq(other, &self.woken));
            if others.is_empty() {
                waits.remove(&self.chain);
            }
        }
        self.closings.count.fetch_sub(1, Ordering::Release);
    }
}
