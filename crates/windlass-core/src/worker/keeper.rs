//! Keeps the leases of running attempts, and tells the store that the worker lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::abort::AbortReason;
use super::slot::{Engine, Slot};
use crate::command::{Beat, Renew, RenewLease, Renewed};
use crate::id::{Fence, JobId};
use crate::limit::BATCH_MAX_ITEMS;
use crate::name::ErrorText;
use crate::observer::{About, Event};
use crate::store::{Capability, Store};
use crate::time::Millis;

/// How often the worker says that it lives.
const BEAT: Duration = Duration::from_secs(10);
/// After so long without a beat it counts as gone.
const BEAT_TTL: Millis = Millis::from_secs(30);
/// After so long at most a renewal that failed, or whose row was busy, is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// How long the keeper sleeps with nothing to keep.
const IDLE: Duration = Duration::from_secs(60);

/// Says that the worker lives, until it is dropped.
pub(super) async fn beat<S: Store + ?Sized>(engine: Arc<Engine<S>>) {
    while engine.client.store().capabilities().has(Capability::Workers) {
        let types = engine.handlers.iter().flat_map(|handler| handler.types.clone());
        let beat = Beat {
            worker: engine.id,
            name: engine.name.clone(),
            types: types.collect(),
            concurrency: engine.concurrency,
            running: u32::try_from(engine.slots().running.len()).unwrap_or(u32::MAX),
            ttl: BEAT_TTL,
        };
        if let Err(error) = engine.client.store().beat(beat).await {
            engine.teller().observe(&Event::StoreFailed("beat", ErrorText::new(error.to_string())));
        }
        sleep(BEAT).await;
    }
}

/// Keeps leases until it is dropped. It never waits for the store itself: a call that hangs delays no other
/// lease, and no timeout.
pub(super) async fn keep<S: Store + ?Sized>(engine: Arc<Engine<S>>) {
    loop {
        engine.time_out();
        for leases in engine.due_for_renewal() {
            tokio::spawn(renew(Arc::clone(&engine), leases));
        }
        let next = engine.next_look();
        tokio::select! {
            biased;
            () = sleep_until(next) => {}
            () = engine.taken.notified() => {}
        }
    }
}

/// Each lease is given up after a quarter of its own length: a short one does not hurry the long ones in its
/// command.
async fn renew<S: Store + ?Sized>(engine: Arc<Engine<S>>, mut leases: Vec<RenewLease>) {
    let asked_at = Instant::now();
    leases.sort_by_key(|renew| renew.lease);
    let mut call = engine.client.store().renew(Renew { leases: leases.clone() });
    let mut waiting = leases.as_slice();
    while let Some(RenewLease { lease: shortest, .. }) = waiting.first().copied() {
        let (gone, why) = match timeout_at(asked_at + Duration::from(shortest) / 4, &mut call).await {
            Ok(Ok(reply)) => {
                let renewed = leases.iter().zip(&reply.leases);
                return renewed.for_each(|(lease, renewed)| engine.renewed(*lease, *renewed, asked_at));
            }
            Ok(Err(error)) => (waiting.len(), error.to_string()),
            Err(_) => {
                let gone = waiting.partition_point(|renew| renew.lease == shortest);
                (gone, "the store did not answer in time".to_owned())
            }
        };
        engine.teller().observe(&Event::StoreFailed("renew", ErrorText::new(why)));
        let (given_up, rest) = waiting.split_at(gone);
        given_up.iter().for_each(|lease| engine.not_renewed(*lease));
        waiting = rest;
    }
}

