//! Conversion between table rows and core types.

use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use serde::Deserialize;
use uuid::Uuid;
use windlass_core::{
    AttemptEnd, Blocker, ChainId, ChainKey, Closed, ClosedAs, Codec, Error, ErrorKind, ErrorText, Fence,
    JobId, JobRecord, Key, KeyHold, Lease, Millis, OnBlockerFailure, Payload, Refusal, RequestId, Retention,
    Status, Timestamp, TraceContext, TypeName, Version, WorkerId,
};
use windlass_core::{Result, command::JobSummary};

use crate::array::{CHAIN, Element, JOB, RECORD};
use crate::provider::{Row, Value};

impl Row {
    fn get(&self, column: &str) -> Result<&Value> {
        self.value(column).ok_or_else(|| corrupt(format_args!("the column `{column}` is missing")))
    }

    pub(crate) fn maybe_integer(&self, column: &str) -> Result<Option<i64>> {
        match self.get(column)? {
            Value::Null => Ok(None),
            Value::Integer(value) => Ok(Some(*value)),
            other => Err(corrupt(format_args!("the column `{column}` contains {other:?}"))),
        }
    }

    pub(crate) fn maybe_text(&self, column: &str) -> Result<Option<&str>> {
        match self.get(column)? {
            Value::Null => Ok(None),
            Value::Text(value) => Ok(Some(value)),
            other => Err(corrupt(format_args!("the column `{column}` contains {other:?}"))),
        }
    }

    pub(crate) fn text(&self, column: &str) -> Result<&str> {
        self.maybe_text(column)?.ok_or_else(|| corrupt(format_args!("the column `{column}` is null")))
    }

    fn maybe_blob(&self, column: &str) -> Result<Option<&Bytes>> {
        match self.get(column)? {
            Value::Null => Ok(None),
            Value::Blob(value) => Ok(Some(value)),
            other => Err(corrupt(format_args!("the column `{column}` contains {other:?}"))),
        }
    }

    pub(crate) fn flag(&self, column: &str) -> Result<bool> {
        Ok(self.maybe_integer(column)?.unwrap_or(0) != 0)
    }

    /// Reads a number that was written from a narrower or unsigned type.
    pub(crate) fn number<T: TryFrom<i64>>(&self, column: &str) -> Result<T> {
        self.maybe_number(column)?.ok_or_else(|| corrupt(format_args!("the column `{column}` is null")))
    }

    pub(crate) fn maybe_number<T: TryFrom<i64>>(&self, column: &str) -> Result<Option<T>> {
        let convert = |value: i64| {
            T::try_from(value).map_err(|_| {
                corrupt(format_args!("the column `{column}` contains {value}, which is out of range"))
            })
        };
        self.maybe_integer(column)?.map(convert).transpose()
    }

    pub(crate) fn uuid(&self, column: &str) -> Result<Uuid> {
        self.maybe_uuid(column)?
            .ok_or_else(|| corrupt(format_args!("the column `{column}` does not contain an id")))
    }

    pub(crate) fn maybe_uuid(&self, column: &str) -> Result<Option<Uuid>> {
        let id = match self.get(column)? {
            Value::Null => return Ok(None),
            // In a JSON array an id is a string of hexadecimal digits, empty if there is none.
            Value::Text(digits) if digits.is_empty() => return Ok(None),
            Value::Text(digits) => Uuid::try_parse(digits),
            Value::Blob(bytes) => Uuid::from_slice(bytes),
            Value::Integer(_) => {
                return Err(corrupt(format_args!("the column `{column}` does not contain an id")));
            }
        };
        id.map(Some).map_err(|_| corrupt(format_args!("the column `{column}` does not contain an id")))
    }

    pub(crate) fn time(&self, column: &str) -> Result<Timestamp> {
        self.maybe_time(column)?
            .ok_or_else(|| corrupt(format_args!("the column `{column}` does not contain a time")))
    }

