//! Writes the ends of attempts, many at once, and takes the next jobs with the same call where the store can.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::abort::AbortReason;
use super::builder::MOMENT;
use super::ended::Ended;
use super::run::RECOVERY;
use super::slot::Engine;
use super::task;
use crate::client::answered;
use crate::client::{Announcements, Batcher};
use crate::command::{Acquire, AcquireReply, Exchange, Outcome, Settle, SettleReply, Settled, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::name::ErrorText;
use crate::observer::{About, Event};
use crate::store::{BoxFuture, Capability, Store};

/// An end to be written, and what it is the end of.
pub(super) struct Settling {
    pub(super) settlement: Settlement,
    pub(super) about: Arc<About>,
}

/// Ends that come while others are being written are written together.
pub(super) fn settles<S: Store + ?Sized>(engine: Weak<Engine<S>>) -> Batcher<Arc<Settling>, Settled> {
    let size = |settling: &Arc<Settling>| settling.settlement.outcome.size();
    Batcher::new(size, move |items: Vec<Arc<Settling>>| -> BoxFuture<'static, _> {
        let engine = engine.upgrade();
        Box::pin(async move {
            let gone = || Error::new(ErrorKind::Closed, "the worker is gone");
            engine.ok_or_else(gone)?.write(&items).await
        })
    })
}

impl<S: Store + ?Sized> Engine<S> {
    /// Settles an attempt, and repeats that until the store has answered: a lease that has expired may still
    /// be settled as long as nobody has reaped it, and afterwards the store says so.
    pub(super) async fn settle(&self, mut settlement: Settlement, about: &Arc<About>) -> Ended {
        // What fits into no command would be refused again and again.
        if let Err(error) = settlement.outcome.size().check("carried chains") {
            settlement.outcome = Outcome::Fail { error: ErrorText::new(error.to_string()), retention: None };
        }
        let asked = self.teller().ask_outcome(&mut settlement.outcome, about);
        let mut settling = Arc::new(Settling { settlement, about: Arc::clone(about) });
        let mut tries = 0;
        loop {
            match self.settles.add(Arc::clone(&settling)).await {
                Ok(Settled::Refused(refusal)) => {
                    let error = ErrorText::new(refusal.to_string());
                    let outcome = Outcome::Fail { error, retention: None };
                    let settlement = Settlement { outcome, ..settling.settlement };
                    settling = Arc::new(Settling { settlement, about: Arc::clone(about) });
                    continue;
                }
                Ok(settled) => {
                    if let Some(ended) = Ended::of(&settling.settlement.outcome, &settled) {
                        if !ended.is_done() {
                            self.teller().rolled_back(&asked);
                        }
                        return ended;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Closed && self.stopping.is_cancelled() => {
                    self.teller().rolled_back(&asked);
                    return Ended::Lost(AbortReason::StoreError);
                }
                Err(error) => {
                    self.teller().observe(&Event::StoreFailed("settle", ErrorText::new(error.to_string())));
                }
            }
            tries += 1;
            self.before_another_try(RECOVERY.delay(tries, fastrand::f64())).await;
        }
    }

    /// Waits before what failed is tried again; not long, once the worker is stopping.
    async fn before_another_try(&self, delay: Duration) {
        let stopping = async {
            self.stopping.cancelled().await;
            sleep(MOMENT).await;
        };
        let _ = timeout(delay, stopping).await;
    }

    /// Writes ends with one command. Unless an acquire is under way, it asks for the next jobs too.
    async fn write(self: &Arc<Self>, items: &[Arc<Settling>]) -> Result<Vec<Settled>> {
        let settlements = items.iter().map(|settling| settling.settlement.clone()).collect();
        let settle = Settle { settlements };
        let may_exchange = self.client.store().capabilities().has(Capability::Exchange);
        let acquiring = self.acquiring.try_lock().ok().filter(|_| may_exchange);
        let Some(mut unanswered) = acquiring.filter(|_| !self.stopping.is_cancelled()) else {
            let reply = answered(self.client.store().settle(settle)).await?;
            return Ok(self.announce(items, reply));
        };
        self.mark_leaving(items, true);
        let (acquire, asked_at) = (self.next_acquire(&mut unanswered)?, Instant::now());
        if acquire.max == 0 || acquire.types.is_empty() {
            self.mark_leaving(items, false);
            let reply = answered(self.client.store().settle(settle)).await?;
            return Ok(self.announce(items, reply));
        }
        let max = acquire.max;
        *unanswered = Some(acquire.clone());
        match answered(self.client.store().exchange(Exchange { settle, acquire })).await {
            Ok(reply) => {
                *unanswered = None;
                let settled = self.announce(items, reply.settle);
                let taken = self.take(reply.acquire, asked_at);
                // The loop, when it had no room, does not know yet what is due next.
                if taken < max && self.is_full() {
                    self.freed.notify_one();
                }
                Ok(settled)
            }
            Err(error) => {
                self.mark_leaving(items, false);
                Err(error)
            }
        }
    }

    /// The acquire whose reply was lost, or one for all free slots.
    pub(super) fn next_acquire(&self, unanswered: &mut Option<Acquire>) -> Result<Acquire> {
        match unanswered.take() {
            Some(acquire) => Ok(acquire),
            None => self.acquire_request(),
        }
    }

    /// Takes back what an acquire took whose reply was lost, when the worker stops.
    pub(super) async fn take_back(self: &Arc<Self>) -> Result<()> {
        let mut unanswered = self.acquiring.lock().await;
        if let Some(acquire) = unanswered.clone() {
            let asked_at = Instant::now();
            self.take(self.client.store().acquire(acquire).await?, asked_at);
            *unanswered = None;
        }
        Ok(())
    }

    /// Starts attempts of what was acquired. Gives their number.
    pub(super) fn take(self: &Arc<Self>, reply: AcquireReply, asked_at: Instant) -> u32 {
        let taken = u32::try_from(reply.jobs.len()).unwrap_or(u32::MAX);
        for acquired in reply.jobs {
            // A repeated acquire gives the leases that the first one wrote, which have not their full length left.
            let left = acquired.job.lease.map(|lease| lease.until.since(reply.now)).unwrap_or_default();
            task::start(self, acquired, asked_at, left);
        }
        let mut announcements = Announcements::by(self.teller());
        announcements.ripple(&reply.ripple);
        announcements.send(self.teller());
        taken
    }

    fn announce(&self, items: &[Arc<Settling>], reply: SettleReply) -> Vec<Settled> {
        let mut announcements = Announcements::by(self.teller());
        for (settling, settled) in items.iter().zip(&reply.settled) {
            announcements.settled(&settling.settlement, &settling.about, settled);
        }
        announcements.ripple(&reply.ripple);
        announcements.send(self.teller());
        reply.settled
    }

    fn mark_leaving(&self, items: &[Arc<Settling>], leaving: bool) {
        let mut slots = self.slots();
        for Settling { settlement, .. } in items.iter().map(|settling| &**settling) {
            if let Some(slot) = slots.running.get_mut(&(settlement.job, settlement.fence)) {
                slot.leaving = leaving;
            }
        }
    }
}