impl<S: Store + ?Sized> Engine<S> {
    /// Tells attempts whose time is over to stop; their leases are renewed no longer. One that is still there
    /// when its lease has ended is ended: the lease is the hard limit.
    fn time_out(&self) {
        let now = Instant::now();
        let (mut timed_out, mut ended) = (Vec::new(), Vec::new());
        for (attempt, slot) in &mut self.slots().running {
            if slot.timeout_at.is_some_and(|at| at <= now) {
                slot.timeout_at = None;
                slot.renew_at = None;
                slot.abort.abort(AbortReason::TimedOut);
                timed_out.push(Arc::clone(&slot.about));
            }
            if slot.renew_at.is_none() && !slot.settling && slot.lease_ends <= now {
                slot.abort.end();
                ended.push((*attempt, Arc::clone(&slot.about)));
            }
        }
        for about in timed_out {
            self.teller().observe(&Event::AttemptTimedOut(About::clone(&about)));
        }
        for (attempt, about) in ended {
            self.teller().observe(&Event::AttemptLost(About::clone(&about)));
            self.vacate(attempt);
        }
    }

    /// When there is something to do next.
    fn next_look(&self) -> Instant {
        let mut slots = self.slots();
        let next = slots.running.values().filter_map(Slot::next_look).min();
        slots.keeper_sleeps = next.unwrap_or_else(|| Instant::now() + IDLE);
        slots.keeper_sleeps
    }

    /// The leases to renew, in commands: all together, and each whose row was busy alone. What is due soon
    /// comes along.
    fn due_for_renewal(&self) -> Vec<Vec<RenewLease>> {
        let now = Instant::now();
        let mut slots = self.slots();
        let due = |at: Option<Instant>, slack: Duration| at.is_some_and(|at| at <= now + slack);
        if !slots.running.values().any(|slot| due(slot.renew_at, Duration::ZERO)) {
            return Vec::new();
        }
        let (mut together, mut calls) = (Vec::new(), Vec::new());
        for ((job, fence), slot) in &mut slots.running {
            let lease = Duration::from(slot.lease);
            if !due(slot.renew_at, lease / 8) {
                continue;
            }
            // Not again before this call has been answered or given up.
            slot.renew_at = Some(now + lease / 4 + again(slot.lease));
            let renew = renew_lease((*job, *fence), slot);
            if slot.alone {
                calls.push(vec![renew]);
            } else {
                together.push(renew);
            }
        }
        calls.extend(together.chunks(BATCH_MAX_ITEMS).map(<[_]>::to_vec));
        calls
    }

    fn renewed(&self, lease: RenewLease, renewed: Renewed, asked_at: Instant) {
        let mut slots = self.slots();
        let Some(slot) = slots.running.get_mut(&(lease.job, lease.fence)) else { return };
        match renewed {
            Renewed::Held { cancel_requested, .. } => {
                let renewal = self.handlers.get(slot.handler).map(|handler| handler.options.renewal());
                slot.alone = false;
                slot.lease_ends = slot.lease_ends.max(asked_at + lease.lease.into());
                slot.renew_at = slot.renew_at.and(renewal).map(|renewal| asked_at + renewal);
                if cancel_requested {
                    slot.abort.abort(AbortReason::Cancelled);
                }
                let event = Event::LeaseRenewed(About::clone(&slot.about));
                drop(slots);
                self.teller().observe(&event);
            }
            Renewed::Busy => {
                slot.alone = true;
                slot.renew_at = slot.renew_at.map(|_| Instant::now() + again(lease.lease));
            }
            Renewed::Lost(lost) => {
                slot.renew_at = None;
                slot.abort.abort(lost.into());
            }
        }
        self.taken.notify_one();
    }

    /// Tries again soon; after the end of the lease the attempt is told.
    fn not_renewed(&self, lease: RenewLease) {
        if let Some(slot) = self.slots().running.get_mut(&(lease.job, lease.fence)) {
            slot.renew_at = slot.renew_at.map(|_| Instant::now() + again(lease.lease));
            if slot.lease_ends <= Instant::now() {
                slot.abort.abort(AbortReason::StoreError);
            }
        }
        self.taken.notify_one();
    }
}

/// When to try again: several times within the shortest renewal interval that a lease may have.
fn again(lease: Millis) -> Duration {
    AGAIN.min(Duration::from(lease) / 8)
}

const fn renew_lease((job, fence): (JobId, Fence), slot: &Slot) -> RenewLease {
    RenewLease { job, fence, lease: slot.lease }
}
