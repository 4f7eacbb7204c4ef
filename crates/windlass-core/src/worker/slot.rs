//! The slots of a worker: one for each attempt that may run at the same time.

use std::collections::{HashMap, VecDeque};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::time::Instant;

use super::any_attempt::HeldJob;
use super::engine::Engine;
use super::handler::AnyHandler;
use super::settle::Settling;
use crate::clock::far;
use crate::command::Acquire;
use crate::id::{Fence, JobId};
use crate::store::Store;
use crate::time::Millis;

/// The running attempts.
pub(super) struct Slots {
    /// Keyed by fence too: if a job is acquired again before an earlier attempt has ended here, both are
    /// running.
    pub(super) running: HashMap<(JobId, Fence), Slot, FixedState>,
    /// Acquires that are in flight, or whose replies were lost.
    pub(super) outstanding: Vec<Outstanding>,
    /// When the keeper wakes up unless it is notified earlier.
    pub(super) keeper_wakes_at: Instant,
    /// The number of slots in the state [`SlotState::Active`].
    pub(super) active: u32,
    /// The jobs that were acquired in advance, in order. Their slots are in `running`, unless their leases have ended.
    pub(super) waiting: VecDeque<Arc<HeldJob>>,
    /// Whether a call starts waiting jobs.
    pub(super) is_starting: bool,
}

/// The progress of the attempt in a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Acquired in advance: its handler has not started.
    Waiting,
    /// Its handler runs.
    Active,
    /// Its handler has ended.
    Ended,
}

/// An acquire that has not been answered. The slots that it may fill are reserved for it.
pub(super) struct Outstanding {
    pub(super) acquire: Acquire,
    /// The maximum number of jobs for each handler.
    pub(super) quotas: Vec<u32>,
    /// If not, its reply was lost. The store may still have leased jobs, so the next acquire repeats it.
    pub(super) is_in_flight: bool,
}

/// A slot occupied by an attempt.
pub(super) struct Slot {
    pub(super) held: Arc<HeldJob>,
    /// The index of the handler that runs the attempt.
    pub(super) handler: usize,
    pub(super) lease: Millis,
    /// When the lease expires, on this machine's clock. Counted from the time of the request, so it is never
    /// later than the expiry on the store's clock.
    pub(super) lease_ends: Instant,
    /// When to renew the lease. `None` once the attempt has timed out or lost its job.
    pub(super) renew_at: Option<Instant>,
    /// Whether the lease is renewed in a separate command, because its row was busy.
    pub(super) alone: bool,
    /// When the attempt times out. `None` without a timeout, after it, or once the handler has ended.
    pub(super) timeout_at: Option<Instant>,
    pub(super) state: SlotState,
    /// Whether the handler has ended and its outcome is being written.
    pub(super) settling: bool,
    /// Whether the exchange that settles the attempt also acquires a job for its slot.
    pub(super) leaving: bool,
}

impl Slots {
    /// Returns the number of free slots, and how many more jobs each handler may run. Slots that are reserved for
    /// acquires are not free. A handler with its own concurrency never holds more jobs than it may run, so a waiting
    /// job can always start when a handler ends.
    pub(super) fn free<S: Store + ?Sized>(&self, engine: &Engine<S>) -> (u32, Vec<u32>) {
        // A slot that is leaving counts as free: its handler has ended, and the exchange that settles it
        // acquires a job for it.
        let staying = || self.running.values().filter(|slot| !slot.leaving);
        let left = |max: u32, taken: usize| max.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
        let reserved: u32 = self.outstanding.iter().map(|outstanding| outstanding.acquire.max).sum();
        let free = left(engine.concurrency + engine.prefetch, staying().count()).saturating_sub(reserved);
        let quota = |(index, handler): (usize, &Arc<AnyHandler<S>>)| match handler.options.concurrency {
            None => free,
            Some(max) => {
                let reserved =
                    self.outstanding.iter().filter_map(|outstanding| outstanding.quotas.get(index));
                let own = left(max, staying().filter(|slot| slot.handler == index).count());
                own.saturating_sub(reserved.sum()).min(free)
            }
        };
        (free, engine.handlers.iter().enumerate().map(quota).collect())
    }

    /// Marks the slots of these attempts as leaving, or not.
    pub(super) fn mark_leaving<S: Store + ?Sized>(&mut self, settling: &[Settling<S>], leaving: bool) {
        for settling in settling {
            if let Some(slot) = self.running.get_mut(&settling.held.id()) {
                slot.leaving = leaving;
            }
        }
    }
}

impl<S: Store + ?Sized> Engine<S> {
    /// Returns the number of free slots, and how many more jobs each handler may run.
    pub(super) fn free(&self) -> (u32, Vec<u32>) {
        self.slots().free(self)
    }

    /// Returns the number of jobs that would start at once if they were acquired now, instead of waiting for a handler to
    /// end. A job that waits could run in another process.
    pub(super) fn idle_handlers(&self) -> u32 {
        let slots = self.slots();
        if !slots.waiting.is_empty() {
            return 0;
        }
        let reserved: u32 = slots.outstanding.iter().map(|outstanding| outstanding.acquire.max).sum();
        self.concurrency.saturating_sub(slots.active).saturating_sub(reserved)
    }

