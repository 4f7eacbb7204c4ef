use schemars::JsonSchema;
use serde::Serialize;
use windlass_core::{AttemptEnd, AttemptRecord, JobRecord};

use super::{Chain, State, Time};
use crate::payload::{Content, Errors, Sight};

/// A job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) chain: String,
    /// Its position in the chain, starting at 0.
    pub(crate) index: u32,
    #[serde(rename = "type")]
    pub(crate) job_type: String,
    pub(crate) chain_type: String,
    /// `blocked`, `pending`, `running`, `completed`, `failed` or `cancelled`.
    pub(crate) status: State,
    /// The most specific state.
    pub(crate) state: State,
    pub(crate) priority: i8,
    /// The number of the latest attempt. 0 before the first one.
    pub(crate) attempt: u32,
    pub(crate) max_attempts: Option<u32>,
    /// The number of changes to the job.
    pub(crate) version: u64,
    pub(crate) due_at: Time,
    pub(crate) created_at: Time,
    pub(crate) started_at: Option<Time>,
    pub(crate) closed_at: Option<Time>,
    /// The worker whose attempt closed the job.
    pub(crate) closed_by: Option<String>,
    /// The worker that holds the lease.
    pub(crate) worker: Option<String>,
    pub(crate) worker_name: Option<String>,
    pub(crate) leased_until: Option<Time>,
    pub(crate) cancel_requested: bool,
    /// The chains that the job waits or waited for.
    pub(crate) blockers: Vec<Blocker>,
    /// The latest error, if the caller may see it.
    pub(crate) error: Option<String>,
    /// Whether the job has an error that the caller may not see.
    pub(crate) error_hidden: bool,
    pub(crate) input: Content,
    pub(crate) output: Option<Content>,
}

/// A chain that a job waits or waited for.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Blocker {
    pub(crate) chain: String,
    /// Whether the job no longer waits for it.
    pub(crate) resolved: bool,
}

/// One page of jobs.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct JobPage {
    pub(crate) jobs: Vec<Job>,
    /// The cursor of the next page, for the parameter `after`. `null` on the last page. A page may be short, or even empty,
    /// without being the last one.
    pub(crate) next: Option<String>,
}

/// A job with its attempts and blockers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct JobDetails {
    #[serde(flatten)]
    pub(crate) job: Job,
    /// Its latest attempts, oldest first.
    pub(crate) attempts: Vec<Attempt>,
    /// The chains that it waits or waited for, if they are still stored.
    pub(crate) blocker_chains: Vec<Chain>,
    /// Why the job does not run, if it is open and should.
    pub(crate) why: Vec<String>,
}

/// An attempt of a job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Attempt {
    pub(crate) attempt: u32,
    pub(crate) worker: String,
    pub(crate) worker_name: Option<String>,
    pub(crate) started_at: Time,
    pub(crate) ended_at: Option<Time>,
    pub(crate) end: End,
    pub(crate) error: Option<String>,
    pub(crate) error_hidden: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum End {
    Running,
    Completed,
    Continued,
    Retried,
    Rescheduled,
    Failed,
    Exhausted,
    Released,
    Reaped,
    Cancelled,
    Displaced,
}

impl Job {
    pub(crate) fn of(job: &JobRecord, sight: Sight<'_>) -> Self {
        Self::with_errors(job, sight, &sight.errors_of_job(job))
    }

    /// Like [`of`](Self::of), with the errors of the job as the caller sees them.
    pub(crate) fn with_errors(job: &JobRecord, sight: Sight<'_>, errors: &Errors<'_>) -> Self {
        let lease = job.lease.as_ref();
        let error = job.error.as_ref().and_then(|error| errors.show(error.as_str()));
        Self {
            id: job.id.to_string(),
            chain: job.chain.to_string(),
            index: job.index,
            job_type: job.job_type.to_string(),
            chain_type: job.chain_type.to_string(),
            status: job.status.into(),
            state: State::of(job),
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            version: job.version.0,
            due_at: job.due_at.into(),
            created_at: job.created_at.into(),
            started_at: job.started_at.map(Time::from),
            closed_at: job.closed_at.map(Time::from),
            closed_by: job.closed_by.map(|worker| worker.to_string()),
            worker: lease.map(|lease| lease.worker.to_string()),
            worker_name: lease.and_then(|lease| lease.worker_name.as_ref()).map(ToString::to_string),
            leased_until: lease.map(|lease| lease.until.into()),
            cancel_requested: job.cancel_requested,
            blockers: job.blockers.iter().map(Blocker::from).collect(),
            error_hidden: job.error.is_some() && error.is_none(),
            error,
            input: sight.content(&job.input),
            output: job.output.as_ref().map(|output| sight.content(output)),
        }
    }
}

impl From<&windlass_core::Blocker> for Blocker {
    fn from(blocker: &windlass_core::Blocker) -> Self {
        Self { chain: blocker.chain.to_string(), resolved: blocker.resolved }
    }
}

impl Attempt {
    /// Returns an attempt, with the errors of its job as the caller sees them.
    pub(crate) fn of(attempt: &AttemptRecord, errors: &Errors<'_>) -> Self {
        let error = attempt.error.as_ref().and_then(|error| errors.show(error.as_str()));
        Self {
            attempt: attempt.attempt,
            worker: attempt.worker.to_string(),
            worker_name: attempt.worker_name.as_ref().map(ToString::to_string),
            started_at: attempt.started_at.into(),
            ended_at: attempt.ended_at.map(Time::from),
            end: attempt.end.into(),
            error_hidden: attempt.error.is_some() && error.is_none(),
            error,
        }
    }
}

impl From<AttemptEnd> for End {
    fn from(end: AttemptEnd) -> Self {
        match end {
            AttemptEnd::Running => Self::Running,
            AttemptEnd::Completed => Self::Completed,
            AttemptEnd::Continued => Self::Continued,
            AttemptEnd::Retried => Self::Retried,
            AttemptEnd::Rescheduled => Self::Rescheduled,
            AttemptEnd::Failed => Self::Failed,
            AttemptEnd::Exhausted => Self::Exhausted,
            AttemptEnd::Released => Self::Released,
            AttemptEnd::Reaped => Self::Reaped,
            AttemptEnd::Cancelled => Self::Cancelled,
            AttemptEnd::Displaced => Self::Displaced,
        }
    }
}
