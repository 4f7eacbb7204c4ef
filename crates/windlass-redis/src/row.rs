//! Stored jobs and chains. Scripts return rows packed as they are stored; they are unpacked here.
//!
//! A part of a row is the concatenation of its packed column values. `lua/lib/row.lua` defines the columns.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, de};
use serde_bytes::ByteBuf;
use windlass_core::command::Acquired;
use windlass_core::{
    Blocker, ChainId, ChainKey, ChainRecord, Closed, ClosedAs, ErrorText, Fence, JobId, JobRecord, Key,
    KeyHold, Lease, Millis, OnBlockerFailure, Payload, RequestId, Retention, Status, Timestamp, TraceContext,
    TypeName, Version, WorkerId, WorkerName,
};

use crate::wire::Read;

/// A job.
#[derive(Debug, Deserialize)]
pub(crate) struct JobIn {
    id: Read<JobId>,
    fixed: Packed<FixedIn>,
    state: Packed<StateIn>,
    input: Read<Payload>,
    output: Option<Read<Payload>>,
    /// Chains that the job still waits for.
    open: Option<Vec<Read<ChainId>>>,
}

/// Columns of a job that never change. In the row of a first job, also those of its chain.
#[derive(Debug, Deserialize)]
pub(crate) struct FixedIn {
    _seq: IgnoredAny,
    /// `None` for a first job, whose id is also the chain's id.
    chain: Option<Read<ChainId>>,
    index: u32,
    job_type: Read<TypeName>,
    /// `None` for a first job, whose type is also the chain's type.
    chain_type: Option<Read<TypeName>>,
    priority: i8,
    max_attempts: Option<u32>,
    on_failure: Option<Read<OnBlockerFailure>>,
    created: Read<Timestamp>,
    trace: Option<Read<TraceContext>>,
    blockers: Option<ByteBuf>,
    key: Option<Read<Key>>,
    hold: Option<Read<KeyHold>>,
    window: Option<Read<Millis>>,
    keep_completed: Option<Read<Millis>>,
    keep_failed: Option<Read<Millis>>,
    keep_cancelled: Option<Read<Millis>>,
    chain_trace: Option<Read<TraceContext>>,
}

/// Columns of a job that change.
#[derive(Debug, Deserialize)]
struct StateIn {
    status: Read<Status>,
    due: Read<Timestamp>,
    attempt: u32,
    fence: u64,
    version: u64,
    worker: Option<Read<WorkerId>>,
    worker_name: Option<Read<WorkerName>>,
    request: Option<Read<RequestId>>,
    lease_until: Option<Read<Timestamp>>,
    cancel: Option<bool>,
    _waits: IgnoredAny,
    started: Option<Read<Timestamp>>,
    closed: Option<Read<Timestamp>>,
    closed_by: Option<Read<WorkerId>>,
    _ended_as: IgnoredAny,
    _outside: IgnoredAny,
    error: Option<Read<ErrorText>>,
}

/// Columns of a chain that change.
#[derive(Debug, Deserialize)]
struct ChainStateIn {
    _latest: IgnoredAny,
    _latest_index: IgnoredAny,
    held: Option<bool>,
    _needed: IgnoredAny,
    closed: Option<Read<Timestamp>>,
    closed_as: Option<Read<ClosedAs>>,
    retain_until: Option<Read<Timestamp>>,
    _trim_at: IgnoredAny,
}

/// A chain.
#[derive(Debug, Deserialize)]
pub(crate) struct ChainIn {
    first: JobIn,
    /// `None` while the first job is the latest.
    latest: Option<JobIn>,
    chain: Packed<ChainStateIn>,
}

#[derive(Debug, Deserialize)]
struct BlockerIn {
    chain: Read<ChainId>,
    trace: Option<Read<TraceContext>>,
}

/// One unpacked part of a row.
#[derive(Debug)]
pub(crate) struct Packed<T>(T);

/// Number of columns of a part of a row.
pub(crate) trait Columns {
    const COUNT: u8;
}

impl Columns for FixedIn {
    const COUNT: u8 = 18;
}

impl Columns for StateIn {
    const COUNT: u8 = 17;
}

impl Columns for ChainStateIn {
    const COUNT: u8 = 8;
}

/// MessagePack header of a list of up to 65,535 values, without the low byte of the length.
const LIST: [u8; 2] = [0xdc, 0];

impl<'de, T: Columns + DeserializeOwned> Deserialize<'de> for Packed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let packed = ByteBuf::deserialize(deserializer)?;
        let list = [LIST.as_slice(), &[T::COUNT], &packed].concat();
        rmp_serde::from_slice(&list).map(Self).map_err(de::Error::custom)
    }
}

