use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::Execution;
use super::settle::Closing;
use super::table::{ByTime, OfType};
use crate::LEASE_EXPIRED;
use crate::command::{Reap, ReapReply, Reaped, Ripple, Types};
use crate::error::Result;
use crate::id::JobId;
use crate::name::ErrorText;
use crate::record::{AttemptEnd, ClosedAs};

impl Execution<'_> {
    pub(super) fn reap(&mut self, request: &Reap) -> Result<ReapReply> {
        request.check()?;
        let mut ripple = Ripple::default();
        self.ripple(&mut ripple);
        let expired = self.expired(request);
        let reaped = expired.into_iter().filter_map(|job| self.reap_one(job, &mut ripple)).collect();
        self.ripple(&mut ripple);
        Ok(ReapReply { reaped, ripple })
    }

    /// Returns the running jobs whose lease has expired, earliest expiry first.
    fn expired(&self, request: &Reap) -> Vec<JobId> {
        let except: HashSet<_> = request.except.iter().collect();
        let now = self.now;
        let max = request.max as usize;
        let expired = |of_type: &OfType| -> Vec<ByTime> {
            let expired = of_type.running.iter().take_while(|(until, ..)| *until <= now);
            expired.filter(|(.., job)| !except.contains(job)).take(max).copied().collect()
        };
        let mut jobs: Vec<ByTime> = match &request.types {
            Types::All => self.tables.types.values().flat_map(expired).collect(),
            Types::Only(names) => {
                let names: BTreeSet<_> = names.iter().collect();
                names.into_iter().filter_map(|name| self.tables.types.get(name)).flat_map(expired).collect()
            }
        };
        jobs.sort_unstable();
        jobs.truncate(max);
        jobs.into_iter().map(|(.., job)| job).collect()
    }

    fn reap_one(&mut self, job: JobId, ripple: &mut Ripple) -> Option<Reaped> {
        let row = Arc::clone(self.tables.job(job)?);
        let lease = row.job.lease?;
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
                self.requeue(row, due_at, Some(error), AttemptEnd::Reaped).job
            }
            Some(closed_as) => {
                let end = Some(AttemptEnd::Reaped);
                let closing = Closing { closed_as, output: None, error: Some(error), by: None, end };
                let row = self.close_job(row, closing);
                ripple.closed.extend(self.close_chain(row.job.chain, closed_as, None));
                row.summary()
            }
        };
        Some(Reaped { job, job_type, chain_type, attempt, worker: lease.worker, lease_until: lease.until })
    }
}
