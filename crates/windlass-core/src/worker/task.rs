//! An attempt, from its acquisition to its settlement.

use std::any::Any;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError};
use tokio::time::{Instant, sleep};
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Level, Span};

use super::abort::AbortReason;
use super::any_attempt::{AnyAttempt, HeldJob};
use super::builder::RETRY_DELAY;
use super::ended::Ended;
use super::engine::Engine;
use super::failure::{Failure, Retry};
use super::followed::InScopes;
use super::handler::{AnyHandler, HandlerResult, Run};
use super::middleware::{Inner, Pipeline};
use super::schedule::ScheduledBy;
use super::settle_in_tx::{SettleAndCommit, SettledInTx};
use super::slot::SlotGuard;
use super::stages::Scope;
use crate::client::{Completed, Wanted};
use crate::command::{DueTime, Outcome, Settled};
use crate::error::{Error, ErrorKind, Result};
use crate::name::ErrorText;
use crate::observer::Event;
use crate::record::JobRecord;
use crate::store::{BoxFuture, Store};
use crate::time::Millis;

/// The number of queries that check whether a commit whose reply was lost took effect.
const COMMIT_QUERIES: u32 = 20;

/// Starts an attempt of an acquired job, now or when another handler has ended. If the worker is stopping, releases the
/// job instead.
pub(super) fn start<S: Store + ?Sized>(
    engine: &Arc<Engine<S>>,
    held: &Arc<HeldJob>,
    handler: usize,
    requested_at: Instant,
    left: Duration,
    wanted: Wanted,
) {
    // Occupy the slot before spawning the task. The task frees the slot when it ends; if it ended first, the
    // slot would stay occupied forever.
    //
    // Occupy it before checking `stopping`, too. `stop` cancels the token first, and then releases all waiting jobs and
    // aborts all occupied slots. So either the check sees the stop, or the stop sees this attempt.
    if engine.occupy(handler, requested_at, left, Arc::clone(held)) {
        run(engine, held, handler, wanted);
    } else if engine.stopping.is_cancelled() {
        engine.release_waiting();
    }
}

/// Runs an attempt whose slot is occupied, in its own task. If the worker is stopping, releases the job instead.
pub(super) fn run<S: Store + ?Sized>(
    engine: &Arc<Engine<S>>,
    held: &Arc<HeldJob>,
    handler: usize,
    wanted: Wanted,
) {
    let Some(task) = AttemptTask::new(engine, Arc::clone(held), handler) else { return };
    if engine.stopping.is_cancelled() {
        return task.leave(Outcome::Release);
    }
    let mut attempt = AnyAttempt::new(Arc::clone(held));
    if attempt.occurrence().is_some() {
        attempt.insert(ScheduledBy(engine.client.erased()));
    }
    held.follow(engine.dispatcher(), wanted);
    // Without a subscriber, a span would only cost: about 250 instructions.
    let is_logged = Level::INFO <= LevelFilter::current();
    if !is_logged && !held.has_scopes() && task.handler.layers.is_empty() {
        return engine.run_in_pool(held, task, attempt);
    }
    let span = if is_logged { span(held) } else { Span::none() };
    // Spawning moves the future about ten times. Its box is moved instead.
    let run: BoxFuture<'static, ()> = if task.handler.layers.is_empty() {
        Box::pin(async move { drop(task.run(attempt).await) }.instrument(span))
    } else {
        let layered = Arc::new(Layered { task, ended: OnceLock::new(), settling: OnceLock::new() });
        Box::pin(layered.run(attempt).instrument(span))
    };
    let spawned = if held.has_scopes() {
        tokio::spawn(InScopes { held: Arc::clone(held), task: run })
    } else {
        tokio::spawn(run)
    };
    held.signal.runs(spawned.abort_handle());
}

/// Returns the span of an attempt.
fn span(held: &HeldJob) -> Span {
    // In the scopes of the observers, so that they can be the parents of the span.
    held.within(|| {
        let JobRecord { id: job, job_type, chain, attempt: number, .. } = &held.acquired.job;
        let worker_name = held.worker.name.as_ref().map(tracing::field::display);
        tracing::info_span!("attempt", %job, %chain, %job_type, attempt = number, worker_name)
    })
}

/// The task of one attempt: runs its handler, and settles the outcome.
pub(super) struct AttemptTask<S: Store + ?Sized> {
    slot: SlotGuard<S>,
    handler: Arc<AnyHandler<S>>,
    held: Arc<HeldJob>,
}

/// The task of an attempt with middleware.
struct Layered<S: Store + ?Sized> {
    task: AttemptTask<S>,
    /// How the attempt ended, once that is stored.
    ended: OnceLock<Ended>,
    /// Closed when the settlement on a separate task is over.
    settling: OnceLock<watch::Receiver<()>>,
}

