//! Periods in which nothing could be written, so that no lease could be renewed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::time::{Millis, Timestamp};

/// The stalls of a store that still matter, each later and shorter than the one before. A store with a write lock needs
/// this, because it must not reap leases that could not be renewed during a stall.
///
/// Keeping only the longest stall is not enough. It protects owners that renew rarely. Owners that renew often had time to
/// renew since that stall, but not since a shorter, later one: that one must protect them too.
///
/// A store sees only the stalls that affected its own commands: a command waited for the write lock or timed out, or a
/// transaction that the store began kept others waiting.
#[derive(Debug, Default)]
pub struct Stalls(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    stalls: Vec<Stall>,
    /// When the open transaction that this store began was started. At most one is open, since each holds the write
    /// lock.
    open_since: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Stall {
    lasted: Duration,
    ended_at: Timestamp,
}

impl Stalls {
    /// Records that a command waited for the write lock between these two times.
    pub fn note(&self, asked_at: Timestamp, ended_at: Timestamp) {
        self.with(|noted| noted.note(asked_at, ended_at));
    }

    /// Records that a transaction of the application, requested at `asked_at`, has begun.
    pub fn begun(&self, asked_at: Timestamp, now: Timestamp) {
        self.with(|noted| {
            noted.end(now);
            noted.note(asked_at, now);
            noted.open_since = Some(now);
        });
    }

    /// Records that the application's transaction has ended: now, or earlier if it was dropped.
    pub fn ended(&self, now: Timestamp) {
        self.with(|noted| noted.end(now));
    }

    /// Whether owners have not yet had one renewal interval since a stall that kept them from renewing.
    #[must_use]
    pub fn forbid_reaping(&self, now: Timestamp, renewal_interval: Millis) -> bool {
        self.with(|noted| noted.stalls.iter().any(|stall| stall.forbids_reaping(now, renewal_interval)))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Noted) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Noted {
    fn end(&mut self, now: Timestamp) {
        if let Some(since) = self.open_since.take() {
            self.note(since, now);
        }
    }

    fn note(&mut self, from: Timestamp, ended_at: Timestamp) {
        let latest = Stall { lasted: ended_at.since(from), ended_at };
        self.stalls.retain(|earlier| !earlier.is_superseded_by(latest));
        if !latest.lasted.is_zero() {
            self.stalls.push(latest);
        }
    }
}

impl Stall {
    /// Whether a later stall supersedes this one: it is at least as long, or it ended so much later that this one no
    /// longer protects any owner.
    fn is_superseded_by(self, later: Self) -> bool {
        later.lasted >= self.lasted || later.ended_at.since(self.ended_at) >= 2 * self.lasted
    }

    fn forbids_reaping(self, now: Timestamp, renewal_interval: Millis) -> bool {
        self.lasted * 2 >= Duration::from(renewal_interval) && now < self.ended_at + renewal_interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_stall_counts_after_a_long_one() {
        let at = |seconds: u16| Timestamp::default() + Millis::from_secs(seconds);
        let stalls = Stalls::default();
        stalls.note(at(12), at(20));
        stalls.note(at(28), at(30));
        let (short, long) = (Millis::from_secs(1), Millis::from_secs(15));
        assert!(stalls.forbid_reaping(at(30), short), "no owner could renew for two seconds");
        assert!(
            stalls.forbid_reaping(at(30), long),
            "a worker that renews rarely has had no time to renew since the long stall"
        );
        assert!(!stalls.forbid_reaping(at(31), short));
        assert!(!stalls.forbid_reaping(at(35), long));
        stalls.note(at(52), at(60));
        assert_eq!(stalls.with(|noted| noted.stalls.len()), 1, "stalls that no longer matter are dropped");
    }

    #[test]
    fn a_transaction_that_was_dropped_ends_before_the_next_begins() {
        let at = |seconds: u16| Timestamp::default() + Millis::from_secs(seconds);
        let stalls = Stalls::default();
        stalls.begun(at(10), at(10));
        stalls.begun(at(20), at(20));
        assert!(stalls.forbid_reaping(at(21), Millis::from_secs(15)));
    }
}
