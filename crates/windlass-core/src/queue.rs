//! Queues: jobs under the caller's own ids, with answers and cached results.
//!
//! A queue is a typed view on chains of one job. Its name is a job type's name, chosen at run time; the
//! caller's id is the chain's key, so that an id is enqueued once however many ask for it; and the result's
//! TTL is the chain's retention, which is also how long the id is held. Everything else is the engine's:
//! leases, retries, reaping, pausing, transactions.
//!
//! ```
//! use std::time::Duration;
//! use windlass_core::queue::{Enqueued, Item};
//! use windlass_core::{BoxError, Client, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass_core::Result<()> {
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
//! What becomes of a job is a value. A call fails with an [`Error`] whose
//! [`kind`](crate::Error::kind) says what to do: `TimedOut` (the job goes on), `ChainFailed` (the handler gave
//! it up; its error is [`job_error`](crate::Error::job_error)), `AttemptsExhausted` (it failed in the last of
//! its attempts), `ChainCancelled`, `NotFound` (it was deleted while somebody waited), `Invalid` (a bad id, TTL
//! or payload), `Closed` (the queue is being drained); and those of the store: `Busy`, `Unavailable`,
//! `Unsupported`, `Incompatible`, `Corrupt`.

mod consume;
mod content;
mod encoding;
mod enqueue;
mod events;
mod hook;
mod item;
mod look;
mod manage;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub use consume::{Consume, Consumer};
pub use content::content_id;
#[cfg(feature = "cbor")]
pub use encoding::Cbor;
#[cfg(feature = "messagepack")]
pub use encoding::MessagePack;
pub use encoding::{Encoding, Json};
pub use enqueue::{Enqueue, Enqueued};
pub use events::{Events, QueueEvent};
pub use hook::Executed;
pub use item::{Fatal, Item, ItemState};
pub use look::ItemStatus;
pub use manage::{ItemCancelled, TtlUpdated};
pub use wait::Answer;

use crate::client::{BUSY_DELAY, BUSY_TRIES, Client};
use crate::command::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Backoff, JobOptions};
use crate::name::{Key, TypeName};
use crate::record::{KeyHold, Retention};
use crate::store::AnyStore;
use crate::time::Millis;
use crate::worker::BoxError;
use hook::Hook;

/// A named queue of jobs that take a `P` and give an `O`: producer, consumer or both. Cheap to clone; clones
/// share everything. See [the module](crate::queue).
pub struct Queue<P, O> {
    shared: Arc<Shared<P, O>>,
}

struct Shared<P, O> {
    client: Client<AnyStore>,
    name: TypeName,
    terms: Terms,
    payloads: Box<dyn Encoding<P>>,
    results: Arc<dyn Encoding<O>>,
    hook: Option<Hook<P, O>>,
}

/// On what terms jobs are enqueued and run, unless said otherwise for one.
#[derive(Clone, Copy, Debug)]
struct Terms {
    attempts: u32,
    visibility: Duration,
    is_fixed: bool,
    backoff: Backoff,
    result_ttl: Duration,
    error_ttl: Duration,
    hold: KeyHold,
}

impl Default for Terms {
    fn default() -> Self {
        const HOUR: Duration = Duration::from_secs(60 * 60);
        Self {
            attempts: 3,
            visibility: Duration::from_secs(30),
            is_fixed: false,
            backoff: Backoff::default(),
            result_ttl: HOUR,
            error_ttl: HOUR,
            hold: KeyHold::Completed,
        }
    }
}

