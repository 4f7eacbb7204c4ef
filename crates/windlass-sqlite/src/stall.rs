//! Times in which nobody could write, and so nobody could renew a lease.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use windlass_core::{Millis, Timestamp};

/// The latest such time that still counts. Each store notices those that its own commands met: a command that had to
/// wait for the write lock, or that gave up.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Mutex<Option<Stall>>);

#[derive(Clone, Copy, Debug)]
struct Stall {
    lasted: Duration,
    ended_at: Timestamp,
}

impl Stalls {
    /// A command waited for the write lock from one time to the other.
    pub(crate) fn note(&self, asked_at: Timestamp, ended_at: Timestamp) {
        let lasted = ended_at.since(asked_at);
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.is_none_or(|stall| stall.gives_way_to(lasted, ended_at)) {
            *latest = Some(Stall { lasted, ended_at });
        }
    }

    /// Whether owners have not yet had the time to renew what they could not renew in between.
    pub(crate) fn forbid_reaping(&self, now: Timestamp, renewal_interval: Millis) -> bool {
        let latest = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.is_some_and(|stall| {
            stall.lasted * 2 >= Duration::from(renewal_interval) && now < stall.ended_at + renewal_interval
        })
    }
}

impl Stall {
    /// Whether a later stall counts in its place: a longer one, or one so late that every owner has had its time.
    fn gives_way_to(self, lasted: Duration, ended_at: Timestamp) -> bool {
        lasted >= self.lasted || ended_at.since(self.ended_at) >= self.lasted * 2
    }
}