impl JobIn {
    /// Converts to a record and the fixed columns, or returns what is wrong with the row.
    fn into_record(self) -> Result<(JobRecord, FixedIn), String> {
        let Self { id, fixed: Packed(mut fixed), state: Packed(state), input, output, open } = self;
        let lease = match (state.status.0, &state.worker, state.request, state.lease_until) {
            (Status::Running, Some(worker), Some(request), Some(until)) => Some(Lease {
                worker: worker.0,
                worker_name: state.worker_name.map(|name| name.0),
                request: request.0,
                until: until.0,
            }),
            (Status::Running, ..) => return Err(format!("job {} runs without a lease", id.0)),
            _ => None,
        };
        let blockers = fixed.take_blockers(&open.unwrap_or_default())?;
        let record = JobRecord {
            id: id.0,
            chain: fixed.chain.as_ref().map_or_else(|| ChainId::from_uuid(*id.0.as_uuid()), |chain| chain.0),
            index: fixed.index,
            job_type: fixed.job_type.0.clone(),
            chain_type: fixed.chain_type.as_ref().unwrap_or(&fixed.job_type).0.clone(),
            status: state.status.0,
            input: input.0,
            output: output.map(|output| output.0),
            error: state.error.map(|error| error.0),
            priority: fixed.priority,
            due_at: state.due.0,
            attempt: state.attempt,
            max_attempts: fixed.max_attempts,
            fence: Fence(state.fence),
            version: Version(state.version),
            lease,
            cancel_requested: state.cancel.unwrap_or_default(),
            blockers: blockers.into(),
            on_blocker_failure: fixed.on_failure.as_ref().map(|policy| policy.0).unwrap_or_default(),
            created_at: fixed.created.0,
            started_at: state.started.map(|started| started.0),
            closed_at: state.closed.map(|closed| closed.0),
            closed_by: state.closed_by.map(|worker| worker.0),
            trace: fixed.trace.take().map(|trace| trace.0),
        };
        Ok((record, fixed))
    }

    pub(crate) fn into_job(self) -> Result<JobRecord, String> {
        Ok(self.into_record()?.0)
    }
}

impl FixedIn {
    fn take_blockers(&mut self, open: &[Read<ChainId>]) -> Result<Vec<Blocker>, String> {
        let Some(packed) = self.blockers.take() else { return Ok(Vec::new()) };
        let blockers: Vec<BlockerIn> = rmp_serde::from_slice(&packed).map_err(|error| error.to_string())?;
        let blockers = blockers.into_iter().map(|blocker| Blocker {
            chain: blocker.chain.0,
            resolved: !open.iter().any(|open| open.0 == blocker.chain.0),
            trace: blocker.trace.map(|trace| trace.0),
        });
        Ok(blockers.collect())
    }

    fn retention(&self) -> Result<Retention, String> {
        match (self.keep_completed, self.keep_failed, self.keep_cancelled) {
            (Some(completed), Some(failed), Some(cancelled)) => {
                Ok(Retention { completed: completed.0, failed: failed.0, cancelled: cancelled.0 })
            }
            _ => Err("a chain's first job has no retention".to_owned()),
        }
    }
}

/// A job that was acquired.
#[derive(Debug, Deserialize)]
pub(crate) struct TakenIn {
    job: JobIn,
    /// Fixed columns of the chain's first job, if this is another job.
    first: Option<Packed<FixedIn>>,
}

impl TakenIn {
    /// Converts to an acquired job with the fields of its chain. The blockers' outputs are left empty.
    pub(crate) fn into_acquired(self) -> Result<Acquired, String> {
        let (job, own) = self.job.into_record()?;
        let first = self.first.map_or(own, |first| first.0);
        Ok(Acquired {
            job,
            retention: first.retention()?,
            key: first.key.map(|key| key.0),
            chain_trace: first.chain_trace.map(|trace| trace.0),
            chain_created_at: first.created.0,
            blockers: Vec::new(),
        })
    }
}

impl ChainIn {
    pub(crate) fn into_chain(self) -> Result<ChainRecord, String> {
        let Self { first, latest, chain: Packed(state) } = self;
        let (first, fixed) = first.into_record()?;
        let latest = latest.map_or_else(|| Ok(first.clone()), JobIn::into_job)?;
        let retention = fixed.retention()?;
        let key = match (fixed.key, fixed.hold) {
            (Some(key), Some(hold)) => Some(ChainKey {
                key: key.0,
                hold: hold.0,
                window: fixed.window.map(|window| window.0),
                held: state.held.unwrap_or_default(),
            }),
            _ => None,
        };
        let closed = match (state.closed, state.closed_as, state.retain_until) {
            (Some(at), Some(closed_as), Some(retain_until)) => {
                Some(Closed { at: at.0, closed_as: closed_as.0, retain_until: retain_until.0 })
            }
            _ => None,
        };
        Ok(ChainRecord {
            id: first.chain,
            chain_type: first.chain_type.clone(),
            key,
            retention,
            created_at: first.created_at,
            closed,
            trace: fixed.chain_trace.map(|trace| trace.0),
            first,
            latest,
        })
    }
}
