//! The time of the store, as far as this process knows it.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::time::Instant;

use crate::time::Timestamp;

/// Estimates the store's clock between two replies that contain its time.
///
/// Events carry the time of the store, because the clocks of the processes differ. Asking for it would cost a round trip
/// for each event. Instead, the latest time that the store returned is continued with the monotonic clock of this
/// process. The estimate is late by at most the time that the reply took to arrive.
#[derive(Debug)]
pub(crate) struct StoreTime {
    created_at: Instant,
    /// The store's time at `created_at`, in milliseconds, or [`UNKNOWN`].
    at_creation: AtomicI64,
}

/// The store has not returned its time yet.
const UNKNOWN: i64 = i64::MIN;

impl StoreTime {
    pub(super) fn new() -> Self {
        Self { created_at: Instant::now(), at_creation: AtomicI64::new(UNKNOWN) }
    }

    /// Returns the estimated time of the store. Before the first reply, this is the time of this machine.
    pub(crate) fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// Returns the estimated time of the store at this time, which has just been read.
    pub(crate) fn at(&self, now: Instant) -> Timestamp {
        match self.at_creation.load(Ordering::Relaxed) {
            // Read each time: the clock of this machine may have been corrected.
            UNKNOWN => Timestamp::now(),
            at_creation => {
                Timestamp::from_millis(at_creation.saturating_add(self.until(now))).unwrap_or_default()
            }
        }
    }

    /// Notes the time that a reply contains, which has just arrived.
    pub(crate) fn learn(&self, now: Timestamp) {
        self.at_creation.store(now.as_millis().saturating_sub(self.until(Instant::now())), Ordering::Relaxed);
    }

    /// Returns the milliseconds from `created_at` until then.
    fn until(&self, then: Instant) -> i64 {
        i64::try_from(then.saturating_duration_since(self.created_at).as_millis()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_reply_is_continued() {
        let time = StoreTime::new();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let (now, machine) = (time.now(), Timestamp::now());
        let apart = machine.since(now).max(now.since(machine));
        assert!(apart < Duration::from_secs(60), "this machine's clock: {apart:?}");
        let replied = Timestamp::from_millis(1_000_000).unwrap();
        time.learn(replied);
        assert_eq!(time.now(), replied);
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(time.now(), replied + Duration::from_millis(1_500));
        time.learn(replied);
        assert_eq!(time.now(), replied, "the clock of the store may go back");
    }
}
