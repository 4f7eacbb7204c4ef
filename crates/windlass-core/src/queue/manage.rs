use std::time::Duration;

use tokio::time::{sleep, timeout_at};

use super::{BUSY_DELAY, BUSY_TRIES, Queue, positive};
use crate::clock::far;
use crate::command::{CancelMode, Cancelled, RetentionSet, Target, TypeCount, Types};
use crate::error::{Error, ErrorKind, Result};
use crate::record::ClosedAs;
use crate::time::Timestamp;

/// How often a drain looks whether everything is done.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Calls a job off that is queued, or that waits to be tried again: it will not run, and its id is free at
    /// once. One that is being processed is left alone.
    pub async fn cancel(&self, id: impl AsRef<str> + Send) -> Result<ItemCancelled> {
        self.cancel_as(id, CancelMode::UnlessRunning).await
    }

    /// The same, but one that is being processed is asked to stop, through the signal of its handler.
    pub async fn cancel_or_ask(&self, id: impl AsRef<str> + Send) -> Result<ItemCancelled> {
        self.cancel_as(id, CancelMode::Ask).await
    }

    async fn cancel_as(&self, id: impl AsRef<str> + Send, mode: CancelMode) -> Result<ItemCancelled> {
        // Found first and then called off by the chain's own id, so that this can be repeated when a reply is
        // lost: by then the caller's id may mean another.
        let Some(record) = self.shared.client.chain(self.target(id)?).await? else {
            return Ok(ItemCancelled::NotFound);
        };
        for _ in 0..BUSY_TRIES {
            return Ok(match self.shared.client.cancel(record.id, mode).await? {
                Cancelled::Busy => {
                    sleep(BUSY_DELAY).await;
                    continue;
                }
                Cancelled::Cancelled { .. } => ItemCancelled::Cancelled,
                Cancelled::Asked { .. } => ItemCancelled::Asked,
                Cancelled::Running { .. } => ItemCancelled::Processing,
                Cancelled::NotFound => ItemCancelled::NotFound,
                Cancelled::Closed { closed_as, .. } => match closed_as {
                    ClosedAs::Completed => ItemCancelled::Completed,
                    ClosedAs::Failed => ItemCancelled::Failed,
                    ClosedAs::Cancelled => ItemCancelled::Cancelled,
                },
            });
        }
        Err(busy())
    }

    /// Keeps the result or the error of a job that has ended for so long from now.
    pub async fn update_result_ttl(&self, id: impl AsRef<str> + Send, ttl: Duration) -> Result<TtlUpdated> {
        positive(ttl)?;
        let target = self.target(id)?;
        for _ in 0..BUSY_TRIES {
            let Some(record) = self.shared.client.chain(target.clone()).await? else {
                return Ok(TtlUpdated::NotFound);
            };
            if record.closed.is_some_and(|closed| closed.closed_as == ClosedAs::Cancelled) {
                return Ok(TtlUpdated::NoPayload);
            }
            let chain = vec![Target::from(record.id)];
            match self.shared.client.set_retention(chain, ttl).await?.first() {
                Some(RetentionSet::Until(until)) => return Ok(TtlUpdated::Updated(*until)),
                Some(RetentionSet::NotClosed) => return Ok(TtlUpdated::NotTerminal),
                Some(RetentionSet::NotFound) | None => return Ok(TtlUpdated::NotFound),
                Some(RetentionSet::Busy) => sleep(BUSY_DELAY).await,
            }
        }
        Err(busy())
    }

    /// Lets no consumer take jobs, in any process. What is being processed goes on, and jobs are still accepted.
    pub async fn pause(&self) -> Result<()> {
        self.shared.client.set_paused(self.name(), true).await
    }

    /// Lets consumers take jobs again, and, if this queue was being drained, accepts jobs again.
    pub async fn resume(&self) -> Result<()> {
        self.entrance().reopen();
        self.shared.client.set_paused(self.name(), false).await
    }

    /// Accepts no more jobs by this handle and its clones, and waits until all that were accepted have ended, at
    /// most for so long. Consumers, here or elsewhere, go on. What waits for a transaction's commit is not known
    /// here.
    pub async fn drain(&self, longest: Duration) -> Result<()> {
        self.entrance().close();
        let mut left = "jobs are on their way to the store".to_owned();
        let drained = async {
            self.entrance().wait().await;
            left = "the store has not told how many jobs are open".to_owned();
            loop {
                match self.open_jobs().await? {
                    0 => return Ok(()),
                    open => left = format!("{open} jobs are open"),
                }
                sleep(DRAIN_LOOK).await;
            }
        };
        let drained = timeout_at(far(longest), drained).await;
        drained.unwrap_or_else(|_| {
            let text = format!("queue `{}` is not drained after {longest:?}: {left}", self.name());
            Err(Error::new(ErrorKind::TimedOut, text))
        })
    }

    async fn open_jobs(&self) -> Result<u64> {
        let counts = self.shared.client.count(Types::Only(vec![self.name().clone()])).await?.types;
        Ok(counts.iter().map(|TypeCount { blocked, pending, running, .. }| blocked + pending + running).sum())
    }
}

fn busy() -> Error {
    Error::new(ErrorKind::Busy, "somebody's open transaction holds the job: try again when it has ended")
}

/// What became of a job to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ItemCancelled {
    /// It is cancelled, now or before, and will not run.
    Cancelled,
    /// It is being processed, and was asked to stop.
    Asked,
    /// It is being processed, and was left alone.
    Processing,
    /// It is done.
    Completed,
    /// It had failed.
    Failed,
    /// There is none of this id.
    NotFound,
}

/// What became of a TTL to update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TtlUpdated {
    /// What the job gave is kept until this time.
    Updated(Timestamp),
    /// There is no job of this id, or it is kept no longer.
    NotFound,
    /// It has not ended.
    NotTerminal,
    /// It was cancelled: there is neither a result nor an error to keep.
    NoPayload,
}
