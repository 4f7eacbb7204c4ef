//! Cancels jobs, changes their TTL, and pauses, resumes or drains a queue.

use std::time::Duration;

use tokio::time::{sleep, timeout_at};

use super::{Queue, positive};
use crate::clock::far;
use crate::command::{CancelMode, Cancelled, RetentionSet, Target, TypeCount, Types};
use crate::error::{Error, ErrorKind, Result};
use crate::record::ClosedAs;
use crate::time::Timestamp;

/// How often a drain polls the number of open jobs.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Cancels a job that is queued or waits for a retry. It will not run, and its id is released
    /// immediately. A running job is not affected.
    pub async fn cancel(&self, id: impl AsRef<str> + Send) -> Result<ItemCancelled> {
        self.cancel_as(id, CancelMode::UnlessRunning).await
    }

    /// Like [`cancel`](Self::cancel), but asks a running job to stop, through its handler's abort signal.
    pub async fn cancel_or_ask(&self, id: impl AsRef<str> + Send) -> Result<ItemCancelled> {
        self.cancel_as(id, CancelMode::Ask).await
    }

    async fn cancel_as(&self, id: impl AsRef<str> + Send, mode: CancelMode) -> Result<ItemCancelled> {
        // Resolve the caller's id first, then cancel by chain id. If a reply is lost and the command is
        // repeated, the caller's id may already refer to another job.
        let Some(record) = self.shared.client.chain(self.target(id)?).await? else {
            return Ok(ItemCancelled::NotFound);
        };
        Ok(match self.shared.client.cancel(record.id, mode).await? {
            Cancelled::Busy => return Err(busy()),
            Cancelled::Cancelled { .. } => ItemCancelled::Cancelled,
            Cancelled::Asked { .. } => ItemCancelled::Asked,
            Cancelled::Running { .. } => ItemCancelled::Processing,
            Cancelled::NotFound => ItemCancelled::NotFound,
            Cancelled::Closed { closed_as, .. } => match closed_as {
                ClosedAs::Completed => ItemCancelled::Completed,
                ClosedAs::Failed => ItemCancelled::Failed,
                ClosedAs::Cancelled => ItemCancelled::Cancelled,
            },
        })
    }

    /// Keeps the result or error of an ended job for `ttl` from now.
    pub async fn update_result_ttl(&self, id: impl AsRef<str> + Send, ttl: Duration) -> Result<TtlUpdated> {
        positive(ttl)?;
        let target = self.target(id)?;
        let Some(record) = self.shared.client.chain(target).await? else {
            return Ok(TtlUpdated::NotFound);
        };
        if record.closed.is_some_and(|closed| closed.closed_as == ClosedAs::Cancelled) {
            return Ok(TtlUpdated::NoPayload);
        }
        let chain = vec![Target::from(record.id)];
        Ok(match self.shared.client.set_retention(chain, ttl).await?.first() {
            Some(RetentionSet::Until(until)) => TtlUpdated::Updated(*until),
            Some(RetentionSet::NotClosed) => TtlUpdated::NotTerminal,
            Some(RetentionSet::NotFound) | None => TtlUpdated::NotFound,
            Some(RetentionSet::Busy) => return Err(busy()),
        })
    }

    /// Pauses the queue: consumers in all processes acquire no more of its jobs. Running jobs continue, and jobs can
    /// still be enqueued.
    pub async fn pause(&self) -> Result<()> {
        self.shared.client.set_paused(self.name(), true).await
    }

    /// Resumes the queue: consumers can acquire jobs again. If this queue was being drained, it also accepts jobs
    /// again.
    pub async fn resume(&self) -> Result<()> {
        self.entrance().reopen();
        self.shared.client.set_paused(self.name(), false).await
    }

    /// Stops accepting jobs through this handle and its clones, and waits until all accepted jobs have ended.
    ///
    /// Consumers in this and other processes continue. Jobs enqueued in a transaction that has not been
    /// committed are not waited for.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if the queue is not drained after `longest`, or an error of the store.
    pub async fn drain(&self, longest: Duration) -> Result<()> {
        self.entrance().close();
        let mut left = "accepted jobs are not stored yet".to_owned();
        let drained = async {
            self.entrance().wait().await;
            left = "the store has not returned the number of open jobs".to_owned();
            loop {
                match self.open_jobs().await? {
                    0 => return Ok(()),
                    open => left = format!("{open} jobs are open"),
                }
                sleep(DRAIN_POLL_INTERVAL).await;
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
    Error::new(ErrorKind::Busy, "the job is locked by another open transaction: retry after it ends")
}

/// The outcome of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ItemCancelled {
    /// The job is cancelled, by this call or before, and will not run.
    Cancelled,
    /// The job is running and was asked to stop.
    Asked,
    /// The job is running and was not affected.
    Processing,
    /// The job had already completed.
    Completed,
    /// The job had already failed.
    Failed,
    /// There is no job with this id.
    NotFound,
}

/// The outcome of a TTL update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TtlUpdated {
    /// The result or error is kept until this time.
    Updated(Timestamp),
    /// There is no job with this id, or it is no longer kept.
    NotFound,
    /// The job has not ended.
    NotTerminal,
    /// The job was cancelled and has neither a result nor an error to keep.
    NoPayload,
}
