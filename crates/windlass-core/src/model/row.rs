//! The rows of the model and the effects that change them.

use std::sync::Arc;

use crate::command::{EndedJobs, JobSummary, ScheduleRecord, WorkerInfo};
use crate::id::{ChainId, Fence, JobId, RequestId, WorkerId};
use crate::limit::REPEAT_WINDOW_MS;
use crate::name::{LockName, ScheduleName, TraceContext, TypeName, WorkerName};
use crate::record::{AttemptEnd, AttemptRecord, ChainKey, ChainRecord, Closed, JobRecord, Retention, Status};
use crate::time::{Millis, Timestamp};

/// A stored job, with state that only the store uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// The job as readers see it.
    pub job: JobRecord,
    /// Position in the order of creation.
    pub seq: u64,
    /// How the attempt with the current fence ended, if the job was closed while that attempt ran.
    pub end: Option<AttemptEnd>,
    /// The worker of the latest attempt.
    pub worker: Option<WorkerId>,
    /// The name of that worker, if it has one.
    pub worker_name: Option<WorkerName>,
    /// Ended attempts, oldest first. The attempt that closed the job is in `end` instead.
    pub history: Arc<[AttemptRecord]>,
    /// The request of the completion from outside that closed the job.
    pub outside: Option<RequestId>,
}

impl JobRow {
    /// Returns the job's ids, status and due time.
    #[must_use]
    pub fn summary(&self) -> JobSummary {
        let JobRecord { id: job, chain, status, due_at, .. } = self.job;
        JobSummary { job, chain, status, due_at }
    }

    /// Whether the job needs its blockers' outputs, now or if it is retried.
    #[must_use]
    pub fn needs_blockers(&self) -> bool {
        self.job.status.is_open() || self.job.status == Status::Failed
    }

    /// Returns the record of the latest attempt if it is running or if the job was closed while it ran. An
    /// attempt that requeued the job is already in `history`.
    #[must_use]
    pub fn latest_attempt(&self) -> Option<AttemptRecord> {
        let (worker, started_at) = (self.worker?, self.job.started_at?);
        let end = if self.job.status == Status::Running { AttemptEnd::Running } else { self.end? };
        let ended_at = if end == AttemptEnd::Running { None } else { self.job.closed_at };
        let failed = matches!(self.job.status, Status::Failed | Status::Cancelled);
        let error = if failed { self.job.error.clone() } else { None };
        Some(AttemptRecord {
            attempt: self.job.attempt,
            fence: self.job.fence,
            worker,
            worker_name: self.worker_name.clone(),
            started_at,
            ended_at,
            end,
            error,
        })
    }

    /// Returns how the attempt with this fence ended, if that is still recorded.
    pub(super) fn end_of(&self, fence: Fence) -> Option<AttemptEnd> {
        if fence == self.job.fence && self.end.is_some() {
            return self.end;
        }
        self.history.iter().find(|record| record.fence == fence).map(|record| record.end)
    }
}

/// A stored chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRow {
    /// The chain's id.
    pub id: ChainId,
    /// The chain's type.
    pub chain_type: TypeName,
    /// Position in the order of creation.
    pub seq: u64,
    /// The deduplication key.
    pub key: Option<ChainKey>,
    /// How long the chain is kept after it closes.
    pub retention: Retention,
    /// When the chain was created.
    pub created_at: Timestamp,
    /// When and how the chain closed; `None` while it is open.
    pub closed: Option<Closed>,
    /// The chain's trace context.
    pub trace: Option<TraceContext>,
    /// The chain's latest job.
    pub latest: JobId,
    /// The index of the latest job in the chain.
    pub latest_index: u32,
    /// Whether dependents of the closed chain still have to be resolved.
    pub rippling: bool,
}

impl ChainRow {
    /// Returns the chain in the form that readers see.
    pub(super) fn view(&self, first: &JobRow, latest: &JobRow) -> ChainRecord {
        ChainRecord {
            id: self.id,
            chain_type: self.chain_type.clone(),
            key: self.key.clone(),
            retention: self.retention,
            created_at: self.created_at,
            closed: self.closed,
            trace: self.trace.clone(),
            first: first.job.clone(),
            latest: latest.job.clone(),
        }
    }

    /// Whether the chain prevents others from being created with its key at time `now`, provided that the key
    /// points at it.
    pub(super) fn holds_key(&self, now: Timestamp) -> bool {
        let Some(key) = &self.key else { return false };
        let within = key.window.is_none_or(|window| now < self.created_at + window);
        within
            && self.closed.is_none_or(|closed| key.hold.holds(closed.closed_as) && now < closed.retain_until)
    }

    /// Returns when a closed chain may be deleted: when its retention has passed, but no earlier than
    /// [`repeat_window`] after it closed.
    #[must_use]
    pub fn removable_at(&self) -> Option<Timestamp> {
        self.closed.map(|closed| closed.retain_until.max(closed.at + repeat_window()))
    }
}

/// Returns the minimum time that closed jobs and chains are kept, so that a command repeated after a lost
/// reply is recognized.
#[must_use]
pub fn repeat_window() -> Millis {
    Millis::new(REPEAT_WINDOW_MS).unwrap_or_default()
}

/// A leader lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRow {
    /// The token of the holder.
    pub token: RequestId,
    /// When the lock expires.
    pub until: Timestamp,
}

/// A row of any table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// A job.
    Job(Arc<JobRow>),
    /// A chain.
    Chain(Arc<ChainRow>),
    /// A registered worker.
    Worker(Arc<WorkerInfo>),
    /// A leader lock that is held.
    Lock(LockRow),
    /// Marks a job type as paused.
    Paused,
    /// A schedule.
    Schedule(Arc<ScheduleRecord>),
    /// The jobs of a type that no longer have the outcome with which they ended: they were removed, or retried.
    Former(EndedJobs),
}

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RowKey {
    /// Key of a job.
    Job(JobId),
    /// Key of a chain.
    Chain(ChainId),
    /// Key of a worker.
    Worker(WorkerId),
    /// Key of a leader lock.
    Lock(LockName),
    /// Key of a paused job type.
    Paused(TypeName),
    /// Key of a schedule.
    Schedule(ScheduleName),
    /// Key of the former outcomes of a job type.
    Former(TypeName),
}

/// One inserted, updated or deleted row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The key of the row.
    pub key: RowKey,
    /// The previous value; `None` if the row did not exist.
    pub before: Option<Row>,
    /// The new value; `None` if the row was deleted.
    pub after: Option<Row>,
}
