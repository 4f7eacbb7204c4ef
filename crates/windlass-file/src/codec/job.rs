//! Jobs: in full, and as updates that contain only what has changed.

use std::sync::Arc;

use windlass_core::model::JobRow;
use windlass_core::{
    AttemptEnd, AttemptRecord, Blocker, ChainId, Fence, JobId, JobRecord, Lease, OnBlockerFailure, RequestId,
    Status, Version, WorkerId, WorkerName,
};

use super::row::tag;
use super::{Coded as _, Decoded, Decoder, Encoder, Malformed};

/// Which optional parts of a job follow.
mod part {
    pub(super) const OUTPUT: u64 = 1;
    pub(super) const ERROR: u64 = 1 << 1;
    pub(super) const LEASE: u64 = 1 << 2;
    pub(super) const CANCEL_REQUESTED: u64 = 1 << 3;
    pub(super) const STARTED_AT: u64 = 1 << 4;
    pub(super) const CLOSED_AT: u64 = 1 << 5;
    pub(super) const CLOSED_BY: u64 = 1 << 6;
    pub(super) const END: u64 = 1 << 7;
    pub(super) const WORKER: u64 = 1 << 8;
    pub(super) const OUTSIDE: u64 = 1 << 9;
    /// The stored output, error, blockers and history are unchanged. Only in updates.
    pub(super) const OUTPUT_KEPT: u64 = 1 << 10;
    pub(super) const ERROR_KEPT: u64 = 1 << 11;
    pub(super) const BLOCKERS_KEPT: u64 = 1 << 12;
    pub(super) const HISTORY_KEPT: u64 = 1 << 13;
    pub(super) const WORKER_NAME: u64 = 1 << 14;
    pub(super) const ALL: u64 = (1 << 15) - 1;
}

/// Whether two versions of a job differ only in fields that an update contains.
pub(super) fn has_same_origin(before: &JobRow, after: &JobRow) -> bool {
    let (old, new) = (&before.job, &after.job);
    before.seq == after.seq
        && old.chain == new.chain
        && old.index == new.index
        && old.priority == new.priority
        && old.max_attempts == new.max_attempts
        && old.on_blocker_failure == new.on_blocker_failure
        && old.created_at == new.created_at
        && old.job_type == new.job_type
        && old.chain_type == new.chain_type
        && old.trace == new.trace
        // The model clones payloads without copying their bytes, so an unchanged payload has the same address.
        && old.input.bytes().as_ptr() == new.input.bytes().as_ptr()
        && old.input.bytes().len() == new.input.bytes().len()
        && old.input.codec() == new.input.codec()
}

pub(super) fn encode_job(to: &mut Encoder, row: &JobRow) {
    let job = &row.job;
    to.byte(tag::JOB);
    to.id(job.id.as_uuid());
    to.number(parts(row));
    to.number(row.seq);
    to.id(job.chain.as_uuid());
    to.number(u64::from(job.index));
    to.text(job.job_type.as_str());
    // Most jobs are the first of their chain.
    to.text(if job.chain_type == job.job_type { "" } else { job.chain_type.as_str() });
    to.payload(&job.input);
    to.byte(job.priority.to_le_bytes()[0]);
    // 0 means no limit.
    to.number(job.max_attempts.map_or(0, |max| u64::from(max) + 1));
    to.byte(job.on_blocker_failure.code());
    to.time(job.created_at);
    to.text(job.trace.as_ref().map_or("", |trace| trace.as_str()));
    encode_state(to, row, parts(row));
}

pub(super) fn encode_update(to: &mut Encoder, before: &JobRow, row: &JobRow) {
    let mut parts = parts(row);
    let mut keep = |is_kept: bool, kept: u64, written: u64| {
        if is_kept {
            parts = parts & !written | kept;
        }
    };
    keep(before.job.output == row.job.output, part::OUTPUT_KEPT, part::OUTPUT);
    keep(before.job.error == row.job.error, part::ERROR_KEPT, part::ERROR);
    keep(before.job.blockers == row.job.blockers, part::BLOCKERS_KEPT, 0);
    keep(before.history == row.history, part::HISTORY_KEPT, 0);
    to.byte(tag::JOB_UPDATE);
    to.id(row.job.id.as_uuid());
    to.number(parts);
    encode_state(to, row, parts);
}

fn parts(row: &JobRow) -> u64 {
    let job = &row.job;
    let flags = [
        (job.output.is_some(), part::OUTPUT),
        (job.error.is_some(), part::ERROR),
        (job.lease.is_some(), part::LEASE),
        (job.cancel_requested, part::CANCEL_REQUESTED),
        (job.started_at.is_some(), part::STARTED_AT),
        (job.closed_at.is_some(), part::CLOSED_AT),
        (job.closed_by.is_some(), part::CLOSED_BY),
        (row.end.is_some(), part::END),
        (row.worker.is_some(), part::WORKER),
        (row.worker_name.is_some(), part::WORKER_NAME),
        (row.outside.is_some(), part::OUTSIDE),
    ];
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
}

