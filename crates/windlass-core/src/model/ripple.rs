//! Closing chains and resolving the jobs that wait for them.

use std::sync::Arc;

use super::Execution;
use super::create::blocker_failed;
use super::row::JobRow;
use crate::command::{ClosedChain, Ripple, Unblocked};
use crate::id::{ChainId, JobId};
use crate::record::{Blocker, Closed, ClosedAs, OnBlockerFailure, Status};
use crate::time::Millis;

impl Execution<'_> {
    /// Closes a chain whose latest job has just been closed. Jobs that wait for it are resolved by
    /// [`ripple`](Self::ripple).
    pub(super) fn close_chain(
        &mut self,
        chain: ChainId,
        closed_as: ClosedAs,
        retention: Option<Millis>,
    ) -> Option<ClosedChain> {
        let mut row = Arc::clone(self.tables.chain(chain)?);
        let stays = retention.unwrap_or_else(|| row.retention.of(closed_as));
        let changed = Arc::make_mut(&mut row);
        changed.closed = Some(Closed { at: self.now, closed_as, retain_until: self.now + stays });
        changed.rippling = self.defers
            || self.tables.waiting.get(&chain).is_some_and(|waiting| {
                !waiting.eager.is_empty() || closed_as == ClosedAs::Completed && !waiting.patient.is_empty()
            });
        let latest = &self.tables.latest(&row).job;
        let closed = ClosedChain {
            chain,
            chain_type: row.chain_type.clone(),
            job: latest.id,
            job_type: latest.job_type.clone(),
            closed_as,
            error: latest.error.clone(),
            created_at: row.created_at,
            trace: row.trace.clone(),
        };
        self.tables.put_chain(row);
        Some(closed)
    }

    /// Resolves the dependents of closed chains, up to the limit of one command. Chains that are not finished
    /// stay marked as `rippling`, so that a later command continues with them.
    pub(super) fn ripple(&mut self, ripple: &mut Ripple) {
        if self.defers {
            ripple.deferred = !ripple.closed.is_empty();
            return;
        }
        while let Some((.., chain)) = self.tables.rippling.first().copied() {
            let Some(closed) = self.tables.chain(chain).and_then(|row| row.closed) else { return };
            while let Some(job) = self.next_waiting(chain, closed.closed_as) {
                if self.ripple_left == 0 {
                    return;
                }
                self.ripple_left -= 1;
                self.resolve(job, chain, closed.closed_as, ripple);
            }
            let Some(row) = self.tables.chain(chain) else { return };
            let mut row = Arc::clone(row);
            Arc::make_mut(&mut row).rippling = false;
            self.tables.put_chain(row);
        }
    }

    /// Returns the oldest job that waits for the chain and reacts to its end.
    fn next_waiting(&self, chain: ChainId, closed_as: ClosedAs) -> Option<JobId> {
        let waiting = self.tables.waiting.get(&chain)?;
        let patient = waiting.patient.first().filter(|_| closed_as == ClosedAs::Completed);
        waiting.eager.first().into_iter().chain(patient).min().map(|(_, job)| *job)
    }

    /// Resolves the job's wait for a closed chain.
    fn resolve(&mut self, job: JobId, chain: ChainId, closed_as: ClosedAs, ripple: &mut Ripple) {
        let Some(row) = self.tables.job(job) else { return };
        let mut row = JobRow::clone(row);
        if closed_as != ClosedAs::Completed && row.job.on_blocker_failure == OnBlockerFailure::Fail {
            row.job.status = Status::Failed;
            row.job.error = Some(blocker_failed(chain));
            row.job.closed_at = Some(self.now);
            row.job.version = row.job.version.next();
            let chain = row.job.chain;
            self.tables.put_job(row);
            ripple.closed.extend(self.close_chain(chain, ClosedAs::Failed, None));
            return;
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
        self.tables.put_job(row);
    }
}

fn mark_resolved(blockers: &[Blocker], chain: ChainId) -> Arc<[Blocker]> {
    let mark = |blocker: &Blocker| Blocker {
        resolved: blocker.resolved || blocker.chain == chain,
        ..blocker.clone()
    };
    blockers.iter().map(mark).collect()
}
