//! Requeues jobs whose lease expired.

use windlass_core::command::{Reap, ReapReply, Reaped, Ripple};
use windlass_core::{AttemptEnd, ClosedAs, ErrorText, LEASE_EXPIRED, Result, Timestamp};

use crate::get::type_set;
use crate::row::{JobRow, hex};
use crate::session::{Execute, Session};
use crate::statement::set;
use crate::unit_of_work::{Needs, UnitOfWork};

impl Execute for Reap {
    async fn execute(&self, session: &mut Session<'_>) -> Result<ReapReply> {
        self.check()?;
        let now = session.now();
        let forbidden = session.base.stalls.forbid_reaping(now, self.renewal_interval);
        reap(&mut UnitOfWork::new(now), session, self, if forbidden { 0 } else { self.max }).await
    }
}

async fn reap(
    working: &mut UnitOfWork,
    session: &mut Session<'_>,
    request: &Reap,
    max: u32,
) -> Result<ReapReply> {
    let expired = expired(session, request, max, working.now).await?;
    let mut needs = Needs::default();
    let mut closing = Vec::new();
    for row in &expired {
        if closes_as(row).is_some() {
            needs.job(row.id);
            closing.push((row.chain, false));
        }
    }
    working.load_chains(session, &needs).await?;
    working.load_dependents(session, &closing).await?;
    let mut ripple = Ripple::default();
    working.ripple(&mut ripple);
    let reaped = expired.into_iter().filter_map(|row| reap_one(working, row, &mut ripple)).collect();
    working.ripple(&mut ripple);
    working.load_traces(session, &mut ripple).await?;
    working.flush(session).await?;
    Ok(ReapReply { reaped, ripple })
}

async fn expired(session: &mut Session<'_>, request: &Reap, max: u32, now: Timestamp) -> Result<Vec<JobRow>> {
    let types = type_set(&request.types)?;
    let except: Vec<_> = request.except.iter().map(|job| hex(job.as_uuid())).collect();
    let values = vec![now.as_millis().into(), types, set(&except)?, max.into()];
    let rows = session.rows(&session.statements.expired_leases, values).await?;
    rows.iter().map(JobRow::read).collect()
}

fn reap_one(working: &mut UnitOfWork, row: JobRow, ripple: &mut Ripple) -> Option<Reaped> {
    let (worker, lease_until) = (row.worker?, row.lease_until?);
    let (attempt, job_type, chain_type) = (row.attempt, row.job_type.clone(), row.chain_type.clone());
    let error = ErrorText::new(LEASE_EXPIRED);
    working.learn_job(row.clone());
    let applied = match closes_as(&row) {
        None => working.put_back(row, working.now, Some(error), AttemptEnd::Reaped),
        Some(closed_as) => working.end_reaped(row, closed_as, error, ripple),
    };
    Some(Reaped { job: applied.job, job_type, chain_type, attempt, worker, lease_until })
}

/// Returns how a job with an expired lease closes, or `None` if it is requeued.
fn closes_as(row: &JobRow) -> Option<ClosedAs> {
    let exhausted = row.max_attempts.is_some_and(|max| row.attempt >= max);
    match (row.cancel_requested, exhausted) {
        (true, _) => Some(ClosedAs::Cancelled),
        (false, true) => Some(ClosedAs::Failed),
        (false, false) => None,
    }
}
