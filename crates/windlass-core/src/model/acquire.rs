use std::sync::Arc;

use super::row::JobRow;
use super::rows::Due;
use super::{Execution, Rows};
use crate::command::{
    Acquire, AcquireReply, Acquired, BlockerOutput, Lost, Quota, Renew, RenewReply, Renewed, Ripple,
};
use crate::error::Result;
use crate::id::{Fence, JobId};
use crate::limit::ACQUIRE_MAX_BYTES;
use crate::record::{Lease, Status};

/// A due job, and the quota that it is acquired under.
type Chosen<'q, P> = (Due<P>, &'q Quota);

impl<R: Rows> Execution<'_, R> {
    pub(super) fn acquire(&mut self, request: &Acquire) -> Result<AcquireReply> {
        request.check()?;
        let mut ripple = Ripple::default();
        self.ripple(&mut ripple)?;
        // A repeat after a lost reply returns the jobs that the same request acquired before and still holds.
        let mut rows = self.rows.leased(request.request)?;
        if rows.is_empty() {
            let due = self.due_jobs(request)?;
            rows.reserve(due.len());
            let mut bytes = 0;
            for (due, quota) in due {
                let Some(row) = self.rows.due_job(due)? else { continue };
                bytes += self.bytes_in_reply(&row)?;
                if bytes > ACQUIRE_MAX_BYTES && !rows.is_empty() {
                    break;
                }
                rows.push(self.lease(row, request, quota)?);
            }
        }
        // Collecting into a `Result` would not reserve the space.
        let mut jobs = Vec::with_capacity(rows.len());
        for row in &rows {
            let chain = self.chain_of(row)?;
            jobs.push(Acquired {
                job: row.job.clone(),
                key: chain.key.as_ref().map(|key| key.key.clone()),
                chain_trace: chain.trace.clone(),
                chain_created_at: chain.created_at,
                retention: chain.retention,
                blockers: self.blocker_outputs(row)?,
            });
        }
        Ok(AcquireReply { jobs, ripple, now: self.now })
    }

    /// Returns the first due jobs across all types.
    fn due_jobs<'q>(&mut self, request: &'q Acquire) -> Result<Vec<Chosen<'q, R::RowId>>> {
        let mut due = Vec::new();
        for quota in &request.types {
            if quota.max > 0 && !self.rows.is_paused(&quota.job_type)? {
                let max = quota.max.min(request.max) as usize;
                due.extend(
                    self.rows.due(&quota.job_type, self.now, max)?.into_iter().map(|due| (due, quota)),
                );
            }
        }
        if request.types.len() > 1 {
            due.sort_by(|(one, _), (other, _)| one.cmp(other));
            due.truncate(request.max as usize);
        }
        Ok(due)
    }

    fn lease(&mut self, row: Arc<JobRow>, request: &Acquire, quota: &Quota) -> Result<Arc<JobRow>> {
        let now = self.now;
        self.rows.update_job(row, |row| {
            let JobRow { job, worker, worker_name, end, .. } = row;
            job.status = Status::Running;
            job.attempt += 1;
            job.fence = job.fence.next();
            job.version = job.version.next();
            job.started_at = Some(now);
            job.lease = Some(Lease {
                worker: request.worker,
                worker_name: request.worker_name.clone(),
                request: request.request,
                until: now + quota.lease,
            });
            *worker = Some(request.worker);
            worker_name.clone_from(&request.worker_name);
            *end = None;
        })
    }

    /// Returns the size of a job's input and of the outputs of its blockers.
    fn bytes_in_reply(&mut self, row: &JobRow) -> Result<usize> {
        let mut bytes = row.job.input.bytes().len();
        for blocker in row.job.blockers.iter() {
            let Some(chain) = self.rows.chain(blocker.chain)? else { continue };
            let latest = self.latest(&chain)?;
            bytes += latest.job.output.as_ref().map_or(0, |output| output.bytes().len());
        }
        Ok(bytes)
    }

    fn blocker_outputs(&mut self, row: &JobRow) -> Result<Vec<BlockerOutput>> {
        let mut blockers = Vec::with_capacity(row.job.blockers.len());
        for blocker in row.job.blockers.iter() {
            let Some(chain) = self.rows.chain(blocker.chain)? else { continue };
            let latest = self.latest(&chain)?;
            blockers.push(BlockerOutput {
                chain: chain.id,
                chain_type: chain.chain_type.clone(),
                job_type: latest.job.job_type.clone(),
                status: latest.job.status,
                output: latest.job.output.clone(),
                error: latest.job.error.clone(),
            });
        }
        Ok(blockers)
    }

    pub(super) fn renew(&mut self, request: &Renew) -> Result<RenewReply> {
        request.check()?;
        let mut leases = Vec::with_capacity(request.leases.len());
        for renew in &request.leases {
            leases.push(match self.held(renew.job, renew.fence)? {
                Err(lost) => Renewed::Lost(lost),
                Ok(row) => {
                    let until = self.now + renew.lease;
                    let cancel_requested = row.job.cancel_requested;
                    self.rows.update_job(row, |row| {
                        if let Some(lease) = &mut row.job.lease {
                            lease.until = until;
                        }
                    })?;
                    Renewed::Held { until, cancel_requested }
                }
            });
        }
        Ok(RenewReply { leases, now: self.now })
    }

    /// Returns the job if it runs under this fence, or else why the attempt no longer holds it.
    pub(super) fn held(&mut self, job: JobId, fence: Fence) -> Result<Result<Arc<JobRow>, Lost>> {
        let Some(row) = self.rows.job(job)? else { return Ok(Err(Lost::NotFound)) };
        Ok(match row.job.status {
            Status::Running if row.job.fence == fence => Ok(row),
            Status::Running => Err(Lost::TakenOver),
            Status::Pending | Status::Blocked => Err(Lost::Requeued),
            closed => Err(closed.closed_as().map_or(Lost::Requeued, Lost::Closed)),
        })
    }
}
