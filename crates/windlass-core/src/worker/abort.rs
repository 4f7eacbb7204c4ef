use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::task::AbortHandle;
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
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Made when somebody first asks for it: most handlers never do.
    token: OnceLock<CancellationToken>,
}

#[derive(Debug, Default)]
struct State {
    reason: Option<AbortReason>,
    /// What runs the attempt.
    task: Option<AbortHandle>,
    /// Whether the attempt was ended by force.
    is_ended: bool,
}

impl Abort {
    /// Why to stop; none while the attempt may go on. The first reason stays, unless the job is lost later.
    #[must_use]
    pub fn reason(&self) -> Option<AbortReason> {
        self.state().reason
    }

    /// Waits until the attempt is to stop.
    pub async fn wait(&self) -> AbortReason {
        self.token().cancelled().await;
        self.reason().unwrap_or(AbortReason::WorkerStopping)
    }

    /// A token that is cancelled when the attempt is to stop, for calls that take one.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        let token = self.shared.token.get_or_init(CancellationToken::new);
        // The reason may have come before the token, and then nobody else cancels it.
        if self.reason().is_some() {
            token.cancel();
        }
        token
    }

    /// Tells the attempt to stop.
    pub(super) fn abort(&self, reason: AbortReason) {
        let mut state = self.state();
        if state.reason.is_none() || reason.is_lost() {
            state.reason = Some(reason);
        }
        drop(state);
        if let Some(token) = self.shared.token.get() {
            token.cancel();
        }
    }

    /// This task runs the attempt.
    pub(super) fn runs(&self, task: AbortHandle) {
        let mut state = self.state();
        if state.is_ended {
            task.abort();
        }
        state.task = Some(task);
    }

    /// Ends the attempt's task at its next await.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.is_ended = true;
        if let Some(task) = &state.task {
            task.abort();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can panic half-way through a change.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
