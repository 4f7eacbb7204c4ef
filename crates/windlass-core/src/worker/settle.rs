//! Settles attempts in batches, and acquires the next jobs with the same call if the store supports it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::abort::AbortReason;
use super::builder::RETRY_DELAY;
use super::ended::Ended;
use super::engine::Engine;
use crate::client::answered;
use crate::client::{Announcements, Batcher};
use crate::command::{Exchange, Outcome, Settle, SettleReply, Settled, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::name::ErrorText;
use crate::observer::{About, Event};
use crate::store::{BoxFuture, Capability, Store};

/// A settlement to write, and the attempt that it belongs to.
pub(super) struct Settling {
    pub(super) settlement: Settlement,
    pub(super) about: Arc<About>,
}

/// Creates the batcher for settlements. Settlements that arrive while a batch is being written form the next
/// batch.
///
/// The reference is weak because the engine owns the batcher.
pub(super) fn settlement_batcher<S: Store + ?Sized>(
    engine: Weak<Engine<S>>,
) -> Batcher<Arc<Settling>, Settled> {
    let size = |settling: &Arc<Settling>| settling.settlement.outcome.size();
    Batcher::new(size, move |items: Vec<Arc<Settling>>| -> BoxFuture<'static, _> {
        let engine = engine.upgrade();
        Box::pin(async move {
            let stopped = || Error::new(ErrorKind::Closed, "the worker has stopped");
            engine.ok_or_else(stopped)?.write(&items).await
        })
    })
}

impl<S: Store + ?Sized> Engine<S> {
    /// Settles an attempt. Repeats the call until the store has answered.
    ///
    /// Repeating is safe after the lease has expired: the settlement is accepted as long as the job has not
    /// been reaped, and after that the store reports the attempt as lost.
    pub(super) async fn settle(&self, mut settlement: Settlement, about: &Arc<About>) -> Ended {
        // The store rejects an outcome that exceeds the limits of a command, however often it is retried:
        // fail the job instead.
        if let Err(error) = settlement.outcome.size().check("carried chains") {
            settlement.outcome = Outcome::Fail { error: ErrorText::new(error.to_string()), retention: None };
        }
        let traces = self.dispatcher().request_outcome_traces(&mut settlement.outcome, about);
        let mut settling = Arc::new(Settling { settlement, about: Arc::clone(about) });
        let mut tries = 0;
        loop {
            match self.settlements.add(Arc::clone(&settling)).await {
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
                            self.dispatcher().rolled_back(&traces);
                        }
                        return ended;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Closed && self.stopping.is_cancelled() => {
                    self.dispatcher().rolled_back(&traces);
                    return Ended::Lost(AbortReason::StoreError);
                }
                Err(error) => {
                    self.dispatcher()
                        .observe(&Event::StoreFailed("settle", ErrorText::new(error.to_string())));
                }
            }
            tries += 1;
            self.before_another_try(self.recovery.delay(tries, fastrand::f64())).await;
        }
    }

    /// Waits before another try: for `delay`, or for at most [`RETRY_DELAY`] once the worker is stopping.
    async fn before_another_try(&self, delay: Duration) {
        let stopping = async {
            self.stopping.cancelled().await;
            sleep(RETRY_DELAY).await;
        };
        let _ = timeout(delay, stopping).await;
    }

    /// Writes settlements with one command. Acquires the next jobs with the same command if the store
    /// supports it, no other acquire is in flight and the worker is not stopping.
    async fn write(self: &Arc<Self>, items: &[Arc<Settling>]) -> Result<Vec<Settled>> {
        let settlements = items.iter().map(|settling| settling.settlement.clone()).collect();
        let settle = Settle { settlements };
        let may_exchange = self.client.store().capabilities().has(Capability::Exchange);
        // `try_lock`: settlements must not wait for an acquire in flight. Once it holds the lock, this
        // exchange is the only acquire in flight until its reply has been turned into occupied slots.
        let acquiring = self.acquiring.try_lock().ok().filter(|_| may_exchange);
        let Some(mut unanswered) = acquiring.filter(|_| !self.stopping.is_cancelled()) else {
            let reply = answered(self.client.store().settle(settle)).await?;
            return Ok(self.announce(items, reply));
        };
        // Mark first, so that the acquire counts these slots as free.
        self.mark_leaving(items, true);
        let (acquire, requested_at) = (self.next_acquire(&mut unanswered)?, Instant::now());
        if acquire.max == 0 || acquire.types.is_empty() {
            self.mark_leaving(items, false);
            let reply = answered(self.client.store().settle(settle)).await?;
            return Ok(self.announce(items, reply));
        }
        let max = acquire.max;
        // Keep the request before sending it: if the reply is lost, the next acquire repeats it.
        *unanswered = Some(acquire.clone());
        match answered(self.client.store().exchange(Exchange { settle, acquire })).await {
            Ok(reply) => {
                *unanswered = None;
                let settled = self.announce(items, reply.settle);
                let acquired = self.start_attempts(reply.acquire, requested_at);
                // Slots are left free. If the loop had no room when it last checked, it does not know when
                // the next job is due: wake it.
                if acquired < max && self.is_full() {
                    self.freed.notify_one();
                }
                Ok(settled)
            }
            Err(error) => {
                // The settlements are repeated, perhaps without an acquire. The slots must then notify the
                // loop when they are freed.
                self.mark_leaving(items, false);
                Err(error)
            }
        }
    }

    /// Publishes the events and hints of a batch. Returns the result of each settlement.
    fn announce(&self, items: &[Arc<Settling>], reply: SettleReply) -> Vec<Settled> {
        let mut announcements = Announcements::new(self.dispatcher());
        for (settling, settled) in items.iter().zip(&reply.settled) {
            announcements.settled(&settling.settlement, &settling.about, settled);
        }
        announcements.ripple(&reply.ripple);
        announcements.send(self.dispatcher());
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
