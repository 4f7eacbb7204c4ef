//! The time of the store, which never goes back.
//!
//! Leases, due times and retention depend on it, so a batch is never earlier than the one before it. If the clock is
//! set back, the store's time is ahead of the clock. It must not wait until the clock has caught up: a clock that was
//! wrong by years for a moment would stop the store's time for years, and with it every lease, delay and retention. So
//! the time continues a little more slowly than the clock, until the clock has caught up.

use std::time::Duration;

use windlass_core::Timestamp;

/// While the store's time is ahead, it advances by 15 ms while the clock advances by 16 ms. A lead of one hour is gone
/// after 16 hours, and a lease of one minute lasts four seconds longer.
const PACE: (u32, u32) = (15, 16);

/// The lead above which the clock must have been wrong. Ordinary corrections of the clock are smaller.
pub(crate) const LEAD_MAX: Duration = Duration::from_secs(60);

/// The time of the last batch, and how the time continues from there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreTime {
    last: Timestamp,
    lead: Option<Lead>,
    is_reported: bool,
}

/// The store's time was ahead of the clock: `time`, when the clock showed `clock`.
#[derive(Clone, Copy, Debug)]
struct Lead {
    time: Timestamp,
    clock: Timestamp,
}

impl Lead {
    fn continued(self, clock: Timestamp) -> Timestamp {
        let (pace, of) = PACE;
        // Rounded down: processes that take turns would otherwise keep the lead from shrinking.
        let passed = clock.since(self.clock) * pace / of;
        self.time + Duration::from_millis(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
    }
}

impl StoreTime {
    pub(crate) const fn new(last: Timestamp) -> Self {
        Self { last, lead: None, is_reported: false }
    }

    /// The time of the last batch.
    pub(crate) const fn last(&self) -> Timestamp {
        self.last
    }

    /// Returns the current time: the clock's, unless the last batch is later.
    pub(crate) fn now(&mut self, clock: Timestamp) -> Timestamp {
        // The clock may have been set back again, or another process may be further ahead.
        let continued = self.lead.filter(|lead| lead.clock <= clock).map(|lead| lead.continued(clock));
        let time = continued.filter(|time| *time >= self.last).unwrap_or(self.last);
        if time <= clock {
            (self.lead, self.is_reported) = (None, false);
            return clock;
        }
        if continued != Some(time) {
            self.lead = Some(Lead { time, clock });
        }
        time
    }

    /// Records the time of a batch.
    pub(crate) fn committed(&mut self, time: Timestamp) {
        self.last = self.last.max(time);
    }

    /// Starts again at a time, because nothing is stored any longer that depends on the time.
    pub(crate) const fn reset(&mut self, time: Timestamp) {
        *self = Self::new(time);
    }

    /// Returns how far the last batch is ahead of the clock, if that is so far that the clock must have been wrong.
    pub(crate) fn lead(&self, clock: Timestamp) -> Option<Duration> {
        Some(self.last.since(clock)).filter(|lead| *lead > LEAD_MAX)
    }

    /// Returns the same as [`lead`](Self::lead), but only once until the clock has caught up.
    pub(crate) fn unreported_lead(&mut self, clock: Timestamp) -> Option<Duration> {
        let lead = self.lead(clock).filter(|_| !self.is_reported)?;
        self.is_reported = true;
        Some(lead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn time_follows_the_clock() {
        let mut time = StoreTime::new(at(100));
        assert_eq!((time.now(at(100)), time.now(at(170)), time.now(at(160))), (at(100), at(170), at(160)));
        time.committed(at(170));
        assert_eq!(time.now(at(160)), at(170), "never before the last batch");
    }

    #[test]
    fn time_does_not_stand_still_while_it_is_ahead_of_the_clock() {
        let mut time = StoreTime::new(at(1_000_000));
        assert_eq!(time.now(at(100)), at(1_000_000));
        assert_eq!(time.now(at(260)), at(1_000_150));
        assert_eq!(time.now(at(259)), at(1_000_000) + Duration::from_millis(149_062), "rounded down");
        // A batch every millisecond: the remainders add up.
        let mut clock = at(260);
        for _ in 0..16_000 {
            clock = clock + Duration::from_millis(1);
            let now = time.now(clock);
            time.committed(now);
        }
        assert_eq!(time.now(clock), at(1_000_165));
    }

    #[test]
    fn the_clock_catches_up() {
        let mut time = StoreTime::new(at(1_000));
        assert_eq!(time.now(at(900)), at(1_000));
        assert_eq!(time.now(at(900 + 1_600)), at(2_500), "100 s are made up in 1,600 s");
        assert_eq!(time.now(at(2_600)), at(2_600));
        time.committed(at(2_600));
        assert_eq!(time.now(at(2_601)), at(2_601));
    }

    #[test]
    fn a_clock_that_is_set_back_again_does_not_move_the_time_back() {
        let mut time = StoreTime::new(at(1_000));
        time.now(at(100));
        let now = time.now(at(260));
        time.committed(now);
        assert_eq!(time.now(at(50)), at(1_150));
        assert_eq!(time.now(at(66)), at(1_165));
        // Another process is further ahead.
        time.committed(at(5_000));
        assert_eq!((time.now(at(70)), time.now(at(86))), (at(5_000), at(5_015)));
    }

    #[test]
    fn only_a_long_lead_is_reported_and_only_once() {
        let mut time = StoreTime::new(at(1_000));
        assert_eq!((time.lead(at(940)), time.lead(at(939))), (None, Some(Duration::from_secs(61))));
        assert!(time.unreported_lead(at(939)).is_some() && time.unreported_lead(at(939)).is_none());
        time.now(at(1_000));
        assert!(time.unreported_lead(at(1_001)).is_none() && time.unreported_lead(at(1)).is_some());
        time.reset(at(7));
        assert_eq!((time.last(), time.now(at(7)), time.lead(at(7))), (at(7), at(7), None));
    }
}
