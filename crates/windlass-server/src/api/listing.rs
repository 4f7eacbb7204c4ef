//! Lists of records with payloads, within a budget.
//!
//! A payload has up to 4 MiB, so a page of 1,000 rows could have gigabytes. The rows are therefore queried in small steps, and
//! a list ends early when its payloads exceed the budget: the cursor of the last step continues it.

use windlass_core::command::{Cursor, ListChainsReply, ListDependentsReply, ListJobsReply, Page};
use windlass_core::{BoxFuture, ChainId, ChainRecord, JobRecord, Payload, Result as StoreResult, Target};

use super::problem::Problem;
use crate::client::BoxedClient;

/// The payloads of one answer, in bytes. The last step may exceed it.
const PAYLOADS_MAX_BYTES: usize = 16 * 1024 * 1024;

/// The number of rows in one step.
const STEP_ROWS: u32 = 25;

/// The payloads that an answer can still contain.
pub(super) struct Budget {
    bytes: usize,
}

/// A record with payloads.
pub(super) trait Row {
    fn payload_bytes(&self) -> usize;
}

/// One page of a store.
pub(super) trait Rows {
    type Row: Row;

    fn into_parts(self) -> (Vec<Self::Row>, Option<Cursor>);
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { bytes: PAYLOADS_MAX_BYTES }
    }

    const fn is_spent(&self) -> bool {
        self.bytes == 0
    }

    fn spend<'a>(&mut self, rows: impl IntoIterator<Item = &'a (impl Row + 'a)>) {
        let bytes = rows.into_iter().map(Row::payload_bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Returns the rows of a page, as far as the budget permits, and the cursor after them.
    pub(super) async fn list<'a, R: Rows>(
        &mut self,
        page: Page,
        mut fetch: impl FnMut(Page) -> BoxFuture<'a, StoreResult<R>>,
    ) -> Result<(Vec<R::Row>, Option<Cursor>), Problem> {
        let (mut rows, mut left, mut after) = (Vec::new(), page.max, page.after);
        // A step may be short without being the last one: the number of steps is bounded, not only that of rows.
        while left > 0 && !self.is_spent() {
            let max = left.min(STEP_ROWS);
            let (step, next) = fetch(Page { order: page.order, after, max }).await?.into_parts();
            self.spend(&step);
            rows.extend(step);
            (left, after) = (left - max, next);
            if after.is_none() {
                break;
            }
        }
        Ok((rows, after))
    }

    /// Returns the chains that are stored, as far as the budget permits, and whether some were left out.
    pub(super) async fn chains(
        &mut self,
        client: &BoxedClient,
        ids: &[ChainId],
    ) -> Result<(Vec<ChainRecord>, bool), Problem> {
        let mut chains = Vec::new();
        for ids in ids.chunks(STEP_ROWS as usize) {
            if self.is_spent() {
                return Ok((chains, true));
            }
            let found = client.chains(ids.iter().copied().map(Target::Chain).collect()).await?;
            let found: Vec<_> = found.into_iter().flatten().collect();
            self.spend(&found);
            chains.extend(found);
        }
        Ok((chains, false))
    }
}

impl Row for JobRecord {
    fn payload_bytes(&self) -> usize {
        self.input.bytes().len() + self.output.as_ref().map_or(0, |output: &Payload| output.bytes().len())
    }
}

impl Row for ChainRecord {
    fn payload_bytes(&self) -> usize {
        self.first.payload_bytes() + self.latest.payload_bytes()
    }
}

impl Rows for ListJobsReply {
    type Row = JobRecord;

    fn into_parts(self) -> (Vec<JobRecord>, Option<Cursor>) {
        (self.jobs, self.next)
    }
}

impl Rows for ListDependentsReply {
    type Row = JobRecord;

    fn into_parts(self) -> (Vec<JobRecord>, Option<Cursor>) {
        (self.jobs, self.next)
    }
}

impl Rows for ListChainsReply {
    type Row = ChainRecord;

    fn into_parts(self) -> (Vec<ChainRecord>, Option<Cursor>) {
        (self.chains, self.next)
    }
}
