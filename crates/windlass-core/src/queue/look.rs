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
    /// What the job of this id gave, if it is done and that is still kept.
    pub async fn result(&self, id: impl AsRef<str> + Send) -> Result<Option<O>> {
        match self.status(id).await? {
            Some(status) => status.result(),
            None => Ok(None),
        }
    }

    /// Where the job of this id stands; none if there is none, or it ended and is kept no longer.
    pub async fn status(&self, id: impl AsRef<str> + Send) -> Result<Option<ItemStatus<O>>> {
        Ok(self.statuses([id]).await?.pop().flatten())
    }

    /// The same for many ids, in their order: one command for each thousand.
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

/// Where a job of a queue stands.
#[non_exhaustive]
pub struct ItemStatus<O> {
    /// Where it stands.
    pub state: ItemState,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// It is not run before this time.
    pub due_at: Timestamp,
    /// How many attempts there were, the one that runs among them.
    pub attempts: u32,
    /// After so many attempts a failure is final; no limit if none.
    pub max_attempts: Option<u32>,
    /// The latest error. A completion clears it.
    pub error: Option<ErrorText>,
    /// Until when its result or error is kept, once it has ended.
    pub kept_until: Option<Timestamp>,
    id: Option<Key>,
    output: Option<Payload>,
    results: Arc<dyn Encoding<O>>,
}

impl<O: 'static> ItemStatus<O> {
    /// The id that it was enqueued under.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.as_ref().map(Key::as_str).unwrap_or_default()
    }

    /// What it gave, once it is done; an error if that cannot be read.
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
