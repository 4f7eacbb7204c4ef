//! Workers, schedules and former outcomes.

use windlass_core::command::{EndedJobs, ScheduleRecord, WorkerInfo};
use windlass_core::{RequestId, ScheduleId, ScheduleName, TypeName, WorkerId, WorkerName};

use super::row::tag;
use super::{Decoded, Decoder, Encoder, Malformed};

pub(super) fn encode_worker(to: &mut Encoder, row: &WorkerInfo) {
    to.byte(tag::WORKER);
    to.id(row.worker.as_uuid());
    to.text(row.name.as_ref().map_or("", |name| name.as_str()));
    to.number(row.types.len() as u64);
    row.types.iter().for_each(|name| to.text(name.as_str()));
    to.number(u64::from(row.concurrency));
    to.number(u64::from(row.running));
    to.time(row.started_at);
    to.time(row.seen_at);
    to.time(row.expires_at);
}

pub(super) fn decode_worker(from: &mut Decoder<'_>) -> Decoded<WorkerInfo> {
    let worker = WorkerId::from_uuid(from.id()?);
    let name = match from.text()? {
        "" => None,
        name => Some(WorkerName::new(name).map_err(|_| Malformed("a name is invalid"))?),
    };
    let types = from.list(|from| from.type_name())?.to_vec();
    Ok(WorkerInfo {
        worker,
        name,
        types,
        concurrency: from.small()?,
        running: from.small()?,
        started_at: from.time()?,
        seen_at: from.time()?,
        expires_at: from.time()?,
    })
}

pub(super) fn encode_schedule(to: &mut Encoder, row: &ScheduleRecord) {
    to.byte(tag::SCHEDULE);
    to.text(row.name.as_str());
    to.id(row.id.as_uuid());
    to.id(row.revision.as_uuid());
    to.byte(u8::from(row.due_at.is_some()) | u8::from(row.handled.is_some()) << 1);
    row.due_at.into_iter().for_each(|at| to.time(at));
    row.handled.into_iter().for_each(|at| to.time(at));
    to.text(&row.definition);
    to.text(&row.state);
}

pub(super) fn decode_schedule(from: &mut Decoder<'_>) -> Decoded<ScheduleRecord> {
    let name = from.name(ScheduleName::new)?;
    let (id, revision) = (ScheduleId::from_uuid(from.id()?), RequestId::from_uuid(from.id()?));
    let parts = from.byte()?;
    if parts > 3 {
        return Err(Malformed("a schedule has unknown parts"));
    }
    Ok(ScheduleRecord {
        name,
        id,
        revision,
        due_at: (parts & 1 != 0).then(|| from.time()).transpose()?,
        handled: (parts & 2 != 0).then(|| from.time()).transpose()?,
        definition: from.text()?.into(),
        state: from.text()?.into(),
    })
}

pub(super) fn encode_former(to: &mut Encoder, name: &TypeName, row: EndedJobs) {
    to.byte(tag::FORMER);
    to.text(name.as_str());
    to.number(row.completed);
    to.number(row.failed);
    to.number(row.cancelled);
}

pub(super) fn decode_former(from: &mut Decoder<'_>) -> Decoded<(TypeName, EndedJobs)> {
    let name = from.type_name()?;
    Ok((name, EndedJobs { completed: from.number()?, failed: from.number()?, cancelled: from.number()? }))
}
