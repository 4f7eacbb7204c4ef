//! Whether a running worker can acquire jobs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use crate::client::Dispatcher;
use crate::error::Error;
use crate::notifier::Reach;

/// Why a running worker cannot acquire jobs. See [`Probe::health`].
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

/// Reports whether a worker can run jobs, for the probes of an orchestrator. Cheap to clone. See
/// [`Running::probe`](super::Running::probe).
#[derive(Clone, Debug)]
pub struct Probe {
    health: Arc<Health>,
    /// Weak: a probe that outlives the client must not keep the store open.
    dispatcher: Weak<Dispatcher>,
}

impl Probe {
    pub(super) fn new(health: &Arc<Health>, dispatcher: &Arc<Dispatcher>) -> Self {
        Self { health: Arc::clone(health), dispatcher: Arc::downgrade(dispatcher) }
    }

    /// Returns an error while the worker cannot acquire jobs because its latest store command failed. The worker
    /// retries with backoff, and recovers automatically.
    ///
    /// The worker counts as healthy until its first command has failed, which takes up to 30 s if the store does not
    /// answer.
    pub fn health(&self) -> Result<(), Unhealthy> {
        self.health.get()
    }

    /// Returns an error while the notifier cannot connect, for example because PgBouncer does not support `LISTEN`. The
    /// worker still runs jobs, and is healthy and ready: it polls the store every 1.5 s for jobs that other processes start.
    ///
    /// Use it as a detail of a health check, not to restart the worker. The notifier tries to connect again.
    #[must_use]
    pub fn degraded(&self) -> Option<Error> {
        match self.dispatcher.upgrade()?.reach() {
            Reach::Lost(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the worker can run jobs: it has reached the store, its latest command succeeded, and it is not stopping.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(*self.health.lock(), State::Ready)
    }
}

/// The health of one worker. Its main loop writes it; any task may read it.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Starting,
    Ready,
    Unhealthy(Unhealthy),
    Stopping,
}

impl Health {
    pub(super) fn get(&self) -> Result<(), Unhealthy> {
        match &*self.lock() {
            State::Unhealthy(unhealthy) => Err(unhealthy.clone()),
            State::Starting | State::Ready | State::Stopping => Ok(()),
        }
    }

    pub(super) fn succeeded(&self) {
        self.set(|_| State::Ready);
    }

    pub(super) fn failed(&self, error: &Error) {
        self.set(|before| {
            let (since, failures) = match before {
                State::Unhealthy(before) => (before.since, before.failures),
                _ => (SystemTime::now(), 0),
            };
            State::Unhealthy(Unhealthy { error: error.clone(), since, failures: failures.saturating_add(1) })
        });
    }

    pub(super) fn stopping(&self) {
        self.set(|_| State::Stopping);
    }

    /// Replaces the state, unless the worker is stopping: that is final.
    fn set(&self, next: impl FnOnce(&State) -> State) {
        let mut state = self.lock();
        if !matches!(*state, State::Stopping) {
            *state = next(&state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The value is always replaced as a whole, so poisoning can be ignored.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
