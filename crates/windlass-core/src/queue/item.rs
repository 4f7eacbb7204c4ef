use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::WorkerId;
use crate::name::ErrorText;
use crate::record::Status;
use crate::time::Timestamp;
use crate::worker::{Abort, AnyAttempt, BoxError};

/// A job of a queue, as its handler gets it. Cheap to clone.
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
        // A chain of the queue's type that was started without a key has its own id.
        let id = attempt.key().map_or_else(|| attempt.job().chain.to_string(), str::to_owned);
        Self { shared: Arc::new(Shared { id, payload, attempt }) }
    }

    /// The id that it was enqueued under.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// What it was enqueued with.
    #[must_use]
    pub fn payload(&self) -> &P {
        &self.shared.payload
    }

    /// The number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.any().attempt()
    }

    /// After so many attempts a failure is final; no limit if none.
    #[must_use]
    pub fn max_attempts(&self) -> Option<u32> {
        self.any().job().max_attempts
    }

    /// When it was enqueued.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        self.any().chain_created_at()
    }

    /// The error of the attempt before.
    #[must_use]
    pub fn last_error(&self) -> Option<&ErrorText> {
        self.any().job().error.as_ref()
    }

    /// How long its result will be kept.
    #[must_use]
    pub fn result_ttl(&self) -> Duration {
        self.any().retention().completed.into()
    }

    /// How long its error will be kept if it fails.
    #[must_use]
    pub fn error_ttl(&self) -> Duration {
        self.any().retention().failed.into()
    }

    /// The worker that runs it.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.any().worker()
    }

    /// Tells when to stop, and why: its visibility is over, it is cancelled, the consumer stops.
    #[must_use]
    pub fn aborted(&self) -> &Abort {
        self.any().aborted()
    }

    /// Whether a failure of this attempt is final.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.max_attempts().is_some_and(|max| self.attempt() >= max)
    }

    /// The attempt as the worker has it.
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

/// Where a job of a queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ItemState {
    /// It waits for its time and a free consumer.
    Queued,
    /// A consumer has it.
    Processing,
    /// It failed and will be tried again.
    Failing,
    /// It is done, and its result is kept.
    Completed,
    /// It failed for good, and its error is kept.
    Failed,
    /// It was called off.
    Cancelled,
}

impl ItemState {
    /// Whether it has ended.
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

/// An error that is final: a handler that returns it is not tried again.
///
/// ```
/// use windlass_core::BoxError;
/// use windlass_core::queue::{Fatal, Item};
///
/// async fn divide(item: Item<(u32, u32)>) -> Result<u32, BoxError> {
///     let (dividend, divisor) = *item.payload();
///     Ok(dividend.checked_div(divisor).ok_or_else(|| Fatal::new("nobody can divide by zero"))?)
/// }
/// ```
#[derive(Debug)]
pub struct Fatal(BoxError);

impl Fatal {
    /// Makes an error final.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Fatal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
