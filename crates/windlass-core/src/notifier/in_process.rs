use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::HashMap;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::name::TypeName;
use crate::notifier::{Hint, Notifier, Publisher, Reach, Subscription, Topic};
use crate::store::BoxFuture;

/// How long a wake budget is valid after the latest hint.
const BUDGET_TTL: Duration = Duration::from_secs(60);

/// The number of budgets from which expired ones are removed before another is added.
const BUDGETS_BEFORE_CLEARING: usize = 100;

/// A notifier within one process. Clones share their subscribers.
#[derive(Clone, Debug, Default)]
pub struct InProcessNotifier {
    shared: Arc<Mutex<Shared>>,
    /// The number of subscriptions to events. Outside the mutex because it is read for every job, like the next one.
    watchers: Arc<AtomicUsize>,
    /// The number of subscriptions to closed chains.
    waits: Arc<AtomicUsize>,
    /// Whether all users of the store are in this process.
    is_complete: bool,
    id: InstanceId,
}

/// Identifies a notifier and its clones.
#[derive(Clone, Copy, Debug)]
struct InstanceId(Uuid);

impl Default for InstanceId {
    fn default() -> Self {
        Self(Uuid::now_v7())
    }
}

#[derive(Debug, Default)]
struct Shared {
    topics: HashMap<Topic, BTreeMap<u64, Publisher>>,
    budgets: HashMap<TypeName, Budget>,
    next_subscriber: u64,
    closed: bool,
}

#[derive(Debug)]
struct Budget {
    left: u64,
    ends_at: Instant,
}

impl InProcessNotifier {
    /// Creates a notifier without subscribers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a notifier for a store that only this process can use.
    pub(crate) fn complete() -> Self {
        Self { is_complete: true, ..Self::default() }
    }

    /// Returns an id that only this notifier and its clones have.
    #[must_use]
    pub const fn id(&self) -> Uuid {
        self.id.0
    }

    /// Reports to the subscribers of a topic that they may have missed hints.
    pub fn gap(&self, topic: &Topic) {
        self.shared().topics.get(topic).into_iter().flat_map(BTreeMap::values).for_each(Publisher::gap);
    }

    /// Whether there is a subscriber to this topic.
    #[must_use]
    pub fn is_subscribed(&self, topic: &Topic) -> bool {
        self.shared().topics.contains_key(topic)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }

    fn open(&self) -> Result<MutexGuard<'_, Shared>> {
        let shared = self.shared();
        if shared.closed {
            Err(Error::new(ErrorKind::Closed, "the notifier was closed: create a new one"))
        } else {
            Ok(shared)
        }
    }
}

impl Notifier for InProcessNotifier {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut shared = self.open()?;
            if let Hint::Scheduled { job_type, count, .. } = &hint {
                shared.add_budget(job_type, *count);
            }
            for subscriber in shared.topics.get(&hint.topic()).into_iter().flat_map(BTreeMap::values) {
                subscriber.send(hint.clone());
            }
            Ok(())
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            if topics.is_empty() {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "a subscription needs at least one topic, got none",
                ));
            }
            let mut shared = self.open()?;
            shared.next_subscriber += 1;
            let id = shared.next_subscriber;
            let (weak, ended) = (Arc::downgrade(&self.shared), topics.clone());
            let counted = [
                Counted::new(&self.watchers, topics.contains(&Topic::Events)),
                Counted::new(&self.waits, topics.iter().any(|topic| matches!(topic, Topic::ChainClosed(_)))),
            ];
            let (publisher, subscription) = Subscription::new(move || {
                drop(counted);
                let Some(shared) = weak.upgrade() else { return };
                lock(&shared).remove(id, &ended);
            });
            for topic in topics {
                shared.topics.entry(topic).or_default().insert(id, publisher.clone());
            }
            Ok(subscription)
        })
    }

    fn reach(&self) -> Reach {
        if self.is_complete { Reach::Everywhere } else { Reach::Process }
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let mut shared = self.open()?;
            let Some(budget) = shared.budgets.get_mut(&job_type) else { return Ok(true) };
            if budget.ends_at <= Instant::now() {
                shared.budgets.remove(&job_type);
                return Ok(true);
            }
            let claimed = budget.left > 0;
            budget.left = budget.left.saturating_sub(1);
            Ok(claimed)
        })
    }

    fn is_awaited(&self, chain: ChainId) -> bool {
        self.waits.load(Ordering::Acquire) > 0 && self.is_subscribed(&Topic::ChainClosed(chain))
    }

    fn is_watched(&self) -> Option<bool> {
        Some(self.watchers.load(Ordering::Acquire) > 0)
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        let topics = {
            let mut shared = self.shared();
            shared.closed = true;
            shared.budgets.clear();
            std::mem::take(&mut shared.topics)
        };
        drop(topics);
        Box::pin(async { Ok(()) })
    }
}

/// Counts a subscription until it is dropped.
struct Counted(Arc<AtomicUsize>, usize);

impl Counted {
    fn new(count: &Arc<AtomicUsize>, is_counted: bool) -> Self {
        let by = usize::from(is_counted);
        count.fetch_add(by, Ordering::AcqRel);
        Self(Arc::clone(count), by)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}

impl Shared {
    fn add_budget(&mut self, job_type: &TypeName, count: u32) {
        let now = Instant::now();
        if self.budgets.len() >= BUDGETS_BEFORE_CLEARING {
            self.budgets.retain(|_, budget| budget.ends_at > now);
        }
        let budget = self.budgets.entry(job_type.clone()).or_insert(Budget { left: 0, ends_at: now });
        if budget.ends_at <= now {
            budget.left = 0;
        }
        budget.left += u64::from(count);
        budget.ends_at = now + BUDGET_TTL;
    }

    fn remove(&mut self, id: u64, topics: &[Topic]) {
        for topic in topics {
            if let Some(subscribers) = self.topics.get_mut(topic) {
                subscribers.remove(&id);
                if subscribers.is_empty() {
                    self.topics.remove(topic);
                }
            }
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // No code panics in the middle of a change while it holds this lock, so the data behind a poisoned lock is
    // consistent.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_chain_is_awaited_while_it_has_a_subscriber() {
        let (notifier, chain) = (InProcessNotifier::new(), ChainId::new());
        assert!(!notifier.is_awaited(chain));
        let subscription = notifier.subscribe(vec![Topic::ChainClosed(chain)]).await.unwrap();
        assert!(notifier.is_awaited(chain) && !notifier.is_awaited(ChainId::new()));
        subscription.close();
        assert!(!notifier.is_awaited(chain));
    }
}
