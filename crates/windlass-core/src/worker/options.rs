//! How attempts run.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::job::{Backoff, JobOptions};
use crate::limit::DURATION_MAX_MS;
use crate::time::Millis;

/// The lease if none is set.
const LEASE: Duration = Duration::from_secs(60);

/// How a worker runs the attempts of a handler.
///
/// These options can be set in three places. For each option, the first of these that sets it takes precedence:
///
/// 1. the handler: [`Worker::handle_with`](crate::Worker::handle_with);
/// 2. the job type: [`Job::options`](crate::Job::options);
/// 3. the worker: [`Worker::defaults`](crate::Worker::defaults).
///
/// ```
/// use std::time::Duration;
/// use windlass::{Backoff, HandlerOptions};
///
/// let slow = HandlerOptions::new().concurrency(2).timeout(Duration::from_secs(600)).backoff(Backoff::NONE);
/// # let _ = slow;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[must_use]
pub struct HandlerOptions {
    pub(super) concurrency: Option<u32>,
    lease: Option<Duration>,
    renewal: Option<Duration>,
    timeout: Option<Duration>,
    backoff: Option<Backoff>,
}

impl HandlerOptions {
    /// Creates options that set nothing.
    pub const fn new() -> Self {
        Self { concurrency: None, lease: None, renewal: None, timeout: None, backoff: None }
    }

    /// Sets how many attempts of the handler run concurrently in a worker. Default: the concurrency of the worker.
    ///
    /// The limit applies to each name of the job type separately. If jobs are also stored under a former name, more
    /// attempts may run.
    pub const fn concurrency(mut self, slots: u32) -> Self {
        self.concurrency = Some(slots);
        self
    }

    /// Sets the length of a lease. Default: 60 s.
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how often the lease is renewed. At most half the lease, which is the default.
    pub const fn renewal(mut self, renewal: Duration) -> Self {
        self.renewal = Some(renewal);
        self
    }

    /// Sets the time after which the handler is asked to stop and its lease is no longer renewed. Default: no limit.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the delay before a failed attempt is retried.
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }
}

impl From<JobOptions> for HandlerOptions {
    fn from(options: JobOptions) -> Self {
        let JobOptions { lease, renewal, timeout, backoff, .. } = options;
        Self { concurrency: None, lease, renewal, timeout, backoff }
    }
}

/// The options of a handler, each with its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolved {
    pub(super) concurrency: Option<u32>,
    pub(super) lease: Duration,
    /// The lease in milliseconds, the unit of store commands.
    lease_ms: Millis,
    pub(super) renewal: Duration,
    pub(super) timeout: Option<Duration>,
    pub(super) backoff: Backoff,
}

impl Resolved {
    /// Takes each option from the first of the places that sets it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if an option is unusable.
    pub(super) fn new(name: &str, places: [HandlerOptions; 3]) -> Result<Self> {
        let with_lease = places.iter().position(|place| place.lease.is_some());
        let lease = with_lease.and_then(|index| places.get(index)?.lease).unwrap_or(LEASE);
        // A renewal interval that was set further down than the lease was chosen for another lease: ignore it.
        let up_to = with_lease.map_or(places.len(), |index| index + 1);
        let renewal = places.iter().take(up_to).find_map(|place| place.renewal);
        let resolved = Self {
            concurrency: places.iter().find_map(|place| place.concurrency),
            lease,
            lease_ms: Millis::try_from(lease).unwrap_or(Millis::MAX),
            renewal: renewal.unwrap_or(lease / 2),
            timeout: places.iter().find_map(|place| place.timeout),
            backoff: places.iter().find_map(|place| place.backoff).unwrap_or_default(),
        };
        let refuse = |why| Error::new(ErrorKind::Invalid, format!("job type `{name}`: {why}"));
        resolved.check().map_err(refuse)?;
        Ok(resolved)
    }

    /// Returns the length of the leases, which `new` has checked.
    pub(super) const fn lease_ms(&self) -> Millis {
        self.lease_ms
    }

    fn check(&self) -> Result<(), String> {
        let Self { lease, renewal, timeout, .. } = *self;
        if self.concurrency == Some(0) {
            return Err("concurrency limit must be at least 1, got 0".to_owned());
        }
        if lease < Duration::from_millis(10) || lease > Duration::from_millis(DURATION_MAX_MS) {
            return Err(format!("lease must be 10 ms to 100 years, got {lease:?}"));
        }
        if renewal < Duration::from_millis(1) || renewal > lease / 2 {
            return Err(format!(
                "renewal interval must be 1 ms to half of the lease of {lease:?}, got {renewal:?}"
            ));
        }
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err("timeout must be greater than 0: omit it for no timeout".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: HandlerOptions = HandlerOptions::new();

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn resolved(places: [HandlerOptions; 3]) -> (Duration, Duration, Option<Duration>, Option<u32>) {
        let Resolved { concurrency, lease, renewal, timeout, .. } = Resolved::new("a", places).unwrap();
        (lease, renewal, timeout, concurrency)
    }

    #[test]
    fn the_first_place_that_sets_an_option_decides() {
        assert_eq!(resolved([NONE; 3]), (secs(60), secs(30), None, None));
        let worker = NONE.lease(secs(8)).timeout(secs(3)).concurrency(4);
        assert_eq!(resolved([NONE, NONE, worker]), (secs(8), secs(4), Some(secs(3)), Some(4)));
        let job_type = NONE.lease(secs(20)).renewal(secs(1));
        assert_eq!(resolved([NONE, job_type, worker]), (secs(20), secs(1), Some(secs(3)), Some(4)));
        let handler = NONE.timeout(secs(9)).concurrency(1);
        assert_eq!(resolved([handler, job_type, worker]), (secs(20), secs(1), Some(secs(9)), Some(1)));
    }

    #[test]
    fn a_renewal_interval_belongs_to_its_lease() {
        let job_type = NONE.lease(secs(60)).renewal(secs(20));
        assert_eq!(resolved([NONE.lease(secs(10)), job_type, NONE]).1, secs(5));
        assert_eq!(resolved([NONE.renewal(secs(2)), job_type, NONE]).1, secs(2));
    }

    #[test]
    fn unusable_options_are_refused() {
        let refused = |options| Resolved::new("a", [options, NONE, NONE]).unwrap_err().to_string();
        assert!(
            refused(NONE.concurrency(0)).starts_with("job type `a`: concurrency limit must be at least 1")
        );
        assert!(refused(NONE.lease(secs(0))).contains("lease must be"));
        assert!(refused(NONE.renewal(secs(31))).contains("renewal interval must be"));
        assert!(refused(NONE.timeout(secs(0))).contains("timeout must be greater than 0"));
    }
}
