//! When the writer waits for more commands before it writes a batch.
//!
//! A caller that was answered often sends its next command at once. If the writer began the next batch before that, the
//! batch would contain only the commands that arrived during the last sync. The callers would fall into two groups that
//! wait for each other's syncs, and there would be twice as many syncs as necessary. So after a slow sync, the writer
//! waits a little for the callers that it has just answered. If they do not return, it does so less often.

use std::time::{Duration, Instant};

/// The wait is at most this part of the last sync.
const PART: u32 = 2;

/// The syncs of a fast disk are not worth a wait: two groups that take turns keep both the processor and the disk busy.
const WAIT_MIN: Duration = Duration::from_micros(100);

/// The longest wait.
const WAIT_MAX: Duration = Duration::from_millis(5);

/// The maximum number of batches without a wait, after waits in vain: 2 to the power of this.
const SKIPS_MAX: u32 = 6;

/// Decides how long to wait.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Multiplies the measured duration of a sync. Default: 1.
    scale: u32,
    /// Until when to wait for more commands, and how many are expected then.
    awaited: Option<(Instant, usize)>,
    /// The number of waits in vain in a row.
    misses: u32,
    /// The number of batches that are not delayed.
    skips: u32,
}

impl Pace {
    /// `scale` is 1, or more in tests: then a fast disk counts as a slow one.
    pub(crate) const fn new(scale: u32) -> Self {
        Self { scale, awaited: None, misses: 0, skips: 0 }
    }

    /// Forgets the callers of the last batch: other work has run since.
    pub(crate) const fn forget(&mut self) {
        self.awaited = None;
    }

    /// Records that the callers of this many commands were answered after a sync, while others were waiting.
    pub(crate) fn answered(&mut self, now: Instant, answered: usize, waiting: usize, sync: Duration) {
        let wait = (sync.saturating_mul(self.scale) / PART).min(WAIT_MAX.saturating_mul(self.scale));
        self.awaited = None;
        if answered == 0 || wait < WAIT_MIN {
            return;
        }
        if let Some(left) = self.skips.checked_sub(1) {
            self.skips = left;
            return;
        }
        self.awaited = Some((now + wait, answered + waiting));
    }

    /// Returns how much longer to wait if this many commands are waiting, or `None` to begin the batch.
    pub(crate) fn wait(&mut self, now: Instant, waiting: usize) -> Option<Duration> {
        let (until, expected) = self.awaited?;
        if waiting < expected
            && let Some(left) = until.checked_duration_since(now).filter(|left| !left.is_zero())
        {
            return Some(left);
        }
        self.awaited = None;
        if waiting >= expected {
            self.misses = 0;
        } else {
            self.misses = (self.misses + 1).min(SKIPS_MAX);
            self.skips = 1 << self.misses;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_millis(4);

    #[test]
    fn callers_that_were_answered_are_awaited_for_a_part_of_the_sync() {
        let (mut pace, now) = (Pace::new(1), Instant::now());
        assert_eq!(pace.wait(now, 1), None, "nobody was answered");
        pace.answered(now, 3, 2, SYNC);
        assert_eq!(pace.wait(now, 4), Some(SYNC / 2));
        assert_eq!(pace.wait(now + SYNC / 4, 4), Some(SYNC / 4));
        assert_eq!(pace.wait(now + SYNC / 4, 5), None, "all have returned");
        pace.answered(now, 1, 0, SYNC);
        assert_eq!(pace.wait(now, 1), None, "a single caller does not wait for itself");
        pace.answered(now, 2, 0, Duration::from_micros(190));
        assert_eq!(pace.wait(now, 1), None, "the sync was fast");
    }

    #[test]
    fn callers_that_were_forgotten_are_not_missed() {
        let (mut pace, now) = (Pace::new(1), Instant::now());
        for _ in 0..10 {
            pace.answered(now, 2, 0, SYNC);
            pace.forget();
            assert_eq!(pace.wait(now + SYNC, 1), None, "nobody is awaited");
        }
        pace.answered(now, 2, 0, SYNC);
        assert!(pace.wait(now, 1).is_some(), "no wait was in vain");
    }

    #[test]
    fn callers_that_do_not_return_are_awaited_less_often() {
        let (mut pace, now) = (Pace::new(1), Instant::now());
        let mut awaited = 0;
        for _ in 0..1_000 {
            pace.answered(now, 1, 1, SYNC);
            awaited += usize::from(pace.wait(now, 1).is_some());
            assert_eq!(pace.wait(now + SYNC, 1), None);
        }
        assert!((10..30).contains(&awaited), "{awaited} of 1,000");
        for _ in 0..100 {
            pace.answered(now, 1, 1, SYNC);
            pace.wait(now, 2);
        }
        pace.answered(now, 1, 1, SYNC);
        assert!(pace.wait(now, 1).is_some(), "they have returned since");
    }
}
