//! An attempt that observers follow.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::any_attempt::HeldJob;
use super::ended::Ended;
use super::hooks::Stage;
use crate::client::Dispatcher;
use crate::observer::AttemptScope;
use crate::store::BoxFuture;

/// What observers follow of an attempt: when it started, and their scopes. Absent if no observer wants events.
pub(crate) struct Followed {
    started_at: Instant,
    waited: Duration,
    /// How long the handler ran, once it has ended. Its settlement does not count.
    ran: OnceLock<Duration>,
    scopes: Vec<Box<dyn AttemptScope>>,
    has_ended: AtomicBool,
}

impl Followed {
    /// Returns how long the job was due before the attempt started.
    pub(super) const fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns how long the handler has run, or how long it ran if it has ended.
    pub(super) fn ran(&self) -> Duration {
        self.ran.get().copied().unwrap_or_else(|| self.started_at.elapsed())
    }

    fn each(&self, mut call: impl FnMut(&dyn AttemptScope)) {
        for scope in &self.scopes {
            let _ = catch_unwind(AssertUnwindSafe(|| call(&**scope)));
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        for scope in self.scopes.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(scope)));
        }
    }
}

impl HeldJob {
    /// Starts to follow the attempt, if an observer wants to.
    pub(super) fn follow(&self, dispatcher: &Dispatcher) {
        if !dispatcher.is_observed() {
            return;
        }
        let now = dispatcher.now();
        let scopes = if dispatcher.is_measured() { dispatcher.attempt(&self.about(now)) } else { Vec::new() };
        let (started_at, waited) = (Instant::now(), self.waited(now));
        let (ran, has_ended) = (OnceLock::new(), AtomicBool::new(false));
        let _ = self.followed.set(Followed { started_at, waited, ran, scopes, has_ended });
    }

    /// Notes that the handler has ended: from here on, the attempt is settled.
    pub(super) fn stop_clock(&self) {
        if let Some(followed) = self.followed.get() {
            followed.ran.get_or_init(|| followed.started_at.elapsed());
        }
    }

    /// Whether an observer follows the attempt with a scope.
    pub(super) fn has_scopes(&self) -> bool {
        self.followed.get().is_some_and(|followed| !followed.scopes.is_empty())
    }

    /// Enters the scopes until the returned values are dropped.
    pub(super) fn enter(&self) -> Entered {
        let mut entered = Entered(Vec::new());
        if let Some(followed) = self.followed.get() {
            followed.each(|scope| entered.0.extend(scope.enter()));
        }
        entered
    }

    /// Notifies the scopes of the end of the attempt.
    pub(super) fn end(&self, dispatcher: &Dispatcher, ended: &Ended) {
        let Some(followed) = self.followed.get().filter(|followed| !followed.scopes.is_empty()) else {
            return;
        };
        if !followed.has_ended.swap(true, Ordering::AcqRel) {
            let about = self.about(dispatcher.now());
            followed.each(|scope| scope.ended(&about, ended));
        }
    }

    /// Notifies the scopes that the handler begins a transaction. The returned guard notifies them of its end.
    pub(super) fn begin_stage(self: &Arc<Self>, stage: Stage) -> StageGuard {
        if !self.has_scopes() {
            return StageGuard(None);
        }
        if let Some(followed) = self.followed.get() {
            followed.each(|scope| scope.began(stage));
        }
        StageGuard(Some((Arc::clone(self), stage)))
    }
}

/// What the scopes set while the attempt is polled. Dropped in reverse order.
pub(super) struct Entered(Vec<Box<dyn Any>>);

impl Drop for Entered {
    fn drop(&mut self) {
        while let Some(entered) = self.0.pop() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(entered)));
        }
    }
}

/// Notifies the scopes of an attempt when a transaction of its handler ends. Default: it was rolled back.
pub(crate) struct StageGuard(Option<(Arc<HeldJob>, Stage)>);

impl StageGuard {
    /// Reports the end of the transaction, and why it was not committed.
    pub(crate) fn close(mut self, error: Option<&str>) {
        self.end(error);
    }

    fn end(&mut self, error: Option<&str>) {
        if let Some((held, stage)) = self.0.take()
            && let Some(followed) = held.followed.get()
        {
            followed.each(|scope| scope.closed(stage, error));
        }
    }
}

impl Drop for StageGuard {
    fn drop(&mut self) {
        self.end(Some("the transaction was rolled back"));
    }
}

impl fmt::Debug for StageGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StageGuard").field(&self.0.as_ref().map(|(_, stage)| stage)).finish()
    }
}

/// The task of an attempt, which enters the scopes around each poll.
pub(super) struct InScopes<T> {
    pub(super) held: Arc<HeldJob>,
    pub(super) task: BoxFuture<'static, T>,
}

impl<T> Future for InScopes<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let held = Arc::clone(&self.held);
        let _entered = held.enter();
        self.task.as_mut().poll(context)
    }
}
