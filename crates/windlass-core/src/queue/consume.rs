//! Consumers: workers that run the jobs of a queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::encoding::{read, write};
use super::handler::{Handled, ItemHandler, OpenTx};
use super::hook::Changed;
use super::{Item, Queue, Shared};
use crate::client::Client;
use crate::command::Outcome;
use crate::error::Result;
use crate::id::WorkerId;
use crate::name::ErrorText;
use crate::store::{AnyStore, BoxFuture, Store};
use crate::worker::{
    AbortReason, AnyAttempt, BoxError, Call, Failure, Fatal, HandlerResult, Handlers, Probe, Retry, Run,
    Running, Unhealthy, Values, Worker, catch_panic, error_text,
};

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Processes jobs with this handler: an `async fn(Item<P>) -> Result<O, E>`, optionally with
    /// [`Data`](crate::Data) arguments. Await the returned value to start.
    ///
    /// If the handler returns an error, the job is retried after the backoff, unless the error is or wraps
    /// [`Fatal`] or [`RetryAfter`](crate::RetryAfter).
    ///
    /// If a consumer crashes, another one runs its jobs again, so the handler must be idempotent. To write rows exactly
    /// once, use [`consume_on`](Self::consume_on).
    ///
    /// Each consumer has its own slots, so queues do not wait for each other.
    pub fn consume<M>(&self, handler: impl ItemHandler<P, O, dyn Store, M>) -> Consume {
        let client = &self.shared.client;
        Consume { worker: self.worker(client, client.clone().into_dyn(), handler) }
    }

    /// Like [`consume`](Self::consume), with a handler that ends its jobs in transactions of this client's store: an
    /// `async fn(ItemAttempt<P, S>) -> Result<ItemDone<O, S>, E>`. See [`ItemAttempt`](super::ItemAttempt).
    ///
    /// The consumer acquires jobs through this client.
    pub fn consume_on<S, M>(&self, client: &Client<S>, handler: impl ItemHandler<P, O, S, M>) -> Consume
    where
        S: Store + ?Sized,
    {
        Consume { worker: self.worker(&client.erased(), client.clone(), handler) }
    }

    /// Returns a worker that runs jobs with this handler. Both clients are of the same store; `client` has the type
    /// that the handler needs.
    fn worker<S, M>(
        &self,
        erased: &Client<AnyStore>,
        client: Client<S>,
        handler: impl ItemHandler<P, O, S, M>,
    ) -> Worker<AnyStore>
    where
        S: Store + ?Sized,
    {
        let make = self.make(handler);
        let options = self.shared.options.handler_options();
        let handlers = Handlers::new().handle_named(self.name(), options, move |values| {
            let call = make(values)?;
            Ok(Box::new(move |run: Run<AnyStore>| call(run.with_client(client.clone()))))
        });
        Worker::new(erased).handlers(handlers)
    }

    /// Returns the handler as a set of handlers, to add to a worker that has other handlers too. All of them share the
    /// worker's slots. A handler that takes an [`ItemAttempt`](super::ItemAttempt) uses transactions of the worker's
    /// store.
    pub fn handlers<S, M, H: ItemHandler<P, O, S, M>>(&self, handler: H) -> Handlers<S>
    where
        S: Store + ?Sized,
    {
        Handlers::new().handle_named(self.name(), self.shared.options.handler_options(), self.make(handler))
    }

    /// Returns a function that makes the untyped handler from the values of the worker, or returns the type of a value
    /// that is missing.
    fn make<S: Store + ?Sized, M, H: ItemHandler<P, O, S, M>>(&self, handler: H) -> Make<S> {
        let shared = Arc::clone(&self.shared);
        Box::new(move |values| {
            if let Some(missing) = H::missing(&values) {
                return Err(missing);
            }
            let context = Arc::new((shared, handler, values));
            Ok(Box::new(move |Run { attempt, scope }| {
                let context = Arc::clone(&context);
                Box::pin(async move {
                    let (shared, handler, values) = &*context;
                    shared.execute(attempt, |item| handler.call(item, scope, values)).await
                })
            }))
        })
    }
}

