use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use windlass_core::{Event, Observer};

/// The events that an observer has received so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    events: Arc<Mutex<Vec<Event>>>,
    added: Arc<Notify>,
}

impl Seen {
    /// Returns all events in order, except failures of the notifier, which can occur at any time.
    #[must_use]
    pub fn all(&self) -> Vec<Event> {
        let is_told = |event: &&Event| !matches!(event, Event::NotifierFailed(..));
        self.events().iter().filter(is_told).cloned().collect()
    }

    /// Returns the number of matching events.
    pub fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|event| is(event)).count()
    }

    /// Waits until `count` events match. See [`Scene::sees`](super::Scene::sees), which has a deadline.
    pub(super) async fn until(&self, count: usize, is: impl Fn(&Event) -> bool) {
        loop {
            let added = self.added.notified();
            if self.count(&is) >= count {
                return;
            }
            added.await;
        }
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Seen {
    fn observe(&self, event: &Event) {
        self.events().push(event.clone());
        // `until` creates its `notified` future before it counts the events, and `notify_waiters` wakes every future
        // created before this call. So an event between the count and the wait is not missed.
        self.added.notify_waiters();
    }
}
