//! Requests to the scripts and replies from them.
//!
//! Requests are MessagePack maps, so scripts read `item.due` and not `item[7]`. Absent values are nil in Lua. Ids are
//! text; times and durations are whole milliseconds. A payload is one byte string: the codec's name, a colon, and the
//! bytes. Scripts store and return it without parsing it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_bytes::ByteBuf;
use windlass_core::command::{
    ClosedChain, Created, DueTime, Existing, JobSummary, Lost, NewBlocker, NewChain, NewJob, NewKey, Ripple,
    Target, Types, Unblocked,
};
use windlass_core::{
    AttemptEnd, ChainId, ClosedAs, ErrorText, JobId, Key, KeyHold, Millis, OnBlockerFailure, Payload,
    Refusal, RequestId, ScheduleId, ScheduleName, Status, Timestamp, TraceContext, TypeName, WorkerId,
    WorkerName,
};

use crate::{flat, row};

/// Payloads to send to a script. They follow the request, which is the script's first argument.
#[derive(Debug, Default)]
pub(crate) struct Payloads(Vec<Vec<u8>>);

impl Payloads {
    /// Adds a payload and returns its index in the script's `ARGV`.
    pub(crate) fn add(&mut self, payload: &Payload) -> usize {
        self.add_bytes(flat::payload(payload))
    }

    /// Adds other bytes and returns their index in the script's `ARGV`.
    pub(crate) fn add_bytes(&mut self, bytes: Vec<u8>) -> usize {
        self.0.push(bytes);
        self.0.len() + 1
    }

    pub(crate) fn into_arguments(self) -> Vec<Vec<u8>> {
        self.0
    }
}

/// A chain to create.
#[derive(Debug, Serialize)]
pub(crate) struct NewChainOut<'a> {
    /// Whether the chain breaks a limit. The script refuses it when it reaches it, and this code adds the reason.
    invalid: bool,
    job: NewJobOut<'a>,
    key: Option<NewKeyOut<'a>>,
    keep_completed: u64,
}

/// A job to create.
#[derive(Debug, Serialize)]
pub(crate) struct NewJobOut<'a> {
    id: String,
    #[serde(rename = "type")]
    job_type: &'a str,
    input: usize,
    /// The part of the row that never changes.
    constants: usize,
    #[serde(flatten)]
    schedule: ScheduleOut,
    priority: i8,
    blockers: Vec<NewBlockerOut<'a>>,
}

/// When a job is due. At most one field is set; neither means now.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ScheduleOut {
    at: Option<i64>,
    after: Option<u64>,
}

#[derive(Debug, Serialize)]
struct NewBlockerOut<'a> {
    chain: String,
    trace: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct NewKeyOut<'a> {
    key: &'a str,
    replaces: Option<String>,
}

impl<'a> NewChainOut<'a> {
    pub(crate) fn new(chain: &'a NewChain, payloads: &mut Payloads) -> Self {
        Self {
            invalid: chain.check().is_err(),
            job: NewJobOut::new(chain.id.first_job(), &chain.job, Some(chain), payloads),
            key: chain.key.as_ref().map(NewKeyOut::from),
            keep_completed: chain.retention.completed.get(),
        }
    }
}

impl<'a> NewJobOut<'a> {
    /// `chain` is the chain that starts with this job, if it is a first job.
    pub(crate) fn new(id: JobId, job: &'a NewJob, chain: Option<&NewChain>, payloads: &mut Payloads) -> Self {
        Self {
            id: id.to_string(),
            job_type: job.job_type.as_str(),
            input: payloads.add(&job.input),
            constants: payloads.add_bytes(row::constants(job, chain)),
            schedule: job.schedule.into(),
            priority: job.priority,
            blockers: job.blockers.iter().map(NewBlockerOut::from).collect(),
        }
    }
}

impl From<DueTime> for ScheduleOut {
    fn from(schedule: DueTime) -> Self {
        match schedule {
            DueTime::Now => Self::default(),
            DueTime::At(at) => Self { at: Some(at.as_millis()), after: None },
            DueTime::After(delay) => Self { at: None, after: Some(delay.get()) },
        }
    }
}

impl<'a> From<&'a NewBlocker> for NewBlockerOut<'a> {
    fn from(blocker: &'a NewBlocker) -> Self {
        Self { chain: blocker.chain.to_string(), trace: blocker.trace.as_ref().map(TraceContext::as_str) }
    }
}

impl<'a> From<&'a NewKey> for NewKeyOut<'a> {
    fn from(key: &'a NewKey) -> Self {
        Self { key: key.key.as_str(), replaces: key.replaces.map(|chain| chain.to_string()) }
    }
}

/// Identifies a chain by exactly one of: chain id, job id, or type and key.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TargetOut<'a> {
    chain: Option<String>,
    job: Option<String>,
    #[serde(rename = "type")]
    chain_type: Option<&'a str>,
    key: Option<&'a str>,
}

