//! Counts the jobs that wait for a chain which has failed or was cancelled.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::command::{Cursor, GetChains, JobFilter, ListJobs, Order, Page};
use windlass_core::{ChainId, JobRecord, Result, Status, Store, Target};

/// The number of blocked jobs whose blockers one reading queries.
const PAGE_JOBS: u32 = 1_000;

/// The number of readings after which the count starts again with the oldest job.
const READINGS_MAX: u32 = 10;

/// The number of chains in one query.
const CHAINS: usize = 100;

/// A count in steps. A query of all blocked jobs with their blockers would load the store, so each reading continues where
/// the one before ended. It begins with the oldest jobs, which have waited longest.
#[derive(Debug, Default)]
pub(crate) struct BlockedByFailed {
    after: Option<Cursor>,
    readings: u32,
    counting: BTreeMap<String, u64>,
    /// The result of the latest complete count.
    counted: Option<BTreeMap<String, u64>>,
}

impl BlockedByFailed {
    /// Continues the count. Returns the numbers by job type of the latest complete count, or of this one if it is the
    /// first.
    pub(crate) async fn read<S: Store + ?Sized>(&mut self, store: &S) -> Result<BTreeMap<String, u64>> {
        let filter = JobFilter { statuses: vec![Status::Blocked], ..JobFilter::default() };
        let page = Page { order: Order::Oldest, after: self.after.clone(), max: PAGE_JOBS };
        let reply = store.list_jobs(ListJobs { filter, page }).await?;
        let chains: BTreeSet<_> = reply.jobs.iter().flat_map(waits).collect();
        let failed = failed(store, chains).await?;
        for job in reply.jobs.iter().filter(|job| waits(job).any(|chain| failed.contains(&chain))) {
            *self.counting.entry(job.job_type.as_str().to_owned()).or_default() += 1;
        }
        self.readings += 1;
        self.after = reply.next.filter(|_| self.readings < READINGS_MAX);
        if self.after.is_none() {
            self.counted = Some(std::mem::take(&mut self.counting));
            self.readings = 0;
        }
        Ok(self.counted.as_ref().unwrap_or(&self.counting).clone())
    }
}

/// Returns the chains that a job still waits for.
fn waits(job: &JobRecord) -> impl Iterator<Item = ChainId> {
    job.blockers.iter().filter(|blocker| !blocker.resolved).map(|blocker| blocker.chain)
}

/// Returns which of the chains have failed or were cancelled.
async fn failed<S: Store + ?Sized>(store: &S, chains: BTreeSet<ChainId>) -> Result<BTreeSet<ChainId>> {
    let mut failed = BTreeSet::new();
    for part in chains.into_iter().collect::<Vec<_>>().chunks(CHAINS) {
        let request = GetChains { chains: part.iter().copied().map(Target::Chain).collect() };
        let found = store.get_chains(request).await?.chains.into_iter().flatten();
        let is_failed = |status| matches!(status, Status::Failed | Status::Cancelled);
        failed.extend(found.filter(|chain| is_failed(chain.status())).map(|chain| chain.id));
    }
    Ok(failed)
}
