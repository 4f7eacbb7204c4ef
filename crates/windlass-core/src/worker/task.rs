//! An attempt, from its acquisition to its settlement.

use std::any::Any;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::abort::{Abort, AbortReason};
use super::any_attempt::AnyAttempt;
use super::builder::RETRY_DELAY;
use super::ended::Ended;
use super::engine::Engine;
use super::failure::{Failure, Retry};
use super::handler::{AnyHandler, HandlerResult, Run};
use super::middleware::{Inner, Pipeline};
use super::settle_in_tx::{SettleAndCommit, SettledInTx};
use super::stages::Scope;
use crate::command::{Acquired, Outcome, Schedule, Settled, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{Fence, JobId};
use crate::name::ErrorText;
use crate::observer::{About, Event};
use crate::record::JobRecord;
use crate::store::{BoxFuture, Store};
use crate::time::Millis;

/// The number of queries that check whether a commit whose reply was lost took effect.
const COMMIT_QUERIES: u32 = 20;

/// Starts an attempt in its own task. If the worker is stopping, releases the job instead.
pub(super) fn start<S: Store + ?Sized>(
    engine: &Arc<Engine<S>>,
    acquired: Acquired,
    (handler_index, handler): (usize, &Arc<AnyHandler<S>>),
    requested_at: Instant,
    left: Duration,
) {
    let lease = Millis::try_from(handler.options.lease).unwrap_or_default();
    let id = (acquired.job.id, acquired.job.fence);
    let attempt = AnyAttempt::new(Box::new(acquired), Abort::default(), engine.about());
    let about = Arc::new(attempt.about());
    let signals = (Arc::clone(&about), attempt.abort.clone());
    let task = Arc::new(AttemptTask {
        slot: SlotGuard { engine: Arc::clone(engine), attempt: id },
        handler: Arc::clone(handler),
        about,
        number: attempt.attempt(),
        lease,
        abort: attempt.abort.clone(),
        ended: OnceLock::new(),
        settling: OnceLock::new(),
    });
    // Occupy the slot before spawning the task. The task frees the slot when it ends; if it ended first, the
    // slot would stay occupied forever.
    //
    // Occupy it before checking `stopping`, too. `stop` cancels the token first and then aborts all occupied
    // slots. So either the check below sees the stop, or the abort reaches this attempt.
    engine.occupy(id, handler_index, lease, requested_at, left, signals);
    let abort = task.abort.clone();
    let spawned = if engine.stopping.is_cancelled() {
        tokio::spawn(async move { drop(task.end(Outcome::Release).await) })
    } else {
        let About { job, job_type, chain, worker_name, .. } = &*task.about;
        let worker_name = worker_name.as_ref().map(tracing::field::display);
        let span =
            tracing::info_span!("attempt", %job, %chain, %job_type, attempt = task.number, worker_name);
        // The future has several kilobytes, and spawning moves it many times. Its box is moved instead.
        let run: BoxFuture<'static, ()> = Box::pin(run(task, attempt).instrument(span));
        tokio::spawn(run)
    };
    abort.runs(spawned.abort_handle());
}

async fn run<S: Store + ?Sized>(task: Arc<AttemptTask<S>>, attempt: AnyAttempt) {
    let dispatcher = task.slot.engine.dispatcher();
    if dispatcher.is_observed() {
        dispatcher.observe(&Event::AttemptStarted(About::clone(&task.about)));
    }
    if task.handler.layers.is_empty() {
        task.handle(attempt).await;
    } else {
        Arc::clone(&task).run_layer(0, attempt).await;
    }
}

/// Frees the slot of an attempt when dropped, however its task ends: by return, panic or abort.
struct SlotGuard<S: Store + ?Sized> {
    engine: Arc<Engine<S>>,
    attempt: (JobId, Fence),
}

impl<S: Store + ?Sized> Drop for SlotGuard<S> {
    fn drop(&mut self) {
        self.engine.vacate(self.attempt);
    }
}

/// The task of one attempt: runs its middleware and its handler, and settles the outcome.
struct AttemptTask<S: Store + ?Sized> {
    slot: SlotGuard<S>,
    handler: Arc<AnyHandler<S>>,
    about: Arc<About>,
    number: u32,
    lease: Millis,
    abort: Abort,
    /// How the attempt ended, once that is stored.
    ended: OnceLock<Ended>,
    /// Closed when the settlement on a task of its own is over.
    settling: OnceLock<watch::Receiver<()>>,
}

impl<S: Store + ?Sized> Pipeline for AttemptTask<S> {
    fn run_layer(self: Arc<Self>, layer: usize, attempt: AnyAttempt) -> BoxFuture<'static, Ended> {
        Box::pin(async move {
            if (attempt.job().id, attempt.job().fence) != self.slot.attempt {
                return self
                    .end(self.failure(Failure::retried(ErrorText::new(
                        "a middleware passed on the attempt of another job",
                    ))))
                    .await;
            }
            let Some(middleware) = self.handler.layers.get(layer) else {
                return self.handle(attempt).await;
            };
            let pipeline: Arc<dyn Pipeline> = Arc::<Self>::clone(&self);
            let inner = Inner { pipeline, layer: layer + 1 };
            let around = async { middleware.middleware.around(attempt, inner).await };
            let result = catch_panic("middleware", around).await;
            self.wait_for_settlement().await;
            let failure = match (result, self.ended.get()) {
                (Ok(Ok(_)), Some(ended)) => return ended.clone(),
                (Ok(Ok(_)), None) => Failure::retried(ErrorText::new("a middleware did not run the attempt")),
                (Ok(Err(error)), _) => Failure::new(&error),
                (Err(panic), _) => Failure::retried(panic),
            };
            match self.ended.get() {
                Some(ended) => {
                    let event = Event::MiddlewareFailed(About::clone(&self.about), failure.text);
                    self.slot.engine.dispatcher().observe(&event);
                    ended.clone()
                }
                None => {
                    let outcome = self.failure(failure);
                    self.settle(outcome).await
                }
            }
        })
    }

    fn settle(self: Arc<Self>, outcome: Outcome) -> BoxFuture<'static, Ended> {
        Box::pin(async move {
            let task = Arc::clone(&self);
            self.apart(async move { task.end(outcome).await }).await
        })
    }
}