    pub(crate) fn maybe_time(&self, column: &str) -> Result<Option<Timestamp>> {
        self.maybe_integer(column)?.map(Timestamp::from_millis).transpose().map_err(unreadable)
    }

    fn span(&self, column: &str) -> Result<Millis> {
        Millis::new(self.number(column)?).map_err(unreadable)
    }

    pub(crate) fn retention(&self) -> Result<Retention> {
        Ok(Retention {
            completed: self.span("retain_completed")?,
            failed: self.span("retain_failed")?,
            cancelled: self.span("retain_cancelled")?,
        })
    }

    /// Reads a text column that holds an enum value.
    pub(crate) fn enum_value<T: EnumText>(&self, column: &str) -> Result<T> {
        self.maybe_enum(column)?.ok_or_else(|| corrupt(format_args!("the column `{column}` is null")))
    }

    pub(crate) fn maybe_enum<T: EnumText>(&self, column: &str) -> Result<Option<T>> {
        let convert = |text| {
            T::from_text(text).ok_or_else(|| {
                corrupt(format_args!("the column `{column}` contains the unknown value {text:?}"))
            })
        };
        self.maybe_text(column)?.map(convert).transpose()
    }

    pub(crate) fn type_name(&self, column: &str) -> Result<TypeName> {
        TypeName::new(self.text(column)?).map_err(unreadable)
    }

    pub(crate) fn maybe_key(&self) -> Result<Option<Key>> {
        self.maybe_text("key")?.map(Key::new).transpose().map_err(unreadable)
    }

    pub(crate) fn maybe_trace(&self, column: &str) -> Result<Option<TraceContext>> {
        self.maybe_text(column)?.map(TraceContext::new).transpose().map_err(unreadable)
    }

    pub(crate) fn maybe_error(&self) -> Result<Option<ErrorText>> {
        Ok(self.maybe_text("error")?.map(ErrorText::new))
    }

    pub(crate) fn maybe_payload(&self, codec: &str, bytes: &str) -> Result<Option<Payload>> {
        self.payload(self.maybe_text(codec)?, bytes)
    }

    fn payload(&self, codec: Option<&str>, bytes: &str) -> Result<Option<Payload>> {
        let Some(codec) = codec else { return Ok(None) };
        let bytes = self.maybe_blob(bytes)?.cloned().unwrap_or_default();
        let payload = Codec::new(codec).and_then(|codec| Payload::new(codec, bytes));
        payload.map(Some).map_err(unreadable)
    }

    /// Reads the columns that a statement has packed into one JSON array. Drivers pay for each value of a row.
    fn part(&self, column: &str, columns: &LazyLock<Arc<[String]>>) -> Result<Self> {
        let values: Vec<Element> = self.json(column)?;
        Ok(Self::new(Arc::clone(columns), values.into_iter().map(|Element(value)| value).collect()))
    }

    /// Reads the complete job, as queries return it.
    pub(crate) fn job(&self) -> Result<JobRecord> {
        let part = self.part("record", &RECORD)?;
        let input = self.payload(part.maybe_text("input_codec")?, "input")?;
        let status: Status = part.enum_value("status")?;
        Ok(JobRecord {
            id: JobId::from_uuid(part.uuid("id")?),
            chain: ChainId::from_uuid(part.uuid("chain")?),
            index: part.number("position")?,
            job_type: part.type_name("type")?,
            chain_type: part.type_name("chain_type")?,
            status,
            input: input.ok_or_else(|| corrupt("a job has no input"))?,
            output: self.payload(part.maybe_text("output_codec")?, "output")?,
            error: part.maybe_error()?,
            priority: part.number("priority")?,
            due_at: part.time("due_at")?,
            attempt: part.number("attempt")?,
            max_attempts: part.maybe_number("max_attempts")?,
            fence: Fence(part.number("fence")?),
            version: Version(part.number("version")?),
            lease: if status == Status::Running { Some(part.lease()?) } else { None },
            cancel_requested: part.flag("cancel_requested")?,
            blockers: self.blockers()?,
            on_blocker_failure: part.enum_value("on_blocker_failure")?,
            created_at: part.time("created_at")?,
            started_at: part.maybe_time("started_at")?,
            closed_at: part.maybe_time("closed_at")?,
            closed_by: part.maybe_uuid("closed_by")?.map(WorkerId::from_uuid),
            trace: part.maybe_trace("trace")?,
        })
    }

