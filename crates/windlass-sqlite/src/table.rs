//! The columns of the job table.
//!
//! The row of a chain's first job also has the chain's columns, so that the common chain of one job is one row.

use std::sync::Arc;

use rusqlite::Row as SqlRow;
use rusqlite::types::ValueRef;
use uuid::Uuid;
use windlass_core::model::{ChainRow, JobRow};
use windlass_core::{
    AttemptEnd, AttemptRecord, Blocker, ChainId, ChainKey, Closed, ClosedAs, Codec, Error, ErrorKind,
    ErrorText, Fence, JobId, JobRecord, Key, KeyHold, Lease, Millis, OnBlockerFailure, Payload, Refusal,
    RequestId, Result, Retention, Status, Timestamp, TraceContext, TypeName, Version, WorkerId, WorkerName,
};

use crate::error::from_sqlite;

/// Number of columns of a job, and of a job together with its chain.
const JOB: usize = 33;
pub(crate) const ALL: usize = 48;

/// The columns in the order in which they are read and written. Those of the chain come last.
pub(crate) const COLUMNS: [&str; ALL] = [
    "seq",
    "id",
    "chain",
    "position",
    "type",
    "chain_type",
    "status",
    "priority",
    "due_at",
    "attempt",
    "max_attempts",
    "fence",
    "version",
    "worker",
    "worker_name",
    "request",
    "lease_until",
    "cancel_requested",
    "blockers",
    "attempts",
    "on_blocker_failure",
    "created_at",
    "started_at",
    "closed_at",
    "closed_by",
    "ended",
    "outside",
    "trace",
    "error",
    "input_codec",
    "input",
    "output_codec",
    "output",
    "latest",
    "latest_position",
    "key",
    "key_hold",
    "key_window",
    "key_held",
    "retain_completed",
    "retain_failed",
    "retain_cancelled",
    "chain_trace",
    "chain_closed_at",
    "chain_closed_as",
    "retain_until",
    "leaves_at",
    "rippling",
];

/// The values of a row, one for each of [`COLUMNS`].
pub(crate) type Values<'a> = [ValueRef<'a>; ALL];

/// Returns the values of a job, and of its chain if it is the chain's first job.
pub(crate) fn values<'a>(row: &'a JobRow, chain: Option<&'a ChainRow>) -> Values<'a> {
    let job = &row.job;
    let mut values = [ValueRef::Null; ALL];
    let (of_job, of_chain) = values.split_at_mut(JOB);
    of_job.copy_from_slice(&[
        number(row.seq),
        id(job.id.as_uuid()),
        id(job.chain.as_uuid()),
        integer(job.index),
        text(job.job_type.as_str()),
        text(job.chain_type.as_str()),
        text(job.status.enum_text()),
        integer(job.priority),
        time(job.due_at),
        integer(job.attempt),
        maybe(job.max_attempts.as_ref(), |max| integer(*max)),
        number(job.fence.0),
        number(job.version.0),
        maybe(row.worker.as_ref(), |worker| id(worker.as_uuid())),
        maybe(row.worker_name.as_ref(), |name| text(name.as_str())),
        maybe(job.lease.as_ref(), |lease| id(lease.request.as_uuid())),
        maybe(job.lease.as_ref(), |lease| time(lease.until)),
        integer(job.cancel_requested),
        length(job.blockers.len()),
        length(row.history.len()),
        text(job.on_blocker_failure.enum_text()),
        time(job.created_at),
        maybe(job.started_at.as_ref(), |at| time(*at)),
        maybe(job.closed_at.as_ref(), |at| time(*at)),
        maybe(job.closed_by.as_ref(), |by| id(by.as_uuid())),
        maybe(row.end.as_ref(), |end| text(end.enum_text())),
        maybe(row.outside.as_ref(), |outside| id(outside.as_uuid())),
        maybe(job.trace.as_ref(), |trace| text(trace.as_str())),
        maybe(job.error.as_ref(), |error| text(error.as_str())),
        text(job.input.codec().as_str()),
        ValueRef::Blob(job.input.bytes()),
        maybe(job.output.as_ref(), |output| text(output.codec().as_str())),
        maybe(job.output.as_ref(), |output| ValueRef::Blob(output.bytes())),
    ]);
    if let Some(chain) = chain {
        of_chain.copy_from_slice(&[
            id(chain.latest.as_uuid()),
            integer(chain.latest_index),
            maybe(chain.key.as_ref(), |key| text(key.key.as_str())),
            maybe(chain.key.as_ref(), |key| text(key.hold.enum_text())),
            maybe(chain.key.as_ref().and_then(|key| key.window.as_ref()), |window| span(*window)),
            maybe(chain.key.as_ref(), |key| integer(key.held)),
            span(chain.retention.completed),
            span(chain.retention.failed),
            span(chain.retention.cancelled),
            maybe(chain.trace.as_ref(), |trace| text(trace.as_str())),
            maybe(chain.closed.as_ref(), |closed| time(closed.at)),
            maybe(chain.closed.as_ref(), |closed| text(closed.closed_as.enum_text())),
            maybe(chain.closed.as_ref(), |closed| time(closed.retain_until)),
            chain.removable_at().map_or(ValueRef::Null, time),
            integer(chain.rippling),
        ]);
    }
    values
}

