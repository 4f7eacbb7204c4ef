use super::settle::Closing;
use super::{Execution, Rows};
use crate::LEASE_EXPIRED;
use crate::command::{Reap, ReapReply, Reaped, Ripple};
use crate::error::Result;
use crate::id::JobId;
use crate::name::ErrorText;
use crate::record::{AttemptEnd, ClosedAs};

impl<R: Rows> Execution<'_, R> {
    pub(super) fn reap(&mut self, request: &Reap) -> Result<ReapReply> {
        request.check()?;
        let mut ripple = Ripple::default();
        self.ripple(&mut ripple)?;
        let mut reaped = Vec::new();
        let max = request.max as usize;
        for job in self.rows.expired_leases(&request.types, &request.except, self.now, max)? {
            reaped.extend(self.reap_one(job, &mut ripple)?);
        }
        self.ripple(&mut ripple)?;
        Ok(ReapReply { reaped, ripple })
    }

    fn reap_one(&mut self, job: JobId, ripple: &mut Ripple) -> Result<Option<Reaped>> {
        let Some(row) = self.rows.job(job)? else { return Ok(None) };
        let Some(lease) = &row.job.lease else { return Ok(None) };
        let (worker, worker_name, lease_until) = (lease.worker, lease.worker_name.clone(), lease.until);
        let (attempt, job_type, chain_type) =
            (row.job.attempt, row.job.job_type.clone(), row.job.chain_type.clone());
        let error = ErrorText::new(LEASE_EXPIRED);
        let exhausted = row.job.max_attempts.is_some_and(|max| attempt >= max);
        let closed_as = match (row.job.cancel_requested, exhausted) {
            (true, _) => Some(ClosedAs::Cancelled),
            (false, true) => Some(ClosedAs::Failed),
            (false, false) => None,
        };
        let job = match closed_as {
            None => {
                let due_at = self.now;
                self.requeue(row, due_at, Some(error), AttemptEnd::Reaped)?.job
            }
            Some(closed_as) => {
                let end = Some(AttemptEnd::Reaped);
                let closing = Closing { closed_as, output: None, error: Some(error), by: None, end };
                let row = self.close_job(row, closing)?;
                ripple.closed.extend(self.close_chain(row.job.chain, closed_as, None)?);
                row.summary()
            }
        };
        Ok(Some(Reaped { job, job_type, chain_type, attempt, worker, worker_name, lease_until }))
    }
}
