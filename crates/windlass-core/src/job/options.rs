use std::time::Duration;

use crate::record::{OnBlockerFailure, Retention};

/// How jobs of a type are run and kept.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct JobOptions {
    /// The maximum number of attempts, or `None` for no limit. If the last attempt fails, the job and its chain fail.
    /// Default: 25, which takes about 16 hours with the default backoff.
    pub max_attempts: Option<u32>,
    /// Jobs with a higher priority run first. Default: 0.
    pub priority: i8,
    /// The length of a lease. Default: that of the worker, or 60 s.
    pub lease: Option<Duration>,
    /// How often the lease is renewed. At most half the lease, which is the default.
    pub renewal: Option<Duration>,
    /// The time after which the handler is asked to stop and its lease is no longer renewed. Default: that of the
    /// worker, or no limit.
    pub timeout: Option<Duration>,
    /// The delay before a failed attempt is retried. Default: that of the worker, or the default [`Backoff`].
    pub backoff: Option<Backoff>,
    /// How long a chain that starts with a job of this type is kept after it closes.
    pub retention: Retention,
    /// What a job does if a blocker chain does not complete. A type with blockers declared as
    /// [`Fallible`](crate::Fallible) ignores this setting: its handler receives the failure.
    pub on_blocker_failure: OnBlockerFailure,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            max_attempts: Some(25),
            priority: 0,
            lease: None,
            renewal: None,
            timeout: None,
            backoff: None,
            retention: Retention::default(),
            on_blocker_failure: OnBlockerFailure::default(),
        }
    }
}

/// The delay before a failed attempt is retried: `initial × multiplier^(attempt - 1)`, at most `max`, reduced
/// by a random share of up to `jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The delay after the first attempt. Default: 10 s.
    pub initial: Duration,
    /// The factor by which the delay grows with each attempt. Default: 2.
    pub multiplier: f64,
    /// The longest delay. Default: 1 h.
    pub max: Duration,
    /// The largest share of the delay that is random, from 0 to 1. Default: 0.1.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(10),
            multiplier: 2.0,
            max: Duration::from_secs(60 * 60),
            jitter: 0.1,
        }
    }
}

impl Backoff {
    /// Retries immediately.
    pub const NONE: Self =
        Self { initial: Duration::ZERO, multiplier: 1.0, max: Duration::ZERO, jitter: 0.0 };

    /// Returns the delay after the given attempt, counted from 1. `chance` is a random number from 0 to 1.
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
        let delay = |attempt| Backoff::default().delay(attempt, 0.0);
        let delays: Vec<_> = (1..=11).map(|attempt| delay(attempt).as_secs()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]);
        assert_eq!(delay(u32::MAX), Duration::from_secs(3600));
        assert_eq!(Backoff::NONE.delay(3, 0.0), Duration::ZERO);
        let attempts = JobOptions::default().max_attempts.unwrap();
        let hours = (1..attempts).map(delay).sum::<Duration>().as_secs() / 3600;
        assert_eq!((attempts, hours), (25, 16));
    }

    #[test]
    fn jitter_only_shortens() {
        let backoff = Backoff { jitter: 0.5, ..Backoff::default() };
        assert_eq!(backoff.delay(1, 0.0), Duration::from_secs(10));
        assert_eq!(backoff.delay(1, 1.0), Duration::from_secs(5));
        assert_eq!(Backoff::default().delay(1, 1.0), Duration::from_secs(9));
    }
}
