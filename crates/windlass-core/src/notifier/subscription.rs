use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Notify, mpsc};

use crate::notifier::Hint;

/// How many hints are buffered for a subscriber before further ones are dropped.
const BUFFERED_MAX: usize = 256;

/// What a subscriber receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A hint was published.
    Hint(Hint),
    /// Hints may have been lost. Query the store.
    Gap {
        /// The number of hints dropped because the subscriber was slow. 0 if only the connection was lost.
        missed: u64,
    },
}

/// A stream of hints. Dropping it unsubscribes.
pub struct Subscription {
    hints: mpsc::Receiver<Hint>,
    gap: Arc<Gap>,
    _end: OnDrop,
}

/// The sending half of a [`Subscription`], for implementations of a notifier.
#[derive(Clone, Debug)]
pub struct Publisher {
    hints: mpsc::Sender<Hint>,
    gap: Arc<Gap>,
}

#[derive(Debug, Default)]
struct Gap {
    set: AtomicBool,
    missed: AtomicU64,
    changed: Notify,
}

impl Gap {
    fn take(&self) -> Option<Signal> {
        let set = self.set.swap(false, Ordering::AcqRel);
        set.then(|| Signal::Gap { missed: self.missed.swap(0, Ordering::AcqRel) })
    }
}

struct OnDrop(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

impl Subscription {
    /// Creates a subscription and its sending half. `end` runs when the subscription ends.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> (Publisher, Self) {
        let (sender, hints) = mpsc::channel(BUFFERED_MAX);
        let gap = Arc::new(Gap::default());
        let publisher = Publisher { hints: sender, gap: Arc::clone(&gap) };
        (publisher, Self { hints, gap, _end: OnDrop(Some(Box::new(end))) })
    }

    /// Waits for the next signal. Returns `None` once the notifier is closed.
    ///
    /// Cancel safe: if the future is dropped, no signal is lost.
    pub async fn next(&mut self) -> Option<Signal> {
        loop {
            let changed = self.gap.changed.notified();
            if let Some(gap) = self.gap.take() {
                return Some(gap);
            }
            tokio::select! {
                biased;
                hint = self.hints.recv() => return hint.map(Signal::Hint),
                () = changed => {}
            }
        }
    }

    /// Returns the next signal if one is available, without waiting.
    pub fn try_next(&mut self) -> Option<Signal> {
        if let Some(gap) = self.gap.take() {
            return Some(gap);
        }
        self.hints.try_recv().ok().map(Signal::Hint)
    }

    /// Unsubscribes. No hint arrives afterwards.
    pub fn close(self) {}
}

impl Publisher {
    /// Sends a hint without waiting. If the buffer is full, drops the hint and reports a gap instead.
    pub fn send(&self, hint: Hint) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.hints.try_send(hint) {
            // Count before setting the flag: the reader clears the flag first and then takes the count.
            // Otherwise it could take the flag without the count.
            self.gap.missed.fetch_add(1, Ordering::AcqRel);
            self.gap();
        }
    }

    /// Reports to the subscriber that it may have missed hints.
    pub fn gap(&self) {
        self.gap.set.store(true, Ordering::Release);
        self.gap.changed.notify_one();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("waiting", &self.hints.len()).finish_non_exhaustive()
    }
}
