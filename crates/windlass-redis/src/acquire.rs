//! Taking jobs and keeping them.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Acquire, AcquireReply, Acquired, BlockerOutput, Quota, Renew, RenewLease, RenewReply, Renewed,
};
use windlass_core::{ChainId, ErrorText, Key, Payload, Result, Status, Timestamp, TraceContext, TypeName};

use crate::row::{JobIn, RetentionIn};
use crate::store::RedisStore;
use crate::wire::{LostIn, Payloads, Read, RippleIn};

/// An acquire; `now` counts only where it is a request of its own.
#[derive(Debug, Serialize)]
pub(crate) struct AcquireOut<'a> {
    now: Option<i64>,
    request: String,
    worker: String,
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
    job: JobIn,
    key: Option<Read<Key>>,
    chain_trace: Option<Read<TraceContext>>,
    chain_created: Read<Timestamp>,
    retention: RetentionIn,
    blockers: Vec<BlockerOutputIn>,
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

impl From<AcquireIn> for AcquireReply {
    fn from(reply: AcquireIn) -> Self {
        Self {
            jobs: reply.jobs.into_iter().map(Acquired::from).collect(),
            ripple: reply.ripple.into(),
            now: reply.now.0,
        }
    }
}

impl From<AcquiredIn> for Acquired {
    fn from(acquired: AcquiredIn) -> Self {
        Self {
            job: acquired.job.into(),
            key: acquired.key.map(|key| key.0),
            chain_trace: acquired.chain_trace.map(|trace| trace.0),
            chain_created_at: acquired.chain_created.0,
            retention: acquired.retention.into(),
            blockers: acquired.blockers.into_iter().map(BlockerOutput::from).collect(),
        }
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

impl RedisStore {
    pub(crate) async fn run_acquire(&self, request: Acquire) -> Result<AcquireReply> {
        request.check()?;
        let out = AcquireOut::new(&request, self.time());
        let reply: AcquireIn = self.write(&self.scripts().acquire, &out, Payloads::default()).await?;
        Ok(reply.into())
    }

    pub(crate) async fn run_renew(&self, request: Renew) -> Result<RenewReply> {
        request.check()?;
        let out =
            RenewOut { now: self.time(), leases: request.leases.iter().map(RenewLeaseOut::from).collect() };
        let reply: RenewIn = self.write(&self.scripts().renew, &out, Payloads::default()).await?;
        Ok(RenewReply { leases: reply.leases.into_iter().map(Renewed::from).collect(), now: reply.now.0 })
    }
}
