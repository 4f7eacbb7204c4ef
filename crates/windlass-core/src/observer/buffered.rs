use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::{Activity, Event, Observer};

/// Passes events and activities to an observer on a separate thread, so that an observer that is slow or blocks does not
/// delay jobs.
///
/// At most `max` events and activities are queued for the observer. Further ones are dropped, and
/// [`dropped`](Self::dropped) counts them. The wrapped observer receives no calls for trace contexts and attempts, because
/// the client would have to wait for its answer. When the client and all its clones are dropped, the thread delivers the
/// queued items and ends.
#[derive(Clone, Debug)]
pub struct Buffered {
    sender: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

/// Boxed, because the channel reserves the space of all items.
#[derive(Debug)]
enum Item {
    Event(Box<Event>),
    Activity(Box<Activity>),
}

impl Buffered {
    /// Starts a thread for this observer, with a queue of `max` items.
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    pub fn new(observer: impl Observer, max: usize) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(max);
        let name = "windlass-observer".to_owned();
        thread::Builder::new().name(name).spawn(move || pass_on(&receiver, &observer))?;
        Ok(Self { sender, dropped: Arc::default() })
    }

    /// Returns the number of events and activities that were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn send(&self, item: Item) {
        if self.sender.try_send(item).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Observer for Buffered {
    fn observe(&self, event: &Event) {
        self.send(Item::Event(Box::new(event.clone())));
    }

    fn measure(&self, activity: &Activity) {
        self.send(Item::Activity(Box::new(activity.clone())));
    }
}

/// Passes items on until all senders are dropped. A panicking observer is ignored.
fn pass_on(items: &Receiver<Item>, observer: &impl Observer) {
    for item in items {
        let _ = catch_unwind(AssertUnwindSafe(|| match item {
            Item::Event(event) => observer.observe(&event),
            Item::Activity(activity) => observer.measure(&activity),
        }));
    }
}
