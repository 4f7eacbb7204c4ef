//! Time as a parameter.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::error::{Error, ErrorKind, Result};
use crate::time::{Millis, Timestamp};

/// So long from now; for ever is thirty years.
pub(crate) fn far(delay: Duration) -> Instant {
    const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    Instant::now() + delay.min(FOREVER)
}

/// How long a store may take to answer before the call is given up and, being safe to repeat, repeated.
const ANSWER: Duration = Duration::from_secs(30);

/// What a call gives; an error of kind `Unavailable` if it is not answered in time.
pub(crate) async fn answered<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(Error::new(ErrorKind::Unavailable, "the store did not answer in time"));
    timeout(ANSWER, call).await.unwrap_or_else(late)
}

/// Tells the time to a store that lives in this process.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// The present time.
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

/// A clock that stands still until it is turned. For tests.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows this time.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.as_millis()))
    }

    /// Turns it forward.
    pub fn advance(&self, by: Millis) {
        self.set(self.now() + by);
    }

    /// Sets it.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_millis(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    /// Some time in January 2027.
    fn default() -> Self {
        Self(AtomicI64::new(1_800_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst)).unwrap_or_default()
    }
}
