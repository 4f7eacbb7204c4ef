use super::Execution;
use super::row::{Row, RowKey};
use crate::command::{Expire, ExpireReply, Expired};
use crate::error::Result;
use crate::id::{ChainId, JobId};

impl Execution<'_> {
    pub(super) fn expire(&mut self, request: Expire) -> Result<ExpireReply> {
        request.check()?;
        let mut left = request.max as usize;
        let mut reply = ExpireReply { chains: Vec::new(), jobs: 0, more: false };
        while let Some(chain) = self.first_removable() {
            let jobs = self.jobs_of(chain, left + 1);
            if jobs.len() > left {
                left -= self.trim(chain, left);
                break;
            }
            left -= jobs.len();
            let Some(row) = self.tables.chain(chain) else { break };
            let Some(closed) = row.closed else { break };
            reply.chains.push(Expired {
                chain,
                chain_type: row.chain_type.clone(),
                closed_as: closed.closed_as,
            });
            self.remove_chain(chain);
        }
        while let Some(chain) = self.first_trimmable().filter(|_| left > 0) {
            left -= self.trim(chain, left);
        }
        reply.jobs = request.max - u32::try_from(left).unwrap_or(0);
        reply.more = self.first_removable().is_some() || self.first_trimmable().is_some();
        Ok(reply)
    }

    fn first_removable(&self) -> Option<ChainId> {
        self.tables.removable.first().filter(|(at, ..)| *at <= self.now).map(|(.., chain)| *chain)
    }

    fn first_trimmable(&self) -> Option<ChainId> {
        self.tables.trimming.first().filter(|(at, _)| *at <= self.now).map(|(_, chain)| *chain)
    }

    /// Returns up to `max` jobs of a chain, first job first.
    pub(super) fn jobs_of(&self, chain: ChainId, max: usize) -> Vec<JobId> {
        self.tables.chain_jobs(chain, 0..=u32::MAX).take(max).map(|(_, job)| job).collect()
    }

    /// Removes a chain and all its jobs.
    pub(super) fn remove_chain(&mut self, chain: ChainId) {
        for job in self.jobs_of(chain, usize::MAX) {
            self.tables.set(RowKey::Job(job), None::<Row>);
        }
        self.tables.set(RowKey::Chain(chain), None);
    }

    /// Removes up to `max` expired inner jobs of a chain, oldest first, and returns how many. Inner jobs are
    /// all but the first and the latest.
    fn trim(&mut self, chain: ChainId, max: usize) -> usize {
        let Some(row) = self.tables.chain(chain).cloned() else { return 0 };
        let inner = self.tables.chain_jobs(chain, 1..=row.latest_index.saturating_sub(1));
        let may_leave = |job: &JobId| {
            let stays = row.retention.completed.max(super::row::repeat_window());
            let closed_at = self.tables.job(*job).and_then(|job| job.job.closed_at);
            row.closed.is_some() || closed_at.is_some_and(|at| at + stays <= self.now)
        };
        let jobs: Vec<_> = inner.map(|(_, job)| job).take(max).take_while(may_leave).collect();
        for job in &jobs {
            self.tables.set(RowKey::Job(*job), None);
        }
        jobs.len()
    }
}