impl<S: Store + ?Sized> AttemptTask<S> {
    /// Runs the handler and settles its outcome.
    async fn handle(self: Arc<Self>, attempt: AnyAttempt) -> Ended {
        let (client, hooks) = (self.slot.engine.client.clone(), Arc::clone(&self.handler.hooks));
        let run = Run { attempt, scope: Scope { client, lease: self.lease, hooks } };
        let ending = catch_panic("handler", async { (self.handler.call)(run).await }).await;
        if self.handler.layers.is_empty() {
            return self.conclude(ending).await;
        }
        let task = Arc::clone(&self);
        self.apart(async move { task.conclude(ending).await }).await
    }

    /// Settles the attempt on a task of its own. A middleware may drop the future of the attempt, as a timeout does, but
    /// must not interrupt a settlement: it could not know what was committed.
    async fn apart(&self, settle: impl Future<Output = Ended> + Send + 'static) -> Ended {
        let (sender, receiver) = watch::channel(());
        let _ = self.settling.set(receiver);
        let settle = async move {
            // Dropped when the settlement is over, also by a panic.
            let _settling = sender;
            settle.await
        };
        match tokio::spawn(settle.in_current_span()).await.map_err(JoinError::try_into_panic) {
            Ok(ended) => ended,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime is shutting down.
            Err(Err(_)) => pending().await,
        }
    }

    /// Waits for the settlement that has begun on a task of its own, if there is one.
    async fn wait_for_settlement(&self) {
        if let Some(settling) = self.settling.get() {
            let _ = settling.clone().changed().await;
        }
    }

    /// Settles the outcome of the handler.
    async fn conclude(&self, ending: Result<HandlerResult, ErrorText>) -> Ended {
        let outcome = match ending {
            Ok(HandlerResult::Plain(outcome)) => *outcome,
            Ok(HandlerResult::InTx(finish)) => match self.finish(finish).await {
                Ok(ended) => return self.ended.get_or_init(|| ended).clone(),
                Err(outcome) => outcome,
            },
            Ok(HandlerResult::Failed(failure, undo)) => {
                // Roll back before settling: the open transaction may hold a lock on the job.
                self.mark_settling();
                if let Some(Err(error)) = maybe(undo).await {
                    let event = Event::StoreFailed("rollback", ErrorText::new(error.to_string()));
                    self.slot.engine.dispatcher().observe(&event);
                }
                self.failure(*failure)
            }
            Err(panic) => self.failure(Failure::retried(panic)),
        };
        self.end(outcome).await
    }

    /// Settles the attempt, unless it is known to have lost its job.
    async fn end(&self, outcome: Outcome) -> Ended {
        self.mark_settling();
        let engine = &self.slot.engine;
        let ended = match self.abort.reason() {
            Some(reason) if reason.is_lost() => {
                engine.dispatcher().observe(&Event::AttemptLost(About::clone(&self.about)));
                Ended::Lost(reason)
            }
            _ => {
                let (job, fence) = self.slot.attempt;
                engine.settle(Settlement { job, fence, outcome }, &self.about).await
            }
        };
        self.ended.get_or_init(|| ended).clone()
    }

