//! Settles attempts in batches, and acquires the next jobs with the same call if the store supports it.
//!
//! While jobs are waiting, a settlement is sent with the next acquire, as an exchange, so that a job costs one round trip.
//! If none are waiting, it is written at once. A worker with a prefetch writes it at once on a store that executes
//! settlements and acquires at the same time: its handlers run the jobs that it has acquired in advance, and the main loop
//! acquires more.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{sleep, timeout};

use super::abort::AbortReason;
use super::acquire::Acquisition;
use super::any_attempt::HeldJob;
use super::builder::RETRY_DELAY;
use super::ended::Ended;
use super::engine::Engine;
use super::slot::SlotGuard;
use super::task::catch_panic;
use crate::client::{Announcements, Collector, Completed, RequestedTraces, answered, unanswered};
use crate::command::{Exchange, Outcome, Request, Settle, SettleReply, Settled, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::name::ErrorText;
use crate::observer::{About, Activity, Event, NotWritten};
use crate::store::{BoxFuture, Capability, Store};

/// The maximum time that a settlement waits for an acquire in flight, in order to be sent with the next one. An acquire
/// that hangs must not keep attempts from being settled.
const EXCHANGE_WAIT: Duration = Duration::from_millis(100);

/// A settlement to write.
pub(super) struct Settling<S: Store + ?Sized> {
    outcome: Outcome,
    pub(super) held: Arc<HeldJob>,
    owner: Owner<S>,
}

/// The receiver of a settlement's result.
enum Owner<S: Store + ?Sized> {
    /// A caller that waits for it.
    Caller(oneshot::Sender<Result<Settled>>),
    /// An attempt whose task has ended.
    Attempt(EndedAttempt<S>),
}

/// An attempt whose handler has ended, before its settlement. Dropping it frees the slot.
struct EndedAttempt<S: Store + ?Sized> {
    slot: SlotGuard<S>,
    traces: RequestedTraces,
}

/// Creates the collector of settlements. Settlements that arrive while as many batches as possible are being written
/// form the next batch.
///
/// The reference is weak because the engine owns the collector.
pub(super) fn settlement_collector<S: Store + ?Sized>(
    engine: Weak<Engine<S>>,
    exchanges: usize,
) -> Collector<Settling<S>> {
    let size = |settling: &Settling<S>| settling.outcome.size();
    Collector::new(size, exchanges, move |items: Vec<Settling<S>>| -> BoxFuture<'static, ()> {
        let engine = engine.upgrade();
        Box::pin(async move {
            // Without an engine, no task waits for the result.
            if let Some(engine) = engine {
                engine.write(items).await;
            }
        })
    })
}

impl<S: Store + ?Sized> Engine<S> {
    /// Settles an attempt. Repeats the call until the store has answered.
    pub(super) async fn settle(self: &Arc<Self>, mut outcome: Outcome, held: &Arc<HeldJob>) -> Ended {
        let traces = self.prepare_outcome(&mut outcome, held);
        let settled = self.try_settle(outcome.clone(), held).await;
        self.settle_until_stored(outcome, held, traces, settled).await
    }

    /// Settles an attempt whose task ends now. Its slot is freed when the settlement is stored.
    ///
    /// No task waits for the result, so none is woken for it.
    pub(super) fn settle_ended(&self, mut outcome: Outcome, held: Arc<HeldJob>, slot: SlotGuard<S>) {
        let traces = self.prepare_outcome(&mut outcome, &held);
        let owner = Owner::Attempt(EndedAttempt { slot, traces });
        self.settlements.push(Settling { outcome, held, owner });
    }

    /// Tries once to settle an attempt.
    pub(super) async fn try_settle(&self, outcome: Outcome, held: &Arc<HeldJob>) -> Result<Settled> {
        held.stop_clock();
        let (sender, settled) = oneshot::channel();
        self.settlements.push(Settling { outcome, held: Arc::clone(held), owner: Owner::Caller(sender) });
        settled.await.unwrap_or_else(|_| Err(unanswered()))
    }

    /// Replaces an outcome that the store would reject however often it is retried, and requests trace contexts for what
    /// the outcome creates.
    fn prepare_outcome(&self, outcome: &mut Outcome, held: &HeldJob) -> RequestedTraces {
        if let Err(error) = outcome.size().check("carried chains") {
            *outcome = Outcome::Fail { error: ErrorText::new(error.to_string()), retention: None };
        }
        let dispatcher = self.dispatcher();
        dispatcher.request_outcome_traces(outcome, || held.about(dispatcher.now()))
    }

