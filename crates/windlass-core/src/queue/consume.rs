use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::encoding::{read, write};
use super::hook::Changed;
use super::{Fatal, Item, Queue, Shared};
use crate::command::Outcome;
use crate::error::Result;
use crate::id::WorkerId;
use crate::name::ErrorText;
use crate::store::{AnyStore, BoxFuture, Store};
use crate::worker::{
    AbortReason, AnyAttempt, BoxError, Handlers, Running, Unhealthy, Worker, catch_panic, error_text,
};

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Processes jobs with this handler, an `async fn(Item<P>) -> Result<O, E>`. Await the returned value to
    /// start.
    ///
    /// If a consumer crashes, another one runs its jobs again, so the handler must be idempotent.
    ///
    /// Each consumer has its own slots, so queues do not wait for each other.
    pub fn consume<F, Fut, E>(&self, handler: F) -> Consume
    where
        F: Fn(Item<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let worker = Worker::new(&self.shared.client).handlers(self.handlers(handler));
        Consume { worker }
    }

    /// Returns the handler as part of a worker that may have other handlers, which then share its slots.
    pub fn handlers<S, A, F, Fut, E>(&self, handler: F) -> Handlers<S, A>
    where
        S: Store + ?Sized,
        A: Clone + Send + Sync + 'static,
        F: Fn(Item<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let (shared, handler) = (Arc::clone(&self.shared), Arc::new(handler));
        Handlers::new().handle_any(self.name(), self.shared.options.job_options(), move |attempt| {
            let (shared, handler) = (Arc::clone(&shared), Arc::clone(&handler));
            async move { shared.execute(attempt, |item| handler(item)).await }
        })
    }
}

impl<P: Send + Sync + 'static, O: Send + 'static> Shared<P, O> {
    /// Runs one attempt. After an error, the worker retries or requeues the job.
    async fn execute<Fut, E>(
        &self,
        attempt: AnyAttempt,
        handler: impl FnOnce(Item<P>) -> Fut + Send,
    ) -> Result<Outcome, BoxError>
    where
        Fut: Future<Output = Result<O, E>> + Send,
        E: Into<BoxError>,
    {
        let payload = match read(&*self.payloads, &attempt.job().input) {
            Ok(payload) => payload,
            // A payload that cannot be decoded now cannot be decoded in the next attempt either.
            Err(error) => return Ok(Outcome::fail(error.to_string())),
        };
        let (item, began) = (Item::new(payload, attempt), Instant::now());
        let handled = {
            let item = item.clone();
            catch_panic("handler", async { handler(item).await.map_err(Into::into) }).await
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
        let is_fatal = error.is::<Fatal>();
        // When the worker stops, the job is requeued; after a cancel request, it closes as cancelled. Unless
        // it is fatal, the error then does not end the job, and the hook must not run.
        let goes_back =
            matches!(item.aborted().reason(), Some(AbortReason::WorkerStopping | AbortReason::Cancelled));
        let is_final = is_fatal || (item.is_last_attempt() && !goes_back);
        if !is_final || is_lost(item) {
            return Err(error);
        }
        let text = error_text(&error);
        match self.after(item, Err(text.as_str().to_owned()), took).await {
            Some(Changed { result: Err(error), ttl })
                if is_fatal || ttl.is_some() || error != text.as_str() =>
            {
                Ok(Outcome::Fail { error: ErrorText::new(error), retention: ttl })
            }
            _ if is_fatal => Ok(Outcome::Fail { error: text, retention: None }),
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
    /// Sets how many jobs run concurrently. Default: 1.
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.worker = self.worker.concurrency(slots);
        self
    }

    /// Sets how often the consumer polls for jobs when it receives no notifications. Default: 5 s while
    /// notifications arrive from all processes, 1.5 s otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.worker = self.worker.poll(poll);
        self
    }

    /// Sets a human-readable name.
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

    /// Returns an error while the consumer cannot acquire jobs; see [`Running::health`].
    pub fn health(&self) -> Result<(), Unhealthy> {
        self.running.health()
    }

    /// Stops acquiring jobs, asks handlers to stop and waits for them until the deadline. Jobs that are still
    /// running then are requeued, and their attempt is not counted.
    pub async fn stop(self, deadline: Duration) {
        self.running.stop(deadline).await;
    }
}
