use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::Execution;
use super::row::JobRow;
use super::table::ByTime;
use crate::command::{
    Acquire, AcquireReply, Acquired, BlockerOutput, Lost, Quota, Renew, RenewReply, Renewed, Ripple,
};
use crate::error::Result;
use crate::id::{Fence, JobId};
use crate::record::{Lease, Status};

impl Execution<'_> {
    pub(super) fn acquire(&mut self, request: &Acquire) -> Result<AcquireReply> {
        request.check()?;
        let mut ripple = Ripple::default();
        self.ripple(&mut ripple);
        let mut rows = self.acquired_before(request);
        if rows.is_empty() {
            let due = self.due_jobs(request);
            rows = due.into_iter().map(|(row, quota)| self.lease(row, request, quota)).collect();
        }
        let jobs = rows.iter().map(|row| self.acquired(row)).collect();
        Ok(AcquireReply { jobs, ripple, now: self.now })
    }

    /// Returns the jobs that this same request acquired before and still holds, in acquire order. This makes
    /// a repeat after a lost reply return the same jobs.
    fn acquired_before(&self, request: &Acquire) -> Vec<Arc<JobRow>> {
        let Some(jobs) = self.tables.requests.get(&request.request) else { return Vec::new() };
        let mut rows: Vec<_> =
            jobs.iter().filter_map(|seq| self.tables.job(*self.tables.jobs_by_seq.get(seq)?)).collect();
        rows.sort_by_key(|row| (Reverse(row.job.priority), row.job.due_at, row.seq));
        rows.into_iter().cloned().collect()
    }

    /// Returns the first due jobs across all types, by merging the heads of each type's priority levels.
    fn due_jobs<'q>(&self, request: &'q Acquire) -> Vec<(Arc<JobRow>, &'q Quota)> {
        let now = self.now;
        let mut sources = Vec::new();
        let mut heads = BinaryHeap::new();
        for (number, quota) in request.types.iter().enumerate() {
            if self.tables.is_paused(&quota.job_type) {
                continue;
            }
            let Some(of_type) = self.tables.types.get(&quota.job_type) else { continue };
            for (priority, jobs) in &of_type.pending {
                let mut source = jobs.iter().take_while(move |(due_at, ..)| *due_at <= now);
                if let Some(head) = source.next() {
                    heads.push(Reverse((*priority, *head, sources.len())));
                }
                sources.push((source, number, quota));
            }
        }
        let mut left: Vec<u32> = request.types.iter().map(|quota| quota.max).collect();
        let mut taken = Vec::new();
        while taken.len() < request.max as usize {
            let Some(Reverse((priority, (.., job), index))) = heads.pop() else { break };
            let Some((source, number, quota)) = sources.get_mut(index) else { break };
            let Some(left) = left.get_mut(*number).filter(|left| **left > 0) else { continue };
            *left -= 1;
            taken.extend(self.tables.job(job).map(|row| (Arc::clone(row), *quota)));
            if let Some(head) = source.next() {
                heads.push(Reverse::<(Reverse<i8>, ByTime, usize)>((priority, *head, index)));
            }
        }
        taken
    }

    fn lease(&mut self, mut row: Arc<JobRow>, request: &Acquire, quota: &Quota) -> Arc<JobRow> {
        let JobRow { job, worker, end, .. } = Arc::make_mut(&mut row);
        job.status = Status::Running;
        job.attempt += 1;
        job.fence = job.fence.next();
        job.version = job.version.next();
        job.started_at = Some(self.now);
        job.lease =
            Some(Lease { worker: request.worker, request: request.request, until: self.now + quota.lease });
        *worker = Some(request.worker);
        *end = None;
        self.tables.put_job(row)
    }

    fn acquired(&self, row: &JobRow) -> Acquired {
        let chain = self.tables.chain_of(row);
        let blockers = row.job.blockers.iter().filter_map(|blocker| {
            let chain = self.tables.chain(blocker.chain)?;
            let latest = &self.tables.latest(chain).job;
            Some(BlockerOutput {
                chain: chain.id,
                chain_type: chain.chain_type.clone(),
                job_type: latest.job_type.clone(),
                status: latest.status,
                output: latest.output.clone(),
                error: latest.error.clone(),
            })
        });
        Acquired {
            job: row.job.clone(),
            key: chain.key.as_ref().map(|key| key.key.clone()),
            chain_trace: chain.trace.clone(),
            chain_created_at: chain.created_at,
            retention: chain.retention,
            blockers: blockers.collect(),
        }
    }

    pub(super) fn renew(&mut self, request: &Renew) -> Result<RenewReply> {
        request.check()?;
        let mut leases = Vec::with_capacity(request.leases.len());
        for renew in &request.leases {
            leases.push(match self.held(renew.job, renew.fence) {
                Err(lost) => Renewed::Lost(lost),
                Ok(row) => {
                    let until = self.now + renew.lease;
                    let mut row = Arc::clone(row);
                    let cancel_requested = row.job.cancel_requested;
                    if let Some(lease) = &mut Arc::make_mut(&mut row).job.lease {
                        lease.until = until;
                    }
                    self.tables.put_job(row);
                    Renewed::Held { until, cancel_requested }
                }
            });
        }
        Ok(RenewReply { leases, now: self.now })
    }

    /// Returns the job if it runs under this fence, or else why the attempt no longer holds it.
    pub(super) fn held(&self, job: JobId, fence: Fence) -> Result<&Arc<JobRow>, Lost> {
        let Some(row) = self.tables.job(job) else { return Err(Lost::NotFound) };
        match row.job.status {
            Status::Running if row.job.fence == fence => Ok(row),
            Status::Running => Err(Lost::TakenOver),
            Status::Pending | Status::Blocked => Err(Lost::Requeued),
            closed => Err(closed.closed_as().map_or(Lost::Requeued, Lost::Closed)),
        }
    }
}