    /// Repeats a settlement until it is stored, beginning with the result of the first try.
    ///
    /// Repeating is safe after the lease has expired: the settlement is accepted as long as the job has not
    /// been reaped, and after that the store reports the attempt as lost.
    async fn settle_until_stored(
        &self,
        mut outcome: Outcome,
        held: &Arc<HeldJob>,
        traces: RequestedTraces,
        mut settled: Result<Settled>,
    ) -> Ended {
        let mut tries = 0;
        loop {
            match settled {
                Ok(Settled::Refused(refusal)) => {
                    outcome = Outcome::Fail { error: ErrorText::new(refusal.to_string()), retention: None };
                    settled = self.try_settle(outcome.clone(), held).await;
                    continue;
                }
                Ok(settled) => {
                    if let Some(ended) = Ended::of(&outcome, &settled) {
                        self.report_traces(traces, &outcome, &settled, &ended);
                        return ended;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Closed && self.stopping.is_cancelled() => {
                    // A try before may have been stored, although its reply was lost.
                    if tries == 0 {
                        self.dispatcher().rolled_back(traces, NotWritten::Failed(ErrorKind::Closed));
                    }
                    let ended = Ended::Lost(AbortReason::StoreError);
                    held.end(self.dispatcher(), &ended);
                    return ended;
                }
                Err(error) => {
                    self.dispatcher()
                        .observe(&Event::StoreFailed("settle", ErrorText::new(error.to_string())));
                }
            }
            tries += 1;
            self.before_another_try(self.recovery.delay(tries, fastrand::f64())).await;
            settled = self.try_settle(outcome.clone(), held).await;
        }
    }

    /// Notifies the observers of requested trace contexts for which no event follows.
    fn report_traces(&self, traces: RequestedTraces, outcome: &Outcome, settled: &Settled, ended: &Ended) {
        if ended.is_done() {
            self.dispatcher().settled(traces, outcome, settled);
        } else {
            let why = match ended {
                Ended::Lost(_) => ErrorKind::LeaseLost,
                Ended::Cancelled => ErrorKind::ChainCancelled,
                // The store refused what the outcome creates, so that the job fails instead.
                _ => ErrorKind::Invalid,
            };
            self.dispatcher().rolled_back(traces, NotWritten::Failed(why));
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

    /// Writes settlements with one command, and passes on the results.
    async fn write(self: &Arc<Self>, items: Vec<Settling<S>>) {
        self.dispatcher().measure(|| Activity::Flushed { batch: "settle", items: items.len() });
        // A panic of the store counts as an error, so that the settlements are repeated.
        let result = catch_panic("store", self.settle_or_exchange(&items)).await;
        let result =
            result.unwrap_or_else(|panic| Err(Error::new(ErrorKind::Unavailable, panic.to_string())));
        if result.is_err() {
            // The settlements are repeated, perhaps without an acquire. The slots must then notify the loop when they
            // are freed.
            self.slots().mark_leaving(&items, false);
        }
        self.pass_on(items, result);
    }

    /// Writes settlements with one command. Acquires the next jobs with the same command if the store
    /// supports it, slots are free and the worker is not stopping.
    async fn settle_or_exchange(self: &Arc<Self>, items: &[Settling<S>]) -> Result<Vec<Settled>> {
        let settlements = items.iter().map(Settling::settlement).collect();
        let settle = Settle { settlements };
        let permit = self.exchange_permit().await;
        let Some((acquire, in_flight)) = permit.and_then(|permit| self.request_jobs(permit, items, u32::MAX))
        else {
            let call = answered(self.client.store().settle(settle));
            let reply = self.dispatcher().measured(Settle::NAME, |_| items.len(), call).await?;
            return Ok(self.announce(items, reply));
        };
        let call = answered(self.client.store().exchange(Exchange { settle, acquire }));
        let reply = self.dispatcher().measured(Exchange::NAME, |_| items.len(), call).await?;
        let settled = self.announce(items, reply.settle);
        let Acquisition { requested, acquired } = in_flight.answered(reply.acquire);
        // Slots are left free. If the loop had no room when it last checked, it does not know when the next job is due:
        // wake it.
        if acquired < requested && self.is_full() {
            self.freed.notify_one();
        }
        Ok(settled)
    }

    /// Returns a permit to acquire jobs together with a settlement, or `None` to write the settlement alone.
    async fn exchange_permit(&self) -> Option<OwnedSemaphorePermit> {
        let can_exchange = self.client.store().capabilities().has(Capability::Exchange);
        if !can_exchange || self.settles_apart || self.stopping.is_cancelled() {
            return None;
        }
        // No jobs are waiting, and the loop has room for those that come: it acquires them when it is notified. An
        // acquire would find nothing.
        let has_backlog = self.has_backlog.load(Ordering::Relaxed);
        if !has_backlog && !self.is_full() {
            return None;
        }
        if let Ok(permit) = Arc::clone(&self.acquiring).try_acquire_owned() {
            return Some(permit);
        }
        // Acquires are in flight. While jobs are waiting, it pays to wait for one of them: a settlement alone would be
        // another round trip, and then the freed slot would need a separate acquire, during which the next
        // settlement would go alone too, and so on.
        if !has_backlog {
            return None;
        }
        let permit = timeout(EXCHANGE_WAIT, Arc::clone(&self.acquiring).acquire_owned());
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => None,
            permit = permit => permit.ok()?.ok(),
        }
    }

    /// Publishes the events and hints of a batch. Returns the result of each settlement.
    fn announce(&self, items: &[Settling<S>], reply: SettleReply) -> Vec<Settled> {
        let dispatcher = self.dispatcher();
        let mut announcements = Announcements::committed(dispatcher);
        let mut announced = 0;
        for (Settling { outcome, held, .. }, settled) in items.iter().zip(&reply.settled) {
            let job_type = &held.acquired.job.job_type;
            let mut about = announcements.settled(outcome, job_type, |at| held.about_settled(at), settled);
            // Before the next attempts start: one of them may be the next attempt of the same job.
            if held.has_scopes()
                && let Some(ended) = Ended::of(outcome, settled)
            {
                match &about {
                    Some(about) => held.end_as(about, &ended),
                    None => held.end(dispatcher, &ended),
                }
            }
            // Most jobs close their chain. Both events share their description.
            if let Some(closed) = reply.ripple.closed.get(announced)
                && closed.job == held.acquired.job.id
            {
                about = about.map(|about| {
                    announced += 1;
                    announcements.closed_by(about, closed)
                });
            }
            about.into_iter().for_each(About::keep);
        }
        announcements.ripple_after(&reply.ripple, announced);
        announcements.send(dispatcher);
        let results = items.iter().zip(&reply.settled);
        dispatcher
            .deliver(results.filter_map(|(item, settled)| {
                Completed::by(&item.held.acquired.job, &item.outcome, settled)
            }));
        reply.settled
    }

    /// Passes the result of each settlement on to its owner. Frees the slots of the attempts that are settled.
    fn pass_on(self: &Arc<Self>, items: Vec<Settling<S>>, result: Result<Vec<Settled>>) {
        let mut settled = result.map(Vec::into_iter);
        let mut slots = Vec::with_capacity(items.len());
        for Settling { outcome, held, owner } in items {
            let settled = match &mut settled {
                Ok(settled) => settled.next().ok_or_else(unanswered),
                Err(error) => Err(error.clone()),
            };
            match owner {
                Owner::Caller(caller) => drop(caller.send(settled)),
                Owner::Attempt(attempt) => {
                    let ended = settled.as_ref().ok().and_then(|settled| Ended::of(&outcome, settled));
                    match (ended, &settled) {
                        (Some(ended), Ok(settled)) => {
                            self.report_traces(attempt.traces, &outcome, settled, &ended);
                            slots.push(attempt.slot);
                        }
                        _ => self.settle_again(outcome, &held, attempt, settled),
                    }
                }
            }
        }
        SlotGuard::free(self, slots);
    }

    /// Repeats the settlement of an attempt whose task has ended, on a separate task.
    fn settle_again(
        self: &Arc<Self>,
        outcome: Outcome,
        held: &Arc<HeldJob>,
        EndedAttempt { slot, traces }: EndedAttempt<S>,
        settled: Result<Settled>,
    ) {
        let (engine, attempt) = (Arc::clone(self), Arc::clone(held));
        let task = tokio::spawn(async move {
            engine.settle_until_stored(outcome, &attempt, traces, settled).await;
            drop(slot);
        });
        held.signal.runs(task.abort_handle());
    }
}

impl<S: Store + ?Sized> Settling<S> {
    fn settlement(&self) -> Settlement {
        let (job, fence) = self.held.id();
        Settlement { job, fence, outcome: self.outcome.clone() }
    }
}
