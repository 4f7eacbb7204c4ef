//! Closing chains and resolving the jobs that wait for them.

use std::sync::Arc;

use super::create::blocker_failed;
use super::row::JobRow;
use super::{Execution, Rows};
use crate::command::{ClosedChain, Ripple, Unblocked};
use crate::error::Result;
use crate::id::{ChainId, JobId};
use crate::record::{Blocker, Closed, ClosedAs, OnBlockerFailure, Status};
use crate::time::Millis;

impl<R: Rows> Execution<'_, R> {
    /// Closes a chain whose latest job has just been closed. Jobs that wait for it are resolved by
    /// [`ripple`](Self::ripple).
    pub(super) fn close_chain(
        &mut self,
        chain: ChainId,
        closed_as: ClosedAs,
        retention: Option<Millis>,
    ) -> Result<Option<ClosedChain>> {
        let Some(row) = self.rows.chain(chain)? else { return Ok(None) };
        let rippling = self.defers || self.rows.next_waiting(chain, closed_as)?.is_some();
        let stays = retention.unwrap_or_else(|| row.retention.of(closed_as));
        let closed = Closed { at: self.now, closed_as, retain_until: self.now + stays };
        let row = self.rows.update_chain(row, |row| {
            row.closed = Some(closed);
            row.rippling = rippling;
        })?;
        let latest = &self.latest(&row)?.job;
        Ok(Some(ClosedChain {
            chain,
            chain_type: row.chain_type.clone(),
            job: latest.id,
            job_type: latest.job_type.clone(),
            closed_as,
            error: latest.error.clone(),
            created_at: row.created_at,
            trace: row.trace.clone(),
        }))
    }

    /// Resolves the dependents of closed chains, up to the limit of one command. Chains that are not finished
    /// stay marked as `rippling`, so that a later command continues with them.
    pub(super) fn ripple(&mut self, ripple: &mut Ripple) -> Result<()> {
        if self.defers {
            ripple.deferred = !ripple.closed.is_empty();
            return Ok(());
        }
        while let Some(chain) = self.rows.first_rippling()? {
            let Some(closed) = self.rows.chain(chain)?.and_then(|row| row.closed) else { return Ok(()) };
            while let Some(job) = self.rows.next_waiting(chain, closed.closed_as)? {
                if self.ripple_left == 0 {
                    return Ok(());
                }
                self.ripple_left -= 1;
                self.resolve(job, chain, closed.closed_as, ripple)?;
            }
            let Some(mut row) = self.rows.chain(chain)? else { return Ok(()) };
            Arc::make_mut(&mut row).rippling = false;
            self.put_chain(row)?;
        }
        Ok(())
    }

    /// Resolves the job's wait for a closed chain.
    fn resolve(
        &mut self,
        job: JobId,
        chain: ChainId,
        closed_as: ClosedAs,
        ripple: &mut Ripple,
    ) -> Result<()> {
        let Some(row) = self.rows.job(job)? else { return Ok(()) };
        let mut row = JobRow::clone(&row);
        if closed_as != ClosedAs::Completed && row.job.on_blocker_failure == OnBlockerFailure::Fail {
            row.job.status = Status::Failed;
            row.job.error = Some(blocker_failed(chain));
            row.job.closed_at = Some(self.now);
            row.job.version = row.job.version.next();
            let chain = row.job.chain;
            self.put_job(row)?;
            ripple.closed.extend(self.close_chain(chain, ClosedAs::Failed, None)?);
            return Ok(());
        }
        row.job.blockers = mark_resolved(&row.job.blockers, chain);
        if row.job.blockers.iter().all(|blocker| blocker.resolved) {
            row.job.status = Status::Pending;
            row.job.due_at = row.job.due_at.max(self.now);
            row.job.version = row.job.version.next();
            ripple.unblocked.push(Unblocked {
                job: row.summary(),
                job_type: row.job.job_type.clone(),
                chain_type: row.job.chain_type.clone(),
                traces: row.job.blockers.iter().map(|blocker| blocker.trace.clone()).collect(),
            });
        }
        self.put_job(row).map(drop)
    }
}

fn mark_resolved(blockers: &[Blocker], chain: ChainId) -> Arc<[Blocker]> {
    let mark = |blocker: &Blocker| Blocker {
        resolved: blocker.resolved || blocker.chain == chain,
        ..blocker.clone()
    };
    blockers.iter().map(mark).collect()
}
