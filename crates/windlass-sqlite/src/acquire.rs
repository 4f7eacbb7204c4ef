//! Acquires and renews leases.

use std::collections::HashMap;

use windlass_core::command::{
    Acquire, AcquireReply, Acquired, BlockerOutput, Lost, Quota, Renew, RenewReply, Renewed, Ripple,
};
use windlass_core::limit::TIMESTAMP_MAX_MS;
use windlass_core::{ChainId, RequestId, Result, Timestamp};

use crate::provider::Value;
use crate::row::{ChainRow, hex};
use crate::session::{Execute, Session};
use crate::settle::lost;
use crate::statement::set;
use crate::unit_of_work::UnitOfWork;

impl Execute for Acquire {
    async fn execute(&self, session: &mut Session<'_>) -> Result<AcquireReply> {
        self.check()?;
        acquire(&mut UnitOfWork::new(session.now()), session, self).await
    }
}

impl Execute for Renew {
    async fn execute(&self, session: &mut Session<'_>) -> Result<RenewReply> {
        self.check()?;
        let now = session.now();
        let leases = renew(session, self, now).await?;
        Ok(RenewReply { leases, now })
    }
}

pub(crate) async fn acquire(
    working: &mut UnitOfWork,
    session: &mut Session<'_>,
    request: &Acquire,
) -> Result<AcquireReply> {
    let mut ripple = Ripple::default();
    working.load_dependents(session, &[]).await?;
    working.ripple(&mut ripple);
    working.load_traces(session, &mut ripple).await?;
    working.flush(session).await?;
    let jobs = take_due(session, request, working.now).await?;
    Ok(AcquireReply { jobs, ripple, now: working.now })
}

/// Leases the first due jobs. If the same request took jobs before that it still holds, returns those instead.
pub(crate) async fn take_due(
    session: &mut Session<'_>,
    request: &Acquire,
    now: Timestamp,
) -> Result<Vec<Acquired>> {
    session.run(&session.statements.take_jobs, take_values(request, now)?).await?;
    taken(session, request.request).await
}

/// Returns the parameters of the statement that leases the first due jobs.
pub(crate) fn take_values(request: &Acquire, now: Timestamp) -> Result<Vec<Value>> {
    let quota = |quota: &Quota| (quota.job_type.to_string(), quota.max, quota.lease.get());
    Ok(vec![
        set(&request.types.iter().map(quota).collect::<Vec<_>>())?,
        request.max.into(),
        now.as_millis().into(),
        request.worker.as_uuid().into(),
        request.request.as_uuid().into(),
        TIMESTAMP_MAX_MS.into(),
    ])
}

/// Returns the jobs that are held under this request, in the order in which they should run.
pub(crate) async fn taken(session: &mut Session<'_>, request: RequestId) -> Result<Vec<Acquired>> {
    let values = vec![request.as_uuid().into()];
    let rows = session.rows(&session.statements.taken_jobs, values).await?;
    let mut jobs = Vec::with_capacity(rows.len());
    for row in &rows {
        let chain = ChainRow::read(row)?;
        let acquired = Acquired {
            job: row.job()?,
            key: chain.key.map(|key| key.key),
            chain_trace: chain.trace,
            chain_created_at: chain.created_at,
            retention: chain.retention,
            blockers: Vec::new(),
        };
        jobs.push((row.number::<i64>("seq")?, acquired));
    }
    let blocked = jobs.iter().filter(|(_, acquired)| !acquired.job.blockers.is_empty());
    let mut outputs = blocker_outputs(session, blocked.map(|(seq, _)| *seq).collect()).await?;
    let with_outputs = |(seq, acquired)| {
        let blockers = outputs.remove(&seq).unwrap_or_default();
        Acquired { blockers, ..acquired }
    };
    Ok(jobs.into_iter().map(with_outputs).collect())
}

/// Returns the outcomes of the blockers of these jobs, by the `seq` of the job.
async fn blocker_outputs(
    session: &mut Session<'_>,
    jobs: Vec<i64>,
) -> Result<HashMap<i64, Vec<BlockerOutput>>> {
    let mut outputs: HashMap<i64, Vec<BlockerOutput>> = HashMap::new();
    if jobs.is_empty() {
        return Ok(outputs);
    }
    for row in session.rows(&session.statements.blocker_outputs, vec![set(&jobs)?]).await? {
        outputs.entry(row.number("job")?).or_default().push(BlockerOutput {
            chain: ChainId::from_uuid(row.uuid("chain")?),
            chain_type: row.type_name("chain_type")?,
            job_type: row.type_name("type")?,
            status: row.enum_value("status")?,
            output: row.maybe_payload("output_codec", "output")?,
            error: row.maybe_error()?,
        });
    }
    Ok(outputs)
}

async fn renew(session: &mut Session<'_>, request: &Renew, now: Timestamp) -> Result<Vec<Renewed>> {
    if request.leases.is_empty() {
        return Ok(Vec::new());
    }
    let asked: Vec<_> =
        request.leases.iter().map(|renew| (hex(renew.job.as_uuid()), renew.fence.0)).collect();
    let mut leases = vec![Renewed::Lost(Lost::NotFound); request.leases.len()];
    let mut last = HashMap::new();
    for row in session.rows(&session.statements.load_leases, vec![set(&asked)?]).await? {
        let item: usize = row.number("item")?;
        let (Some(renew), Some(reply)) = (request.leases.get(item), leases.get_mut(item)) else { continue };
        *reply = if row.flag("held")? {
            let until = now + renew.lease;
            // If a job is listed twice, its last lease counts.
            last.insert(renew.job, (hex(renew.job.as_uuid()), renew.fence.0, until.as_millis()));
            Renewed::Held { until, cancel_requested: row.flag("cancel_requested")? }
        } else {
            Renewed::Lost(lost(row.enum_value("status")?))
        };
    }
    if !last.is_empty() {
        let renewed: Vec<_> = last.values().collect();
        session.run(&session.statements.renew_leases, vec![set(&renewed)?]).await?;
    }
    Ok(leases)
}
