use super::row::{RowKey, repeat_window};
use super::{Execution, Rows};
use crate::command::{Expire, ExpireReply, Expired};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId};

impl<R: Rows> Execution<'_, R> {
    pub(super) fn expire(&mut self, request: Expire) -> Result<ExpireReply> {
        request.check()?;
        let mut left = request.max as usize;
        let mut reply = ExpireReply { chains: Vec::new(), jobs: 0, more: false };
        while let Some(chain) = self.rows.first_removable(self.now)? {
            let jobs = self.jobs_of(chain, left + 1)?;
            if jobs.len() > left {
                left -= self.trim(chain, left)?;
                break;
            }
            left -= jobs.len();
            let Some(row) = self.rows.chain(chain)? else { break };
            let Some(closed) = row.closed else { break };
            reply.chains.push(Expired {
                chain,
                chain_type: row.chain_type.clone(),
                closed_as: closed.closed_as,
            });
            self.remove_chain(chain)?;
        }
        while left > 0
            && let Some(chain) = self.rows.first_trimmable(self.now)?
        {
            let trimmed = self.trim(chain, left)?;
            if trimmed == 0 {
                let text =
                    format!("the chain {chain} has no inner job to delete: restore the store from a backup");
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
            left -= trimmed;
        }
        self.write_former()?;
        reply.jobs = request.max - u32::try_from(left).unwrap_or(0);
        reply.more =
            self.rows.first_removable(self.now)?.is_some() || self.rows.first_trimmable(self.now)?.is_some();
        Ok(reply)
    }

    /// Returns up to `max` jobs of a chain, first job first.
    pub(super) fn jobs_of(&mut self, chain: ChainId, max: usize) -> Result<Vec<JobId>> {
        self.rows.chain_jobs(chain, 0..=u32::MAX, max)
    }

    /// Removes a chain and all its jobs.
    pub(super) fn remove_chain(&mut self, chain: ChainId) -> Result<()> {
        for job in self.jobs_of(chain, usize::MAX)? {
            self.remove_job(job)?;
        }
        self.rows.set(RowKey::Chain(chain), None)
    }

    fn remove_job(&mut self, job: JobId) -> Result<()> {
        if let Some(row) = self.rows.job(job)? {
            self.leave_outcome(&row);
            self.rows.note_deleted_fence(row.job.fence)?;
        }
        self.rows.set(RowKey::Job(job), None)
    }

    /// Removes up to `max` expired inner jobs of a chain, oldest first, and returns how many. Inner jobs are
    /// all but the first and the latest.
    fn trim(&mut self, chain: ChainId, max: usize) -> Result<usize> {
        let Some(row) = self.rows.chain(chain)? else { return Ok(0) };
        let stays = row.retention.completed.max(repeat_window());
        let mut removed = 0;
        for job in self.rows.chain_jobs(chain, 1..=row.latest_index.saturating_sub(1), max)? {
            let closed_at = self.rows.job(job)?.and_then(|job| job.job.closed_at);
            if row.closed.is_none() && closed_at.is_none_or(|at| at + stays > self.now) {
                break;
            }
            self.remove_job(job)?;
            removed += 1;
        }
        Ok(removed)
    }
}
