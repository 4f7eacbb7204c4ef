use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Queue;
use super::encoding::read;
use crate::client::{Ending, Patience, refused};
use crate::command::{Created, NewChain};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::name::Key;
use crate::notifier::{Subscription, Topic};
use crate::record::{ChainRecord, JobRecord, Status};
use crate::store::BoxFuture;

/// A wait for what a job gives; see [`Queue::enqueue_and_wait`].
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Answer<P, O> {
    queue: Queue<P, O>,
    new: Result<NewChain>,
    patience: Patience,
}

/// What there is to wait for.
enum Joined<O> {
    Cached(O),
    /// The end of a chain. Who has created it has subscribed to its end before.
    Open(ChainId, Option<Subscription>),
}

impl<P, O> Answer<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    pub(super) fn new(queue: Queue<P, O>, new: Result<NewChain>) -> Self {
        Self { queue, new, patience: Patience::default() }
    }

    /// Gives up after so long, the enqueue included, with an error of kind `TimedOut`; the job goes on. 30 s
    /// unless said otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.patience.timeout = timeout;
        self
    }

    /// Looks at the store so often beside notifications. 15 s unless said otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.patience.poll = poll;
        self
    }

    /// Gives up when this token is cancelled, with an error of kind `TimedOut`; the job goes on.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.patience.token = Some(token);
        self
    }

    async fn run(self) -> Result<O> {
        let Self { queue, new, patience } = self;
        let (new, began) = (new?, Instant::now());
        let id = new.key.as_ref().map(|key| key.key.clone());
        let joined = tokio::select! {
            biased;
            joined = queue.join(new) => joined?,
            why = patience.ended(began) => {
                let job = named(id.as_ref(), &queue);
                let text = format!("the store has not answered for {job} {why}: it may be enqueued all the same");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
        };
        match joined {
            Joined::Cached(result) => Ok(result),
            Joined::Open(chain, subscription) => {
                let ending = Ending::new(&queue.shared.client, chain, chain.into(), patience);
                queue.given(&ending.run_since(began, subscription).await?)
            }
        }
    }
}

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Enqueues a job, or joins one of its id that is there already. Subscribes to its end before it exists, so
    /// that no end is missed and no look is needed before there is one.
    async fn join(&self, new: NewChain) -> Result<Joined<O>> {
        let _entered = self.enter()?;
        let teller = &self.shared.client.shared.teller;
        let subscription = teller.subscribe(vec![Topic::ChainClosed(new.id)]).await;
        match self.create(new).await? {
            Created::New { job, .. } => Ok(Joined::Open(job.chain, subscription)),
            Created::Existing(existing) => Ok(match self.cached(&existing)? {
                Some(result) => Joined::Cached(result),
                None => Joined::Open(existing.chain, None),
            }),
            created => Err(refused(created)),
        }
    }

    /// What a job gave that has ended.
    fn given(&self, record: &ChainRecord) -> Result<O> {
        let JobRecord { output, error, status, attempt, max_attempts, .. } = &record.latest;
        if let Some(output) = output {
            return read(&*self.shared.results, output);
        }
        let job = named(record.key.as_ref().map(|key| &key.key), self);
        let (kind, what) = match status {
            Status::Cancelled => (ErrorKind::ChainCancelled, format!("{job} was cancelled")),
            _ if max_attempts.is_some_and(|max| *attempt >= max) => {
                (ErrorKind::AttemptsExhausted, format!("{job} failed in attempt {attempt}, its last"))
            }
            _ => (ErrorKind::ChainFailed, format!("{job} failed")),
        };
        Err(Error::ended(kind, what, error.clone()))
    }
}

/// A job, for people.
fn named<P, O>(id: Option<&Key>, queue: &Queue<P, O>) -> String {
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
