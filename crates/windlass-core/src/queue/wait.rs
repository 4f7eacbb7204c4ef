use std::fmt;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Queue;
use super::encoding::read;
use crate::client::{Ending, refused};
use crate::command::{Created, NewChain};
use crate::error::{Error, ErrorKind, Result};
use crate::notifier::Topic;
use crate::record::{ChainRecord, JobRecord, Status};
use crate::store::BoxFuture;

/// A wait for what a job gives; see [`Queue::enqueue_and_wait`].
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Answer<P, O> {
    queue: Queue<P, O>,
    new: Result<NewChain>,
    timeout: Option<Duration>,
    poll: Option<Duration>,
    token: Option<CancellationToken>,
}

impl<P, O> Answer<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    pub(super) const fn new(queue: Queue<P, O>, new: Result<NewChain>) -> Self {
        Self { queue, new, timeout: None, poll: None, token: None }
    }

    /// Gives up after so long with an error of kind `TimedOut`; the job goes on. 30 s unless said otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Looks at the store so often beside notifications. 15 s unless said otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = Some(poll);
        self
    }

    /// Gives up when this token is cancelled, with an error of kind `TimedOut`; the job goes on.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Subscribes to the end of the job before it exists, so that no end is missed and no look is needed before
    /// there is one. One that is there already is joined.
    async fn run(self) -> Result<O> {
        let (queue, new) = (self.queue, self.new?);
        queue.check_accepts()?;
        let client = &queue.shared.client;
        let subscription = client.shared.teller.subscribe(vec![Topic::ChainClosed(new.id)]).await;
        let (chain, subscription) = match queue.create(new).await? {
            Created::New { job, .. } => (job.chain, subscription),
            Created::Existing(existing) => match queue.cached(&existing)? {
                Some(result) => return Ok(result),
                None => (existing.chain, None),
            },
            created => return Err(refused(created)),
        };
        let mut ending = Ending::new(client, chain, chain.into());
        ending.timeout = self.timeout.unwrap_or(ending.timeout);
        ending.poll = self.poll.unwrap_or(ending.poll);
        ending.token = self.token;
        queue.given(&ending.run(subscription).await?)
    }
}

impl<P, O: 'static> Queue<P, O> {
    /// What a job gave that has ended.
    fn given(&self, record: &ChainRecord) -> Result<O> {
        let JobRecord { output, error, status, attempt, max_attempts, .. } = &record.latest;
        if let Some(output) = output {
            return read(&*self.shared.results, output);
        }
        let id = record.key.as_ref().map(|key| key.key.as_str()).unwrap_or_default();
        let job = format!("job `{id}` of queue `{}`", self.name());
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
