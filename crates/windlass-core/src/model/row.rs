//! The rows that the model is made of, and the effects that change them.

use std::sync::Arc;

use crate::command::{Placed, WorkerInfo};
use crate::id::{ChainId, Fence, JobId, RequestId, WorkerId};
use crate::limit::REPEAT_WINDOW_MS;
use crate::name::{LockName, TraceContext, TypeName};
use crate::record::{AttemptEnd, AttemptRecord, ChainKey, Closed, JobRecord, Retention, Status};
use crate::time::{Millis, Timestamp};

/// A stored job with what only the store knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// The job as readers see it.
    pub job: JobRecord,
    /// Its place in the order of creation.
    pub seq: u64,
    /// How the attempt of its present fence ended, if it did and the job was not acquired since.
    pub end: Option<AttemptEnd>,
    /// Who made the latest attempt.
    pub worker: Option<WorkerId>,
    /// Ended attempts before the present one, oldest first.
    pub history: Arc<[AttemptRecord]>,
    /// The completion from outside that closed it.
    pub outside: Option<RequestId>,
}

impl JobRow {
    /// Where it stands.
    #[must_use]
    pub fn placed(&self) -> Placed {
        let JobRecord { id: job, chain, status, due_at, .. } = self.job;
        Placed { job, chain, status, due_at }
    }

    /// Whether it still needs its blockers' outputs, or may need them when it is retried.
    pub(super) fn needs_blockers(&self) -> bool {
        self.job.status.is_open() || self.job.status == Status::Failed
    }

    /// The record of its latest attempt, if there was one.
    pub(super) fn latest_attempt(&self) -> Option<AttemptRecord> {
        let (worker, started_at) = (self.worker?, self.job.started_at?);
        let end = if self.job.status == Status::Running { AttemptEnd::Running } else { self.end? };
        let ended_at = if end == AttemptEnd::Running { None } else { self.job.closed_at };
        let failed = matches!(self.job.status, Status::Failed | Status::Cancelled);
        let error = if failed { self.job.error.clone() } else { None };
        Some(AttemptRecord {
            attempt: self.job.attempt,
            fence: self.job.fence,
            worker,
            started_at,
            ended_at,
            end,
            error,
        })
    }

    /// How the attempt of this fence ended, as far as is remembered.
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
    /// Its id.
    pub id: ChainId,
    /// Its type.
    pub chain_type: TypeName,
    /// Its place in the order of creation.
    pub seq: u64,
    /// Its key.
    pub key: Option<ChainKey>,
    /// How long it stays.
    pub retention: Retention,
    /// When it was created.
    pub created_at: Timestamp,
    /// When and how it closed.
    pub closed: Option<Closed>,
    /// Its trace context.
    pub trace: Option<TraceContext>,
    /// Its latest job.
    pub latest: JobId,
    /// That job's place in the chain.
    pub latest_index: u32,
    /// Whether jobs that waited for it are still to be resolved.
    pub rippling: bool,
}

impl ChainRow {
    /// Whether it keeps others from being created with its key at this time, if that points at it.
    pub(super) fn holds_key(&self, now: Timestamp) -> bool {
        let Some(key) = &self.key else { return false };
        let within = key.window.is_none_or(|window| now < self.created_at + window);
        within
            && self.closed.is_none_or(|closed| key.hold.holds(closed.closed_as) && now < closed.retain_until)
    }

    /// When a closed chain may leave.
    pub(super) fn leaves_at(&self) -> Option<Timestamp> {
        self.closed.map(|closed| closed.retain_until.max(closed.at + repeat_window()))
    }
}

/// How long anything that ended stays at least.
pub(super) fn repeat_window() -> Millis {
    Millis::new(REPEAT_WINDOW_MS).unwrap_or_default()
}

/// A leader lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRow {
    /// By whom.
    pub token: RequestId,
    /// Until when.
    pub until: Timestamp,
}

/// Any row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// A job.
    Job(Arc<JobRow>),
    /// A chain.
    Chain(Arc<ChainRow>),
    /// A worker that was heard of.
    Worker(Arc<WorkerInfo>),
    /// A leader lock that is held.
    Lock(LockRow),
    /// A type that is paused.
    Paused,
}

/// Names a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RowKey {
    /// A job's.
    Job(JobId),
    /// A chain's.
    Chain(ChainId),
    /// A worker's.
    Worker(WorkerId),
    /// A leader lock's.
    Lock(LockName),
    /// A paused type's.
    Paused(TypeName),
}

/// One row put or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Which row.
    pub key: RowKey,
    /// What it was; none if it did not exist.
    pub before: Option<Row>,
    /// What it is; none if it was deleted.
    pub after: Option<Row>,
}
