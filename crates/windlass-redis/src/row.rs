//! Stored jobs and chains, as scripts give them.

use serde::Deserialize;
use windlass_core::{
    Blocker, ChainId, ChainKey, ChainRecord, Closed, ClosedAs, ErrorText, Fence, JobId, JobRecord, Key,
    KeyHold, Lease, Millis, OnBlockerFailure, Payload, RequestId, Retention, Status, Timestamp, TraceContext,
    TypeName, Version, WorkerId,
};

use crate::wire::Read;

/// A job.
#[derive(Debug, Deserialize)]
pub(crate) struct JobIn {
    id: Read<JobId>,
    chain: Read<ChainId>,
    index: u32,
    #[serde(rename = "type")]
    job_type: Read<TypeName>,
    chain_type: Read<TypeName>,
    status: Read<Status>,
    input: Read<Payload>,
    output: Option<Read<Payload>>,
    error: Option<Read<ErrorText>>,
    priority: i8,
    due: Read<Timestamp>,
    attempt: u32,
    max_attempts: Option<u32>,
    fence: u64,
    version: u64,
    lease: Option<LeaseIn>,
    cancel: bool,
    blockers: Vec<BlockerIn>,
    on_failure: Read<OnBlockerFailure>,
    created: Read<Timestamp>,
    started: Option<Read<Timestamp>>,
    closed: Option<Read<Timestamp>>,
    closed_by: Option<Read<WorkerId>>,
    trace: Option<Read<TraceContext>>,
}

#[derive(Debug, Deserialize)]
struct LeaseIn {
    worker: Read<WorkerId>,
    request: Read<RequestId>,
    until: Read<Timestamp>,
}

#[derive(Debug, Deserialize)]
struct BlockerIn {
    chain: Read<ChainId>,
    resolved: bool,
    trace: Option<Read<TraceContext>>,
}

impl From<JobIn> for JobRecord {
    fn from(job: JobIn) -> Self {
        let lease = job.lease.map(|lease| Lease {
            worker: lease.worker.0,
            request: lease.request.0,
            until: lease.until.0,
        });
        let blockers = job.blockers.into_iter().map(|blocker| Blocker {
            chain: blocker.chain.0,
            resolved: blocker.resolved,
            trace: blocker.trace.map(|trace| trace.0),
        });
        Self {
            id: job.id.0,
            chain: job.chain.0,
            index: job.index,
            job_type: job.job_type.0,
            chain_type: job.chain_type.0,
            status: job.status.0,
            input: job.input.0,
            output: job.output.map(|output| output.0),
            error: job.error.map(|error| error.0),
            priority: job.priority,
            due_at: job.due.0,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            fence: Fence(job.fence),
            version: Version(job.version),
            lease,
            cancel_requested: job.cancel,
            blockers: blockers.collect(),
            on_blocker_failure: job.on_failure.0,
            created_at: job.created.0,
            started_at: job.started.map(|started| started.0),
            closed_at: job.closed.map(|closed| closed.0),
            closed_by: job.closed_by.map(|worker| worker.0),
            trace: job.trace.map(|trace| trace.0),
        }
    }
}

/// A chain.
#[derive(Debug, Deserialize)]
pub(crate) struct ChainIn {
    key: Option<ChainKeyIn>,
    retention: RetentionIn,
    closed: Option<ClosedIn>,
    trace: Option<Read<TraceContext>>,
    first: JobIn,
    /// None while the first job is the latest.
    latest: Option<JobIn>,
}

/// How long a chain stays.
#[derive(Debug, Deserialize)]
pub(crate) struct RetentionIn {
    completed: Read<Millis>,
    failed: Read<Millis>,
    cancelled: Read<Millis>,
}

impl From<RetentionIn> for Retention {
    fn from(retention: RetentionIn) -> Self {
        Self {
            completed: retention.completed.0,
            failed: retention.failed.0,
            cancelled: retention.cancelled.0,
        }
    }
}

#[derive(Debug, Deserialize)]
struct ChainKeyIn {
    key: Read<Key>,
    hold: Read<KeyHold>,
    window: Option<Read<Millis>>,
    held: bool,
}

#[derive(Debug, Deserialize)]
struct ClosedIn {
    at: Read<Timestamp>,
    closed_as: Read<ClosedAs>,
    retain_until: Read<Timestamp>,
}

impl From<ChainIn> for ChainRecord {
    fn from(chain: ChainIn) -> Self {
        let first: JobRecord = chain.first.into();
        let latest = chain.latest.map_or_else(|| first.clone(), JobRecord::from);
        let key = chain.key.map(|key| ChainKey {
            key: key.key.0,
            hold: key.hold.0,
            window: key.window.map(|window| window.0),
            held: key.held,
        });
        let closed = chain.closed.map(|closed| Closed {
            at: closed.at.0,
            closed_as: closed.closed_as.0,
            retain_until: closed.retain_until.0,
        });
        Self {
            id: first.chain,
            chain_type: first.chain_type.clone(),
            key,
            retention: chain.retention.into(),
            created_at: first.created_at,
            closed,
            trace: chain.trace.map(|trace| trace.0),
            first,
            latest,
        }
    }
}
