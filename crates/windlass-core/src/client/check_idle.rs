//! Checks that no chain is running before it is deleted.

use std::collections::BTreeSet;

use super::Client;
use crate::command::{ListJobs, Order, Page, SeenJob};
use crate::error::Result;
use crate::id::ChainId;
use crate::limit::DELETE_MAX_CHAINS;
use crate::record::{JobRecord, Status};
use crate::store::Store;

/// The number of jobs or chains per query. Each has payloads of up to 4 MiB, and a reply is in memory as a whole.
const PER_QUERY: usize = 25;

/// The states of chains, or the id of one that is running.
type IdleStates = std::result::Result<Vec<SeenJob>, ChainId>;

impl<S: Store + ?Sized> Client<S> {
    /// Returns the states of the chains that a delete would remove. If one of these chains is running, returns its id as
    /// the inner error. With `cascade`, the chains include their blockers, recursively.
    ///
    /// A caller that passes the states as [`Delete::seen`](crate::command::Delete::seen) deletes no running chain: if a
    /// worker acquires a job after this call, the delete is refused.
    #[doc(hidden)]
    pub async fn idle_states(&self, chains: Vec<ChainId>, cascade: bool) -> Result<IdleStates> {
        if cascade { self.idle_cascade(chains).await } else { self.idle_chains(&chains).await }
    }

    async fn idle_chains(&self, chains: &[ChainId]) -> Result<IdleStates> {
        let mut states = Vec::new();
        for batch in chains.chunks(PER_QUERY) {
            let found = self.chains(batch.iter().copied().map(Into::into).collect()).await?;
            for chain in found.iter().flatten() {
                if chain.status() == Status::Running {
                    return Ok(Err(chain.id));
                }
                states.push(SeenJob::from(chain));
            }
        }
        Ok(Ok(states))
    }

    /// Reads all jobs of the chains: earlier jobs of a chain have blockers too.
    async fn idle_cascade(&self, mut next: Vec<ChainId>) -> Result<IdleStates> {
        let mut states = Vec::new();
        let mut known: BTreeSet<_> = next.iter().copied().collect();
        while let Some(chain) = next.pop() {
            let page = Page { order: Order::Oldest, after: None, max: PER_QUERY as u32 };
            let mut list = ListJobs { page, ..ListJobs::default() };
            list.filter.chain = Some(chain);
            let mut latest: Option<(u32, SeenJob)> = None;
            loop {
                let reply = self.list_jobs(list.clone()).await?;
                if reply.jobs.iter().any(|job| job.status == Status::Running) {
                    return Ok(Err(chain));
                }
                // The store refuses to delete more chains than this, so there is no need to search further.
                if known.len() <= DELETE_MAX_CHAINS {
                    let blockers = reply.jobs.iter().flat_map(|job| job.blockers.iter());
                    next.extend(blockers.map(|blocker| blocker.chain).filter(|chain| known.insert(*chain)));
                }
                // By position: two jobs of a chain can have the same creation time.
                let seen = |job: &JobRecord| (job.index, SeenJob { job: job.id, version: job.version });
                latest = reply.jobs.iter().map(seen).chain(latest).max_by_key(|(index, _)| *index);
                let Some(after) = reply.next else { break };
                list.page.after = Some(after);
            }
            states.extend(latest.map(|(_, seen)| seen));
        }
        states.truncate(DELETE_MAX_CHAINS);
        Ok(Ok(states))
    }
}
