//! The worker's loop, and one attempt.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::BoxError;
use super::abort::{Abort, AbortReason};
use super::handler::{AnyHandler, Ending, Run};
use super::next::error_text;
use super::slot::Engine;
use crate::client::Announcements;
use crate::command::{
    Acquire, Acquired, Expire, NextDue, Outcome, Quota, Reap, Schedule, SettleReply, Settled, Settlement,
    Types,
};
use crate::error::{ErrorKind, Result};
use crate::id::{Fence, JobId, RequestId};
use crate::job::Backoff;
use crate::name::{ErrorText, TypeName};
use crate::notifier::{Hint, Signal, Subscription, Topic};
use crate::observer::{About, Event};
use crate::store::{BoxFuture, Capability, Store};
use crate::time::Millis;

/// How many expired leases one idle worker reaps at once.
const REAP_MAX: u32 = 100;
/// How often a worker removes what is kept no longer, and how much at once.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
const EXPIRE_MAX: u32 = 1_000;
/// The longest wait for jobs is shortened by up to so much of it, so that workers do not look all at once.
const JITTER: f64 = 0.1;
/// The delay of the loop after an error; it resets with the first success.
const RECOVERY: Backoff = Backoff {
    initial: Duration::from_millis(100),
    multiplier: 2.0,
    max: Duration::from_secs(30),
    jitter: 0.2,
};

/// The loop. It fills all free slots with one acquire; with slots left over it reaps; then it waits for a
/// notification, a due time, a freed slot or its poll interval. It survives any error of the store.
pub(super) struct Loop<S: ?Sized> {
    engine: Arc<Engine<S>>,
    subscription: Option<Subscription>,
    failures: u32,
    expire_at: Instant,
}

impl<S: Store + ?Sized> Loop<S> {
    pub(super) async fn run(engine: Arc<Engine<S>>) {
        let subscription = engine.subscribe().await;
        let stopping = engine.stopping.clone();
        let mut this = Self { engine, subscription, failures: 0, expire_at: Instant::now() + EXPIRE_EVERY };
        // An acquire must not be dropped half-way: what it took would wait for its lease to end. So only waits race with
        // the stop.
        while !stopping.is_cancelled() {
            let wait = match this.turn().await {
                Ok(wait) => {
                    this.failures = 0;
                    wait
                }
                Err(error) => {
                    this.failures += 1;
                    let event = Event::WorkerFailed(this.engine.id, ErrorText::new(error.to_string()));
                    this.engine.client.shared.observer.observe(&event);
                    sleep_or(&stopping, RECOVERY.delay(this.failures, fastrand::f64())).await;
                    continue;
                }
            };
            tokio::select! {
                () = this.wait(wait) => {}
                () = stopping.cancelled() => {}
            }
        }
    }

    /// Does what there is to do, and says how long to wait.
    async fn turn(&mut self) -> Result<Duration> {
        loop {
            let (free, quotas) = self.engine.free();
            if free == 0 {
                return Ok(self.engine.poll);
            }
            let taken = self.engine.acquire(free, &quotas).await?;
            if self.engine.stopping.is_cancelled() {
                return Ok(Duration::ZERO);
            }
            if taken == free {
                continue;
            }
            if self.engine.reap().await? == 0 {
                break;
            }
        }
        self.expire().await?;
        self.engine.until_next_due().await
    }

    async fn expire(&mut self) -> Result<()> {
        if Instant::now() < self.expire_at {
            return Ok(());
        }
        self.expire_at = Instant::now() + EXPIRE_EVERY.mul_f64(1.0 + fastrand::f64());
        let reply = self.engine.client.store().expire(Expire { max: EXPIRE_MAX }).await?;
        for expired in reply.chains {
            self.engine
                .client
                .shared
                .observer
                .observe(&Event::ChainExpired(expired.chain, expired.chain_type));
        }
        if reply.more {
            self.expire_at = Instant::now();
        }
        Ok(())
    }

    /// Waits for something to do.
    async fn wait(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        loop {
            if self.subscription.is_none() {
                self.subscription = self.engine.subscribe().await;
            }
            let left = until.saturating_duration_since(Instant::now());
            let signal = async {
                match &mut self.subscription {
                    Some(subscription) => subscription.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.engine.freed.notified() => return,
                () = sleep(left) => return,
                signal = signal => match signal {
                    Some(signal) => if self.engine.heed(signal).await { return },
                    None => {
                        self.subscription = None;
                        sleep(left.min(RECOVERY.max)).await;
                        return;
                    }
                },
            }
        }
    }
}

async fn sleep_or(stopping: &tokio_util::sync::CancellationToken, delay: Duration) {
    let _ = timeout(delay, stopping.cancelled()).await;
}

impl<S: Store + ?Sized> Engine<S> {
    async fn subscribe(&self) -> Option<Subscription> {
        let names = self.handlers.iter().flat_map(|handler| &handler.names);
        let scheduled = names.filter_map(|name| TypeName::new(name).ok()).map(Topic::Scheduled);
        let topics = scheduled.chain([Topic::OwnershipLost(self.id)]).collect();
        match self.client.shared.notifier.subscribe(topics).await {
            Ok(subscription) => Some(subscription),
            Err(error) => {
                let event = Event::NotifierFailed("subscribe", ErrorText::new(error.to_string()));
                self.client.shared.observer.observe(&event);
                None
            }
        }
    }

