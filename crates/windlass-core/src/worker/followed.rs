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
use crate::command::Acquired;
use crate::observer::{About, AttemptScope, Event};
use crate::store::BoxFuture;
use crate::time::Timestamp;

/// An attempt as observers follow it: when it started, and their scopes. Absent if no observer wants events.
pub(crate) struct Followed {
    started_at: Instant,
    /// The attempt as it started.
    about: About,
    /// Whether there may be a subscriber to events.
    is_watched: bool,
    /// How long the handler ran, once it has ended. Its settlement does not count.
    ran: OnceLock<Duration>,
    scopes: Few<Box<dyn AttemptScope>>,
    has_ended: AtomicBool,
}

impl Followed {
    /// Returns the job as events describe it, at this time of the store.
    pub(super) fn about(&self, acquired: &Acquired, at: Timestamp) -> About {
        About {
            at,
            ran: Some(self.ran()),
            job_age: Some(at.since(acquired.job.created_at)),
            chain_age: Some(at.since(acquired.chain_created_at)),
            ..self.about.clone()
        }
    }

    /// Returns how long the handler has run, or how long it ran if it has ended.
    fn ran(&self) -> Duration {
        self.ran.get().copied().unwrap_or_else(|| self.started_at.elapsed())
    }

    fn each(&self, mut call: impl FnMut(&dyn AttemptScope)) {
        for scope in self.scopes.iter() {
            let _ = catch_unwind(AssertUnwindSafe(|| call(&**scope)));
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        while let Some(scope) = self.scopes.pop() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(scope)));
        }
    }
}

impl HeldJob {
    /// Starts to follow the attempt, if an observer wants to.
    pub(super) fn follow(&self, dispatcher: &Dispatcher) {
        let (is_observed, is_watched) = dispatcher.wants_events();
        if !is_observed {
            return;
        }
        let started_at = Instant::now();
        let about = self.about_unfollowed(dispatcher.time().at(started_at));
        let scopes = if dispatcher.is_measured() { dispatcher.attempt(&about) } else { Few::default() };
        let (ran, has_ended) = (OnceLock::new(), AtomicBool::new(false));
        let _ = self.followed.set(Followed { started_at, about, is_watched, ran, scopes, has_ended });
    }

    /// Reports that the attempt started, if an observer follows it.
    pub(super) fn report_start(&self, dispatcher: &Dispatcher) {
        if let Some(followed) = self.followed.get() {
            let about = About { ran: Some(Duration::ZERO), ..followed.about.clone() };
            dispatcher.report(&Event::AttemptStarted(about), followed.is_watched);
        }
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
        let mut entered = Entered(Few::default());
        if let Some(followed) = self.followed.get() {
            followed.each(|scope| entered.0.extend(scope.enter()));
        }
        entered
    }

    /// Notifies the scopes of the end of the attempt.
    pub(super) fn end(&self, dispatcher: &Dispatcher, ended: &Ended) {
        if self.has_scopes() {
            self.end_at(dispatcher.now(), ended);
        }
    }

    /// Notifies the scopes of the end of the attempt at this time of the store.
    pub(super) fn end_at(&self, at: Timestamp, ended: &Ended) {
        let Some(followed) = self.followed.get().filter(|followed| !followed.scopes.is_empty()) else {
            return;
        };
        if !followed.has_ended.swap(true, Ordering::AcqRel) {
            let about = followed.about(&self.acquired, at);
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

/// A list that seldom has more than one item, and needs no allocation for the first one.
pub(crate) struct Few<T> {
    first: Option<T>,
    others: Vec<T>,
}

impl<T> Few<T> {
    pub(crate) fn extend(&mut self, item: Option<T>) {
        match item {
            Some(item) if self.first.is_some() => self.others.push(item),
            Some(item) => self.first = Some(item),
            None => {}
        }
    }

    const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.others)
    }

    /// Removes the last item.
    fn pop(&mut self) -> Option<T> {
        self.others.pop().or_else(|| self.first.take())
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, others: Vec::new() }
    }
}

/// The guards that the scopes set while the attempt is polled. Dropped in reverse order.
pub(super) struct Entered(Few<Box<dyn Any>>);

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
