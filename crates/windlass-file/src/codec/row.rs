//! Rows, and changes to rows.

use std::sync::Arc;

use windlass_core::command::EndedJobs;
use windlass_core::model::{Effect, LockRow, Model, Row, RowKey};
use windlass_core::{ChainId, JobId, LockName, RequestId, ScheduleName, WorkerId};

use super::chain::{decode_chain, encode_chain};
use super::job::{decode_job, decode_update, encode_job, encode_update, has_same_origin};
use super::registry::{
    decode_former, decode_schedule, decode_worker, encode_former, encode_schedule, encode_worker,
};
use super::{Decoded, Decoder, Encoder, Malformed};

/// The first byte of a change.
pub(super) mod tag {
    pub(in crate::codec) const JOB: u8 = 1;
    pub(in crate::codec) const JOB_UPDATE: u8 = 2;
    pub(in crate::codec) const JOB_DELETED: u8 = 3;
    pub(in crate::codec) const CHAIN: u8 = 4;
    pub(in crate::codec) const CHAIN_DELETED: u8 = 5;
    pub(in crate::codec) const WORKER: u8 = 6;
    pub(in crate::codec) const WORKER_DELETED: u8 = 7;
    pub(in crate::codec) const LOCK: u8 = 8;
    pub(in crate::codec) const LOCK_DELETED: u8 = 9;
    pub(in crate::codec) const PAUSED: u8 = 10;
    pub(in crate::codec) const RESUMED: u8 = 11;
    pub(in crate::codec) const SCHEDULE: u8 = 12;
    pub(in crate::codec) const SCHEDULE_DELETED: u8 = 13;
    pub(in crate::codec) const FORMER: u8 = 14;
}

/// One applied change to a row.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) key: RowKey,
    pub(crate) before: Option<Row>,
    pub(crate) after: Option<Row>,
}

/// Encodes a change to a row.
pub(crate) fn encode_effect(to: &mut Encoder, effect: &Effect) {
    match (&effect.key, &effect.after) {
        (RowKey::Job(_), Some(Row::Job(row))) => match &effect.before {
            Some(Row::Job(before)) if has_same_origin(before, row) => encode_update(to, before, row),
            _ => encode_job(to, row),
        },
        (key, Some(row)) => encode_row(to, key, row),
        (RowKey::Job(id), None) => {
            to.byte(tag::JOB_DELETED);
            to.id(id.as_uuid());
        }
        (RowKey::Chain(id), None) => {
            to.byte(tag::CHAIN_DELETED);
            to.id(id.as_uuid());
        }
        (RowKey::Worker(id), None) => {
            to.byte(tag::WORKER_DELETED);
            to.id(id.as_uuid());
        }
        (RowKey::Lock(name), None) => {
            to.byte(tag::LOCK_DELETED);
            to.text(name.as_str());
        }
        (RowKey::Paused(name), None) => {
            to.byte(tag::RESUMED);
            to.text(name.as_str());
        }
        (RowKey::Schedule(name), None) => {
            to.byte(tag::SCHEDULE_DELETED);
            to.text(name.as_str());
        }
        // No command deletes these numbers. Zeros mean the same as no row.
        (RowKey::Former(name), None) => encode_former(to, name, EndedJobs::default()),
    }
}

/// Encodes a row in full.
pub(crate) fn encode_row(to: &mut Encoder, key: &RowKey, row: &Row) {
    match row {
        Row::Job(row) => encode_job(to, row),
        Row::Chain(row) => encode_chain(to, row),
        Row::Worker(row) => encode_worker(to, row),
        Row::Lock(row) => {
            to.byte(tag::LOCK);
            to.text(if let RowKey::Lock(name) = key { name.as_str() } else { "" });
            to.id(row.token.as_uuid());
            to.time(row.until);
        }
        Row::Paused => {
            to.byte(tag::PAUSED);
            to.text(if let RowKey::Paused(name) = key { name.as_str() } else { "" });
        }
        Row::Schedule(row) => encode_schedule(to, row),
        Row::Former(row) => {
            if let RowKey::Former(name) = key {
                encode_former(to, name, *row);
            }
        }
    }
}

/// Decodes one change and applies it to the model.
///
/// `is_partial` means that the model may already contain later changes, as is the case while the first part of a
/// journal is replayed on a snapshot. An update to a missing job is then skipped, because a later change deletes the
/// job.
pub(crate) fn apply(from: &mut Decoder<'_>, model: &mut Model, is_partial: bool) -> Decoded<Change> {
    let (key, after) = match from.byte()? {
        tag::JOB => {
            let row = decode_job(from)?;
            (RowKey::Job(row.job.id), Some(Row::Job(Arc::new(row))))
        }
        tag::JOB_UPDATE => {
            let id = JobId::from_uuid(from.id()?);
            let before = model.job(id).cloned();
            let row = decode_update(from, before.as_deref())?;
            match row {
                Some(row) => (RowKey::Job(id), Some(Row::Job(Arc::new(row)))),
                None if is_partial => return Ok(Change { key: RowKey::Job(id), before: None, after: None }),
                None => return Err(Malformed("it updates a job that is not stored")),
            }
        }
        tag::JOB_DELETED => (RowKey::Job(JobId::from_uuid(from.id()?)), None),
        tag::CHAIN => {
            let row = decode_chain(from)?;
            (RowKey::Chain(row.id), Some(Row::Chain(Arc::new(row))))
        }
        tag::CHAIN_DELETED => (RowKey::Chain(ChainId::from_uuid(from.id()?)), None),
        tag::WORKER => {
            let row = decode_worker(from)?;
            (RowKey::Worker(row.worker), Some(Row::Worker(Arc::new(row))))
        }
        tag::WORKER_DELETED => (RowKey::Worker(WorkerId::from_uuid(from.id()?)), None),
        tag::LOCK => {
            let name = from.name(LockName::new)?;
            let row = LockRow { token: RequestId::from_uuid(from.id()?), until: from.time()? };
            (RowKey::Lock(name), Some(Row::Lock(row)))
        }
        tag::LOCK_DELETED => (RowKey::Lock(from.name(LockName::new)?), None),
        tag::PAUSED => (RowKey::Paused(from.type_name()?), Some(Row::Paused)),
        tag::RESUMED => (RowKey::Paused(from.type_name()?), None),
        tag::SCHEDULE => {
            let row = decode_schedule(from)?;
            (RowKey::Schedule(row.name.clone()), Some(Row::Schedule(Arc::new(row))))
        }
        tag::SCHEDULE_DELETED => (RowKey::Schedule(from.name(ScheduleName::new)?), None),
        tag::FORMER => {
            let (name, row) = decode_former(from)?;
            (RowKey::Former(name), Some(Row::Former(row)))
        }
        _ => return Err(Malformed("a change has an unknown kind")),
    };
    let before = model.install(&key, after.clone());
    Ok(Change { key, before, after })
}
