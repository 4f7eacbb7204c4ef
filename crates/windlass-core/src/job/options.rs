use std::time::Duration;

use crate::record::{OnBlockerFailure, Retention};

/// How jobs of a type are run and kept.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct JobOptions {
    /// After this many attempts a failure is final; no limit if none, the default.
    pub max_attempts: Option<u32>,
    /// Higher runs first; 0 is the default.
    pub priority: i8,
    /// The length of a lease; 60 s by default.
    pub lease: Duration,
    /// How often it is renewed; half the lease by default, and never more.
    pub renewal: Option<Duration>,
    /// After this long a handler is asked to stop and its lease is renewed no longer; no limit by default.
    pub timeout: Option<Duration>,
    /// When a failed attempt is tried again.
    pub backoff: Backoff,
    /// How long a closed chain stays that such a job started.
    pub retention: Retention,
    /// What a job does when a blocker chain does not complete. Blockers declared as
    /// [`Fallible`](crate::Fallible) decide for themselves.
    pub on_blocker_failure: OnBlockerFailure,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            max_attempts: None,
            priority: 0,
            lease: Duration::from_secs(60),
            renewal: None,
            timeout: None,
            backoff: Backoff::default(),
            retention: Retention::default(),
            on_blocker_failure: OnBlockerFailure::default(),
        }
    }
}

impl JobOptions {
    /// How often a lease is renewed.
    #[must_use]
    pub fn renewal(&self) -> Duration {
        self.renewal.unwrap_or(self.lease / 2)
    }
}

/// When a failed attempt is tried again: `initial × multiplier^(attempt - 1)`, at most `max`, less a random
/// part of up to `jitter` of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The delay after the first attempt; 10 s by default.
    pub initial: Duration,
    /// How it grows; 2 by default.
    pub multiplier: f64,
    /// The longest delay; 300 s by default.
    pub max: Duration,
    /// From 0, the default, to 1: how much of the delay is left to chance.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(10), multiplier: 2.0, max: Duration::from_secs(300), jitter: 0.0 }
    }
}

impl Backoff {
    /// No delay at all.
    pub const NONE: Self =
        Self { initial: Duration::ZERO, multiplier: 1.0, max: Duration::ZERO, jitter: 0.0 };

    /// The delay after an attempt (from 1). `chance` is from 0 to 1.
    #[must_use]
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let grown = self.initial.as_secs_f64() * self.multiplier.powi(exponent);
        let longest = self.max.as_secs_f64();
        let delay = if grown.is_finite() { grown.clamp(0.0, longest) } else { longest };
        let left_to_chance = delay * self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0);
        Duration::try_from_secs_f64(delay - left_to_chance).unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_maximum() {
        let delays: Vec<_> =
            (1..=7).map(|attempt| Backoff::default().delay(attempt, 0.5).as_secs()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(Backoff::default().delay(u32::MAX, 0.0), Duration::from_secs(300));
        assert_eq!(Backoff::NONE.delay(3, 0.0), Duration::ZERO);
    }

    #[test]
    fn jitter_only_shortens() {
        let backoff = Backoff { jitter: 0.5, ..Backoff::default() };
        assert_eq!(backoff.delay(1, 0.0), Duration::from_secs(10));
        assert_eq!(backoff.delay(1, 1.0), Duration::from_secs(5));
    }
}