/// Encodes the mutable part of a job, with the optional parts in `parts`.
fn encode_state(to: &mut Encoder, row: &JobRow, parts: u64) {
    let job = &row.job;
    to.byte(job.status.code());
    to.time(job.due_at);
    to.number(u64::from(job.attempt));
    to.number(job.fence.0);
    to.number(job.version.0);
    if let Some(output) = job.output.as_ref().filter(|_| parts & part::OUTPUT != 0) {
        to.payload(output);
    }
    if let Some(error) = job.error.as_ref().filter(|_| parts & part::ERROR != 0) {
        to.text(error.as_str());
    }
    if let Some(lease) = &job.lease {
        to.id(lease.worker.as_uuid());
        to.id(lease.request.as_uuid());
        to.time(lease.until);
    }
    job.started_at.into_iter().for_each(|at| to.time(at));
    job.closed_at.into_iter().for_each(|at| to.time(at));
    job.closed_by.iter().for_each(|worker| to.id(worker.as_uuid()));
    row.end.into_iter().for_each(|end| to.byte(end.code()));
    row.worker.iter().for_each(|worker| to.id(worker.as_uuid()));
    row.worker_name.iter().for_each(|name| to.text(name.as_str()));
    row.outside.iter().for_each(|request| to.id(request.as_uuid()));
    if parts & part::BLOCKERS_KEPT == 0 {
        to.number(job.blockers.len() as u64);
        for blocker in job.blockers.iter() {
            to.id(blocker.chain.as_uuid());
            to.byte(u8::from(blocker.resolved));
            to.text(blocker.trace.as_ref().map_or("", |trace| trace.as_str()));
        }
    }
    if parts & part::HISTORY_KEPT == 0 {
        to.number(row.history.len() as u64);
        row.history.iter().for_each(|record| encode_attempt(to, record));
    }
}

fn encode_attempt(to: &mut Encoder, record: &AttemptRecord) {
    to.number(u64::from(record.attempt));
    to.number(record.fence.0);
    to.id(record.worker.as_uuid());
    to.time(record.started_at);
    to.byte(record.end.code());
    let parts = [record.ended_at.is_some(), record.error.is_some(), record.worker_name.is_some()];
    to.byte(parts.into_iter().rev().fold(0, |byte, part| byte << 1 | u8::from(part)));
    record.ended_at.into_iter().for_each(|at| to.time(at));
    record.error.iter().for_each(|error| to.text(error.as_str()));
    record.worker_name.iter().for_each(|name| to.text(name.as_str()));
}

pub(super) fn decode_job(from: &mut Decoder<'_>) -> Decoded<JobRow> {
    let id = JobId::from_uuid(from.id()?);
    let parts = decode_parts(from)?;
    let seq = from.row_seq()?;
    let chain = ChainId::from_uuid(from.id()?);
    let index = from.small()?;
    let job_type = from.type_name()?;
    let chain_type = match from.text()? {
        "" => job_type.clone(),
        name => from.names.get(name)?,
    };
    let input = from.payload()?;
    let priority = i8::from_le_bytes([from.byte()?]);
    let max_attempts = match from.number()? {
        0 => None,
        more => Some(u32::try_from(more - 1).map_err(|_| Malformed("a number is too large"))?),
    };
    let on_blocker_failure = OnBlockerFailure::decode(from)?;
    let created_at = from.time()?;
    let trace = from.optional_trace()?;
    let job = JobRecord {
        id,
        chain,
        index,
        job_type,
        chain_type,
        status: Status::Pending,
        input,
        output: None,
        error: None,
        priority,
        due_at: created_at,
        attempt: 0,
        max_attempts,
        fence: Fence::default(),
        version: Version::default(),
        lease: None,
        cancel_requested: false,
        blockers: Arc::default(),
        on_blocker_failure,
        created_at,
        started_at: None,
        closed_at: None,
        closed_by: None,
        trace,
    };
    let (end, worker, worker_name, outside) = (None, None, None, None);
    let row = JobRow { job, seq, end, worker, worker_name, history: Arc::default(), outside };
    decode_state(from, row, parts)
}

/// Decodes an update. Returns `None` if the job is not stored.
pub(super) fn decode_update(from: &mut Decoder<'_>, before: Option<&JobRow>) -> Decoded<Option<JobRow>> {
    let parts = decode_parts(from)?;
    match before {
        Some(before) => decode_state(from, before.clone(), parts).map(Some),
        None => {
            skip_state(from, parts)?;
            Ok(None)
        }
    }
}

