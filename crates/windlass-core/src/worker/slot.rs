//! The slots of a worker: one for each attempt that may run at the same time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::time::Instant;

use super::abort::Abort;
use super::engine::Engine;
use crate::clock::far;
use crate::id::{Fence, JobId};
use crate::observer::About;
use crate::store::Store;
use crate::time::Millis;

/// The running attempts.
pub(super) struct Slots {
    /// Keyed by fence too: if a job is acquired again before an earlier attempt has ended here, both are
    /// running.
    pub(super) running: HashMap<(JobId, Fence), Slot, FixedState>,
    /// When the keeper wakes up unless it is notified earlier.
    pub(super) keeper_wakes_at: Instant,
}

/// A slot occupied by an attempt.
pub(super) struct Slot {
    pub(super) about: Arc<About>,
    /// The index of the handler that runs the attempt.
    pub(super) handler: usize,
    pub(super) abort: Abort,
    pub(super) lease: Millis,
    /// When the lease expires, on this machine's clock. Counted from the time of the request, so it is never
    /// later than the expiry on the store's clock.
    pub(super) lease_ends: Instant,
    /// When to renew the lease. `None` once the attempt has timed out or lost its job.
    pub(super) renew_at: Option<Instant>,
    /// Whether the lease is renewed in a command of its own, because its row was busy.
    pub(super) alone: bool,
    /// When the attempt times out. `None` without a timeout, after it, or once the handler has ended.
    pub(super) timeout_at: Option<Instant>,
    /// Whether the handler has ended and its outcome is being written.
    pub(super) settling: bool,
    /// Whether the exchange that settles the attempt also acquires a job for its slot.
    pub(super) leaving: bool,
}

impl<S: Store + ?Sized> Engine<S> {
    /// Returns the number of free slots, and how many more jobs each handler may run.
    pub(super) fn free(&self) -> (u32, Vec<u32>) {
        let slots = self.slots();
        // A slot that is leaving counts as free: its handler has ended, and the exchange that settles it
        // acquires a job for it.
        let staying = || slots.running.values().filter(|slot| !slot.leaving);
        let left = |max: u32, taken: usize| max.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
        let free = left(self.concurrency, staying().count());
        let quotas =
            self.handlers.iter().enumerate().map(|(index, handler)| match handler.options.concurrency {
                None => free,
                Some(max) => left(max, staying().filter(|slot| slot.handler == index).count()).min(free),
            });
        (free, quotas.collect())
    }

    /// Occupies a slot with an attempt. `left` is the rest of its lease, counted from `requested_at`.
    pub(super) fn occupy(
        &self,
        attempt: (JobId, Fence),
        handler: usize,
        lease: Millis,
        requested_at: Instant,
        left: Duration,
        (about, abort): (Arc<About>, Abort),
    ) {
        let options = self.handlers.get(handler).map(|handler| handler.options);
        // The part of the lease that is left when it is renewed.
        let reserve = options.map_or(Duration::ZERO, |options| options.lease - options.renewal);
        let slot = Slot {
            about,
            handler,
            abort,
            lease,
            lease_ends: requested_at + left,
            // One renewal interval after the request, or earlier if part of the lease has passed.
            renew_at: Some(requested_at + left.saturating_sub(reserve)),
            alone: false,
            timeout_at: options.and_then(|options| options.timeout).map(far),
            settling: false,
            leaving: false,
        };
        // The keeper sets `keeper_wakes_at` under the same lock. It either sees this slot when it plans its
        // sleep, or has planned it already and is woken here.
        let mut slots = self.slots();
        let is_early = slot.next_wake().is_some_and(|wake| wake < slots.keeper_wakes_at);
        slots.running.insert(attempt, slot);
        drop(slots);
        if is_early {
            self.keeper_wake.notify_one();
        }
    }

    /// Frees a slot, unless that has happened already.
    pub(super) fn vacate(&self, attempt: (JobId, Fence)) {
        let Some(slot) = self.slots().running.remove(&attempt) else { return };
        // An exchange has already acquired for a slot that is leaving, so the loop need not. During a stop,
        // `emptied` waits for every slot: notify in any case.
        if !slot.leaving || self.stopping.is_cancelled() {
            self.freed.notify_one();
        }
    }
}

impl Slot {
    /// Returns when the keeper must act on this slot: at the renewal or the timeout, or at the end of the
    /// lease if it is no longer renewed. Returns `None` if only the settlement is left to wait for.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        match self.renew_at {
            Some(at) => Some(self.timeout_at.map_or(at, |timeout| at.min(timeout))),
            None if self.settling => None,
            None => Some(self.lease_ends),
        }
    }
}