impl<S: Store + ?Sized> Pipeline for Layered<S> {
    fn run_layer(self: Arc<Self>, layer: usize, attempt: AnyAttempt) -> BoxFuture<'static, Ended> {
        Box::pin(async move {
            if attempt.held.id() != self.task.slot.attempt() {
                let text = "a middleware passed on the attempt of another job";
                return self.end(self.task.failure(Failure::retried(ErrorText::new(text)))).await;
            }
            let Some(middleware) = self.task.handler.layers.get(layer) else {
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
                    let dispatcher = self.task.slot.engine.dispatcher();
                    let about = self.task.held.about(dispatcher.now());
                    dispatcher.observe(&Event::MiddlewareFailed(about, failure.text));
                    ended.clone()
                }
                None => {
                    let outcome = self.task.failure(failure);
                    self.settle(outcome).await
                }
            }
        })
    }

    fn settle(self: Arc<Self>, outcome: Outcome) -> BoxFuture<'static, Ended> {
        Box::pin(async move {
            let this = Arc::clone(&self);
            self.apart(async move { this.end(outcome).await }).await
        })
    }
}

impl<S: Store + ?Sized> Layered<S> {
    /// Runs the handler of an attempt inside its middleware.
    async fn run(self: Arc<Self>, attempt: AnyAttempt) {
        self.task.held.report_start(self.task.slot.engine.dispatcher());
        self.run_layer(0, attempt).await;
    }

    /// Runs the handler and settles its outcome, on a separate task.
    async fn handle(self: Arc<Self>, attempt: AnyAttempt) -> Ended {
        let result = self.task.call(attempt).await;
        let this = Arc::clone(&self);
        self.apart(async move {
            match this.task.conclude(result).await {
                Ok(ended) => this.ended.get_or_init(|| ended).clone(),
                Err(outcome) => this.end(outcome).await,
            }
        })
        .await
    }

    /// Settles the attempt on a separate task. A middleware may drop the future of the attempt, as a timeout does, but
    /// must not interrupt a settlement: it could not know what was committed.
    async fn apart(&self, settle: impl Future<Output = Ended> + Send + 'static) -> Ended {
        let (sender, receiver) = watch::channel(());
        let _ = self.settling.set(receiver);
        let settle = async move {
            // Dropped when the settlement is over, also by a panic.
            let _settling = sender;
            settle.await
        };
        let held = Arc::clone(&self.task.held);
        // A new task inherits neither the span nor the scopes of the observers.
        let settled = tokio::spawn(InScopes { held, task: Box::pin(settle.in_current_span()) });
        match settled.await.map_err(JoinError::try_into_panic) {
            Ok(ended) => ended,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime is shutting down.
            Err(Err(_)) => pending().await,
        }
    }

    /// Waits for the settlement that has begun on a separate task, if there is one.
    async fn wait_for_settlement(&self) {
        if let Some(settling) = self.settling.get() {
            let _ = settling.clone().changed().await;
        }
    }

    /// Settles the attempt, unless it is known to have lost its job.
    async fn end(&self, outcome: Outcome) -> Ended {
        self.task.mark_settling();
        let ended = match self.task.lost() {
            Some(reason) => Ended::Lost(reason),
            None => self.task.slot.engine.settle(outcome, &self.task.held).await,
        };
        self.ended.get_or_init(|| ended).clone()
    }
}

impl<S: Store + ?Sized> AttemptTask<S> {
    /// Returns the task of an attempt whose slot is occupied, and which runs this handler of the worker.
    pub(super) fn new(engine: &Arc<Engine<S>>, held: Arc<HeldJob>, handler: usize) -> Option<Self> {
        let handler = Arc::clone(engine.handlers.get(handler)?);
        let slot = SlotGuard::new(Arc::clone(engine), held.id());
        Some(Self { slot, handler, held })
    }

    /// Runs the handler of an attempt without middleware. Leaves its settlement to the worker, and does not wait for it.
    /// Returns the task, unless it was aborted, and the worker for which it may run another attempt.
    pub(super) async fn run(self, attempt: AnyAttempt) -> Option<(Arc<Engine<S>>, AbortHandle)> {
        self.held.report_start(self.slot.engine.dispatcher());
        let outcome = match self.call(attempt).await {
            Ok(HandlerResult::Plain(outcome)) => Some(outcome),
            // Boxed, because it is rare and much larger than the rest of this future.
            result => Box::pin(self.conclude(result)).await.err(),
        };
        self.mark_settling();
        // Before the settlement: if it must be repeated, the attempt gets another task.
        let task = self.held.signal.returns();
        let engine = Arc::clone(&self.slot.engine);
        if let Some(outcome) = outcome {
            self.hand_over(outcome);
        }
        Some((engine, task?))
    }

