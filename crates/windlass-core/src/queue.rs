//! Queues: jobs under the caller's own ids, whose results are cached and can be awaited.
//!
//! A queue is a typed view of one-job chains:
//!
//! - The queue's name is the name of a job type, chosen at run time.
//! - The caller's id is the chain's key, so an id is enqueued once, no matter how many callers enqueue it.
//! - The TTL of the result is the chain's retention, which is also how long the id is held.
//!
//! Leases, retries, reaping, pausing and transactions work as for any other job.
//!
//! ```
//! use std::time::Duration;
//! use windlass::queue::{Enqueued, Item};
//! use windlass::{BoxError, Client, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
//! let client = Client::new(MemoryStore::new());
//! let squares = client.queue::<u64, u64>("squares").attempts(5).build()?;
//!
//! let consumer = squares.consume(|item: Item<u64>| async move { Ok::<_, BoxError>(item.payload() * item.payload()) });
//! let consumer = consumer.concurrency(10).await?;
//!
//! assert_eq!(squares.enqueue_and_wait("seven", 7).await?, 49);
//! assert_eq!(squares.enqueue("seven", 7).await?, Enqueued::Completed(49));        // cached
//! consumer.stop(Duration::from_secs(10)).await;
//! # Ok(()) }
//! ```
//!
//! # Errors
//!
//! The state of a job is returned as a value. A failed call returns an [`Error`] whose
//! [`kind`](crate::Error::kind) is one of:
//!
//! - `TimedOut`: the wait ended; the job continues. [`job_error`](crate::Error::job_error) is the error of its latest
//!   attempt, and [`next_attempt_at`](crate::Error::next_attempt_at) the time of the next one.
//! - `ChainFailed`: the handler failed the job permanently; [`job_error`](crate::Error::job_error) is the handler's
//!   error.
//! - `AttemptsExhausted`: the job failed in its last attempt.
//! - `ChainCancelled`: the job was cancelled.
//! - `NotFound`: the job was deleted during the wait.
//! - `Invalid`: the id, TTL or payload is invalid.
//! - `Closed`: the queue is being drained.
//! - `Busy`, `Unavailable`, `AccessDenied`, `Unsupported`, `Outdated`, `Incompatible` or `Corrupt`: an error of the
//!   store.

mod attempt;
mod consume;
mod content;
mod encoding;
mod enqueue;
mod events;
mod handler;
mod hook;
mod item;
mod manage;
mod query;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub use attempt::{ItemAttempt, ItemDone, ItemPrepare, ItemStep};
pub use consume::{Consume, Consumer};
pub use content::content_id;
#[cfg(feature = "cbor")]
pub use encoding::Cbor;
#[cfg(feature = "messagepack")]
pub use encoding::MessagePack;
pub use encoding::{Encoding, Json};
pub use enqueue::{Enqueue, Enqueued};
pub use events::{Events, FailureKind, QueueEvent};
pub use handler::ItemHandler;
pub use hook::Executed;
pub use item::{Item, ItemState};
pub use manage::{ItemCancelled, TtlUpdated};
pub use query::ItemStatus;
pub use wait::Answer;

use crate::client::Client;
use crate::command::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::job::Backoff;
use crate::name::{Key, TypeName};
use crate::record::{KeyHold, Retention};
use crate::store::AnyStore;
use crate::time::Millis;
use crate::worker::{BoxError, HandlerOptions};
use hook::Hook;

/// A named queue of jobs with payload `P` and result `O`, for producers and consumers.
///
/// Cheap to clone; clones share all state. See [the module](crate::queue).
pub struct Queue<P, O> {
    shared: Arc<Shared<P, O>>,
}

struct Shared<P, O> {
    client: Client<AnyStore>,
    name: TypeName,
    options: QueueOptions,
    payloads: Box<dyn Encoding<P>>,
    results: Arc<dyn Encoding<O>>,
    hook: Option<Hook<P, O>>,
}

/// How the queue's jobs are enqueued and run by default. A single job can override part of this.
#[derive(Clone, Copy, Debug)]
struct QueueOptions {
    attempts: u32,
    visibility: Duration,
    is_fixed: bool,
    backoff: Backoff,
    result_ttl: Duration,
    /// `None`: as long as results.
    error_ttl: Option<Duration>,
    hold: KeyHold,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            attempts: 4,
            visibility: Duration::from_secs(30),
            is_fixed: false,
            backoff: Backoff { initial: Duration::from_secs(1), ..Backoff::default() },
            result_ttl: Duration::from_secs(60 * 60),
            error_ttl: None,
            hold: KeyHold::Completed,
        }
    }
}

impl QueueOptions {
    fn check(self) -> Result<Self> {
        if self.attempts == 0 {
            let text = "attempts must be at least 1, got 0";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.retention().map(|_| self)
    }

    /// Returns how long a closed job is kept. Its id is held for the same time if its outcome holds keys.
    fn retention(self) -> Result<Retention> {
        let failed = positive(self.error_ttl.unwrap_or(self.result_ttl))?;
        Ok(Retention { completed: positive(self.result_ttl)?, failed, cancelled: failed })
    }

    /// Returns the options with which a consumer runs the jobs.
    fn handler_options(self) -> HandlerOptions {
        let options = HandlerOptions::new().lease(self.visibility).backoff(self.backoff);
        if self.is_fixed { options.timeout(self.visibility) } else { options }
    }
}

/// Converts a TTL. It must be at least 1 ms and at most 100 years.
fn positive(ttl: Duration) -> Result<Millis> {
    if ttl.is_zero() {
        return Err(Error::new(ErrorKind::Invalid, "TTL must be at least 1 ms, got 0"));
    }
    Ok(Millis::try_from(ttl)?)
}

impl<P, O> Queue<P, O> {
    /// Returns the name of the queue.
    #[must_use]
    pub fn name(&self) -> &TypeName {
        &self.shared.name
    }