fn decode_parts(from: &mut Decoder<'_>) -> Decoded<u64> {
    let parts = from.number()?;
    if parts & !part::ALL == 0 { Ok(parts) } else { Err(Malformed("a job has unknown parts")) }
}

fn decode_state(from: &mut Decoder<'_>, mut row: JobRow, parts: u64) -> Decoded<JobRow> {
    let has = |part: u64| parts & part != 0;
    let job = &mut row.job;
    job.status = Status::decode(from)?;
    job.due_at = from.time()?;
    job.attempt = from.small()?;
    job.fence = Fence(from.number()?);
    job.version = Version(from.number()?);
    if !has(part::OUTPUT_KEPT) {
        job.output = has(part::OUTPUT).then(|| from.payload()).transpose()?;
    }
    if !has(part::ERROR_KEPT) {
        job.error = has(part::ERROR).then(|| from.error()).transpose()?;
    }
    job.lease = has(part::LEASE).then(|| decode_lease(from)).transpose()?;
    job.cancel_requested = has(part::CANCEL_REQUESTED);
    job.started_at = has(part::STARTED_AT).then(|| from.time()).transpose()?;
    job.closed_at = has(part::CLOSED_AT).then(|| from.time()).transpose()?;
    job.closed_by = has(part::CLOSED_BY).then(|| from.id()).transpose()?.map(WorkerId::from_uuid);
    row.end = has(part::END).then(|| AttemptEnd::decode(from)).transpose()?;
    row.worker = has(part::WORKER).then(|| from.id()).transpose()?.map(WorkerId::from_uuid);
    row.worker_name = has(part::WORKER_NAME).then(|| from.name(WorkerName::new)).transpose()?;
    if let Some(lease) = &mut job.lease {
        lease.worker_name.clone_from(&row.worker_name);
    }
    row.outside = has(part::OUTSIDE).then(|| from.id()).transpose()?.map(RequestId::from_uuid);
    if !has(part::BLOCKERS_KEPT) {
        row.job.blockers = from.list(decode_blocker)?;
    }
    if !has(part::HISTORY_KEPT) {
        row.history = from.list(decode_attempt)?;
    }
    Ok(row)
}

/// Reads the state of a job without keeping it.
fn skip_state(from: &mut Decoder<'_>, parts: u64) -> Decoded<()> {
    Status::decode(from)?;
    from.time()?;
    from.small()?;
    from.number()?;
    from.number()?;
    let has = |part: u64| parts & part != 0;
    has(part::OUTPUT).then(|| from.payload()).transpose()?;
    has(part::ERROR).then(|| from.error()).transpose()?;
    has(part::LEASE).then(|| decode_lease(from)).transpose()?;
    has(part::STARTED_AT).then(|| from.time()).transpose()?;
    has(part::CLOSED_AT).then(|| from.time()).transpose()?;
    has(part::CLOSED_BY).then(|| from.id()).transpose()?;
    has(part::END).then(|| AttemptEnd::decode(from)).transpose()?;
    has(part::WORKER).then(|| from.id()).transpose()?;
    has(part::WORKER_NAME).then(|| from.name(WorkerName::new)).transpose()?;
    has(part::OUTSIDE).then(|| from.id()).transpose()?;
    (!has(part::BLOCKERS_KEPT)).then(|| from.list(decode_blocker)).transpose()?;
    (!has(part::HISTORY_KEPT)).then(|| from.list(decode_attempt)).transpose()?;
    Ok(())
}

/// Decodes a lease. The name of its worker is that of the job's latest attempt.
fn decode_lease(from: &mut Decoder<'_>) -> Decoded<Lease> {
    let (worker, request) = (WorkerId::from_uuid(from.id()?), RequestId::from_uuid(from.id()?));
    Ok(Lease { worker, worker_name: None, request, until: from.time()? })
}

fn decode_blocker(from: &mut Decoder<'_>) -> Decoded<Blocker> {
    let chain = ChainId::from_uuid(from.id()?);
    let resolved = from.byte()? != 0;
    Ok(Blocker { chain, resolved, trace: from.optional_trace()? })
}

fn decode_attempt(from: &mut Decoder<'_>) -> Decoded<AttemptRecord> {
    let (attempt, fence) = (from.small()?, Fence(from.number()?));
    let (worker, started_at) = (WorkerId::from_uuid(from.id()?), from.time()?);
    let (end, parts) = (AttemptEnd::decode(from)?, from.byte()?);
    if parts > 7 {
        return Err(Malformed("an attempt has unknown parts"));
    }
    let ended_at = (parts & 1 != 0).then(|| from.time()).transpose()?;
    let error = (parts & 2 != 0).then(|| from.error()).transpose()?;
    let worker_name = (parts & 4 != 0).then(|| from.name(WorkerName::new)).transpose()?;
    Ok(AttemptRecord { attempt, fence, worker, worker_name, started_at, ended_at, end, error })
}
