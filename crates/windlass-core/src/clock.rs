//! The clock of a store, as a parameter.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::time::Timestamp;

/// Returns now plus `delay`, capped at 30 years so that the addition cannot overflow.
pub(crate) fn far(delay: Duration) -> Instant {
    const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    Instant::now() + delay.min(FOREVER)
}

/// A source of time for a store in this process.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// This machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that only changes when it is set or advanced. For tests.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Creates a clock that shows `now`.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.as_millis()))
    }

    /// Moves the clock forward by `by`.
    pub fn advance(&self, by: impl Into<Duration>) {
        self.set(self.now() + by.into());
    }

    /// Sets the clock to `now`.
    pub fn set(&self, now: impl Into<Timestamp>) {
        self.0.store(now.into().as_millis(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    /// A time in January 2027.
    fn default() -> Self {
        Self(AtomicI64::new(1_800_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst)).unwrap_or_default()
    }
}
