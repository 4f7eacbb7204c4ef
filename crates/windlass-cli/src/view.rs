//! The JSON output of `--json`. docs/cli.md lists the fields.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use windlass::command::{TypeCount, WorkerInfo};
use windlass::id::{Fence, WorkerId};
use windlass::name::Codec;
use windlass::record::{AttemptEnd, AttemptRecord, ChainRecord, JobRecord, Payload};
use windlass::time::Timestamp;
use windlass::{ChainId, JobId, Status};

use crate::arguments::JobState;

/// A job.
#[derive(Debug, Serialize)]
pub(crate) struct JobView<'a> {
    id: JobId,
    chain: ChainId,
    index: u32,
    #[serde(rename = "type")]
    job_type: &'a str,
    chain_type: &'a str,
    #[serde(serialize_with = "text")]
    status: Status,
    state: &'static str,
    priority: i8,
    attempt: u32,
    max_attempts: Option<u32>,
    #[serde(serialize_with = "text")]
    due_at: Timestamp,
    #[serde(serialize_with = "text")]
    created_at: Timestamp,
    #[serde(serialize_with = "maybe")]
    started_at: Option<Timestamp>,
    #[serde(serialize_with = "maybe")]
    closed_at: Option<Timestamp>,
    closed_by: Option<WorkerId>,
    worker: Option<WorkerId>,
    worker_name: Option<&'a str>,
    #[serde(serialize_with = "maybe")]
    leased_until: Option<Timestamp>,
    cancel_requested: bool,
    blocked_by: Vec<ChainId>,
    error: Option<&'a str>,
    input: Content,
    output: Option<Content>,
}

impl<'a> From<&'a JobRecord> for JobView<'a> {
    fn from(job: &'a JobRecord) -> Self {
        let lease = job.lease.as_ref();
        Self {
            id: job.id,
            chain: job.chain,
            index: job.index,
            job_type: job.job_type.as_str(),
            chain_type: job.chain_type.as_str(),
            status: job.status,
            state: JobState::of(job).as_str(),
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            due_at: job.due_at,
            created_at: job.created_at,
            started_at: job.started_at,
            closed_at: job.closed_at,
            closed_by: job.closed_by,
            worker: lease.map(|lease| lease.worker),
            worker_name: lease.and_then(|lease| lease.worker_name.as_ref()).map(|name| name.as_str()),
            leased_until: lease.map(|lease| lease.until),
            cancel_requested: job.cancel_requested,
            blocked_by: job.blockers.iter().filter(|blocker| !blocker.resolved).map(|b| b.chain).collect(),
            error: job.error.as_ref().map(|error| error.as_str()),
            input: Content::of(&job.input),
            output: job.output.as_ref().map(Content::of),
        }
    }
}

/// A chain.
#[derive(Debug, Serialize)]
pub(crate) struct ChainView<'a> {
    id: ChainId,
    #[serde(rename = "type")]
    chain_type: &'a str,
    #[serde(serialize_with = "text")]
    status: Status,
    state: &'static str,
    key: Option<&'a str>,
    #[serde(serialize_with = "text")]
    created_at: Timestamp,
    #[serde(serialize_with = "maybe")]
    closed_at: Option<Timestamp>,
    #[serde(serialize_with = "maybe")]
    retain_until: Option<Timestamp>,
    job: JobId,
    job_type: &'a str,
    jobs: u32,
    attempt: u32,
    error: Option<&'a str>,
    input: Content,
    output: Option<Content>,
}

impl<'a> From<&'a ChainRecord> for ChainView<'a> {
    fn from(chain: &'a ChainRecord) -> Self {
        let latest = &chain.latest;
        Self {
            id: chain.id,
            chain_type: chain.chain_type.as_str(),
            status: chain.status(),
            state: JobState::of(latest).as_str(),
            key: chain.key.as_ref().map(|key| key.key.as_str()),
            created_at: chain.created_at,
            closed_at: chain.closed.map(|closed| closed.at),
            retain_until: chain.closed.map(|closed| closed.retain_until),
            job: latest.id,
            job_type: latest.job_type.as_str(),
            jobs: latest.index + 1,
            attempt: latest.attempt,
            error: latest.error.as_ref().map(|error| error.as_str()),
            input: Content::of(&chain.first.input),
            output: chain.output().map(Content::of),
        }
    }
}

/// An attempt of a job.
#[derive(Debug, Serialize)]
pub(crate) struct AttemptView<'a> {
    attempt: u32,
    #[serde(serialize_with = "fence")]
    fence: Fence,
    worker: WorkerId,
    worker_name: Option<&'a str>,
    #[serde(serialize_with = "text")]
    started_at: Timestamp,
    #[serde(serialize_with = "maybe")]
    ended_at: Option<Timestamp>,
    end: &'static str,
    error: Option<&'a str>,
}

