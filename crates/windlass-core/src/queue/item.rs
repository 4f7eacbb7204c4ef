//! A job of a queue, as its handler receives it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::WorkerId;
use crate::name::ErrorText;
use crate::record::Status;
use crate::time::Timestamp;
use crate::worker::{Abort, AnyAttempt};

/// A queue job, as its handler receives it. Cheap to clone.
pub struct Item<P> {
    shared: Arc<Shared<P>>,
}

struct Shared<P> {
    id: String,
    payload: P,
    attempt: AnyAttempt,
}

impl<P> Item<P> {
    pub(super) fn new(payload: P, attempt: AnyAttempt) -> Self {
        // A chain of this type that was started without a key is identified by its chain id.
        let id = attempt.key().map_or_else(|| attempt.job().chain.to_string(), str::to_owned);
        Self { shared: Arc::new(Shared { id, payload, attempt }) }
    }

    /// Returns the id under which the job was enqueued.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &P {
        &self.shared.payload
    }

    /// Returns the number of this attempt, counted from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.any().attempt()
    }

    /// Returns the maximum number of attempts, or `None` if there is no limit.
    #[must_use]
    pub fn max_attempts(&self) -> Option<u32> {
        self.any().job().max_attempts
    }

    /// Returns when the job was enqueued.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        self.any().chain_created_at()
    }

    /// Returns the error of the previous attempt.
    #[must_use]
    pub fn last_error(&self) -> Option<&ErrorText> {
        self.any().job().error.as_ref()
    }

    /// Returns how long the result will be kept.
    #[must_use]
    pub fn result_ttl(&self) -> Duration {
        self.any().retention().completed.into()
    }

    /// Returns how long the error will be kept if the job fails.
    #[must_use]
    pub fn error_ttl(&self) -> Duration {
        self.any().retention().failed.into()
    }

    /// Returns the id of the worker that runs the job.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.any().worker()
    }

    /// Returns the signal that asks the handler to stop, with the reason: for example, the visibility
    /// expired, the job was cancelled, or the consumer is stopping.
    #[must_use]
    pub fn aborted(&self) -> &Abort {
        self.any().aborted()
    }

    /// Whether this is the last allowed attempt: if it fails, the job fails.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.any().is_last_attempt()
    }

    /// Returns the underlying untyped attempt.
    #[must_use]
    pub fn any(&self) -> &AnyAttempt {
        &self.shared.attempt
    }
}

impl<P> Clone for Item<P> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<P> fmt::Debug for Item<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("id", &self.id())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

/// The state of a job in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ItemState {
    /// The job waits for its due time and a free consumer.
    Queued,
    /// A consumer is running the job.
    Processing,
    /// An attempt failed, and the job will be retried.
    Failing,
    /// The job completed, and its result is kept.
    Completed,
    /// The job failed permanently, and its error is kept.
    Failed,
    /// The job was cancelled.
    Cancelled,
}

impl ItemState {
    /// Whether the job has ended.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    pub(super) const fn of(status: Status, has_failed: bool) -> Self {
        match status {
            Status::Blocked | Status::Pending if has_failed => Self::Failing,
            Status::Blocked | Status::Pending => Self::Queued,
            Status::Running => Self::Processing,
            Status::Completed => Self::Completed,
            Status::Failed => Self::Failed,
            Status::Cancelled => Self::Cancelled,
        }
    }
}
