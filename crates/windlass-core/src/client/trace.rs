//! Requests trace contexts from the observers before a write.

use std::sync::Weak;

use super::Dispatcher;
use crate::command::{Created, Existing, NewChain, NewJob, NextJob, Outcome, Settled, Step};
use crate::id::ChainId;
use crate::name::TraceContext;
use crate::observer::{About, Traced};

/// The items for which trace contexts were requested. The observers are notified of those for which no event follows.
///
/// Dropped if the caller stops waiting for the reply. It is then unknown whether the items are written.
#[derive(Debug, Default)]
#[must_use = "the observers must learn what became of the items"]
pub(crate) struct RequestedTraces {
    items: Vec<(Traced, About)>,
    dispatcher: Weak<Dispatcher>,
}

/// A chain for which no event follows, and why.
pub(super) type Unreported<'a> = (ChainId, Why<'a>);

/// Why no event follows for a chain.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why<'a> {
    /// Another chain holds the key.
    Existed(&'a Existing),
    /// The chain was refused, or a row of it stayed locked.
    Refused,
    /// An earlier call had created it.
    Repeated,
}

impl RequestedTraces {
    /// Returns the items. Dropping them notifies nobody.
    pub(super) fn into_items(mut self) -> Vec<(Traced, About)> {
        std::mem::take(&mut self.items)
    }
}

impl Drop for RequestedTraces {
    fn drop(&mut self) {
        if !self.items.is_empty()
            && let Some(dispatcher) = self.dispatcher.upgrade()
        {
            self.items.iter().for_each(|(traced, about)| dispatcher.unreported(*traced, about));
        }
    }
}

impl<'a> Why<'a> {
    /// Returns why no event follows, or `None` if this call has created the chain.
    pub(super) const fn of(created: &'a Created) -> Option<Self> {
        match created {
            Created::New { repeated: false, .. } => None,
            Created::New { repeated: true, .. } => Some(Self::Repeated),
            Created::Existing(existing) => Some(Self::Existed(existing)),
            Created::Busy | Created::Refused(_) => Some(Self::Refused),
        }
    }
}

/// Returns the chains that were not created by this call.
pub(super) fn not_created<'a>(chains: &[NewChain], created: &'a [Created]) -> Vec<Unreported<'a>> {
    let why = |(new, created): (&NewChain, &'a Created)| Some((new.id, Why::of(created)?));
    chains.iter().zip(created).filter_map(why).collect()
}

impl Dispatcher {
    /// Fills the missing trace contexts of chains to create.
    pub(super) fn request_traces(&self, chains: &mut [NewChain]) -> RequestedTraces {
        let mut traces = self.no_traces();
        if self.is_observed() {
            chains.iter_mut().for_each(|new| self.fill_chain(new, &mut traces));
        }
        traces
    }

    /// Fills the missing trace contexts of the jobs and chains that the end of an attempt creates.
    /// Most outcomes create nothing: then neither the observers nor `about` are called.
    pub(crate) fn request_outcome_traces(
        &self,
        outcome: &mut Outcome,
        about: impl FnOnce() -> About,
    ) -> RequestedTraces {
        let (next, create) = match outcome {
            Outcome::Complete { create, .. } if !create.is_empty() => (None, create),
            Outcome::Continue { next, create } => (Some(next), create),
            _ => return RequestedTraces::default(),
        };
        let mut traces = self.no_traces();
        if self.is_observed() {
            self.fill_end(next, create, &about(), &mut traces);
        }
        traces
    }

    /// Fills the missing trace contexts of the jobs and chains that a completion from outside creates.
    pub(super) fn request_step_traces(&self, steps: &mut [Step], about: &About) -> RequestedTraces {
        let mut traces = self.no_traces();
        if self.is_observed() {
            // Each step continues the job of the step before.
            let mut about = about.clone();
            for step in steps {
                match step {
                    Step::Complete { create, .. } => self.fill_end(None, create, &about, &mut traces),
                    Step::Continue { next, create } => {
                        self.fill_end(Some(next), create, &about, &mut traces);
                        about.job = next.id;
                        about.job_type.clone_from(&next.job.job_type);
                        about.trace.clone_from(&next.job.trace);
                    }
                    Step::Fail { .. } => {}
                }
            }
        }
        traces
    }