impl Terms {
    fn check(self) -> Result<Self> {
        if self.attempts == 0 {
            let text = "a queue whose jobs have no attempt: give them at least one";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        positive(self.result_ttl)?;
        positive(self.error_ttl)?;
        Ok(self)
    }

    /// How long a closed job stays, and so holds its id if its outcome does.
    fn retention(self) -> Result<Retention> {
        let failed = positive(self.error_ttl)?;
        Ok(Retention { completed: positive(self.result_ttl)?, failed, cancelled: failed })
    }

    /// How a consumer runs them.
    fn options(self) -> JobOptions {
        JobOptions {
            lease: self.visibility,
            timeout: self.is_fixed.then_some(self.visibility),
            backoff: self.backoff,
            ..JobOptions::default()
        }
    }
}

/// A TTL as the store has it: some time, and not more than a hundred years.
fn positive(ttl: Duration) -> Result<Millis> {
    if ttl.is_zero() {
        return Err(Error::new(ErrorKind::Invalid, "a TTL of no time: give it a millisecond at least"));
    }
    Ok(Millis::try_from(ttl)?)
}

impl<P, O> Queue<P, O> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &TypeName {
        &self.shared.name
    }

    /// The chain that an id points at.
    fn target(&self, id: impl AsRef<str>) -> Result<Target> {
        Ok(Target::Key(self.shared.name.clone(), Key::new(id)?))
    }

    /// Lets jobs in, unless the queue is being drained. As long as this is kept, a drain waits for them.
    fn enter(&self) -> Result<TaskTrackerToken> {
        let entrance = self.entrance();
        // Taken before the look: a drain that begins between the two waits for it.
        let entered = entrance.token();
        if entrance.is_closed() {
            let text = format!("queue `{}` is being drained: enqueue again after `resume`", self.name());
            return Err(Error::new(ErrorKind::Closed, text));
        }
        Ok(entered)
    }

    /// Counts the jobs that are on their way to the store: those that somebody waits for, and those that only
    /// the queue's own batcher has. Closed while the queue is being drained.
    fn entrance(&self) -> &TaskTracker {
        self.shared.client.shared.creates.tasks()
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

/// Makes a [`Queue`]; see [`Client::queue`].
#[must_use = "call `build`"]
pub struct QueueBuilder<P, O> {
    client: Client<AnyStore>,
    name: String,
    terms: Terms,
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
        Self { client, name: name.to_owned(), terms: Terms::default(), payloads, results, hook: None }
    }

    /// After so many attempts a failure is final; 3 unless said otherwise.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.terms.attempts = attempts;
        self
    }

    /// How long a job that a consumer has taken is hidden from others. It is renewed while the handler runs, so
    /// that only a consumer that died or hangs loses its job. 30 s unless said otherwise.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        (self.terms.visibility, self.terms.is_fixed) = (visibility, false);
        self
    }

    /// The same for handlers that must not take longer: after so long the handler is told to stop, and the job
    /// is hidden half as long again at most; then the handler is dropped, and the job is tried again.
    pub fn fixed_visibility(mut self, visibility: Duration) -> Self {
        (self.terms.visibility, self.terms.is_fixed) = (visibility, true);
        self
    }

    /// When a failed attempt is tried again; [`Backoff::NONE`] is at once.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.terms.backoff = backoff;
        self
    }

    /// How long results are cached, and so their ids held; an hour unless said otherwise.
    pub fn result_ttl(mut self, ttl: Duration) -> Self {
        self.terms.result_ttl = ttl;
        self
    }

    /// How long errors of failed jobs are kept; an hour unless said otherwise.
    pub fn error_ttl(mut self, ttl: Duration) -> Self {
        self.terms.error_ttl = ttl;
        self
    }

    /// Keeps the id of a failed job until the TTL of its error is over. Otherwise it is accepted again at once.
    pub fn hold_failed(mut self) -> Self {
        self.terms.hold = KeyHold::CompletedOrFailed;
        self
    }

    /// Calls this after a success and after a final failure, before that is stored: it may change the result,
    /// the error and how long they are kept. See [`Executed`].
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

    /// The queue; an error if its name or its terms cannot be.
    pub fn build(self) -> Result<Queue<P, O>> {
        let Self { client, name, terms, payloads, results, hook } = self;
        let (name, terms) = (TypeName::new(name)?, terms.check()?);
        Ok(Queue { shared: Arc::new(Shared { client, name, terms, payloads, results, hook }) })
    }
}

impl<P, O> fmt::Debug for QueueBuilder<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueBuilder")
            .field("name", &self.name)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
