//! Renews the leases of running attempts, enforces their timeouts, and sends the worker's heartbeat.

use std::iter;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::abort::AbortReason;
use super::ended::Ended;
use super::engine::Engine;
use super::slot::Slot;
use crate::client::answered_within;
use crate::command::{Beat, Renew, RenewLease, Renewed, Request};
use crate::error::ErrorKind;
use crate::id::{Fence, JobId};
use crate::limit::BATCH_MAX_ITEMS;
use crate::name::ErrorText;
use crate::observer::{Activity, Event, StoreCall};
use crate::store::{Capability, Store};
use crate::time::Millis;

/// The interval of the worker's heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// The time without a heartbeat after which the worker is no longer listed.
const HEARTBEAT_TTL: Millis = Millis::from_secs(30);
/// The longest delay before retrying a renewal that failed or whose row was busy.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long the keeper sleeps if there is nothing to renew.
const IDLE_SLEEP: Duration = Duration::from_secs(60);

/// Sends heartbeats until it is dropped. Returns immediately if the store does not record workers.
///
/// A heartbeat that is not answered before the next one is due is given up. Otherwise a single call that hangs would remove
/// the worker from the list, although it works.
pub(super) async fn beat<S: Store + ?Sized>(engine: Arc<Engine<S>>) {
    while engine.client.store().capabilities().has(Capability::Workers) {
        let types = engine.handlers.iter().flat_map(|handler| handler.types.clone());
        let running = {
            let slots = engine.slots();
            slots.running.len() - slots.waiting.len()
        };
        let beat = Beat {
            worker: engine.id,
            name: engine.name.clone(),
            types: types.collect(),
            concurrency: engine.concurrency,
            running: u32::try_from(running).unwrap_or(u32::MAX),
            ttl: HEARTBEAT_TTL,
        };
        let next = Instant::now() + HEARTBEAT_INTERVAL;
        let call = answered_within(HEARTBEAT_INTERVAL, engine.client.store().beat(beat));
        if let Err(error) = engine.dispatcher().measured(Beat::NAME, |_| 1, call).await {
            engine.dispatcher().observe(&Event::StoreFailed("beat", ErrorText::new(error.to_string())));
        }
        sleep_until(next).await;
    }
}

/// Renews leases and enforces timeouts until it is dropped.
///
/// Runs in its own task, and makes each call to the store in another: neither an acquire nor a renewal that
/// hangs delays the other leases or a timeout.
pub(super) async fn keep<S: Store + ?Sized>(engine: Arc<Engine<S>>) {
    loop {
        engine.time_out();
        for leases in engine.due_for_renewal() {
            tokio::spawn(renew(Arc::clone(&engine), leases));
        }
        let next = engine.next_wake();
        tokio::select! {
            biased;
            () = sleep_until(next) => {}
            () = engine.keeper_wake.notified() => {}
        }
    }
}

/// Renews leases with one command.
///
/// A lease waits for the reply for a quarter of its own length, and is then scheduled for another try. The
/// call continues for the longer leases of the command, and its reply still counts for all of them.
async fn renew<S: Store + ?Sized>(engine: Arc<Engine<S>>, mut leases: Vec<RenewLease>) {
    let requested_at = Instant::now();
    leases.sort_by_key(|renew| renew.lease);
    let call = engine.client.store().renew(Renew { leases: leases.clone() });
    let mut call = pin!(engine.dispatcher().measured(Renew::NAME, |_| leases.len(), call));
    let mut waiting = leases.as_slice();
    while let Some(RenewLease { lease: shortest, .. }) = waiting.first().copied() {
        let (gone, why) = match timeout_at(requested_at + Duration::from(shortest) / 4, &mut call).await {
            Ok(Ok(reply)) => {
                engine.dispatcher().time().learn(reply.now);
                let renewed = leases.iter().zip(&reply.leases);
                return renewed.for_each(|(lease, renewed)| engine.renewed(*lease, *renewed, requested_at));
            }
            Ok(Err(error)) => (waiting.len(), error.to_string()),
            Err(_) => {
                let gone = waiting.partition_point(|renew| renew.lease == shortest);
                let (took, error) = (requested_at.elapsed(), Some(ErrorKind::TimedOut));
                let call = StoreCall { command: Renew::NAME, items: gone, took, error };
                // The call goes on, and is reported again if it is answered.
                engine.dispatcher().measure(|| Activity::StoreCalled(call));
                (gone, "the store did not answer in time".to_owned())
            }
        };
        engine.dispatcher().observe(&Event::StoreFailed("renew", ErrorText::new(why)));
        let (given_up, rest) = waiting.split_at(gone);
        given_up.iter().for_each(|lease| engine.not_renewed(*lease));
        waiting = rest;
    }
}

