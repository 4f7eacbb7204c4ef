//! How an attempt ended, as middleware and observers see it.

use super::abort::AbortReason;
use crate::command::{Outcome, Settled};
use crate::id::JobId;
use crate::name::ErrorText;
use crate::record::Status;
use crate::time::Timestamp;

/// How an attempt ended, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The job and its chain are completed.
    Completed,
    /// The job is completed, and its chain continues with this job.
    Continued(JobId),
    /// The attempt failed, and the job will be retried.
    Retried {
        /// The error of the attempt.
        error: ErrorText,
        /// When the job is retried.
        at: Timestamp,
    },
    /// The handler or a middleware rescheduled the job. The attempt does not count.
    Rescheduled {
        /// When the job runs again.
        at: Timestamp,
    },
    /// The job and its chain failed, without further attempts.
    Failed {
        /// The reason.
        error: ErrorText,
    },
    /// The job and its chain are cancelled: the chain was asked to stop, and the outcome would have kept it open.
    Cancelled,
    /// The job was requeued because the worker is stopping. The attempt does not count.
    Released,
    /// The attempt no longer held its job, and its outcome was not written.
    Lost(AbortReason),
}

impl Ended {
    /// Whether the job is completed.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Completed | Self::Continued(_))
    }

    /// Returns the error of the attempt, if it failed.
    #[must_use]
    pub const fn error(&self) -> Option<&ErrorText> {
        match self {
            Self::Retried { error, .. } | Self::Failed { error } => Some(error),
            _ => None,
        }
    }

    /// Converts the store's reply to a settlement. Returns `None` if the attempt must be settled again.
    pub(super) fn of(outcome: &Outcome, settled: &Settled) -> Option<Self> {
        let (job, next) = match settled {
            Settled::Applied(applied) => (applied.job, applied.next.map(|next| next.job)),
            Settled::AlreadyApplied(job) => (*job, None),
            Settled::Lost(lost) => return Some(Self::Lost((*lost).into())),
            Settled::Busy | Settled::Refused(_) => return None,
        };
        Some(match (outcome, job.status) {
            (_, Status::Cancelled) => Self::Cancelled,
            // An earlier settlement of the same attempt, whose reply was lost, has completed the job.
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
            (Outcome::Continue { next: continuation, .. }, _) => {
                Self::Continued(next.unwrap_or(continuation.id))
            }
            (Outcome::Complete { .. }, _) => Self::Completed,
        })
    }
}
