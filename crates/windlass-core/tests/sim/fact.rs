//! The facts that events may announce, one for each event that claims a write.

use windlass_core::{About, ChainId, ClosedAs, Event, JobId, WorkerId};

use super::journal::Ended;

/// A committed fact. Attempts are identified by their number and worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fact {
    ChainCreated(ChainId),
    JobCreated(JobId),
    JobBlocked(JobId),
    JobUnblocked(JobId),
    JobTriggered(JobId),
    AttemptStarted(JobId, u32, WorkerId),
    AttemptFailed(JobId, u32, WorkerId),
    AttemptRescheduled(JobId, u32, WorkerId),
    AttemptReleased(JobId, u32, WorkerId),
    AttemptReaped(JobId, u32, WorkerId),
    JobCompleted(JobId, u32, WorkerId, Option<JobId>),
    JobFailed(JobId, u32, WorkerId),
    JobCancelled(JobId, u32, WorkerId),
    ChainClosed(ChainId, ClosedAs),
    ChainRetried(ChainId),
    ChainDeleted(ChainId),
    ChainExpired(ChainId),
}

impl Fact {
    /// Returns the fact for an attempt that ended.
    pub(crate) fn ended(
        ended: Ended,
        job: JobId,
        attempt: u32,
        worker: WorkerId,
        next: Option<JobId>,
    ) -> Self {
        match ended {
            Ended::Completed | Ended::Continued | Ended::Displaced => {
                Self::JobCompleted(job, attempt, worker, next)
            }
            Ended::Retried => Self::AttemptFailed(job, attempt, worker),
            Ended::Rescheduled => Self::AttemptRescheduled(job, attempt, worker),
            Ended::Released => Self::AttemptReleased(job, attempt, worker),
            Ended::Failed => Self::JobFailed(job, attempt, worker),
            Ended::Cancelled => Self::JobCancelled(job, attempt, worker),
            Ended::Reaped => Self::AttemptReaped(job, attempt, worker),
        }
    }

    /// Returns the fact that an event claims, or `None` if the event claims no write.
    pub(crate) fn claimed(event: &Event) -> Option<Self> {
        let attempt = |about: &About, fact: fn(JobId, u32, WorkerId) -> Self| {
            Some(fact(about.job, about.attempt?, about.worker?))
        };
        match event {
            Event::ChainCreated(about) => Some(Self::ChainCreated(about.chain)),
            Event::JobCreated(about) => Some(Self::JobCreated(about.job)),
            Event::JobBlocked(about) => Some(Self::JobBlocked(about.job)),
            Event::JobUnblocked(about) => Some(Self::JobUnblocked(about.job)),
            Event::JobTriggered(about) => Some(Self::JobTriggered(about.job)),
            Event::AttemptStarted(about) => attempt(about, Self::AttemptStarted),
            Event::AttemptFailed(about, ..) => attempt(about, Self::AttemptFailed),
            Event::AttemptRescheduled(about, _) => attempt(about, Self::AttemptRescheduled),
            Event::AttemptReleased(about) => attempt(about, Self::AttemptReleased),
            Event::AttemptReaped(about) => attempt(about, Self::AttemptReaped),
            Event::JobCompleted(about, next) => {
                Some(Self::JobCompleted(about.job, about.attempt?, about.worker?, *next))
            }
            Event::JobFailed(about, _) => attempt(about, Self::JobFailed),
            Event::JobCancelled(about) => attempt(about, Self::JobCancelled),
            Event::ChainClosed(about, closed_as) => Some(Self::ChainClosed(about.chain, *closed_as)),
            Event::ChainRetried(about) => Some(Self::ChainRetried(about.chain)),
            Event::ChainDeleted(chain, _) => Some(Self::ChainDeleted(*chain)),
            Event::ChainExpired(chain, _) => Some(Self::ChainExpired(*chain)),
            _ => None,
        }
    }
}