    /// Whether a signal is a reason to look for jobs.
    async fn heed(&self, signal: Signal) -> bool {
        match signal {
            Signal::Gap { .. } => true,
            Signal::Hint(Hint::Scheduled { job_type, .. }) => {
                let free = self.free().0 > 0;
                free && self.client.shared.notifier.claim_wake(job_type).await.unwrap_or(true)
            }
            Signal::Hint(Hint::OwnershipLost { job, .. }) => {
                // A hint only: the next renewal says why. Bring it forward.
                for (_, slot) in self.slots().iter_mut().filter(|((held, _), _)| *held == job) {
                    slot.renew_at = slot.renew_at.map(|_| Instant::now());
                }
                self.taken.notify_one();
                false
            }
            Signal::Hint(_) => false,
        }
    }

    /// Takes jobs into free slots and starts their attempts. Gives their number.
    async fn acquire(self: &Arc<Self>, free: u32, quotas: &[u32]) -> Result<u32> {
        let mut types = Vec::new();
        for (handler, max) in self.handlers.iter().zip(quotas).filter(|(_, max)| **max > 0) {
            let lease = Millis::try_from(handler.options.lease)?;
            for name in &handler.names {
                types.push(Quota { job_type: TypeName::new(name)?, max: *max, lease });
            }
        }
        let acquire = Acquire { request: RequestId::new(), worker: self.id, types, max: free.min(1_000) };
        let reply = match self.client.store().acquire(acquire.clone()).await {
            // The reply may be lost though the jobs were taken: asked again, the store gives the same.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.client.store().acquire(acquire).await?
            }
            reply => reply?,
        };
        let mut announcements = Announcements::default();
        announcements.ripple(&reply.ripple);
        announcements.send(&self.client.shared).await;
        let taken = u32::try_from(reply.jobs.len()).unwrap_or(u32::MAX);
        reply.jobs.into_iter().for_each(|acquired| self.start(acquired));
        Ok(taken)
    }

    /// Starts an attempt in a task of its own.
    fn start(self: &Arc<Self>, acquired: Acquired) {
        let name = acquired.job.job_type.as_str();
        let found = self.handlers.iter().position(|handler| handler.names.contains(&name));
        let Some((index, handler)) = found.and_then(|index| Some((index, self.handlers.get(index)?))) else {
            return;
        };
        let lease = Millis::try_from(handler.options.lease).unwrap_or_default();
        let Some(abort) = self.occupy(&acquired, index, lease) else { return };
        let id = (acquired.job.id, acquired.job.fence);
        let attempt = attempt(Arc::clone(self), acquired, Arc::clone(handler), abort, lease);
        let task = tokio::spawn(attempt).abort_handle();
        if let Some(slot) = self.slots().get_mut(&id) {
            slot.task = Some(task);
        }
    }

    /// Puts back what others lost. Gives the number.
    async fn reap(&self) -> Result<usize> {
        let names = self.handlers.iter().flat_map(|handler| &handler.names);
        let types = names.map(TypeName::new).collect::<Result<_, _>>()?;
        let renewal = self.handlers.iter().map(|handler| handler.options.renewal()).max().unwrap_or_default();
        // An attempt whose time is over is renewed no longer, and is reaped like any other.
        let kept = {
            let slots = self.slots();
            let kept = slots.iter().filter(|(_, slot)| slot.renew_at.is_some());
            kept.map(|((job, _), _)| *job).collect()
        };
        let reap = Reap {
            types: Types::Only(types),
            max: REAP_MAX,
            except: kept,
            renewal_interval: Millis::try_from(renewal)?,
        };
        let reply = self.client.store().reap(reap).await?;
        let mut announcements = Announcements::default();
        reply.reaped.iter().for_each(|reaped| announcements.reaped(reaped));
        announcements.ripple(&reply.ripple);
        announcements.send(&self.client.shared).await;
        Ok(reply.reaped.len())
    }

    /// How long nothing will be due.
    async fn until_next_due(&self) -> Result<Duration> {
        let longest = self.poll.mul_f64(1.0 - JITTER * fastrand::f64());
        if !self.client.store().capabilities().has(Capability::NextDue) {
            return Ok(longest);
        }
        let names = self.handlers.iter().flat_map(|handler| &handler.names);
        let types = Types::Only(names.map(TypeName::new).collect::<Result<_, _>>()?);
        let reply = self.client.store().next_due(NextDue { types }).await?;
        let next = reply.due_at.into_iter().chain(reply.lease_until).min();
        Ok(next.map_or(longest, |next| next.since(reply.now).min(longest)))
    }
}

