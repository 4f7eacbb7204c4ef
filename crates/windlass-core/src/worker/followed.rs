//! An attempt that observers follow.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::any_attempt::HeldJob;
use super::ended::Ended;
use super::hooks::Stage;
use crate::client::{Dispatcher, Wanted};
use crate::command::Acquired;
use crate::observer::{About, AttemptScope, Described, Event, Frequent};
use crate::store::BoxFuture;
use crate::time::Timestamp;

/// The handler has not ended.
const RUNS: u64 = u64::MAX;

/// An attempt as observers follow it: when it started, and their scopes. Absent if no observer wants events.
pub(crate) struct Followed {
    started_at: Instant,
    /// How long the job was due before.
    waited: Duration,
    wanted: Wanted,
    /// How long the handler ran, in nanoseconds, once it has ended. Its settlement does not count. [`RUNS`] before.
    ran: AtomicU64,
    scopes: Few<Box<dyn AttemptScope>>,
    has_ended: AtomicBool,
}

impl Followed {
    /// Returns how long the handler has run, or how long it ran if it has ended.
    fn ran(&self) -> Duration {
        match self.ran.load(Ordering::Relaxed) {
            RUNS => self.started_at.elapsed(),
            ran => Duration::from_nanos(ran),
        }
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
    /// Returns the job as events describe it, at this time of the store.
    pub(crate) fn about(&self, at: Timestamp) -> About {
        let Acquired { job, key, chain_trace, chain_created_at, .. } = &self.acquired;
        let mut about = About::reuse(
            at,
            &Described {
                job: job.id,
                job_type: &job.job_type,
                chain: job.chain,
                chain_type: &job.chain_type,
                key: key.as_ref(),
                attempt: Some((job.attempt, job.fence.acquired_since(job.created_at))),
                worker: Some(&self.worker),
                trace: job.trace.as_ref(),
                chain_trace: chain_trace.as_ref(),
            },
        );
        (about.waited, about.ran) = match self.followed.get() {
            Some(followed) => (Some(followed.waited), Some(followed.ran())),
            None => (Some(at.since(job.due_at)), None),
        };
        about.job_age = Some(at.since(job.created_at));
        about.chain_age = Some(at.since(*chain_created_at));
        if !job.blockers.is_empty() {
            let waits = job.blockers.iter().filter_map(|blocker| blocker.trace.clone());
            about.shared_mut().wait_traces.extend(waits);
        }
        about
    }

    /// Like [`about`](Self::about), for the result of a settlement.
    ///
    /// A handler that blocks may complete its job after its lease has ended, while nobody has requeued the job. Its
    /// scopes have ended by then, so they do not learn of the completion. The description then has no worker. Observers
    /// that rely on scopes therefore count this event.
    pub(super) fn about_settled(&self, at: Timestamp) -> About {
        let mut about = self.about(at);
        let has_ended = |followed: &Followed| followed.has_ended.load(Ordering::Acquire);
        if self.has_scopes() && self.followed.get().is_some_and(has_ended) {
            let shared = about.shared_mut();
            (shared.worker, shared.worker_name) = (None, None);
        }
        about
    }

    /// Starts to follow the attempt, if an observer wants to.
    pub(super) fn follow(&self, dispatcher: &Dispatcher, wanted: Wanted) {
        if !wanted.is_any() {
            return;
        }
        let started_at = Instant::now();
        let about = self.about(dispatcher.time().at(started_at));
        let waited = about.waited.unwrap_or_default();
        let scopes = dispatcher.attempt(&about);
        about.keep();
        let (ran, has_ended) = (AtomicU64::new(RUNS), AtomicBool::new(false));
        let _ = self.followed.set(Followed { started_at, waited, wanted, ran, scopes, has_ended });
    }

    /// Reports that the attempt started, if an observer reads this event.
    pub(super) fn report_start(&self, dispatcher: &Dispatcher) {
        if let Some(followed) = self.followed.get()
            && dispatcher.wants(Frequent::AttemptStarted, followed.wanted)
        {
            let at = dispatcher.time().at(followed.started_at);
            let about = About { ran: Some(Duration::ZERO), ..self.about(at) };
            dispatcher.report(&Event::AttemptStarted(about), followed.wanted);
        }
    }

    /// Notes that the handler has ended: from here on, the attempt is settled.
    pub(super) fn stop_clock(&self) {
        if let Some(followed) = self.followed.get() {
            let ran = u64::try_from(followed.started_at.elapsed().as_nanos()).unwrap_or(RUNS - 1);
            // Only the first end counts.
            let _ = followed.ran.compare_exchange(RUNS, ran, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether an observer follows the attempt with a scope.
    pub(super) fn has_scopes(&self) -> bool {
        self.followed.get().is_some_and(|followed| !followed.scopes.is_empty())
    }

    /// Calls `poll` within the scopes.
    pub(super) fn within<T>(&self, poll: impl FnOnce() -> T) -> T {
        let Some(followed) = self.followed.get() else { return poll() };
        let (mut poll, mut polled) = (Some(poll), None);
        nest(&mut followed.scopes.iter(), &mut || {
            if let Some(poll) = poll.take() {
                polled = Some(catch_unwind(AssertUnwindSafe(poll)));
            }
        });
        match (polled, poll) {
            (Some(Ok(polled)), _) => polled,
            (Some(Err(panic)), _) => resume_unwind(panic),
            // A scope panicked before its call, or did not call.
            (None, Some(poll)) => poll(),
            (None, None) => unreachable!("`poll` is taken only to call it"),
        }
    }

    /// Notifies the scopes of the end of the attempt.
    pub(super) fn end(&self, dispatcher: &Dispatcher, ended: &Ended) {
        if self.has_scopes() {
            let about = self.about(dispatcher.now());
            self.end_as(&about, ended);
            about.keep();
        }
    }

    /// Notifies the scopes of the end of the attempt, which `about` describes.
    pub(super) fn end_as(&self, about: &About, ended: &Ended) {
        if let Some(followed) = self.followed.get()
            && !followed.scopes.is_empty()
            && !followed.has_ended.swap(true, Ordering::AcqRel)
        {
            followed.each(|scope| scope.ended(about, ended));
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

/// Calls `poll` within these scopes: the first one is the outermost.
fn nest(scopes: &mut dyn Iterator<Item = &Box<dyn AttemptScope>>, poll: &mut dyn FnMut()) {
    match scopes.next() {
        Some(scope) => {
            let _ = catch_unwind(AssertUnwindSafe(|| scope.within(&mut || nest(scopes, poll))));
        }
        None => poll(),
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
        let Self { held, task } = &mut *self;
        held.within(|| task.as_mut().poll(context))
    }
}
