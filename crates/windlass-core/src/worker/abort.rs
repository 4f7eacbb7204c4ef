//! Asks attempts to stop, and aborts the tasks of those that do not.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::command::Lost;
use crate::record::ClosedAs;

/// Why an attempt is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AbortReason {
    /// Another attempt holds the job, or the job was requeued because the lease had expired.
    TakenOver,
    /// The job was closed from outside or by another attempt.
    AlreadyClosed,
    /// The job was deleted.
    NotFound,
    /// The chain was asked to stop.
    Cancelled,
    /// The timeout of the handler or its job type has passed. The lease is no longer renewed.
    TimedOut,
    /// The lease could not be renewed in time.
    StoreError,
    /// The worker is stopping. Jobs that are still running at its deadline are requeued, and their attempts do not
    /// count.
    WorkerStopping,
}

impl AbortReason {
    /// Whether the attempt no longer holds its job, so that its outcome is discarded.
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

/// A signal that asks an attempt to stop, with the reason. All clones share the same signal.
#[derive(Clone)]
pub struct Abort {
    owner: Arc<dyn Abortable>,
}

/// Has the state of an [`Abort`].
pub(super) trait Abortable: Send + Sync {
    fn signal(&self) -> &AbortSignal;
}

/// The state of an [`Abort`]. It is a part of the job that a worker holds, which saves an allocation for each attempt.
#[derive(Debug, Default)]
pub(super) struct AbortSignal {
    state: Mutex<State>,
    /// Created on first use: most handlers never use it.
    token: OnceLock<CancellationToken>,
}

#[derive(Debug, Default)]
struct State {
    reason: Option<AbortReason>,
    /// The task that runs the attempt.
    task: Option<AbortHandle>,
    /// Whether the task was aborted, or is to be aborted as soon as it is known.
    is_ended: bool,
}

impl Abort {
    pub(super) const fn of(owner: Arc<dyn Abortable>) -> Self {
        Self { owner }
    }

    /// Returns why the attempt should stop, or `None` while it may continue.
    ///
    /// The first reason is kept, unless the attempt loses its job later. The reason for that loss replaces
    /// it.
    #[must_use]
    pub fn reason(&self) -> Option<AbortReason> {
        self.owner.signal().reason()
    }

    /// Waits until the attempt is asked to stop. Returns the reason.
    pub async fn wait(&self) -> AbortReason {
        self.token().cancelled().await;
        self.reason().unwrap_or(AbortReason::WorkerStopping)
    }

    /// Returns a token that is cancelled when the attempt is asked to stop, for APIs that take one.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        let token = self.owner.signal().token.get_or_init(CancellationToken::new);
        // `abort` sets the reason first, then cancels the token if there is one. Checking the reason after
        // the token exists covers an abort that ran before and found no token.
        if self.reason().is_some() {
            token.cancel();
        }
        token
    }
}

impl Default for Abort {
    fn default() -> Self {
        Self { owner: Arc::new(AbortSignal::default()) }
    }
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abort").field("reason", &self.reason()).finish_non_exhaustive()
    }
}

impl Abortable for AbortSignal {
    fn signal(&self) -> &Self {
        self
    }
}

impl AbortSignal {
    pub(super) fn reason(&self) -> Option<AbortReason> {
        self.state().reason
    }

    /// Asks the attempt to stop.
    pub(super) fn abort(&self, reason: AbortReason) {
        let mut state = self.state();
        if state.reason.is_none() || reason.is_lost() {
            state.reason = Some(reason);
        }
        drop(state);
        if let Some(token) = self.token.get() {
            token.cancel();
        }
    }

    /// Sets the task that runs the attempt. Aborts it if `end` was called before.
    pub(super) fn runs(&self, task: AbortHandle) {
        let mut state = self.state();
        if state.is_ended {
            task.abort();
        }
        state.task = Some(task);
    }

    /// Sets the task that will run the attempt. Returns the task if `end` was called before.
    pub(super) fn takes(&self, task: AbortHandle) -> Result<(), AbortHandle> {
        let mut state = self.state();
        if state.is_ended {
            return Err(task);
        }
        state.task = Some(task);
        Ok(())
    }

    /// Takes the task back, before it runs another attempt. Returns `None` if it was aborted. Afterwards, `end` aborts
    /// nothing.
    pub(super) fn returns(&self) -> Option<AbortHandle> {
        let mut state = self.state();
        let task = state.task.take();
        task.filter(|_| !state.is_ended)
    }

    /// Aborts the attempt's task, which ends at its next await.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.is_ended = true;
        if let Some(task) = &state.task {
            task.abort();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics halfway through a change while it holds this lock, so poisoning can be ignored.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_task_that_was_returned_is_not_aborted() {
        let (signal, task) = (AbortSignal::default(), tokio::spawn(pending::<()>()));
        signal.takes(task.abort_handle()).unwrap();
        let returned = signal.returns().unwrap();
        signal.end();
        tokio::task::yield_now().await;
        assert!(!task.is_finished(), "it may run another attempt");
        let other = AbortSignal::default();
        other.takes(returned).unwrap();
        other.end();
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(other.returns().is_none(), "an aborted task runs no other attempt");
    }

    #[tokio::test]
    async fn an_attempt_that_was_ended_takes_no_task() {
        let (signal, task) = (AbortSignal::default(), tokio::spawn(pending::<()>()));
        signal.end();
        let refused = signal.takes(task.abort_handle()).unwrap_err();
        tokio::task::yield_now().await;
        assert!(!refused.is_finished(), "it may run another attempt");
        signal.runs(refused);
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
