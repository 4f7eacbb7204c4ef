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
use crate::worker::{AbortReason, AnyAttempt, BoxError, Handlers, Running, Worker, catch_panic, error_text};

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Processes jobs with this handler: an `async fn(Item<P>) -> Result<O, E>`; await it to start. A job may be
    /// run more than once, when a consumer dies: the handler must bear that.
    ///
    /// Each consumer has slots of its own, so that no queue waits for another.
    pub fn consume<F, Fut, E>(&self, handler: F) -> Consume
    where
        F: Fn(Item<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let worker = Worker::new(&self.shared.client).handlers(self.handlers(handler));
        Consume { worker }
    }

    /// The same handler as a part of a worker that has others too, with their slots in common.
    pub fn handlers<S, A, F, Fut, E>(&self, handler: F) -> Handlers<S, A>
    where
        S: Store + ?Sized,
        A: Clone + Send + Sync + 'static,
        F: Fn(Item<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let (shared, handler) = (Arc::clone(&self.shared), Arc::new(handler));
        Handlers::new().handle_any(self.name(), self.shared.terms.options(), move |attempt| {
            let (shared, handler) = (Arc::clone(&shared), Arc::clone(&handler));
            async move { shared.execute(attempt, |item| handler(item)).await }
        })
    }
}

impl<P: Send + Sync + 'static, O: Send + 'static> Shared<P, O> {
    /// Runs one attempt. An error is one after which the job is tried again, or given back.
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
            // It will not be readable the next time either.
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
        // Before the hook, which may spoil it.
        let written = match write(&*self.results, &output) {
            Ok(written) => written,
            // The work is done: to do it again would not help.
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

/// Whether nothing that the attempt does counts any more.
fn is_lost<P>(item: &Item<P>) -> bool {
    item.aborted().reason().is_some_and(AbortReason::is_lost)
}

/// A consumer to be started; see [`Queue::consume`]. Await it.
#[must_use = "a consumer does nothing until it is awaited"]
#[derive(Debug)]
pub struct Consume {
    worker: Worker<AnyStore>,
}

impl Consume {
    /// How many jobs are processed at once; 1 unless said otherwise.
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.worker = self.worker.concurrency(slots);
        self
    }

    /// How often it looks for jobs without being told of any; 60 s unless said otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.worker = self.worker.poll(poll);
        self
    }

    /// A name for people.
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

/// A consumer that runs. Dropped, it takes no more jobs, and those that it has are processed by others when
/// their visibility is over. Better to [`stop`](Self::stop) it.
#[derive(Debug)]
pub struct Consumer {
    running: Running<AnyStore>,
}

impl Consumer {
    /// The id of its worker.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.running.id()
    }

    /// Takes no more jobs, tells handlers to stop, waits for them until the deadline, and gives what is left
    /// back, uncounted.
    pub async fn stop(self, deadline: Duration) {
        self.running.stop(deadline).await;
    }
}
