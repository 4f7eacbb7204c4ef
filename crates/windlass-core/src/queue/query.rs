//! Queries the results and states of jobs.

use std::fmt;
use std::sync::Arc;

use super::encoding::read;
use super::{Encoding, ItemState, Queue};
use crate::error::Result;
use crate::limit::BATCH_MAX_ITEMS;
use crate::name::{ErrorText, Key};
use crate::payload::Payload;
use crate::record::{ChainRecord, JobRecord};
use crate::time::Timestamp;

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Returns the result of the job with this id, if the job has completed and its result is still kept.
    ///
    /// # Errors
    /// Returns an error if the id is invalid, the store fails, or the result cannot be decoded.
    pub async fn result(&self, id: impl AsRef<str> + Send) -> Result<Option<O>> {
        match self.status(id).await? {
            Some(status) => status.result(),
            None => Ok(None),
        }
    }

    /// Returns the status of the job with this id, or `None` if there is none or it is no longer kept.
    pub async fn status(&self, id: impl AsRef<str> + Send) -> Result<Option<ItemStatus<O>>> {
        Ok(self.statuses([id]).await?.pop().flatten())
    }

    /// Returns the statuses of many jobs in the order of their ids, with one command per 1,000 ids.
    pub async fn statuses<I: AsRef<str>>(
        &self,
        ids: impl IntoIterator<Item = I> + Send,
    ) -> Result<Vec<Option<ItemStatus<O>>>> {
        let targets: Vec<_> = ids.into_iter().map(|id| self.target(id)).collect::<Result<_>>()?;
        let mut statuses = Vec::with_capacity(targets.len());
        for chains in targets.chunks(BATCH_MAX_ITEMS) {
            let found = self.shared.client.chains(chains.to_vec()).await?;
            statuses.extend(found.into_iter().map(|record| Some(self.item_status(record?))));
        }
        Ok(statuses)
    }

    fn item_status(&self, record: ChainRecord) -> ItemStatus<O> {
        let JobRecord { status, output, error, attempt, max_attempts, due_at, .. } = record.latest;
        ItemStatus {
            id: record.key.map(|key| key.key),
            state: ItemState::of(status, error.is_some()),
            created_at: record.created_at,
            due_at,
            attempts: attempt,
            max_attempts,
            error,
            kept_until: record.closed.map(|closed| closed.retain_until),
            output,
            results: Arc::clone(&self.shared.results),
        }
    }
}

/// The status of a job in a queue.
#[non_exhaustive]
pub struct ItemStatus<O> {
    /// The state of the job.
    pub state: ItemState,
    /// When the job was enqueued.
    pub created_at: Timestamp,
    /// The time before which the job does not run.
    pub due_at: Timestamp,
    /// The number of attempts so far, including a running one.
    pub attempts: u32,
    /// The number of attempts after which a failure is final; `None` if there is no limit.
    pub max_attempts: Option<u32>,
    /// The latest error. Completing the job clears it.
    pub error: Option<ErrorText>,
    /// When the result or error of an ended job expires.
    pub kept_until: Option<Timestamp>,
    id: Option<Key>,
    output: Option<Payload>,
    results: Arc<dyn Encoding<O>>,
}

impl<O: 'static> ItemStatus<O> {
    /// Returns the id under which the job was enqueued.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.as_ref().map(Key::as_str).unwrap_or_default()
    }

    /// Returns the result, if the job has completed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the result cannot be decoded.
    pub fn result(&self) -> Result<Option<O>> {
        self.output.as_ref().map(|output| read(&*self.results, output)).transpose()
    }
}

impl<O: 'static> fmt::Debug for ItemStatus<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemStatus")
            .field("id", &self.id())
            .field("state", &self.state)
            .field("attempts", &self.attempts)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}
