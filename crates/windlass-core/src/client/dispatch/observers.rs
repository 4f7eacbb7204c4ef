//! Calls the observers, which may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Dispatcher, REMOVED};
use crate::client::trace::RequestedJob;
use crate::command::{Existing, NewChain};
use crate::error::ErrorKind;
use crate::name::TraceContext;
use crate::observer::{About, AttemptScope, BatchEnd, BatchStart, Frequent, NotWritten, Observer, Traced};
use crate::worker::Few;

impl Dispatcher {
    /// Returns the scopes of an attempt that starts now.
    pub(crate) fn attempt(&self, about: &About) -> Few<Box<dyn AttemptScope>> {
        let mut scopes = Few::default();
        if REMOVED {
            return scopes;
        }
        each_on(&self.added, |observer| scopes.extend(observer.attempt(about)));
        scopes
    }

    /// Notifies the observers of a call that starts several chains. The returned guard must be ended with the call.
    pub(in crate::client) fn batch(&self, chains: &[NewChain]) -> BatchGuard {
        let mut ends = Vec::new();
        if let [first, _, ..] = chains
            && self.is_measured()
        {
            let chain_type = &first.job.job_type;
            let is_one_type = chains.iter().all(|new| new.job.job_type == *chain_type);
            let traces = chains.iter().filter_map(|new| new.trace.as_ref()).collect();
            let chain_type = is_one_type.then_some(chain_type);
            let batch = BatchStart { chains: chains.len(), chain_type, traces };
            each_on(&self.added, |observer| ends.extend(observer.batch(&batch)));
        }
        BatchGuard(ends)
    }

    /// Returns the first trace context that an observer returns. Calls every observer, so that each can begin
    /// its own span.
    pub(in crate::client) fn trace_context(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        let mut answer = None;
        each(&self.added, |observer| {
            let context = observer.trace_context(traced, about);
            answer = answer.take().or(context);
        });
        answer
    }

    /// Notifies the observers that the items they were asked about were not written, or, without a reason, that it is
    /// unknown whether they were.
    pub(in crate::client) fn untrace(&self, job: &RequestedJob, why: Option<NotWritten>) {
        let Some(why) = why else { return self.unreported(job) };
        job.each(|traced, about| each(&self.added, |observer| observer.rolled_back(traced, about, why)));
    }

    /// Notifies the observers that the items they were asked about were not written, because a chain with the same key
    /// exists.
    pub(in crate::client) fn existed(&self, job: &RequestedJob, existing: &Existing) {
        let (chain, trace) = (existing.chain, existing.trace.as_ref());
        job.each(|traced, about| {
            each(&self.added, |observer| observer.existed(traced, about, chain, trace));
        });
    }

    /// Notifies the observers that no event will report the items they were asked about.
    pub(in crate::client) fn unreported(&self, job: &RequestedJob) {
        job.each(|traced, about| each(&self.added, |observer| observer.unreported(traced, about)));
    }
}

/// Ends what the observers began for a call that starts several chains.
#[must_use = "the observers must learn how the call ended"]
pub(in crate::client) struct BatchGuard(Vec<BatchEnd>);

impl BatchGuard {
    pub(in crate::client) fn end(mut self, error: Option<ErrorKind>) {
        for end in self.0.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| end(error)));
        }
    }
}

/// The caller has stopped waiting. What the observers have captured may panic when it is dropped.
impl Drop for BatchGuard {
    fn drop(&mut self) {
        for end in self.0.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(end)));
        }
    }
}

pub(super) type Observers = Arc<[Arc<dyn Observer>]>;

/// Whether an observer wants events. An observer that panics here counts as on: its other panics are caught too.
pub(super) fn is_on(observer: &Arc<dyn Observer>) -> bool {
    catch_unwind(AssertUnwindSafe(|| observer.is_on())).unwrap_or(true)
}

/// Whether an observer reads this event.
pub(super) fn reads(observer: &Arc<dyn Observer>, event: Frequent) -> bool {
    catch_unwind(AssertUnwindSafe(|| observer.wants(event))).unwrap_or(true)
}

/// Calls each observer that wants events.
pub(super) fn each_on(observers: &Observers, mut call: impl FnMut(&dyn Observer)) {
    for observer in observers.iter().filter(|observer| is_on(observer)) {
        let _ = catch_unwind(AssertUnwindSafe(|| call(&**observer)));
    }
}

/// Calls each observer. A panicking observer is ignored.
pub(super) fn each(observers: &Observers, mut call: impl FnMut(&dyn Observer)) {
    for observer in observers.iter() {
        let _ = catch_unwind(AssertUnwindSafe(|| call(&**observer)));
    }
}