impl<'a> From<&'a AttemptRecord> for AttemptView<'a> {
    fn from(attempt: &'a AttemptRecord) -> Self {
        Self {
            attempt: attempt.attempt,
            fence: attempt.fence,
            worker: attempt.worker,
            worker_name: attempt.worker_name.as_ref().map(|name| name.as_str()),
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            end: end_name(attempt.end),
            error: attempt.error.as_ref().map(|error| error.as_str()),
        }
    }
}

/// Returns how an attempt ended, in one word.
pub(crate) const fn end_name(end: AttemptEnd) -> &'static str {
    match end {
        AttemptEnd::Running => "running",
        AttemptEnd::Completed => "completed",
        AttemptEnd::Continued => "continued",
        AttemptEnd::Retried => "retried",
        AttemptEnd::Rescheduled => "rescheduled",
        AttemptEnd::Failed => "failed",
        AttemptEnd::Exhausted => "exhausted",
        AttemptEnd::Released => "released",
        AttemptEnd::Reaped => "reaped",
        AttemptEnd::Cancelled => "cancelled",
        AttemptEnd::Displaced => "displaced",
    }
}

/// The number of jobs of a type, by status.
#[derive(Debug, Serialize)]
pub(crate) struct CountView<'a> {
    #[serde(rename = "type")]
    job_type: &'a str,
    blocked: u64,
    pending: u64,
    running: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    #[serde(serialize_with = "maybe")]
    oldest_ready: Option<Timestamp>,
    expired_leases: u64,
    paused: bool,
    /// Whether the counts of closed jobs are estimates.
    closed_estimated: bool,
}

impl<'a> CountView<'a> {
    pub(crate) fn of(count: &'a TypeCount, closed_estimated: bool) -> Self {
        let TypeCount { job_type, blocked, pending, running, completed, failed, cancelled, .. } = count;
        Self {
            job_type: job_type.as_str(),
            blocked: *blocked,
            pending: *pending,
            running: *running,
            completed: *completed,
            failed: *failed,
            cancelled: *cancelled,
            oldest_ready: count.oldest_ready,
            expired_leases: count.expired_leases,
            paused: count.paused,
            closed_estimated,
        }
    }
}

/// A worker.
#[derive(Debug, Serialize)]
pub(crate) struct WorkerView<'a> {
    id: WorkerId,
    name: Option<&'a str>,
    types: Vec<&'a str>,
    concurrency: u32,
    running: u32,
    #[serde(serialize_with = "text")]
    started_at: Timestamp,
    #[serde(serialize_with = "text")]
    seen_at: Timestamp,
}

impl<'a> From<&'a WorkerInfo> for WorkerView<'a> {
    fn from(worker: &'a WorkerInfo) -> Self {
        Self {
            id: worker.worker,
            name: worker.name.as_ref().map(|name| name.as_str()),
            types: worker.types.iter().map(|name| name.as_str()).collect(),
            concurrency: worker.concurrency,
            running: worker.running,
            started_at: worker.started_at,
            seen_at: worker.seen_at,
        }
    }
}

/// A payload as JSON, or as codec and bytes if it is not JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Content {
    Json(Box<RawValue>),
    Bytes { codec: String, hex: String },
}

impl Content {
    pub(crate) fn of(payload: &Payload) -> Self {
        match json_text(payload).and_then(|text| RawValue::from_string(text).ok()) {
            Some(value) => Self::Json(value),
            None => {
                let hex = payload.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                Self::Bytes { codec: payload.codec().to_string(), hex }
            }
        }
    }
}

fn json_text(payload: &Payload) -> Option<String> {
    let is_json = Codec::is_json(payload.codec());
    // The output has one object per line, so JSON that contains line breaks is serialized again without them.
    let text = is_json.then(|| String::from_utf8(payload.bytes().to_vec()).ok()).flatten()?;
    if text.contains(['\n', '\r']) {
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        return Some(value.to_string());
    }
    Some(text)
}

fn text<S: Serializer>(value: &impl ToString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn maybe<S: Serializer>(value: &Option<impl ToString>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => text(value, serializer),
        None => serializer.serialize_none(),
    }
}

fn fence<S: Serializer>(fence: &Fence, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(fence.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(payload: &Payload, expected: &str) {
        assert_eq!(serde_json::to_string(&Content::of(payload)).unwrap(), expected);
    }

    #[test]
    fn payloads_are_json_on_one_line_or_hex() {
        check(&Payload::json("{\"a\": 1.0}").unwrap(), "{\"a\": 1.0}");
        check(&Payload::json("[1,\n 2]").unwrap(), "[1,2]");
        check(&Payload::json("no json").unwrap(), r#"{"codec":"json","hex":"6e6f206a736f6e"}"#);
        let bytes = Payload::new(Codec::new("cbor").unwrap(), vec![0xa0]).unwrap();
        check(&bytes, r#"{"codec":"cbor","hex":"a0"}"#);
    }
}