    /// Returns the target for the chain whose key is `id`.
    fn target(&self, id: impl AsRef<str>) -> Result<Target> {
        Ok(Target::Key(self.shared.name.clone(), Key::new(id)?))
    }

    /// Admits new jobs unless the queue is being drained. A drain waits until the returned token is dropped.
    fn enter(&self) -> Result<TaskTrackerToken> {
        let entrance = self.entrance();
        // Take the token before the check: a drain that starts between the two then waits for it.
        let entered = entrance.token();
        if entrance.is_closed() {
            let text = format!("queue `{}` is being drained: enqueue again after `resume`", self.name());
            return Err(Error::new(ErrorKind::Closed, text));
        }
        Ok(entered)
    }

    /// Tracks jobs on their way to the store, both of callers that wait for the reply and of batches that no
    /// caller waits for anymore. Closed while the queue is being drained.
    fn entrance(&self) -> &TaskTracker {
        self.shared.client.shared.starts.tasks()
    }
}

impl<P, O> Clone for Queue<P, O> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<P, O> fmt::Debug for Queue<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

/// Builds a [`Queue`]; see [`Client::queue`].
#[must_use = "a queue builder does nothing until `build` is called"]
pub struct QueueBuilder<P, O> {
    client: Client<AnyStore>,
    name: String,
    options: QueueOptions,
    payloads: Box<dyn Encoding<P>>,
    results: Arc<dyn Encoding<O>>,
    hook: Option<Hook<P, O>>,
}

impl<P: Send + Sync + 'static, O: Send + 'static> QueueBuilder<P, O> {
    pub(crate) fn new<E>(client: Client<AnyStore>, name: &str, encoding: E) -> Self
    where
        E: Encoding<P> + Encoding<O> + Clone,
    {
        let (payloads, results) = (Box::new(encoding.clone()), Arc::new(encoding));
        Self {
            client,
            name: name.to_owned(),
            options: QueueOptions::default(),
            payloads,
            results,
            hook: None,
        }
    }

    /// Sets the encoding of payloads, if it differs from that of results.
    pub fn payload_encoding(mut self, encoding: impl Encoding<P>) -> Self {
        self.payloads = Box::new(encoding);
        self
    }

    /// Sets the encoding of results, if it differs from that of payloads.
    pub fn result_encoding(mut self, encoding: impl Encoding<O>) -> Self {
        self.results = Arc::new(encoding);
        self
    }

    /// Sets the maximum number of attempts. If the last one fails, the job fails. Default: 4.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.options.attempts = attempts;
        self
    }

    /// Sets how long a job that a consumer has acquired is hidden from other consumers. Default: 30 s.
    ///
    /// The visibility is renewed while the handler runs, so only a consumer that crashed or hangs loses its
    /// job.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        (self.options.visibility, self.options.is_fixed) = (visibility, false);
        self
    }

    /// Like [`visibility`](Self::visibility), for handlers that must not run longer than this.
    ///
    /// After this time, the handler is asked to stop. If it has not ended after at most half that time again, the
    /// handler is dropped and the job is retried.
    pub fn fixed_visibility(mut self, visibility: Duration) -> Self {
        (self.options.visibility, self.options.is_fixed) = (visibility, true);
        self
    }

    /// Sets the delay before a failed attempt is retried. [`Backoff::NONE`] retries immediately. Default: 1 s, doubled
    /// up to 1 h, with 10 % jitter. With the defaults, a job whose attempts all fail immediately has failed after about
    /// 7 s, before a wait times out.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.options.backoff = backoff;
        self
    }

    /// Sets how long results are cached and their ids held, and how long errors are kept unless
    /// [`error_ttl`](Self::error_ttl) is set. Default: one hour.
    pub fn result_ttl(mut self, ttl: Duration) -> Self {
        self.options.result_ttl = ttl;
        self
    }

    /// Sets how long failed jobs are kept with their errors, and how long cancelled jobs are kept. Default: as long as
    /// results.
    pub fn error_ttl(mut self, ttl: Duration) -> Self {
        self.options.error_ttl = Some(ttl);
        self
    }

    /// Holds the id of a failed job until the TTL of its error expires. By default, the id can be enqueued
    /// again immediately.
    pub fn hold_failed(mut self) -> Self {
        self.options.hold = KeyHold::CompletedOrFailed;
        self
    }

    /// Calls `hook` after a success or a final failure, before the outcome is stored. The hook may change the result or
    /// the error, and how long it is kept. See [`Executed`].
    pub fn after_execution<F, Fut, E>(mut self, hook: F) -> Self
    where
        F: Fn(Executed<P, O>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Executed<P, O>, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.hook = Some(Box::new(move |executed| {
            let changing = hook(executed);
            Box::pin(async move { changing.await.map_err(Into::into) })
        }));
        self
    }

    /// Builds the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the name is invalid, the number of attempts is 0, or a TTL is out of range.
    pub fn build(self) -> Result<Queue<P, O>> {
        let Self { client, name, options, payloads, results, hook } = self;
        let (name, options) = (TypeName::new(name)?, options.check()?);
        Ok(Queue { shared: Arc::new(Shared { client, name, options, payloads, results, hook }) })
    }
}

impl<P, O> fmt::Debug for QueueBuilder<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueBuilder")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