/// Runs one attempt to its end.
async fn attempt<S: Store + ?Sized>(
    engine: Arc<Engine<S>>,
    acquired: Acquired,
    handler: Arc<AnyHandler<S>>,
    abort: Abort,
    lease: Millis,
) {
    let (job, fence, number) = (acquired.job.id, acquired.job.fence, acquired.job.attempt);
    let about = engine.slots().get(&(job, fence)).map(|slot| slot.about.clone());
    if let Some(about) = &about {
        engine.client.shared.observer.observe(&Event::AttemptStarted(about.clone()));
    }
    let run = Run { client: engine.client.clone(), acquired, abort: abort.clone(), lease };
    let handling = {
        let handler = Arc::clone(&handler);
        AbortOnDrop(tokio::spawn(async move { (handler.call)(run).await }))
    };
    let outcome = match handling.join().await {
        Ok(Ending::Plain(outcome)) => Some(outcome),
        Ok(Ending::InTx(finish, outcome)) => engine.finish(finish, outcome, job, fence).await,
        Ok(Ending::Unreadable(error)) => {
            Some(Outcome::Fail { error: ErrorText::new(error.to_string()), retention: None })
        }
        Ok(Ending::Failed(error, undo)) => {
            if let Some(undo) = undo
                && let Err(error) = undo.await
            {
                let event = Event::StoreFailed("rollback", ErrorText::new(error.to_string()));
                engine.client.shared.observer.observe(&event);
            }
            Some(failure(&error, &handler.options.backoff, number, &abort))
        }
        Err(error) => Some(failure(&error, &handler.options.backoff, number, &abort)),
    };
    let lost = abort.reason().is_some_and(AbortReason::is_lost);
    match (outcome, about) {
        (Some(outcome), Some(about)) if !lost => {
            engine.settle(Settlement { job, fence, outcome }, about).await;
        }
        (Some(_), Some(about)) => engine.client.shared.observer.observe(&Event::AttemptLost(about)),
        _ => {}
    }
    engine.vacate((job, fence));
}

/// What becomes of a job whose attempt failed. One that failed because the worker stops is given back.
fn failure(error: &BoxError, backoff: &Backoff, attempt: u32, abort: &Abort) -> Outcome {
    if abort.reason() == Some(AbortReason::WorkerStopping) {
        return Outcome::Release;
    }
    let delay = Millis::try_from(backoff.delay(attempt, fastrand::f64())).unwrap_or_default();
    Outcome::Retry { schedule: Schedule::After(delay), error: error_text(error) }
}

impl<S: Store + ?Sized> Engine<S> {
    /// Settles and commits a handler's transaction. Gives an outcome to settle if that failed.
    async fn finish(
        &self,
        finish: BoxFuture<'static, Result<SettleReply>>,
        outcome: Outcome,
        job: JobId,
        fence: Fence,
    ) -> Option<Outcome> {
        let about = self.slots().get(&(job, fence)).map(|slot| slot.about.clone())?;
        match finish.await {
            Ok(reply) => {
                let mut announcements = Announcements::default();
                let settlement = Settlement { job, fence, outcome };
                reply.settled.iter().for_each(|settled| announcements.settled(&settlement, &about, settled));
                announcements.ripple(&reply.ripple);
                announcements.send(&self.client.shared).await;
                match reply.settled.into_iter().next() {
                    Some(Settled::Refused(refusal)) => {
                        Some(Outcome::Fail { error: ErrorText::new(refusal.to_string()), retention: None })
                    }
                    _ => None,
                }
            }
            Err(error) => {
                // The commit may have happened: then this retry finds that the attempt was settled, and changes nothing.
                let backoff = Backoff::default();
                let error: BoxError = error.into();
                let abort =
                    self.slots().get(&(job, fence)).map(|slot| slot.abort.clone()).unwrap_or_default();
                Some(failure(&error, &backoff, about.attempt.unwrap_or(1), &abort))
            }
        }
    }

    /// Settles an attempt; tries again while its lease may last.
    async fn settle(&self, mut settlement: Settlement, about: About) {
        let mut tries = 0;
        loop {
            let settled = self.settles.add((settlement.clone(), about.clone())).await;
            let again = match settled {
                Ok(Settled::Refused(refusal)) => {
                    let error = ErrorText::new(refusal.to_string());
                    settlement.outcome = Outcome::Fail { error, retention: None };
                    true
                }
                Ok(Settled::Busy) => true,
                Ok(_) => false,
                Err(error) => {
                    let event = Event::StoreFailed("settle", ErrorText::new(error.to_string()));
                    self.client.shared.observer.observe(&event);
                    true
                }
            };
            let attempt = (settlement.job, settlement.fence);
            let held = self.slots().get(&attempt).is_some_and(|slot| slot.lease_ends > Instant::now());
            if !again || !held {
                return;
            }
            tries += 1;
            sleep(RECOVERY.delay(tries, fastrand::f64())).await;
        }
    }
}

/// Ends the handler's task when the attempt's task ends.
struct AbortOnDrop(JoinHandle<Ending>);

impl AbortOnDrop {
    async fn join(mut self) -> Result<Ending, BoxError> {
        match (&mut self.0).await {
            Ok(ending) => Ok(ending),
            Err(error) if error.is_panic() => {
                let panic = error.into_panic();
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text =
                    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
                Err(format!("the handler panicked: {text}").into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
