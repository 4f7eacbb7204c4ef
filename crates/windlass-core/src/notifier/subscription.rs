use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Notify, mpsc};

use crate::notifier::Hint;

/// How many hints wait for a reader before some are dropped.
const BUFFERED_MAX: usize = 256;

/// What a subscription receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Something happened.
    Hint(Hint),
    /// Something may have happened unheard: look at the store.
    Gap {
        /// How many hints were dropped because the reader was slow; 0 if only the connection was lost.
        missed: u64,
    },
}

/// A stream of hints. Dropping it ends it.
pub struct Subscription {
    hints: mpsc::Receiver<Hint>,
    gap: Arc<Gap>,
    _end: OnDrop,
}

/// The sending end of a [`Subscription`], for those who write a notifier.
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
    /// A subscription and its sending end. `end` runs when the subscription ends.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> (Publisher, Self) {
        let (sender, hints) = mpsc::channel(BUFFERED_MAX);
        let gap = Arc::new(Gap::default());
        let publisher = Publisher { hints: sender, gap: Arc::clone(&gap) };
        (publisher, Self { hints, gap, _end: OnDrop(Some(Box::new(end))) })
    }

    /// The next signal; none once the notifier is closed.
    ///
    /// Cancel-safe: a dropped call takes nothing.
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

    /// The next signal, if one waits.
    pub fn try_next(&mut self) -> Option<Signal> {
        if let Some(gap) = self.gap.take() {
            return Some(gap);
        }
        self.hints.try_recv().ok().map(Signal::Hint)
    }

    /// Ends the subscription. No hint arrives after this.
    pub fn close(self) {}
}

impl Publisher {
    /// Hands a hint over without waiting. A reader that is too slow gets a gap in its place.
    pub fn send(&self, hint: Hint) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.hints.try_send(hint) {
            self.gap.missed.fetch_add(1, Ordering::AcqRel);
            self.gap();
        }
    }

    /// Tells the reader that it may have missed something.
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