/// A job as stored in its row: without its blockers and attempts, which have their own tables.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) job: JobRow,
    pub(crate) chain: Option<ChainRow>,
    pub(crate) blockers: u32,
    pub(crate) attempts: u32,
    /// How many jobs need the chain's output, now or if they are retried.
    pub(crate) needed_by: i64,
}

/// Reads [`COLUMNS`], followed by `needed_by`.
pub(crate) fn read(row: &SqlRow<'_>) -> Result<Stored> {
    let mut columns = Columns { row, next: 0 };
    let columns = &mut columns;
    let seq = columns.number()?;
    let id = JobId::from_uuid(columns.id()?);
    let chain = ChainId::from_uuid(columns.id()?);
    let index = columns.number()?;
    let job_type = columns.name(TypeName::new)?;
    let chain_type = columns.name(TypeName::new)?;
    let chain_type = if chain_type == job_type { job_type.clone() } else { chain_type };
    let status: Status = columns.value()?;
    let priority = columns.number()?;
    let due_at = columns.time()?;
    let attempt = columns.number()?;
    let max_attempts = columns.maybe_number()?;
    let fence = Fence(columns.number()?);
    let version = Version(columns.number()?);
    let worker = columns.maybe_id()?.map(WorkerId::from_uuid);
    let worker_name = columns.maybe_name(WorkerName::new)?;
    let request = columns.maybe_id()?.map(RequestId::from_uuid);
    let until = columns.maybe_time()?;
    let lease = lease(worker.zip(request).zip(until), worker_name.as_ref());
    let cancel_requested = columns.flag()?;
    let blockers = columns.number()?;
    let attempts = columns.number()?;
    let on_blocker_failure = columns.value()?;
    let created_at = columns.time()?;
    let started_at = columns.maybe_time()?;
    let closed_at = columns.maybe_time()?;
    let closed_by = columns.maybe_id()?.map(WorkerId::from_uuid);
    let end = columns.maybe_value()?;
    let outside = columns.maybe_id()?.map(RequestId::from_uuid);
    let trace = columns.maybe_name(TraceContext::new)?;
    let error = columns.maybe_text()?.map(ErrorText::new);
    let input = columns.maybe_payload()?.ok_or_else(|| corrupt("a job has no input"))?;
    let output = columns.maybe_payload()?;
    let job = JobRecord {
        id,
        chain,
        index,
        job_type,
        chain_type: chain_type.clone(),
        status,
        input,
        output,
        error,
        priority,
        due_at,
        attempt,
        max_attempts,
        fence,
        version,
        lease,
        cancel_requested,
        blockers: Arc::default(),
        on_blocker_failure,
        created_at,
        started_at,
        closed_at,
        closed_by,
        trace,
    };
    let chain =
        if index == 0 { Some(read_chain(columns, chain, chain_type, seq, created_at)?) } else { None };
    let needed_by = SqlRow::get(row, ALL).map_err(|error| from_sqlite(&error))?;
    let job = JobRow { job, seq, end, worker, worker_name, history: Arc::default(), outside };
    Ok(Stored { job, chain, blockers, attempts, needed_by })
}

fn lease(
    held: Option<((WorkerId, RequestId), Timestamp)>,
    worker_name: Option<&WorkerName>,
) -> Option<Lease> {
    let ((worker, request), until) = held?;
    Some(Lease { worker, worker_name: worker_name.cloned(), request, until })
}