    fn lease(&self) -> Result<Lease> {
        Ok(Lease {
            worker: WorkerId::from_uuid(self.uuid("worker")?),
            request: RequestId::from_uuid(self.uuid("request")?),
            until: self.time("lease_until")?,
        })
    }

    fn blockers(&self) -> Result<Arc<[Blocker]>> {
        let stored: Vec<StoredBlocker> = self.json("blockers")?;
        let blocker = |StoredBlocker(chain, resolved, trace)| {
            Ok(Blocker {
                chain: ChainId::from_str(&chain).map_err(|_| corrupt("a blocker has no id"))?,
                resolved: resolved != 0,
                trace: trace.map(TraceContext::new).transpose().map_err(unreadable)?,
            })
        };
        stored.into_iter().map(blocker).collect()
    }

    /// Reads a column that the statement has built as JSON.
    pub(crate) fn json<T: for<'a> Deserialize<'a>>(&self, column: &str) -> Result<T> {
        let text = self.text(column)?;
        serde_json::from_str(text)
            .map_err(|error| corrupt(format_args!("the column `{column}` cannot be decoded: {error}")))
    }
}

#[derive(Deserialize)]
struct StoredBlocker(String, i64, Option<String>);

/// A stored job as commands need it: without its input, and with its output only if it was loaded by key.
#[derive(Clone, Debug)]
pub(crate) struct JobRow {
    pub(crate) seq: i64,
    pub(crate) id: JobId,
    pub(crate) chain: ChainId,
    pub(crate) index: u32,
    pub(crate) job_type: TypeName,
    pub(crate) chain_type: TypeName,
    pub(crate) status: Status,
    pub(crate) due_at: Timestamp,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) fence: Fence,
    pub(crate) version: Version,
    pub(crate) worker: Option<WorkerId>,
    pub(crate) lease_until: Option<Timestamp>,
    pub(crate) cancel_requested: bool,
    /// Number of chains that the job still waits for.
    pub(crate) waits: u32,
    /// Number of blockers that the job was created with.
    pub(crate) blockers: u32,
    pub(crate) on_blocker_failure: OnBlockerFailure,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) closed_at: Option<Timestamp>,
    pub(crate) closed_by: Option<WorkerId>,
    /// How the attempt that closed it ended.
    pub(crate) ended: Option<AttemptEnd>,
    /// The request of the completion from outside that closed it.
    pub(crate) outside: Option<RequestId>,
    pub(crate) error: Option<ErrorText>,
    pub(crate) output: Option<Payload>,
}

impl JobRow {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        let row = row.part("job", &JOB)?;
        Ok(Self {
            seq: row.number("seq")?,
            id: JobId::from_uuid(row.uuid("id")?),
            chain: ChainId::from_uuid(row.uuid("chain")?),
            index: row.number("position")?,
            job_type: row.type_name("type")?,
            chain_type: row.type_name("chain_type")?,
            status: row.enum_value("status")?,
            due_at: row.time("due_at")?,
            attempt: row.number("attempt")?,
            max_attempts: row.maybe_number("max_attempts")?,
            fence: Fence(row.number("fence")?),
            version: Version(row.number("version")?),
            worker: row.maybe_uuid("worker")?.map(WorkerId::from_uuid),
            lease_until: row.maybe_time("lease_until")?,
            cancel_requested: row.flag("cancel_requested")?,
            waits: row.number("waits")?,
            blockers: row.number("blockers")?,
            on_blocker_failure: row.enum_value("on_blocker_failure")?,
            started_at: row.maybe_time("started_at")?,
            // Commands mostly change open jobs, for which these are null. `Retry` reads those that it needs itself.
            closed_at: None,
            closed_by: None,
            ended: None,
            outside: None,
            error: row.maybe_error()?,
            output: None,
        })
    }

    pub(crate) const fn summary(&self) -> JobSummary {
        JobSummary { job: self.id, chain: self.chain, status: self.status, due_at: self.due_at }
    }
}

