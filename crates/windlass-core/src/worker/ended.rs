use super::abort::AbortReason;
use crate::command::{Outcome, Settled};
use crate::id::JobId;
use crate::name::ErrorText;
use crate::record::Status;
use crate::time::Timestamp;

/// How an attempt ended, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The job and its chain are done.
    Completed,
    /// The job is done, and its chain goes on with this one.
    Continued(JobId),
    /// The attempt failed; the job is tried again.
    Retried {
        /// Why it failed.
        error: ErrorText,
        /// When the job is tried again.
        at: Timestamp,
    },
    /// The attempt asked to be run again, and did not count.
    Rescheduled {
        /// When the job is run again.
        at: Timestamp,
    },
    /// The job failed for good.
    Failed {
        /// Why.
        error: ErrorText,
    },
    /// The chain had been asked to stop, and would have gone on.
    Cancelled,
    /// The job was given back, and the attempt did not count.
    Released,
    /// The attempt no longer held its job: nothing of it was written.
    Lost(AbortReason),
}

impl Ended {
    /// Whether the job is done.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Completed | Self::Continued(_))
    }

    /// Why the attempt failed, if it did.
    #[must_use]
    pub const fn error(&self) -> Option<&ErrorText> {
        match self {
            Self::Retried { error, .. } | Self::Failed { error } => Some(error),
            _ => None,
        }
    }

    /// What the store's answer to a settlement says. None if it has to be settled again.
    pub(super) fn of(outcome: &Outcome, settled: &Settled) -> Option<Self> {
        let (job, next) = match settled {
            Settled::Applied(applied) => (applied.job, applied.next.map(|next| next.job)),
            Settled::AlreadyApplied(job) => (*job, None),
            Settled::Lost(lost) => return Some(Self::Lost((*lost).into())),
            Settled::Busy | Settled::Refused(_) => return None,
        };
        Some(match (outcome, job.status) {
            (_, Status::Cancelled) => Self::Cancelled,
            // An earlier write of the same attempt, whose answer was lost, had completed it.
            (Outcome::Retry { .. } | Outcome::Reschedule { .. } | Outcome::Release, Status::Completed) => {
                Self::Completed
            }
            (Outcome::Retry { error, .. } | Outcome::Fail { error, .. }, Status::Failed) => {
                Self::Failed { error: error.clone() }
            }
            (Outcome::Retry { error, .. }, _) => Self::Retried { error: error.clone(), at: job.due_at },
            (Outcome::Fail { error, .. }, _) => Self::Failed { error: error.clone() },
            (Outcome::Reschedule { .. }, _) => Self::Rescheduled { at: job.due_at },
            (Outcome::Release, _) => Self::Released,
            (Outcome::Continue { next: given, .. }, _) => Self::Continued(next.unwrap_or(given.id)),
            (Outcome::Complete { .. }, _) => Self::Completed,
        })
    }
}