/// Makes an untyped handler from the values of the worker.
type Make<S> = Box<dyn FnOnce(Values) -> Result<Call<S>, &'static str> + Send + Sync>;

impl<P: Send + Sync + 'static, O: Send + 'static> Shared<P, O> {
    /// Runs one attempt. After an error, the worker retries or requeues the job.
    async fn execute(
        &self,
        attempt: AnyAttempt,
        handler: impl FnOnce(Item<P>) -> BoxFuture<'static, Handled<O>> + Send,
    ) -> HandlerResult {
        let payload = match read(&*self.payloads, &attempt.job().input) {
            Ok(payload) => payload,
            // Retried, because a later version of the program may be able to decode the payload.
            Err(error) => return HandlerResult::failed(error),
        };
        let (item, began) = (Item::new(payload, attempt), Instant::now());
        let handled = {
            let item = item.clone();
            catch_panic("handler", async { handler(item).await }).await
        };
        let Handled { result, open } =
            handled.unwrap_or_else(|panic| Handled { result: Err(panic.as_str().into()), open: None });
        let took = began.elapsed();
        match (result, open) {
            (Ok(output), open) => self.end(&item, output, open, took).await,
            (Err(error), None) => of(self.failed(&item, error, took).await),
            // The handler has failed the job in its transaction, so the error is final and the writes are kept.
            (Err(error), Some(open)) => {
                let text = error_text(&error);
                let failed = self.failed(&item, Fatal::new(error).into(), took).await;
                let outcome = failed.unwrap_or(Outcome::Fail { error: text, retention: None });
                HandlerResult::InTx(open.settle(outcome))
            }
        }
    }

    /// Completes the job with this output, in the transaction that the handler has left open, if any.
    async fn end(
        &self,
        item: &Item<P>,
        output: O,
        open: Option<Box<dyn OpenTx>>,
        took: Duration,
    ) -> HandlerResult {
        match (self.completed(item, output, took).await, open) {
            (Ok(outcome), None) => HandlerResult::Plain(outcome),
            (Ok(outcome), Some(open)) => HandlerResult::InTx(open.settle(outcome)),
            (Err(error), open) => {
                if let Some(open) = open {
                    open.roll_back().await;
                }
                // Fail for good: running the handler again would not make the result encodable.
                of(self.failed(item, Fatal::new(error).into(), took).await)
            }
        }
    }

    /// Returns the outcome of a success.
    ///
    /// # Errors
    ///
    /// An error if the output cannot be encoded.
    async fn completed(&self, item: &Item<P>, output: O, took: Duration) -> Result<Outcome> {
        // Encode before the hook consumes the output: a failing hook must not lose the result.
        let unchanged = Outcome::complete(write(&*self.results, &output)?);
        if is_lost(item) {
            return Ok(unchanged);
        }
        let Some(Changed { result: Ok(output), ttl }) = self.after(item, Ok(output), took).await else {
            return Ok(unchanged);
        };
        Ok(match write(&*self.results, &output) {
            Ok(output) => Outcome::Complete { output, retention: ttl, create: Vec::new() },
            Err(error) => {
                self.hook_failed(item, ErrorText::new(error.to_string()));
                unchanged
            }
        })
    }

    async fn failed(&self, item: &Item<P>, error: BoxError, took: Duration) -> Result<Outcome, BoxError> {
        let Failure { text, retry } = Failure::new(&error);
        let is_fatal = retry == Retry::Never;
        // When the worker stops, the job is requeued; after a cancel request, it closes as cancelled. Unless
        // it is fatal, the error then does not end the job, and the hook must not run.
        let goes_back =
            matches!(item.aborted().reason(), Some(AbortReason::WorkerStopping | AbortReason::Cancelled));
        let is_final = is_fatal || (item.is_last_attempt() && !goes_back);
        if !is_final || is_lost(item) {
            return Err(error);
        }
        match self.after(item, Err(text.as_str().to_owned()), took).await {
            Some(Changed { result: Err(changed), ttl }) if ttl.is_some() || changed != text.as_str() => {
                Ok(Outcome::Fail { error: ErrorText::new(changed), retention: ttl })
            }
            _ => Err(error),
        }
    }
}

