//! Jobs that a worker has acquired in advance, and that wait until one of its handlers ends.
//!
//! A waiting job has a slot like a running one, so the keeper renews its lease. Its timeout begins with its handler.
//!
//! A handler that has ended no longer counts, even if its outcome is still being stored: the next job starts at once, and
//! the settlement is part of the next exchange. So while handlers are fast, exchanges carry many jobs, and their cost per
//! job falls.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::any_attempt::HeldJob;
use super::engine::Engine;
use super::slot::{Slot, SlotState, Slots};
use super::task::{self, AttemptTask};
use crate::clock::far;
use crate::command::Outcome;
use crate::store::Store;

/// A waiting job whose turn it is, and the index of its handler.
struct Next {
    held: Arc<HeldJob>,
    handler: usize,
    /// Whether the job may start: its lease has not ended, and nothing has asked its attempt to stop.
    may_start: bool,
    /// Whether the keeper has to wake up earlier because of the job's timeout.
    wakes_keeper: bool,
}

impl<S: Store + ?Sized> Engine<S> {
    /// Starts waiting jobs until the maximum number of handlers is running.
    pub(super) fn start_waiting(self: &Arc<Self>) {
        // A slot may be freed outside a runtime, when the worker is dropped. Nothing can start or be settled there.
        if Handle::try_current().is_err() {
            return;
        }
        if self.stopping.is_cancelled() {
            return self.release_waiting();
        }
        // Starting a job may free its slot at once, for example in a runtime that shuts down, and call this function again.
        // That call and those of other threads leave the rest to this loop, which checks again under the same lock.
        if std::mem::replace(&mut self.slots().is_starting, true) {
            return;
        }
        let mut starting = Starting { engine: self, is_over: false };
        while let Some(Next { held, handler, may_start, wakes_keeper }) = self.next_waiting() {
            if wakes_keeper {
                self.keeper_wake.notify_one();
            }
            if may_start {
                task::run(self, &held, handler, self.dispatcher().wants_events());
            } else if let Some(attempt) = AttemptTask::new(self, held, handler) {
                // A release cancels a job whose cancellation was requested, and changes nothing if the job is lost.
                attempt.leave(Outcome::Release);
            }
        }
        starting.is_over = true;
    }

    /// Returns the next waiting job. If there is none, or if no more handlers may run, [`start_waiting`] is over.
    ///
    /// [`start_waiting`]: Self::start_waiting
    fn next_waiting(&self) -> Option<Next> {
        loop {
            let mut slots = self.slots();
            let next = if slots.active < self.concurrency { slots.waiting.pop_front() } else { None };
            let Some(held) = next else {
                slots.is_starting = false;
                return None;
            };
            if let Some(handler) = slots.activate(&held, self) {
                let slot = slots.running.get(&held.id());
                let has_lease = slot.is_some_and(|slot| slot.lease_ends > Instant::now());
                let may_start = has_lease && held.signal.reason().is_none();
                let wake = slot.and_then(Slot::next_wake);
                let wakes_keeper = wake.is_some_and(|wake| wake < slots.keeper_wakes_at);
                return Some(Next { held, handler, may_start, wakes_keeper });
            }
            // Unlock before the job is dropped: the drop of a payload may run any code.
            drop(slots);
        }
    }

    /// Releases the waiting jobs: their attempts do not count.
    pub(super) fn release_waiting(self: &Arc<Self>) {
        // Unlocked before the jobs are released: their slots may be freed immediately.
        let waiting: Vec<_> = {
            let mut slots = self.slots();
            let waiting = std::mem::take(&mut slots.waiting).into_iter();
            waiting.map(|held| (slots.activate(&held, self), held)).collect()
        };
        for (handler, held) in waiting {
            if let Some(attempt) = handler.and_then(|handler| AttemptTask::new(self, held, handler)) {
                attempt.leave(Outcome::Release);
            }
        }
    }
}

/// Lets other calls start waiting jobs if this one panics.
struct Starting<'e, S: Store + ?Sized> {
    engine: &'e Engine<S>,
    is_over: bool,
}

impl<S: Store + ?Sized> Drop for Starting<'_, S> {
    fn drop(&mut self) {
        if !self.is_over {
            self.engine.slots().is_starting = false;
        }
    }
}

impl Slots {
    /// Counts a waiting job as running, and begins its timeout. Returns the index of its handler, or `None` if its slot was
    /// freed.
    fn activate<S: Store + ?Sized>(&mut self, held: &HeldJob, engine: &Engine<S>) -> Option<usize> {
        let slot = self.running.get_mut(&held.id())?;
        slot.state = SlotState::Active;
        self.active += 1;
        let options = engine.handlers.get(slot.handler).map(|handler| handler.options);
        slot.timeout_at = options.and_then(|options| options.timeout).map(far);
        Some(slot.handler)
    }
}