    /// Runs the handler. Returns the text of its panic if it panics.
    fn call(&self, attempt: AnyAttempt) -> impl Future<Output = Result<HandlerResult, ErrorText>> + use<S> {
        let (client, hooks) = (self.slot.engine.client.clone(), Arc::clone(&self.handler.hooks));
        let scope = Scope { client, lease: self.handler.options.lease_ms(), hooks };
        // The handler decodes the input before it returns a future, and that may panic too.
        let called = catch_unwind(AssertUnwindSafe(|| (self.handler.call)(Run { attempt, scope })));
        async move {
            match called {
                Ok(handling) => catch_panic("handler", handling).await,
                Err(panic) => Err(panic_error("handler", panic)),
            }
        }
    }

    /// Ends the transaction of the handler, if there is one. Returns how the attempt has ended, or the outcome that is
    /// left to settle.
    async fn conclude(&self, result: Result<HandlerResult, ErrorText>) -> Result<Ended, Outcome> {
        match result {
            Ok(HandlerResult::Plain(outcome)) => Err(outcome),
            Ok(HandlerResult::InTx(finish)) => self.finish(finish).await,
            Ok(HandlerResult::Failed(failure, undo)) => {
                // Roll back before settling: the open transaction may hold a lock on the job.
                self.mark_settling();
                if let Some(Err(error)) = maybe(undo).await {
                    let event = Event::StoreFailed("rollback", ErrorText::new(error.to_string()));
                    self.slot.engine.dispatcher().observe(&event);
                }
                Err(self.failure(*failure))
            }
            Err(panic) => Err(self.failure(Failure::retried(panic))),
        }
    }

    /// Settles the attempt, unless it is known to have lost its job. Does not wait for the settlement.
    pub(super) fn leave(self, outcome: Outcome) {
        self.mark_settling();
        self.hand_over(outcome);
    }

    /// Does what [`leave`](Self::leave) does, for a handler that is marked as ended.
    fn hand_over(self, outcome: Outcome) {
        if self.lost().is_none() {
            let Self { slot, held, .. } = self;
            let engine = Arc::clone(&slot.engine);
            engine.settle_ended(outcome, held, slot);
        }
    }

    /// Returns why the attempt has lost its job, if that is known, and reports it.
    fn lost(&self) -> Option<AbortReason> {
        let reason = self.held.signal.reason().filter(|reason| reason.is_lost())?;
        let dispatcher = self.slot.engine.dispatcher();
        dispatcher.observe(&Event::AttemptLost(self.held.about(dispatcher.now())));
        self.held.end(dispatcher, &Ended::Lost(reason));
        Some(reason)
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
        if let Some((error, stage)) = doubt {
            if !self.has_closed_job().await {
                stage.close(Some(&error.to_string()));
                // The commit may still take effect later. The settlement of the retry then finds the attempt
                // already settled, and changes nothing.
                announcements.commit_ended(&Err(error.clone()), self.slot.engine.dispatcher());
                return Err(self.failure(Failure::new(&error.into())));
            }
            stage.close(None);
        }
        let job_type = &self.held.acquired.job.job_type;
        let dispatcher = self.slot.engine.dispatcher();
        announcements.settled(&settlement.outcome, job_type, |at| self.held.about_settled(at), &settled);
        announcements.ripple(&ripple);
        announcements.send(dispatcher);
        let completed = Completed::by(&self.held.acquired.job, &settlement.outcome, &settled);
        dispatcher.deliver(completed.into_iter());
        match (Ended::of(&settlement.outcome, &settled), settled) {
            (Some(ended), _) => {
                self.held.end(dispatcher, &ended);
                Ok(ended)
            }
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
        let (engine, (job, fence)) = (&self.slot.engine, self.slot.attempt());
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
            _ if self.held.signal.reason() == Some(AbortReason::WorkerStopping) => return Outcome::Release,
            Retry::After(delay) => delay,
            Retry::AfterBackoff => {
                let chance = if self.slot.engine.jitters { fastrand::f64() } else { 0.0 };
                self.handler.options.backoff.delay(self.held.acquired.job.attempt, chance)
            }
        };
        Outcome::Retry { schedule: DueTime::After(Millis::try_from(delay).unwrap_or(Millis::MAX)), error }
    }

    /// Marks the handler as ended.
    fn mark_settling(&self) {
        self.held.stop_clock();
        self.slot.engine.mark_settling(self.slot.attempt());
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
    caught.await.map_err(|panic| panic_error(what, panic))
}

fn panic_error(what: &str, panic: Box<dyn Any + Send>) -> ErrorText {
    let text = ErrorText::new(format!("the {what} panicked: {}", panic_text(&*panic)));
    // The drop of the panic payload may panic too.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
    text
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Returns the outcome that runs the job again after a second. The attempt does not count.
fn reschedule(error: String) -> Outcome {
    let schedule = DueTime::After(Millis::from_secs(1));
    Outcome::Reschedule { schedule, error: Some(ErrorText::new(error)) }
}
