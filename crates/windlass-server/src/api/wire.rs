//! The JSON of the API.

mod chain;
mod job;
mod schedule;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::command::{CountReply, TypeCount, WorkerInfo};
use windlass_core::{JobRecord, Status, Timestamp};

pub(crate) use chain::{Chain, ChainDetails, ChainGraph, ChainPage, Ended};
pub(crate) use job::{Attempt, Blocker, Job, JobDetails, JobPage};
pub(crate) use schedule::{Run, Schedule, ScheduleState};

use super::problem::Problem;

/// A point in time: RFC 3339 in UTC, such as `2026-11-15T06:00:00.000Z`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Time(#[schemars(extend("format" = "date-time"))] pub(crate) String);

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Self(at.to_string())
    }
}

impl Time {
    pub(crate) fn parse(&self) -> Result<Timestamp, Problem> {
        let parsed = humantime::parse_rfc3339_weak(&self.0).map(Timestamp::from);
        parsed.map_err(|_| {
            Problem::invalid(format!(
                "invalid time {:?}: use RFC 3339 in UTC, like `2026-11-15T06:00:00Z`",
                shortened(&self.0)
            ))
        })
    }
}

/// Parses an optional time.
pub(crate) fn time(time: Option<&Time>) -> Result<Option<Timestamp>, Problem> {
    time.map(Time::parse).transpose()
}

/// Returns the beginning of a text from the caller, for messages.
pub(crate) fn shortened(text: &str) -> &str {
    const SHOWN_BYTES: usize = 100;
    &text[..text.floor_char_boundary(SHOWN_BYTES)]
}

/// The state of a job: its status, or a more specific state of a pending or running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Waits for other chains.
    Blocked,
    /// Waits for its due time and a worker. As a filter, includes `scheduled` and `failing`.
    Pending,
    /// Pending, and due in the future.
    Scheduled,
    /// Pending, after a failed attempt.
    Failing,
    /// A worker holds its lease. As a filter, includes `stopping`.
    Running,
    /// Running, and asked to stop.
    Stopping,
    /// Ended with an output, or continued by another job.
    Completed,
    /// Ended without an output.
    Failed,
    /// Cancelled.
    Cancelled,
}

impl State {
    pub(crate) fn of(job: &JobRecord) -> Self {
        match job.status {
            Status::Pending if job.error.is_some() && job.attempt > 0 => Self::Failing,
            Status::Pending if job.due_at > Timestamp::now() => Self::Scheduled,
            Status::Running if job.cancel_requested => Self::Stopping,
            status => Self::from(status),
        }
    }

    pub(crate) const fn status(self) -> Status {
        match self {
            Self::Blocked => Status::Blocked,
            Self::Pending | Self::Scheduled | Self::Failing => Status::Pending,
            Self::Running | Self::Stopping => Status::Running,
            Self::Completed => Status::Completed,
            Self::Failed => Status::Failed,
            Self::Cancelled => Status::Cancelled,
        }
    }

    /// Whether a job matches. `Pending` and `Running` also match their more specific states.
    pub(crate) fn matches(self, job: &JobRecord) -> bool {
        self == Self::of(job) || (self == Self::from(job.status))
    }
}

impl From<Status> for State {
    fn from(status: Status) -> Self {
        match status {
            Status::Blocked => Self::Blocked,
            Status::Pending => Self::Pending,
            Status::Running => Self::Running,
            Status::Completed => Self::Completed,
            Status::Failed => Self::Failed,
            Status::Cancelled => Self::Cancelled,
        }
    }
}

/// The number of jobs of a type, by status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Count {
    #[serde(rename = "type")]
    pub(crate) job_type: String,
    pub(crate) blocked: u64,
    pub(crate) pending: u64,
    pub(crate) running: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    /// The due time of the job that has been due the longest.
    pub(crate) oldest_ready: Option<Time>,
    pub(crate) expired_leases: u64,
    pub(crate) paused: bool,
}

impl From<&TypeCount> for Count {
    fn from(count: &TypeCount) -> Self {
        Self {
            job_type: count.job_type.to_string(),
            blocked: count.blocked,
            pending: count.pending,
            running: count.running,
            completed: count.completed,
            failed: count.failed,
            cancelled: count.cancelled,
            oldest_ready: count.oldest_ready.map(Time::from),
            expired_leases: count.expired_leases,
            paused: count.paused,
        }
    }
}

/// The counts of all types.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Counts {
    pub(crate) types: Vec<Count>,
    /// Whether the counts of closed jobs are estimates.
    pub(crate) closed_estimated: bool,
}

impl From<&CountReply> for Counts {
    fn from(reply: &CountReply) -> Self {
        let types = reply.types.iter().map(Count::from).collect();
        Self { types, closed_estimated: reply.closed_estimated }
    }
}

/// A live worker.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Worker {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    /// The types that it handles.
    pub(crate) types: Vec<String>,
    /// The number of its slots.
    pub(crate) concurrency: u32,
    /// The number of its busy slots when it last reported.
    pub(crate) running: u32,
    pub(crate) started_at: Time,
    pub(crate) seen_at: Time,
}

impl From<&WorkerInfo> for Worker {
    fn from(worker: &WorkerInfo) -> Self {
        Self {
            id: worker.worker.to_string(),
            name: worker.name.as_ref().map(ToString::to_string),
            types: worker.types.iter().map(ToString::to_string).collect(),
            concurrency: worker.concurrency,
            running: worker.running,
            started_at: worker.started_at.into(),
            seen_at: worker.seen_at.into(),
        }
    }
}