fn read_chain(
    columns: &mut Columns<'_, '_>,
    id: ChainId,
    chain_type: TypeName,
    seq: u64,
    created_at: Timestamp,
) -> Result<ChainRow> {
    let latest = JobId::from_uuid(columns.id()?);
    let latest_index = columns.number()?;
    let key = columns.maybe_name(Key::new)?;
    let hold: Option<KeyHold> = columns.maybe_value()?;
    let window = columns.maybe_span()?;
    let held = columns.flag()?;
    let key = key.zip(hold).map(|(key, hold)| ChainKey { key, hold, window, held });
    let retention =
        Retention { completed: columns.span()?, failed: columns.span()?, cancelled: columns.span()? };
    let trace = columns.maybe_name(TraceContext::new)?;
    let (at, closed_as, retain_until) =
        (columns.maybe_time()?, columns.maybe_value::<ClosedAs>()?, columns.maybe_time()?);
    let closed = match (at, closed_as, retain_until) {
        (Some(at), Some(closed_as), Some(retain_until)) => Some(Closed { at, closed_as, retain_until }),
        _ => None,
    };
    columns.next += 1; // `leaves_at` follows from the others.
    let rippling = columns.flag()?;
    Ok(ChainRow {
        id,
        chain_type,
        seq,
        key,
        retention,
        created_at,
        closed,
        trace,
        latest,
        latest_index,
        rippling,
    })
}

/// Reads `chain, resolved, trace`.
pub(crate) fn read_blocker(row: &SqlRow<'_>) -> Result<Blocker> {
    let mut columns = Columns { row, next: 0 };
    Ok(Blocker {
        chain: ChainId::from_uuid(columns.id()?),
        resolved: columns.flag()?,
        trace: columns.maybe_name(TraceContext::new)?,
    })
}

/// Reads `attempt, fence, worker, worker_name, started_at, ended_at, ended, error`.
pub(crate) fn read_attempt(row: &SqlRow<'_>) -> Result<AttemptRecord> {
    let mut columns = Columns { row, next: 0 };
    Ok(AttemptRecord {
        attempt: columns.number()?,
        fence: Fence(columns.number()?),
        worker: WorkerId::from_uuid(columns.id()?),
        worker_name: columns.maybe_name(WorkerName::new)?,
        started_at: columns.time()?,
        ended_at: columns.maybe_time()?,
        end: columns.value()?,
        error: columns.maybe_text()?.map(ErrorText::new),
    })
}

/// Reads the columns of a row one after the other.
pub(crate) struct Columns<'a, 's> {
    pub(crate) row: &'a SqlRow<'s>,
    pub(crate) next: usize,
}

impl<'a> Columns<'a, '_> {
    fn take(&mut self) -> Result<ValueRef<'a>> {
        let value = self.row.get_ref(self.next).map_err(|error| from_sqlite(&error))?;
        self.next += 1;
        Ok(value)
    }

    fn wrong(&self, value: ValueRef<'_>) -> Error {
        let name = self.row.as_ref().column_name(self.next - 1).unwrap_or("?").to_owned();
        corrupt(format_args!("the column `{name}` contains {value:?}"))
    }

    pub(crate) fn maybe_integer(&mut self) -> Result<Option<i64>> {
        match self.take()? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(value) => Ok(Some(value)),
            other => Err(self.wrong(other)),
        }
    }

    /// Reads a number that was written from a narrower or unsigned type.
    pub(crate) fn maybe_number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>> {
        let Some(value) = self.maybe_integer()? else { return Ok(None) };
        T::try_from(value).map(Some).map_err(|_| self.wrong(ValueRef::Integer(value)))
    }

    pub(crate) fn number<T: TryFrom<i64>>(&mut self) -> Result<T> {
        self.maybe_number()?.ok_or_else(|| self.wrong(ValueRef::Null))
    }

    pub(crate) fn flag(&mut self) -> Result<bool> {
        Ok(self.maybe_integer()?.unwrap_or(0) != 0)
    }

    pub(crate) fn maybe_time(&mut self) -> Result<Option<Timestamp>> {
        self.maybe_integer()?.map(Timestamp::from_millis).transpose().map_err(unreadable)
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp> {
        self.maybe_time()?.ok_or_else(|| self.wrong(ValueRef::Null))
    }

    fn maybe_span(&mut self) -> Result<Option<Millis>> {
        self.maybe_number()?.map(Millis::new).transpose().map_err(unreadable)
    }

    fn span(&mut self) -> Result<Millis> {
        self.maybe_span()?.ok_or_else(|| self.wrong(ValueRef::Null))
    }

    pub(crate) fn maybe_text(&mut self) -> Result<Option<&'a str>> {
        match self.take()? {
            ValueRef::Null => Ok(None),
            value @ ValueRef::Text(text) => {
                std::str::from_utf8(text).map(Some).map_err(|_| self.wrong(value))
            }
            other => Err(self.wrong(other)),
        }
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        self.maybe_text()?.ok_or_else(|| self.wrong(ValueRef::Null))
    }

    pub(crate) fn maybe_name<T>(&mut self, new: fn(&'a str) -> Result<T, Refusal>) -> Result<Option<T>> {
        self.maybe_text()?.map(new).transpose().map_err(unreadable)
    }

    pub(crate) fn name<T>(&mut self, new: fn(&'a str) -> Result<T, Refusal>) -> Result<T> {
        new(self.text()?).map_err(unreadable)
    }

    /// Reads a text column that holds an enum value.
    pub(crate) fn maybe_value<T: EnumText>(&mut self) -> Result<Option<T>> {
        let Some(text) = self.maybe_text()? else { return Ok(None) };
        T::from_text(text).map(Some).ok_or_else(|| self.wrong(ValueRef::Text(text.as_bytes())))
    }

    pub(crate) fn value<T: EnumText>(&mut self) -> Result<T> {
        self.maybe_value()?.ok_or_else(|| self.wrong(ValueRef::Null))
    }

    pub(crate) fn maybe_id(&mut self) -> Result<Option<Uuid>> {
        match self.take()? {
            ValueRef::Null => Ok(None),
            value @ ValueRef::Blob(bytes) => Uuid::from_slice(bytes).map(Some).map_err(|_| self.wrong(value)),
            other => Err(self.wrong(other)),
        }
    }

    pub(crate) fn id(&mut self) -> Result<Uuid> {
        self.maybe_id()?.ok_or_else(|| self.wrong(ValueRef::Null))
    }

    fn maybe_payload(&mut self) -> Result<Option<Payload>> {
        let codec = self.maybe_text()?;
        let bytes = match self.take()? {
            ValueRef::Null => &[],
            ValueRef::Blob(bytes) => bytes,
            other => return Err(self.wrong(other)),
        };
        let Some(codec) = codec else { return Ok(None) };
        let payload = Codec::new(codec).and_then(|codec| Payload::new(codec, bytes.to_vec()));
        payload.map(Some).map_err(unreadable)
    }
}

/// Returns the value of an id.
pub(crate) fn id(id: &Uuid) -> ValueRef<'_> {
    ValueRef::Blob(id.as_bytes())
}