    /// Settles the job in the handler's transaction and commits it. If nothing was committed, returns the
    /// outcome to settle outside of the transaction.
    async fn finish(&self, close: BoxFuture<'static, Result<SettleAndCommit>>) -> Result<Ended, Outcome> {
        let failure = |error: Error| match error.kind() {
            // A conflict with a concurrent transaction is not the handler's fault.
            ErrorKind::Conflict => reschedule(error.to_string()),
            _ => self.failure(Failure::new(&error.into())),
        };
        let closed =
            catch_panic("hook", close).await.map_err(|panic| self.failure(Failure::retried(panic)))?;
        let finish = closed.map_err(failure)?;
        self.mark_settling();
        let committed = finish.await.map_err(failure)?;
        let SettledInTx { settlement, settled, ripple, mut announcements, doubt } = committed;
        if let Some(error) = doubt
            && !self.has_closed_job().await
        {
            // The commit may still take effect later. The settlement of the retry then finds the attempt
            // already settled, and changes nothing.
            announcements.end(false, self.slot.engine.dispatcher());
            return Err(self.failure(Failure::new(&error.into())));
        }
        announcements.settled(&settlement, &self.about, &settled);
        announcements.ripple(&ripple);
        announcements.send(self.slot.engine.dispatcher());
        match (Ended::of(&settlement.outcome, &settled), settled) {
            (Some(ended), _) => Ok(ended),
            (None, Settled::Refused(refusal)) => {
                Err(Outcome::Fail { error: ErrorText::new(refusal.to_string()), retention: None })
            }
            // `Busy` is not the handler's fault.
            (None, _) => {
                Err(reschedule("the job was locked by another transaction when it was settled".to_owned()))
            }
        }
    }

    /// Whether the store shows that this attempt has closed its job. `false` if the store does not answer.
    async fn has_closed_job(&self) -> bool {
        let (engine, (job, fence)) = (&self.slot.engine, self.slot.attempt);
        for _ in 0..COMMIT_QUERIES {
            match engine.client.job(job).await {
                Ok(record) => {
                    let is_this = |job: JobRecord| job.fence == fence && job.closed_by == Some(engine.id);
                    return record.is_some_and(is_this);
                }
                Err(_) => sleep(RETRY_DELAY).await,
            }
        }
        false
    }

    /// Returns the outcome of a failed attempt: what its error decides, otherwise a retry after the backoff, or a
    /// release if the attempt was asked to stop because the worker is stopping.
    fn failure(&self, Failure { text: error, retry }: Failure) -> Outcome {
        let delay = match retry {
            Retry::Never => return Outcome::Fail { error, retention: None },
            _ if self.abort.reason() == Some(AbortReason::WorkerStopping) => return Outcome::Release,
            Retry::After(delay) => delay,
            Retry::AfterBackoff => {
                let chance = if self.slot.engine.jitters { fastrand::f64() } else { 0.0 };
                self.handler.options.backoff.delay(self.number, chance)
            }
        };
        Outcome::Retry { schedule: Schedule::After(Millis::try_from(delay).unwrap_or(Millis::MAX)), error }
    }

    /// Marks the handler as ended. From here on, neither the timeout nor the expiry of the lease ends the
    /// task: the keeper would otherwise abort it halfway through the settlement.
    fn mark_settling(&self) {
        if let Some(slot) = self.slot.engine.slots().running.get_mut(&self.slot.attempt) {
            slot.settling = true;
            slot.timeout_at = None;
        }
    }
}

async fn maybe<T>(future: Option<impl Future<Output = T>>) -> Option<T> {
    Some(future?.await)
}

/// Awaits a future. Returns the panic message as an error if the future panics.
pub(crate) async fn catch_panic<T>(what: &str, future: impl Future<Output = T>) -> Result<T, ErrorText> {
    let mut future = pin!(future);
    let caught = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic)),
    });
    caught.await.map_err(|panic| {
        let text = ErrorText::new(format!("the {what} panicked: {}", panic_text(&*panic)));
        // The drop of the panic payload may panic too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
        text
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Returns the outcome that runs the job again after a second. The attempt does not count.
fn reschedule(error: String) -> Outcome {
    let schedule = Schedule::After(Millis::from_secs(1));
    Outcome::Reschedule { schedule, error: Some(ErrorText::new(error)) }
}
