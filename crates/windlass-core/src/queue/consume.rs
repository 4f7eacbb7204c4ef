use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::encoding::{read, write};
use super::hook::Changed;
use super::{Item, Queue, Shared};
use crate::command::Outcome;
use crate::error::Result;
use crate::id::WorkerId;
use crate::name::ErrorText;
use crate::store::{AnyStore, BoxFuture, Store};
use crate::worker::{
    AbortReason, AnyAttempt, Argument, BoxError, Failure, Fatal, Handlers, Probe, Retry, Running, Unhealthy,
    Values, Worker, argument, catch_panic, lacks,
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
    /// If a consumer crashes, another one runs its jobs again, so the handler must be idempotent.
    ///
    /// Each consumer has its own slots, so queues do not wait for each other.
    pub fn consume<M>(&self, handler: impl ItemHandler<P, O, M>) -> Consume {
        let worker = Worker::new(&self.shared.client).handlers(self.handlers(handler));
        Consume { worker }
    }

    /// Returns the handler as part of a worker that may have other handlers, which then share its slots.
    pub fn handlers<S: Store + ?Sized, M, H: ItemHandler<P, O, M>>(&self, handler: H) -> Handlers<S> {
        let shared = Arc::clone(&self.shared);
        Handlers::new().handle_any_with(self.name(), self.shared.options.handler_options(), move |values| {
            if let Some(missing) = H::lacks(&values) {
                return Err(missing);
            }
            let context = Arc::new((shared, handler, values));
            Ok(move |attempt| {
                let context = Arc::clone(&context);
                async move {
                    let (shared, handler, values) = &*context;
                    shared.execute(attempt, |item| handler.call(item, values)).await
                }
            })
        })
    }
}

/// An `async fn(Item<P>) -> Result<O, E>` that processes the jobs of a queue. It may take up to six more arguments,
/// [`Data<T>`](crate::Data), for values that were passed to the consumer or worker. `E` is any error.
#[diagnostic::on_unimplemented(
    message = "this is not a handler of a queue",
    label = "not a valid handler for this queue",
    note = "a handler is an `async fn(Item<P>)` that returns `Result<O, _>`, where `P` and `O` are the queue's payload and result",
    note = "its other arguments are values of the application: `Data<T>`, passed to the consumer with `.data(value)`",
    note = "a closure must name the type of its argument: `|item: Item<P>|`"
)]
pub trait ItemHandler<P, O, Marker>: Send + Sync + 'static {
    /// Runs one attempt.
    #[doc(hidden)]
    fn call(&self, item: Item<P>, values: &Values) -> BoxFuture<'static, Result<O, BoxError>>;

    /// Returns the type of the first argument that these values lack.
    #[doc(hidden)]
    fn lacks(values: &Values) -> Option<&'static str>;
}

macro_rules! item_handlers {
    ($($argument:ident)*) => {
        impl<P, O, F, Fut, E, $($argument),*> ItemHandler<P, O, ($($argument,)*)> for F
        where
            F: Fn(Item<P>, $($argument),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<O, E>> + Send + 'static,
            E: Into<BoxError>,
            $($argument: Argument,)*
        {
            fn call(&self, item: Item<P>, _values: &Values) -> BoxFuture<'static, Result<O, BoxError>> {
                $(
                    #[expect(non_snake_case, reason = "named after its type")]
                    let $argument = match argument::<$argument>(_values) {
                        Ok(argument) => argument,
                        Err(error) => return Box::pin(async { Err(error.into()) }),
                    };
                )*
                let handling = self(item, $($argument),*);
                Box::pin(async move { handling.await.map_err(Into::into) })
            }

            lacks!($($argument)*);
        }
    };
}

item_handlers!();
item_handlers!(A);
item_handlers!(A B);
item_handlers!(A B C);
item_handlers!(A B C D);
item_handlers!(A B C D G);
item_handlers!(A B C D G H);

impl<P: Send + Sync + 'static, O: Send + 'static> Shared<P, O> {
    /// Runs one attempt. After an error, the worker retries or requeues the job.
    async fn execute(
        &self,
        attempt: AnyAttempt,
        handler: impl FnOnce(Item<P>) -> BoxFuture<'static, Result<O, BoxError>> + Send,
    ) -> Result<Outcome, BoxError> {
        // Retried, because a later version of the program may be able to decode the payload.
        let payload = read(&*self.payloads, &attempt.job().input)?;
        let (item, began) = (Item::new(payload, attempt), Instant::now());
        let handled = {
            let item = item.clone();
            catch_panic("handler", async { handler(item).await }).await
        };
        let took = began.elapsed();
        match handled {
            Ok(Ok(output)) => self.completed(&item, output, took).await,
            Ok(Err(error)) => self.failed(&item, error, took).await,
            Err(panic) => self.failed(&item, panic.to_string().into(), took).await,
        }
    }

    async fn completed(&self, item: &Item<P>, output: O, took: Duration) -> Result<Outcome, BoxError> {
        // Encode before the hook consumes the output: a failing hook must not lose the result.
        let written = match write(&*self.results, &output) {
            Ok(written) => written,
            // Fail for good: running the handler again would not make the result encodable.
            Err(error) => return self.failed(item, Fatal::new(error).into(), took).await,
        };
        let unchanged = Outcome::complete(written);
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
    /// Passes a value of the application to the handler, if it takes a [`Data`](crate::Data) of its type.
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
    /// Those of [`Worker::start`].
    pub async fn run_until(self, signal: impl Future, deadline: Duration) -> Result<()> {
        self.worker.run_until(signal, deadline).await
    }

    /// Sets how many jobs run concurrently. Default: 10.
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.worker = self.worker.concurrency(slots);
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