fn text(text: &str) -> ValueRef<'_> {
    ValueRef::Text(text.as_bytes())
}

fn integer<'a>(value: impl Into<i64>) -> ValueRef<'a> {
    ValueRef::Integer(value.into())
}

/// Returns the value of a counter, which never exceeds `i64::MAX`.
fn number<'a>(value: u64) -> ValueRef<'a> {
    ValueRef::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn length<'a>(value: usize) -> ValueRef<'a> {
    ValueRef::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn time<'a>(at: Timestamp) -> ValueRef<'a> {
    ValueRef::Integer(at.as_millis())
}

fn span<'a>(span: Millis) -> ValueRef<'a> {
    number(span.get())
}

fn maybe<'a, T>(value: Option<&'a T>, convert: impl FnOnce(&'a T) -> ValueRef<'a>) -> ValueRef<'a> {
    value.map_or(ValueRef::Null, convert)
}

/// An enum that is stored as text.
pub(crate) trait EnumText: Sized + Copy + PartialEq + 'static {
    /// Each value and its stored text.
    const TEXTS: &'static [(Self, &'static str)];

    fn enum_text(self) -> &'static str {
        Self::TEXTS.iter().find(|(value, _)| *value == self).map_or("", |(_, text)| text)
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::TEXTS.iter().find(|(_, stored)| *stored == text).map(|(value, _)| *value)
    }
}

macro_rules! enum_texts {
    ($name:ident: $($value:ident = $text:literal),*) => {
        impl EnumText for $name {
            const TEXTS: &'static [(Self, &'static str)] = &[$((Self::$value, $text)),*];
        }
    };
}

enum_texts!(Status:
    Blocked = "blocked", Pending = "pending", Running = "running", Completed = "completed", Failed = "failed",
    Cancelled = "cancelled");
enum_texts!(ClosedAs: Completed = "completed", Failed = "failed", Cancelled = "cancelled");
enum_texts!(OnBlockerFailure: Wait = "wait", Fail = "fail", Receive = "receive");
enum_texts!(KeyHold: Open = "open", Completed = "completed", CompletedOrFailed = "completed_or_failed", Any = "any");
enum_texts!(AttemptEnd:
    Running = "running", Completed = "completed", Continued = "continued", Retried = "retried",
    Rescheduled = "rescheduled", Failed = "failed", Exhausted = "exhausted", Released = "released", Reaped = "reaped",
    Cancelled = "cancelled", Displaced = "displaced");

/// Returns the error of a row with a value that this code never writes.
pub(crate) fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the SQLite store is inconsistent: {what}: restore the file from a backup"),
    )
}

pub(crate) fn unreadable(refusal: Refusal) -> Error {
    corrupt(format_args!("a stored value is invalid: {refusal}")).with_inner(refusal)
}