impl<S: Store + ?Sized> Engine<S> {
    /// Asks attempts that have timed out to stop, and stops renewing their leases. Ends the task of an
    /// attempt that is no longer renewed when its lease expires: from then on, another worker may run the
    /// job.
    fn time_out(self: &Arc<Self>) {
        let now = Instant::now();
        let (mut timed_out, mut ended) = (Vec::new(), Vec::new());
        for slot in self.slots().running.values_mut() {
            if slot.timeout_at.is_some_and(|at| at <= now) {
                slot.timeout_at = None;
                slot.renew_at = None;
                slot.held.signal.abort(AbortReason::TimedOut);
                timed_out.push(Arc::clone(&slot.held));
            }
            if slot.renew_at.is_none() && !slot.settling && slot.lease_ends <= now {
                slot.held.signal.end();
                ended.push(Arc::clone(&slot.held));
            }
        }
        // The slots are unlocked here: observers may run any code, and `vacate` takes the lock itself.
        for held in timed_out {
            self.dispatcher().observe(&Event::AttemptTimedOut(held.about(self.dispatcher().now())));
        }
        for held in ended {
            self.dispatcher().observe(&Event::AttemptLost(held.about(self.dispatcher().now())));
            let reason = held.signal.reason().unwrap_or(AbortReason::TimedOut);
            held.end(self.dispatcher(), &Ended::Lost(reason));
            // Free the slot now. The task ends at its next await, which a blocking handler may never reach.
            self.vacate(iter::once(held.id()));
        }
    }

    /// Returns when the keeper must act next. Records it for `occupy`, which wakes the keeper if a new slot
    /// needs it earlier.
    fn next_wake(&self) -> Instant {
        let mut slots = self.slots();
        let next = slots.running.values().filter_map(Slot::next_wake).min();
        slots.keeper_wakes_at = next.unwrap_or_else(|| Instant::now() + IDLE_SLEEP);
        slots.keeper_wakes_at
    }

    /// Returns the leases to renew, grouped into commands. A lease whose row was busy gets its own command,
    /// so that it does not delay the others. If any lease is due, those that are due soon are renewed with
    /// it.
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
            // Do not renew again before this call has been answered, or given up after a quarter of the
            // lease.
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

    /// Applies the result of a renewal.
    ///
    /// The attempt may have ended or timed out while the call was in flight, and replies may arrive out of
    /// order.
    fn renewed(&self, lease: RenewLease, renewed: Renewed, requested_at: Instant) {
        let mut slots = self.slots();
        let Some(slot) = slots.running.get_mut(&(lease.job, lease.fence)) else { return };
        match renewed {
            Renewed::Held { cancel_requested, .. } => {
                let renewal = self.handlers.get(slot.handler).map(|handler| handler.options.renewal);
                slot.alone = false;
                // A call that was given up may be answered after a later one: keep the later expiry.
                slot.lease_ends = slot.lease_ends.max(requested_at + lease.lease.into());
                // `None` stays `None`: an attempt that has timed out is not renewed again.
                slot.renew_at = slot.renew_at.and(renewal).map(|renewal| requested_at + renewal);
                if cancel_requested {
                    slot.held.signal.abort(AbortReason::Cancelled);
                }
                let held = Arc::clone(&slot.held);
                drop(slots);
                if self.dispatcher().is_observed() {
                    self.dispatcher().observe(&Event::LeaseRenewed(held.about(self.dispatcher().now())));
                }
            }
            Renewed::Busy => {
                slot.alone = true;
                slot.renew_at = slot.renew_at.map(|_| Instant::now() + again(lease.lease));
            }
            Renewed::Lost(lost) => {
                slot.renew_at = None;
                slot.held.signal.abort(lost.into());
            }
        }
        self.keeper_wake.notify_one();
    }

    /// Schedules another try soon. If the lease has expired, asks the attempt to stop: another worker may
    /// already run the job.
    fn not_renewed(&self, lease: RenewLease) {
        if let Some(slot) = self.slots().running.get_mut(&(lease.job, lease.fence)) {
            slot.renew_at = slot.renew_at.map(|_| Instant::now() + again(lease.lease));
            if slot.lease_ends <= Instant::now() {
                slot.held.signal.abort(AbortReason::StoreError);
            }
        }
        self.keeper_wake.notify_one();
    }
}

/// Returns the delay before a renewal is retried. A renewal is due after half the lease at the latest, so an
/// eighth of the lease leaves time for more than one try before it expires.
fn again(lease: Millis) -> Duration {
    RETRY_DELAY.min(Duration::from(lease) / 8)
}

const fn renew_lease((job, fence): (JobId, Fence), slot: &Slot) -> RenewLease {
    RenewLease { job, fence, lease: slot.lease }
}
