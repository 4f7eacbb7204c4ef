//! Whether a running worker can acquire jobs.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::error::Error;

/// Why a running worker cannot acquire jobs. See [`Running::health`](super::Running::health).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unhealthy {
    /// The error of the latest try.
    pub error: Error,
    /// The time of the first failure since the latest success.
    pub since: SystemTime,
    /// The number of failures since the latest success.
    pub failures: u32,
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker cannot acquire jobs (consecutive failures: {})", self.failures)
    }
}

impl std::error::Error for Unhealthy {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The health of one worker. Its main loop writes it; any task may read it.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Option<Unhealthy>>);

impl Health {
    pub(super) fn get(&self) -> Result<(), Unhealthy> {
        self.lock().clone().map_or(Ok(()), Err)
    }

    pub(super) fn succeeded(&self) {
        *self.lock() = None;
    }

    pub(super) fn failed(&self, error: &Error) {
        let mut health = self.lock();
        let (since, failures) =
            health.as_ref().map_or_else(|| (SystemTime::now(), 0), |before| (before.since, before.failures));
        *health = Some(Unhealthy { error: error.clone(), since, failures: failures.saturating_add(1) });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Unhealthy>> {
        // The value is always replaced as a whole, so poisoning can be ignored.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