/// Converts the end of an attempt without a transaction.
fn of(outcome: Result<Outcome, BoxError>) -> HandlerResult {
    match outcome {
        Ok(outcome) => HandlerResult::Plain(outcome),
        Err(error) => HandlerResult::failed(error),
    }
}

/// Whether the attempt no longer holds its job, so that nothing it does counts.
fn is_lost<P>(item: &Item<P>) -> bool {
    item.aborted().reason().is_some_and(AbortReason::is_lost)
}

/// A consumer that has not been started; see [`Queue::consume`]. Await it to start.
#[must_use = "a consumer does nothing until it is awaited"]
#[derive(Debug)]
pub struct Consume {
    worker: Worker<AnyStore>,
}

impl Consume {
    /// Passes a value to the handler, if it takes a [`Data`](crate::Data) of this type.
    pub fn data<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.worker = self.worker.data(value);
        self
    }

    /// Returns a handle for health and readiness checks of the consumer, before and after it is started.
    #[must_use]
    pub fn probe(&self) -> Probe {
        self.worker.probe()
    }

    /// Starts the consumer, runs it until `signal` completes, and [stops](Consumer::stop) it with this deadline.
    ///
    /// # Errors
    ///
    /// The same as for [`Worker::run_until`].
    pub async fn run_until(self, signal: impl Future, deadline: Duration) -> Result<()> {
        self.worker.run_until(signal, deadline).await
    }

    /// Sets how many jobs run concurrently. Default: 10.
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.worker = self.worker.concurrency(slots);
        self
    }

    /// Sets how many jobs the consumer acquires in advance, besides those that run. Default: 0. See
    /// [`Worker::prefetch`](crate::Worker::prefetch).
    pub fn prefetch(mut self, jobs: u32) -> Self {
        self.worker = self.worker.prefetch(jobs);
        self
    }

    /// Sets how often the consumer polls for jobs if it is not notified of any. Default: 5 s while notifications
    /// arrive from all processes, 1.5 s otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.worker = self.worker.poll(poll);
        self
    }

    /// Sets a name for display.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.worker = self.worker.name(name);
        self
    }
}

impl IntoFuture for Consume {
    type Output = Result<Consumer>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(Consumer { running: self.worker.start().await? }) })
    }
}

/// A running consumer.
///
/// Prefer [`stop`](Self::stop) to dropping it. When it is dropped, it acquires no more jobs, asks its
/// handlers to stop, and no longer renews the visibility of their jobs. Other consumers run the unfinished
/// jobs after their visibility expires.
#[must_use = "a dropped consumer stops: keep it and call `stop`, or call `run_until` instead of awaiting `consume`"]
#[derive(Debug)]
pub struct Consumer {
    running: Running<AnyStore>,
}

impl Consumer {
    /// Returns the id of the consumer's worker.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.running.id()
    }

    /// Returns an error while the consumer cannot acquire jobs; see [`Probe::health`].
    pub fn health(&self) -> Result<(), Unhealthy> {
        self.running.health()
    }

    /// Returns a handle for health and readiness checks.
    #[must_use]
    pub fn probe(&self) -> Probe {
        self.running.probe()
    }

    /// Stops acquiring jobs and lets the handlers finish, but not beyond `deadline`; see [`Running::stop`].
    pub async fn stop(self, deadline: Duration) {
        self.running.stop(deadline).await;
    }

    /// Like [`stop`](Self::stop), but asks the handlers to stop immediately.
    pub async fn stop_now(self, deadline: Duration) {
        self.running.stop_now(deadline).await;
    }
}
