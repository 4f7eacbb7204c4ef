//! Acquiring jobs and renewing their leases.

use redis::Value;
use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Acquire, AcquireReply, Acquired, Applied, BlockerOutput, Outcome, Quota, Renew, RenewLease, RenewReply,
    Renewed, Ripple, SettleReply, Settled, Settlement,
};
use windlass_core::{ChainId, ErrorText, JobId, Payload, Result, Status, Timestamp, TypeName, WorkerName};

use crate::error::corrupt;
use crate::flat::{self, Arguments};
use crate::row::{Row, TakenIn};
use crate::script::Answer;
use crate::store::{Execute, RedisStore};
use crate::wire::{FromScript, LostIn, Payloads, Read, RippleIn};

/// The acquire request inside an exchange that the short path cannot handle.
#[derive(Debug, Serialize)]
pub(crate) struct AcquireOut<'a> {
    request: String,
    worker: String,
    worker_name: Option<&'a str>,
    types: Vec<QuotaOut<'a>>,
    max: u32,
}

#[derive(Debug, Serialize)]
struct QuotaOut<'a> {
    #[serde(rename = "type")]
    job_type: &'a str,
    max: u32,
    lease: u64,
}

impl<'a> AcquireOut<'a> {
    pub(crate) fn new(request: &'a Acquire) -> Self {
        Self {
            request: request.request.to_string(),
            worker: request.worker.to_string(),
            worker_name: request.worker_name.as_ref().map(WorkerName::as_str),
            types: request.types.iter().map(QuotaOut::from).collect(),
            max: request.max,
        }
    }
}

