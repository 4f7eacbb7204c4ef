//! Enqueues a job and waits for its result.

use std::fmt;

use tokio::time::Instant;

use super::Queue;
use super::encoding::read;
use crate::client::{ChainWait, FoundChain, Prepared, WaitOptions, refused, wait_options};
use crate::command::{Created, NewChain};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::name::Key;
use crate::record::{ChainRecord, JobRecord, Status};
use crate::store::BoxFuture;

/// A wait for the result of a job; see [`Queue::enqueue_and_wait`].
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Answer<P, O> {
    queue: Queue<P, O>,
    new: Result<NewChain>,
    options: WaitOptions,
}

/// What a wait found or created: a cached result, or an open chain.
enum Joined<'q, O> {
    Cached(O),
    /// An open chain. If this wait created it, it comes with what was prepared before.
    Open(ChainId, Prepared<'q>),
}

impl<P, O> Answer<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    pub(super) fn new(queue: Queue<P, O>, new: Result<NewChain>) -> Self {
        Self { queue, new, options: WaitOptions::default() }
    }

    wait_options!(options);

    async fn run(self) -> Result<O> {
        let Self { queue, new, options } = self;
        let (new, began) = (new?, Instant::now());
        let id = new.key.as_ref().map(|key| key.key.clone());
        let joined = tokio::select! {
            biased;
            joined = queue.join(new) => joined?,
            why = options.ended(began) => {
                let job = describe(id.as_ref(), &queue);
                let text = format!("the store has not confirmed {job} {why}: it may be stored anyway");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
        };
        match joined {
            Joined::Cached(result) => Ok(result),
            Joined::Open(chain, prepared) => {
                let job = describe(id.as_ref(), &queue);
                let ending =
                    ChainWait::new(&queue.shared.client, chain, chain.into(), options).of_queue_job(job);
                match ending.run(began, prepared).await? {
                    FoundChain::Locally(completed) => read(&*queue.shared.results, &completed.output),
                    FoundChain::Stored(record) => queue.result_of(&record),
                }
            }
        }
    }
}

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Enqueues a job, or joins the existing job with its id.
    ///
    /// Prepares the wait before the chain is created, so that its end is noticed without polling the store.
    async fn join(&self, new: NewChain) -> Result<Joined<'_, O>> {
        let _entered = self.enter()?;
        let (created, prepared) = self.shared.client.create_and_prepare(new.id, self.create(new)).await?;
        match created {
            Created::New { job, .. } => Ok(Joined::Open(job.chain, prepared)),
            Created::Existing(existing) => Ok(match self.cached(&existing)? {
                Some(result) => Joined::Cached(result),
                None => Joined::Open(existing.chain, Prepared::default()),
            }),
            created => Err(refused(created)),
        }
    }

    /// Returns the result of an ended job.
    fn result_of(&self, record: &ChainRecord) -> Result<O> {
        let JobRecord { output, error, status, attempt, max_attempts, .. } = &record.latest;
        if let Some(output) = output {
            return read(&*self.shared.results, output);
        }
        let job = describe(record.key.as_ref().map(|key| &key.key), self);
        let (kind, what) = match status {
            Status::Cancelled => (ErrorKind::ChainCancelled, format!("{job} was cancelled")),
            _ if max_attempts.is_some_and(|max| *attempt >= max) => {
                (ErrorKind::AttemptsExhausted, format!("{job} failed in its last attempt ({attempt})"))
            }
            _ => (ErrorKind::ChainFailed, format!("{job} failed")),
        };
        Err(Error::ended(kind, what, error.clone()))
    }
}

/// Returns a description of a job for error messages.
fn describe<P, O>(id: Option<&Key>, queue: &Queue<P, O>) -> String {
    format!("job `{}` of queue `{}`", id.map(Key::as_str).unwrap_or_default(), queue.name())
}

impl<P, O> IntoFuture for Answer<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    type Output = Result<O>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<P, O> fmt::Debug for Answer<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("queue", &self.queue).field("new", &self.new).finish_non_exhaustive()
    }
}
