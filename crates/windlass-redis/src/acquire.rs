//! Acquiring jobs and renewing their leases.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Acquire, AcquireReply, Acquired, BlockerOutput, Quota, Renew, RenewLease, RenewReply, Renewed,
};
use windlass_core::{ChainId, ErrorText, Payload, Result, Status, Timestamp, TypeName, WorkerName};

use crate::error::corrupt;
use crate::row::TakenIn;
use crate::store::{Execute, RedisStore};
use crate::wire::{LostIn, Payloads, Read, RippleIn};

/// An acquire request. `now` is `None` inside an exchange, which has its own.
#[derive(Debug, Serialize)]
pub(crate) struct AcquireOut<'a> {
    now: Option<i64>,
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
    pub(crate) fn new(request: &'a Acquire, now: Option<i64>) -> Self {
        Self {
            now,
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
        let out = AcquireOut::new(&self, store.time());
        let reply: AcquireIn = store.write(&store.scripts().acquire, &out, Payloads::default()).await?;
        reply.into_reply()
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