    /// Occupies a slot with an attempt. `left` is the rest of its lease, counted from `requested_at`. Returns whether its
    /// handler may start; otherwise the job waits for another handler to end.
    pub(super) fn occupy(
        &self,
        handler: usize,
        requested_at: Instant,
        left: Duration,
        held: Arc<HeldJob>,
    ) -> bool {
        let attempt = held.id();
        let options = self.handlers.get(handler).map(|handler| handler.options);
        // The part of the lease that is left when it is renewed.
        let reserve = options.map_or(Duration::ZERO, |options| options.lease - options.renewal);
        let mut slot = Slot {
            held,
            handler,
            lease: options.map(|options| options.lease_ms()).unwrap_or_default(),
            lease_ends: requested_at + left,
            // One renewal interval after the request, or earlier if part of the lease has passed.
            renew_at: Some(requested_at + left.saturating_sub(reserve)),
            alone: false,
            timeout_at: options.and_then(|options| options.timeout).map(far),
            state: SlotState::Active,
            settling: false,
            leaving: false,
        };
        // The keeper sets `keeper_wakes_at` under the same lock. It either sees this slot when it plans its
        // sleep, or has planned it already and is woken here.
        let mut slots = self.slots();
        let starts = slots.active < self.concurrency && slots.waiting.is_empty();
        if starts {
            slots.active += 1;
        } else {
            (slot.state, slot.timeout_at) = (SlotState::Waiting, None);
            slots.waiting.push_back(Arc::clone(&slot.held));
        }
        let is_early = slot.next_wake().is_some_and(|wake| wake < slots.keeper_wakes_at);
        slots.running.insert(attempt, slot);
        drop(slots);
        if is_early {
            self.keeper_wake.notify_one();
        }
        starts
    }

    /// Marks the handler of an attempt as ended. From here on, neither the timeout nor the expiry of the lease ends its
    /// task: the keeper would otherwise abort it halfway through the settlement. The next waiting job starts.
    pub(super) fn mark_settling(self: &Arc<Self>, attempt: (JobId, Fence)) {
        let mut slots = self.slots();
        let Some(slot) = slots.running.get_mut(&attempt) else { return };
        slot.settling = true;
        slot.timeout_at = None;
        if std::mem::replace(&mut slot.state, SlotState::Ended) == SlotState::Active {
            slots.active -= 1;
        }
        let has_waiting = !slots.waiting.is_empty();
        drop(slots);
        if has_waiting {
            self.start_waiting();
        }
    }

    /// Frees slots, unless that has happened already.
    pub(super) fn vacate(self: &Arc<Self>, attempts: impl Iterator<Item = (JobId, Fence)>) {
        let mut is_uncovered = false;
        let mut vacated = Vec::new();
        let has_waiting = {
            let mut slots = self.slots();
            for attempt in attempts {
                let Some(slot) = slots.running.remove(&attempt) else { continue };
                is_uncovered |= !slot.leaving;
                match slot.state {
                    SlotState::Active => slots.active -= 1,
                    SlotState::Waiting => {
                        let place = slots.waiting.iter().position(|held| held.id() == attempt);
                        vacated.extend(place.and_then(|place| slots.waiting.remove(place)));
                    }
                    SlotState::Ended => {}
                }
                vacated.push(slot.held);
            }
            !slots.waiting.is_empty()
        };
        if has_waiting {
            self.start_waiting();
        }
        // An exchange has already acquired for a slot that is leaving, so the loop need not. If the loop had room when it
        // last checked, it waits for notifications and due times, and has only more room now. It sets `full` before it
        // counts the slots: it has counted without these, or `full` is still set here. During a stop, `emptied` waits for
        // every slot: notify in any case.
        let is_awaited = is_uncovered && self.is_full() || self.stopping.is_cancelled();
        if is_awaited && !vacated.is_empty() {
            self.freed.notify_one();
        }
        // The jobs are dropped here, without the lock: the drop of a payload may run any code.
    }
}

/// Frees the slot of an attempt when dropped, however the attempt ends: by its settlement, a panic or an abort.
pub(super) struct SlotGuard<S: Store + ?Sized> {
    pub(super) engine: Arc<Engine<S>>,
    attempt: (JobId, Fence),
    is_freed: bool,
}

impl<S: Store + ?Sized> SlotGuard<S> {
    pub(super) const fn new(engine: Arc<Engine<S>>, attempt: (JobId, Fence)) -> Self {
        Self { engine, attempt, is_freed: false }
    }

    pub(super) const fn attempt(&self) -> (JobId, Fence) {
        self.attempt
    }

    /// Frees many slots of one worker at once.
    pub(super) fn free(engine: &Arc<Engine<S>>, mut guards: Vec<Self>) {
        engine.vacate(guards.iter().map(Self::attempt));
        guards.iter_mut().for_each(|guard| guard.is_freed = true);
    }
}

impl<S: Store + ?Sized> Drop for SlotGuard<S> {
    fn drop(&mut self) {
        if !self.is_freed {
            self.engine.vacate(iter::once(self.attempt));
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