impl<'a> From<&'a Target> for TargetOut<'a> {
    fn from(target: &'a Target) -> Self {
        match target {
            Target::Chain(chain) => Self { chain: Some(chain.to_string()), ..Self::default() },
            Target::Job(job) => Self { job: Some(job.to_string()), ..Self::default() },
            Target::Key(chain_type, key) => {
                Self { chain_type: Some(chain_type.as_str()), key: Some(key.as_str()), ..Self::default() }
            }
        }
    }
}

/// Returns the names of the types, or `None` for all types.
pub(crate) fn type_names(types: &Types) -> Option<Vec<&str>> {
    match types {
        Types::All => None,
        Types::Only(types) => Some(types.iter().map(TypeName::as_str).collect()),
    }
}

/// An optional entry of a list. It is wrapped in a table because a nil would end a Lua list.
#[derive(Debug, Deserialize)]
pub(crate) struct Found<T> {
    #[serde(default = "Option::default")]
    pub(crate) found: Option<T>,
}

/// A value decoded from a script's reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read<T>(pub(crate) T);

/// A type that can be decoded from a script's value.
pub(crate) trait FromScript: Sized {
    /// Type of the script's value.
    type Raw: for<'de> Deserialize<'de>;

    fn from_script(raw: Self::Raw) -> Result<Self, String>;
}

impl<'de, T: FromScript> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = T::Raw::deserialize(deserializer)?;
        T::from_script(raw).map(Self).map_err(de::Error::custom)
    }
}

macro_rules! from_script {
    ($raw:ty: $($type:ty => $read:expr,)*) => {$(
        impl FromScript for $type {
            type Raw = $raw;

            fn from_script(raw: $raw) -> Result<Self, String> {
                let read: fn($raw) -> Result<Self, String> = $read;
                read(raw)
            }
        }
    )*};
}
from_script! { String:
    JobId => |raw| raw.parse().map_err(text),
    ChainId => |raw| raw.parse().map_err(text),
    WorkerId => |raw| raw.parse().map_err(text),
    RequestId => |raw| raw.parse().map_err(text),
    ScheduleId => |raw| raw.parse().map_err(text),
    ScheduleName => |raw| Self::new(raw).map_err(text),
    TypeName => |raw| Self::new(raw).map_err(text),
    Key => |raw| Self::new(raw).map_err(text),
    TraceContext => |raw| Self::new(raw).map_err(text),
    ErrorText => |raw| Ok(Self::new(raw)),
    Status => |raw| match raw.as_str() {
        "blocked" => Ok(Self::Blocked),
        "pending" => Ok(Self::Pending),
        "running" => Ok(Self::Running),
        "completed" => Ok(Self::Completed),
        "failed" => Ok(Self::Failed),
        "cancelled" => Ok(Self::Cancelled),
        _ => Err(format!("unknown status {raw:?}")),
    },
    ClosedAs => |raw| Status::from_script(raw.clone())?.closed_as().ok_or(format!("{raw} is not an end")),
    OnBlockerFailure => |raw| match raw.as_str() {
        "fail" => Ok(Self::Fail),
        "receive" => Ok(Self::Receive),
        _ => Err(format!("unknown blocker-failure policy {raw:?}")),
    },
    WorkerName => |raw| Self::new(raw).map_err(text),
    AttemptEnd => |raw| match raw.as_str() {
        "running" => Ok(Self::Running),
        "completed" => Ok(Self::Completed),
        "continued" => Ok(Self::Continued),
        "retried" => Ok(Self::Retried),
        "rescheduled" => Ok(Self::Rescheduled),
        "failed" => Ok(Self::Failed),
        "exhausted" => Ok(Self::Exhausted),
        "released" => Ok(Self::Released),
        "reaped" => Ok(Self::Reaped),
        "cancelled" => Ok(Self::Cancelled),
        "displaced" => Ok(Self::Displaced),
        _ => Err(format!("unknown attempt end {raw:?}")),
    },
    KeyHold => |raw| match raw.as_str() {
        "open" => Ok(Self::Open),
        "completed" => Ok(Self::Completed),
        "completed_or_failed" => Ok(Self::CompletedOrFailed),
        "any" => Ok(Self::Any),
        _ => Err(format!("unknown key hold {raw:?}")),
    },
}
from_script! { i64: Timestamp => |raw| Self::from_millis(raw).map_err(text), }
from_script! { u64: Millis => |raw| Self::new(raw).map_err(text), }
from_script! { ByteBuf: Payload => |raw| row::payload(&raw), }

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

/// Why a script refused an item.
#[derive(Debug, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub(crate) enum RefusedIn {
    /// The item breaks a limit, as this code found before sending it.
    Invalid,
    IdTaken,
    BlockerNotFound {
        chain: Read<ChainId>,
    },
    BlockerFailed {
        chain: Read<ChainId>,
    },
    WaitsForItself {
        chain: Read<ChainId>,
    },
    KeyTaken {
        chain: Read<ChainId>,
    },
    CancelRequested,
    Changed {
        chain: Read<ChainId>,
    },
    Needed {
        chain: Read<ChainId>,
        by: Read<JobId>,
    },
    TooManyChains,
}