    /// Notifies the observers that none of the items were written.
    pub(crate) fn rolled_back(&self, traces: RequestedTraces) {
        traces.into_items().iter().for_each(|(traced, about)| self.untrace(*traced, about));
    }

    /// Notifies the observers of the items of chains in `missing`. Returns the other items.
    pub(super) fn retain_written(
        &self,
        mut traces: RequestedTraces,
        missing: &[Unreported<'_>],
    ) -> RequestedTraces {
        traces.items.retain(|(traced, about)| !self.is_missing(*traced, about, missing));
        traces
    }

    /// Whether the item's chain is in `missing`. If so, notifies the observers.
    pub(super) fn is_missing(&self, traced: Traced, about: &About, missing: &[Unreported<'_>]) -> bool {
        let Some((_, why)) = missing.iter().find(|(chain, _)| *chain == about.chain) else { return false };
        match why {
            Why::Existed(existing) => self.existed(traced, about, existing),
            Why::Refused => self.untrace(traced, about),
            Why::Repeated => self.unreported(traced, about),
        }
        true
    }

    /// Notifies the observers of the items for which no event follows, after the end of an attempt has been stored and
    /// announced.
    pub(crate) fn settled(&self, traces: RequestedTraces, outcome: &Outcome, settled: &Settled) {
        match settled {
            Settled::Applied(applied) => {
                let missing = not_created(outcome.carried(), &applied.created);
                drop(self.retain_written(traces, &missing).into_items());
            }
            // The reply of the first call was lost, and with it which of the chains are new.
            _ => drop(traces),
        }
    }

    fn no_traces(&self) -> RequestedTraces {
        RequestedTraces { items: Vec::new(), dispatcher: self.weak() }
    }

    fn fill_end(
        &self,
        next: Option<&mut NextJob>,
        create: &mut [NewChain],
        about: &About,
        traces: &mut RequestedTraces,
    ) {
        create.iter_mut().for_each(|new| self.fill_chain(new, traces));
        if let Some(next) = next {
            let mut planned = About::new(
                about.at,
                (next.id, next.job.job_type.clone()),
                (about.chain, about.chain_type.clone()),
            );
            planned.chain_trace.clone_from(&about.chain_trace);
            planned.cause_traces.extend(about.trace.clone());
            self.fill_job(&mut next.job, planned, traces);
        }
    }

    fn fill_chain(&self, new: &mut NewChain, traces: &mut RequestedTraces) {
        let job_type = &new.job.job_type;
        let mut about =
            About::new(self.now(), (new.id.first_job(), job_type.clone()), (new.id, job_type.clone()));
        self.fill(&mut new.trace, Traced::Chain, &about, traces);
        about.chain_trace.clone_from(&new.trace);
        self.fill_job(&mut new.job, about, traces);
    }

    fn fill_job(&self, job: &mut NewJob, mut about: About, traces: &mut RequestedTraces) {
        self.fill(&mut job.trace, Traced::Job, &about, traces);
        about.trace.clone_from(&job.trace);
        for blocker in &mut job.blockers {
            self.fill(&mut blocker.trace, Traced::Wait(blocker.chain), &about, traces);
        }
    }

    fn fill(
        &self,
        trace: &mut Option<TraceContext>,
        traced: Traced,
        about: &About,
        traces: &mut RequestedTraces,
    ) {
        if trace.is_none() {
            *trace = self.trace_context(traced, about);
            // Even without a context: the observers were called, and must be notified if the item is not
            // written.
            traces.items.push((traced, about.clone()));
        }
    }
}
