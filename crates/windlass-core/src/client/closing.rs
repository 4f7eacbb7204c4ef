use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::id::ChainId;

/// Waits for chains that a worker of the same client is about to close.
///
/// A store that executes commands in the order in which they are sent returns a closed chain to a query that follows the
/// settlement, even if the settlement is not answered yet. So a wait is woken when the settlement is sent, instead of when
/// it is announced. If the settlement does not close the chain, the query finds it open, and the wait goes on.
///
/// Such a wait ends when the settlement is announced, which follows at once: a caller that has its answer may close the
/// client, and the events of the chain would be lost.
#[derive(Debug, Default)]
pub(super) struct Closings {
    waits: Mutex<HashMap<ChainId, Vec<Arc<Awaited>>>>,
    /// The number of waits. Most settlements find none, and skip the lock.
    count: AtomicUsize,
}

/// How far the settlement is that may close a chain.
#[derive(Debug, Default)]
struct Awaited {
    sent: Notify,
    is_sent: AtomicBool,
    announced: Notify,
}

/// How long a wait whose chain is closed waits for the announcement. The settlement of another worker may have closed it.
const ANNOUNCED_MAX: Duration = Duration::from_millis(5);

impl Closings {
    /// Registers a wait until the returned guard is dropped.
    pub(super) fn wait(&self, chain: ChainId) -> Closing<'_> {
        let awaited = Arc::<Awaited>::default();
        let mut waits = self.lock();
        waits.entry(chain).or_default().push(Arc::clone(&awaited));
        self.count.fetch_add(1, Ordering::Release);
        Closing { closings: self, chain, awaited }
    }

    /// Returns the number of waits.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Wakes the waits for these chains: their settlements are on their way to the store.
    pub(super) fn sent(&self, chains: impl Iterator<Item = ChainId>) {
        self.each(chains, |awaited| {
            awaited.is_sent.store(true, Ordering::Release);
            awaited.sent.notify_one();
        });
    }

    /// Lets the waits for these chains end: their settlements are announced.
    pub(super) fn announced(&self, chains: impl Iterator<Item = ChainId>) {
        self.each(chains, |awaited| awaited.announced.notify_one());
    }

    fn each(&self, chains: impl Iterator<Item = ChainId>, then: impl Fn(&Awaited)) {
        if self.count() > 0 {
            let waits = self.lock();
            chains.filter_map(|chain| waits.get(&chain)).flatten().for_each(|awaited| then(awaited));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChainId, Vec<Arc<Awaited>>>> {
        // No code panics in the middle of a change under this lock.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered wait.
#[derive(Debug)]
pub(crate) struct Closing<'c> {
    closings: &'c Closings,
    chain: ChainId,
    awaited: Arc<Awaited>,
}

impl Closing<'_> {
    /// Waits until a settlement of the chain's job is on its way to the store.
    pub(super) async fn sent(&self) {
        self.awaited.sent.notified().await;
    }

    /// Waits until the settlement is announced, if this wait was woken by one.
    pub(super) async fn announced(&self) {
        if self.awaited.is_sent.load(Ordering::Acquire) {
            let _ = timeout(ANNOUNCED_MAX, self.awaited.announced.notified()).await;
        }
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut waits = self.closings.lock();
        if let Some(others) = waits.get_mut(&self.chain) {
            others.retain(|other| !Arc::ptr_eq(other, &self.awaited));
            if others.is_empty() {
                waits.remove(&self.chain);
            }
        }
        self.closings.count.fetch_sub(1, Ordering::Release);
    }
}
