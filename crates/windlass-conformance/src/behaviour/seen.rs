use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use windlass_core::{Event, Observer};

/// What an observer was told so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    events: Arc<Mutex<Vec<Event>>>,
    told: Arc<Notify>,
}

impl Seen {
    /// All events, in order; without failures of the notifier, which may fail or be slow at any time.
    #[must_use]
    pub fn all(&self) -> Vec<Event> {
        let is_told = |event: &&Event| !matches!(event, Event::NotifierFailed(..));
        self.events().iter().filter(is_told).cloned().collect()
    }

    /// How many of them are like this.
    pub fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|event| is(event)).count()
    }

    /// Waits until so many are like this. See [`Scene::sees`](super::Scene::sees), which has a deadline.
    pub(super) async fn until(&self, count: usize, is: impl Fn(&Event) -> bool) {
        loop {
            let told = self.told.notified();
            if self.count(&is) >= count {
                return;
            }
            told.await;
        }
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Seen {
    fn observe(&self, event: &Event) {
        self.events().push(event.clone());
        // Who has asked before the look hears of it: `notified` counts from its making.
        self.told.notify_waiters();
    }
}
