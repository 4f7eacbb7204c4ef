use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::command::Lost;
use crate::record::ClosedAs;

/// Why an attempt is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AbortReason {
    /// Another attempt holds the job, or it was put back because the lease had expired.
    TakenOver,
    /// The job was closed from outside or by another attempt.
    AlreadyClosed,
    /// The job was deleted.
    NotFound,
    /// The chain was asked to stop.
    Cancelled,
    /// The type's timeout is over. The lease is renewed no longer.
    TimedOut,
    /// The lease could not be renewed in time.
    StoreError,
    /// The worker is stopping. What is left at its deadline is given back, uncounted.
    WorkerStopping,
}

impl AbortReason {
    /// Whether the attempt no longer holds its job, so that nothing it does counts.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        matches!(self, Self::TakenOver | Self::AlreadyClosed | Self::NotFound)
    }
}

impl From<Lost> for AbortReason {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::NotFound => Self::NotFound,
            Lost::Requeued | Lost::TakenOver => Self::TakenOver,
            Lost::Closed(ClosedAs::Cancelled) => Self::Cancelled,
            Lost::Closed(_) => Self::AlreadyClosed,
        }
    }
}

/// Tells an attempt to stop, and why. Clones tell the same.
#[derive(Clone, Debug, Default)]
pub struct Abort {
    token: CancellationToken,
    reason: Arc<Mutex<Option<AbortReason>>>,
}

impl Abort {
    /// Why to stop; none while the attempt may go on. The first reason stays, unless the job is lost later.
    #[must_use]
    pub fn reason(&self) -> Option<AbortReason> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the attempt is to stop.
    pub async fn wait(&self) -> AbortReason {
        self.token.cancelled().await;
        self.reason().unwrap_or(AbortReason::WorkerStopping)
    }

    /// A token that is cancelled when the attempt is to stop, for calls that take one.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Tells the attempt to stop.
    pub(crate) fn abort(&self, reason: AbortReason) {
        let mut current = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if current.is_none() || reason.is_lost() {
            *current = Some(reason);
        }
        drop(current);
        self.token.cancel();
    }
}