impl RefusedIn {
    /// Converts to a [`Refusal`]. `check` repeats the check that marked the item as invalid, to get the reason.
    pub(crate) fn into_refusal(self, check: impl FnOnce() -> Result<(), Refusal>) -> Refusal {
        match self {
            Self::Invalid => check().err().unwrap_or(Refusal::IdTaken),
            Self::IdTaken => Refusal::IdTaken,
            Self::BlockerNotFound { chain } => Refusal::BlockerNotFound(chain.0),
            Self::BlockerFailed { chain } => Refusal::BlockerFailed(chain.0),
            Self::WaitsForItself { chain } => Refusal::WaitsForItself(chain.0),
            Self::KeyTaken { chain } => Refusal::KeyTaken(chain.0),
            Self::CancelRequested => Refusal::CancelRequested,
            Self::Changed { chain } => Refusal::Changed(chain.0),
            Self::Needed { chain, by } => Refusal::Needed { chain: chain.0, by: by.0 },
            Self::TooManyChains => Refusal::TooManyChains,
        }
    }
}

/// Why an attempt no longer holds its job.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LostIn {
    NotFound,
    Requeued,
    TakenOver,
    Completed,
    Failed,
    Cancelled,
}

impl From<LostIn> for Lost {
    fn from(lost: LostIn) -> Self {
        match lost {
            LostIn::NotFound => Self::NotFound,
            LostIn::Requeued => Self::Requeued,
            LostIn::TakenOver => Self::TakenOver,
            LostIn::Completed => Self::Closed(ClosedAs::Completed),
            LostIn::Failed => Self::Closed(ClosedAs::Failed),
            LostIn::Cancelled => Self::Closed(ClosedAs::Cancelled),
        }
    }
}

/// Status and due time of a job after a command.
#[derive(Debug, Deserialize)]
pub(crate) struct SummaryIn {
    job: Read<JobId>,
    chain: Read<ChainId>,
    status: Read<Status>,
    due: Read<Timestamp>,
}

impl From<SummaryIn> for JobSummary {
    fn from(summary: SummaryIn) -> Self {
        Self { job: summary.job.0, chain: summary.chain.0, status: summary.status.0, due_at: summary.due.0 }
    }
}

/// Result of creating one chain.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CreatedIn {
    New { job: SummaryIn, repeated: bool },
    Existing(ExistingIn),
    Refused(RefusedIn),
}

#[derive(Debug, Deserialize)]
pub(crate) struct ExistingIn {
    chain: Read<ChainId>,
    status: Read<Status>,
    #[serde(rename = "type")]
    job_type: Read<TypeName>,
    output: Option<Read<Payload>>,
    error: Option<Read<ErrorText>>,
    trace: Option<Read<TraceContext>>,
}

impl CreatedIn {
    pub(crate) fn into_created(self, chain: &NewChain) -> Created {
        match self {
            Self::New { job, repeated } => Created::New { job: job.into(), repeated },
            Self::Existing(existing) => Created::Existing(Existing {
                chain: existing.chain.0,
                status: existing.status.0,
                job_type: existing.job_type.0,
                output: existing.output.map(|output| output.0),
                error: existing.error.map(|error| error.0),
                trace: existing.trace.map(|trace| trace.0),
            }),
            Self::Refused(refused) => Created::Refused(refused.into_refusal(|| chain.check())),
        }
    }
}

/// Side effects of a command: jobs it unblocked and chains it closed.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct RippleIn {
    unblocked: Vec<UnblockedIn>,
    closed: Vec<ClosedIn>,
}

#[derive(Debug, Deserialize)]
struct UnblockedIn {
    job: SummaryIn,
    #[serde(rename = "type")]
    job_type: Read<TypeName>,
    chain_type: Read<TypeName>,
    traces: Vec<Found<Read<TraceContext>>>,
}

#[derive(Debug, Deserialize)]
struct ClosedIn {
    chain: Read<ChainId>,
    chain_type: Read<TypeName>,
    job: Read<JobId>,
    #[serde(rename = "type")]
    job_type: Read<TypeName>,
    closed_as: Read<ClosedAs>,
    error: Option<Read<ErrorText>>,
    created: Read<Timestamp>,
    trace: Option<Read<TraceContext>>,
}

impl From<RippleIn> for Ripple {
    fn from(ripple: RippleIn) -> Self {
        let unblocked = ripple.unblocked.into_iter().map(|unblocked| Unblocked {
            job: unblocked.job.into(),
            job_type: unblocked.job_type.0,
            chain_type: unblocked.chain_type.0,
            traces: unblocked.traces.into_iter().map(|trace| trace.found.map(|trace| trace.0)).collect(),
        });
        let closed = ripple.closed.into_iter().map(|closed| ClosedChain {
            chain: closed.chain.0,
            chain_type: closed.chain_type.0,
            job: closed.job.0,
            job_type: closed.job_type.0,
            closed_as: closed.closed_as.0,
            error: closed.error.map(|error| error.0),
            created_at: closed.created.0,
            trace: closed.trace.map(|trace| trace.0),
        });
        Self { unblocked: unblocked.collect(), closed: closed.collect(), deferred: false }
    }
}
