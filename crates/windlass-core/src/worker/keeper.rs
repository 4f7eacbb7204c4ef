//! Keeps the leases of running attempts, and tells the store that the worker lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::abort::AbortReason;
use super::slot::{Engine, Slot};
use crate::command::{Beat, Renew, RenewLease, Renewed};
use crate::id::{Fence, JobId};
use crate::name::{ErrorText, TypeName};
use crate::observer::Event;
use crate::store::{Capability, Store};
use crate::time::Millis;

/// How often the worker says that it lives.
const BEAT: Duration = Duration::from_secs(10);
/// After so long without a beat it counts as gone.
const BEAT_TTL: Millis = Millis::from_secs(30);
/// After so long a renewal that failed, or whose row was busy, is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// Runs until it is dropped.
pub(super) async fn keep<S: Store + ?Sized>(engine: Arc<Engine<S>>) {
    let beats = engine.client.store().capabilities().has(Capability::Workers);
    let mut beat_at = Instant::now();
    loop {
        if beats && Instant::now() >= beat_at {
            beat(&engine).await;
            beat_at = Instant::now() + BEAT;
        }
        engine.time_out();
        renew(&engine).await;
        let next = engine.next_renewal().into_iter().chain(beats.then_some(beat_at)).min();
        tokio::select! {
            () = sleep_until(next.unwrap_or_else(|| Instant::now() + BEAT)) => {}
            () = engine.taken.notified() => {}
        }
    }
}

async fn beat<S: Store + ?Sized>(engine: &Engine<S>) {
    let names = engine.handlers.iter().flat_map(|handler| &handler.names);
    let running = u32::try_from(engine.slots().len()).unwrap_or(u32::MAX);
    let beat = Beat {
        worker: engine.id,
        name: engine.name.clone(),
        types: names.filter_map(|name| TypeName::new(name).ok()).collect(),
        concurrency: engine.concurrency,
        running,
        ttl: BEAT_TTL,
    };
    if let Err(error) = engine.client.store().beat(beat).await {
        let event = Event::StoreFailed("beat", ErrorText::new(error.to_string()));
        engine.client.shared.observer.observe(&event);
    }
}

/// Renews what is due: all in one call, and each whose row was busy in one of its own, so that it delays no
/// other.
async fn renew<S: Store + ?Sized>(engine: &Engine<S>) {
    let (together, alone) = engine.due_for_renewal();
    let calls = [together].into_iter().chain(alone.into_iter().map(|lease| vec![lease]));
    for leases in calls.filter(|leases| !leases.is_empty()) {
        let asked_at = Instant::now();
        match engine.client.store().renew(Renew { leases: leases.clone() }).await {
            Ok(reply) => {
                let renewed = leases.iter().zip(&reply.leases);
                renewed.for_each(|(lease, renewed)| engine.renewed(*lease, *renewed, asked_at));
            }
            Err(error) => {
                let event = Event::StoreFailed("renew", ErrorText::new(error.to_string()));
                engine.client.shared.observer.observe(&event);
                leases.iter().for_each(|lease| engine.not_renewed(*lease));
            }
        }
    }
}

impl<S: Store + ?Sized> Engine<S> {
    /// Tells attempts whose time is over to stop; their leases are renewed no longer.
    fn time_out(&self) {
        let now = Instant::now();
        for slot in self.slots().values_mut() {
            if slot.timeout_at.is_some_and(|at| at <= now) {
                slot.timeout_at = None;
                slot.renew_at = None;
                slot.abort.abort(AbortReason::TimedOut);
            }
        }
    }

    fn next_renewal(&self) -> Option<Instant> {
        self.slots().values().flat_map(|slot| slot.renew_at.into_iter().chain(slot.timeout_at)).min()
    }

    /// The leases to renew together, and those to renew each alone. What is due soon comes along.
    fn due_for_renewal(&self) -> (Vec<RenewLease>, Vec<RenewLease>) {
        let now = Instant::now();
        let slots = self.slots();
        let due = |at: Option<Instant>, slack: Duration| at.is_some_and(|at| at <= now + slack);
        if !slots.values().any(|slot| due(slot.renew_at, Duration::ZERO)) {
            return (Vec::new(), Vec::new());
        }
        let soon = slots.iter().filter(|(_, slot)| due(slot.renew_at, Duration::from(slot.lease) / 8));
        let (alone, together): (Vec<_>, Vec<_>) = soon.partition(|(_, slot)| slot.alone);
        let lease = |((job, fence), slot): (&(JobId, Fence), &Slot)| RenewLease {
            job: *job,
            fence: *fence,
            lease: slot.lease,
        };
        (together.into_iter().map(lease).collect(), alone.into_iter().map(lease).collect())
    }

    fn renewed(&self, lease: RenewLease, renewed: Renewed, asked_at: Instant) {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&(lease.job, lease.fence)) else { return };
        match renewed {
            Renewed::Held { cancel_requested, .. } => {
                let renewal = self.handlers.get(slot.handler).map(|handler| handler.options.renewal());
                slot.alone = false;
                slot.lease_ends = asked_at + lease.lease.into();
                slot.renew_at = slot.renew_at.and(renewal).map(|renewal| asked_at + renewal);
                if cancel_requested {
                    slot.abort.abort(AbortReason::Cancelled);
                }
                let event = Event::LeaseRenewed(slot.about.clone());
                drop(slots);
                self.client.shared.observer.observe(&event);
            }
            Renewed::Busy => {
                slot.alone = true;
                slot.renew_at = slot.renew_at.map(|_| Instant::now() + AGAIN);
            }
            Renewed::Lost(lost) => {
                slot.renew_at = None;
                slot.abort.abort(lost.into());
            }
        }
    }

    /// Tries again soon; after the end of the lease the attempt is told.
    fn not_renewed(&self, lease: RenewLease) {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&(lease.job, lease.fence)) else { return };
        slot.renew_at = slot.renew_at.map(|_| Instant::now() + AGAIN);
        if slot.lease_ends <= Instant::now() {
            slot.abort.abort(AbortReason::StoreError);
        }
    }
}