impl<'a> From<&'a Quota> for QuotaOut<'a> {
    fn from(quota: &'a Quota) -> Self {
        Self { job_type: quota.job_type.as_str(), max: quota.max, lease: quota.lease.get() }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct AcquireIn {
    jobs: Vec<AcquiredIn>,
    ripple: RippleIn,
    now: Read<Timestamp>,
}

#[derive(Debug, Deserialize)]
struct AcquiredIn {
    #[serde(flatten)]
    taken: TakenIn,
    blockers: Option<Vec<BlockerOutputIn>>,
}

#[derive(Debug, Deserialize)]
struct BlockerOutputIn {
    chain: Read<ChainId>,
    chain_type: Read<TypeName>,
    #[serde(rename = "type")]
    job_type: Read<TypeName>,
    status: Read<Status>,
    output: Option<Read<Payload>>,
    error: Option<Read<ErrorText>>,
}

impl AcquireIn {
    pub(crate) fn into_reply(self) -> Result<AcquireReply> {
        let jobs = self.jobs.into_iter().map(AcquiredIn::into_acquired);
        Ok(AcquireReply { jobs: jobs.collect::<Result<_>>()?, ripple: self.ripple.into(), now: self.now.0 })
    }
}

impl AcquiredIn {
    fn into_acquired(self) -> Result<Acquired> {
        let acquired = self.taken.into_acquired().map_err(corrupt)?;
        let blockers = self.blockers.unwrap_or_default();
        Ok(Acquired { blockers: blockers.into_iter().map(BlockerOutput::from).collect(), ..acquired })
    }
}

impl From<BlockerOutputIn> for BlockerOutput {
    fn from(blocker: BlockerOutputIn) -> Self {
        Self {
            chain: blocker.chain.0,
            chain_type: blocker.chain_type.0,
            job_type: blocker.job_type.0,
            status: blocker.status.0,
            output: blocker.output.map(|output| output.0),
            error: blocker.error.map(|error| error.0),
        }
    }
}

/// Returns the arguments of the short path of acquire, settle and exchange, which `lua/hot/work.lua` describes; or `None`
/// if a settlement is not plain.
pub(crate) fn work_arguments(
    settlements: &[Settlement],
    acquire: Option<&Acquire>,
    now: Option<i64>,
) -> Option<Vec<Vec<u8>>> {
    let mut settled = Vec::with_capacity(2 * settlements.len());
    for settlement in settlements {
        let Outcome::Complete { output, retention, create } = &settlement.outcome else { return None };
        if !create.is_empty() || settlement.outcome.check().is_err() {
            return None;
        }
        let retention = retention.map_or(Ok(-1), |retention| i64::try_from(retention.get())).ok()?;
        let mut item = settlement.fence.0.to_le_bytes().to_vec();
        item.extend_from_slice(&retention.to_le_bytes());
        flat::push_id(&mut item, settlement.job);
        settled.push(item);
        settled.push(flat::payload(output));
    }
    let mut arguments = Arguments::new(now);
    let types = acquire.map(|acquire| acquire.types.as_slice()).unwrap_or_default();
    arguments.number(&settlements.len());
    arguments.number(&types.len());
    arguments.text(&acquire.map(|acquire| acquire.request.to_string()).unwrap_or_default());
    arguments.text(&acquire.map(|acquire| acquire.worker.to_string()).unwrap_or_default());
    let name = acquire.and_then(|acquire| acquire.worker_name.as_ref());
    arguments.text(name.map(WorkerName::as_str).unwrap_or_default());
    arguments.number(&acquire.map_or(0, |acquire| acquire.max));
    for quota in types {
        arguments.text(quota.job_type.as_str());
        arguments.number(&quota.max);
        arguments.number(&quota.lease.get());
    }
    Some(arguments.with(settled))
}

/// Reads the reply of the short path of acquire, settle and exchange.
pub(crate) fn read_work(
    settlements: &[Settlement],
    values: Vec<Value>,
) -> Result<(SettleReply, AcquireReply)> {
    let mut values = values.into_iter();
    let now = flat::time(values.next())?;
    let (rows, taken) = (flat::strings(values.next())?, flat::strings(values.next())?);
    let (mut settled, mut closed) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for (row, settlement) in rows.iter().zip(settlements) {
        let (job, chain) = Row::unpack(row).map_err(corrupt)?.into_closed(settlement.job);
        settled.push(Settled::Applied(Applied { job, next: None, created: Vec::new() }));
        closed.push(chain);
    }
    let mut jobs = Vec::with_capacity(taken.len() / 3);
    let mut taken = taken.into_iter();
    while let (Some(id), Some(row), Some(input)) = (taken.next(), taken.next(), taken.next()) {
        let id = JobId::from_script(String::from_utf8(id).map_err(corrupt)?).map_err(corrupt)?;
        jobs.push(Row::read_acquired(&row, id, &input).map_err(corrupt)?);
    }
    let ripple = Ripple { unblocked: Vec::new(), closed, deferred: false };
    let acquired = AcquireReply { jobs, ripple: Ripple::default(), now };
    Ok((SettleReply { settled, ripple }, acquired))
}

#[derive(Debug, Serialize)]
struct RenewOut {
    now: Option<i64>,
    leases: Vec<RenewLeaseOut>,
}

#[derive(Debug, Serialize)]
struct RenewLeaseOut {
    job: String,
    fence: u64,
    lease: u64,
}

impl From<&RenewLease> for RenewLeaseOut {
    fn from(renew: &RenewLease) -> Self {
        Self { job: renew.job.to_string(), fence: renew.fence.0, lease: renew.lease.get() }
    }
}

#[derive(Debug, Deserialize)]
struct RenewIn {
    leases: Vec<RenewedIn>,
    now: Read<Timestamp>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RenewedIn {
    Held { until: Read<Timestamp>, cancel: bool },
    Lost(LostIn),
}

impl From<RenewedIn> for Renewed {
    fn from(renewed: RenewedIn) -> Self {
        match renewed {
            RenewedIn::Held { until, cancel } => Self::Held { until: until.0, cancel_requested: cancel },
            RenewedIn::Lost(lost) => Self::Lost(lost.into()),
        }
    }
}

impl Execute for Acquire {
    async fn execute(self, store: &RedisStore) -> Result<AcquireReply> {
        self.check()?;
        let arguments = work_arguments(&[], Some(&self), store.time()).unwrap_or_default();
        match store.write_flat::<AcquireIn>(&store.scripts().acquire, arguments).await? {
            Answer::Full(reply) => reply.into_reply(),
            Answer::Flat(values) => Ok(read_work(&[], values)?.1),
        }
    }
}

impl Execute for Renew {
    async fn execute(self, store: &RedisStore) -> Result<RenewReply> {
        self.check()?;
        let out =
            RenewOut { now: store.time(), leases: self.leases.iter().map(RenewLeaseOut::from).collect() };
        let reply: RenewIn = store.write(&store.scripts().renew, &out, Payloads::default()).await?;
        Ok(RenewReply { leases: reply.leases.into_iter().map(Renewed::from).collect(), now: reply.now.0 })
    }
}