/// A stored chain as commands need it.
#[derive(Clone, Debug)]
pub(crate) struct ChainRow {
    pub(crate) seq: i64,
    pub(crate) id: ChainId,
    pub(crate) chain_type: TypeName,
    pub(crate) latest: JobId,
    pub(crate) latest_index: u32,
    pub(crate) key: Option<ChainKey>,
    pub(crate) retention: Retention,
    pub(crate) created_at: Timestamp,
    pub(crate) closed: Option<Closed>,
    pub(crate) trace: Option<TraceContext>,
    /// When the oldest inner job of the open chain may be removed.
    pub(crate) trim_at: Option<Timestamp>,
    /// Whether jobs that waited for the chain are still unresolved.
    pub(crate) rippling: bool,
}

impl ChainRow {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        let row = row.part("chain", &CHAIN)?;
        let closed = match row.maybe_enum::<ClosedAs>("chain_closed_as")? {
            None => None,
            Some(closed_as) => Some(Closed {
                at: row.time("chain_closed_at")?,
                closed_as,
                retain_until: row.time("retain_until")?,
            }),
        };
        let key = match row.maybe_key()? {
            None => None,
            Some(key) => Some(ChainKey {
                key,
                hold: row.enum_value("key_hold")?,
                window: row.maybe_number("key_window")?.map(Millis::new).transpose().map_err(unreadable)?,
                held: row.flag("key_held")?,
            }),
        };
        Ok(Self {
            seq: row.number("seq")?,
            id: ChainId::from_uuid(row.uuid("id")?),
            chain_type: row.type_name("type")?,
            latest: JobId::from_uuid(row.uuid("latest")?),
            latest_index: row.number("latest_position")?,
            key,
            retention: row.retention()?,
            created_at: row.time("created_at")?,
            closed,
            trace: row.maybe_trace("chain_trace")?,
            trim_at: row.maybe_time("trim_at")?,
            rippling: row.flag("rippling")?,
        })
    }

    /// Whether the chain holds its key at this time, so that no other chain can be created with it. The caller has
    /// checked that the key points at this chain.
    pub(crate) fn holds_key(&self, now: Timestamp) -> bool {
        let Some(key) = &self.key else { return false };
        let within = key.window.is_none_or(|window| now < self.created_at + window);
        let by_outcome = self.closed.is_none_or(|closed| key.hold.holds(closed.closed_as));
        within && by_outcome && self.is_found_by_key(now)
    }

    /// Whether the chain is found by its key at this time. The caller has checked that the key points at it.
    pub(crate) fn is_found_by_key(&self, now: Timestamp) -> bool {
        self.closed.is_none_or(|closed| now < closed.retain_until)
    }
}

/// An enum that is stored as text.
pub(crate) trait EnumText: Sized + Copy + 'static {
    /// Each value and its stored text.
    const TEXTS: &'static [(Self, &'static str)];

    fn is(self, other: Self) -> bool;

    fn enum_text(self) -> &'static str {
        Self::TEXTS.iter().find(|(value, _)| value.is(self)).map_or("", |(_, text)| text)
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::TEXTS.iter().find(|(_, stored)| *stored == text).map(|(value, _)| *value)
    }
}

macro_rules! enum_texts {
    ($name:ident: $($value:ident = $text:literal),*) => {
        impl EnumText for $name {
            const TEXTS: &'static [(Self, &'static str)] = &[$((Self::$value, $text)),*];

            fn is(self, other: Self) -> bool {
                self == other
            }
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

/// Formats an id as the statements expect it: 32 hexadecimal digits.
pub(crate) fn hex(id: &Uuid) -> String {
    id.simple().to_string()
}

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
