//! Requests trace contexts from the observers before a write.

use std::sync::{Arc, Weak};

use super::Dispatcher;
use crate::command::{Created, Existing, NewChain, NewJob, NextJob, Outcome, Settled, Step};
use crate::error::ErrorKind;
use crate::id::{ChainId, JobId};
use crate::name::{TraceContext, TypeName};
use crate::observer::{About, AboutJob, NotWritten, Traced};
use crate::time::Timestamp;

/// The items for which trace contexts were requested. The observers are notified of those for which no event follows.
///
/// Dropped if the caller stops waiting for the reply. It is then unknown whether the items are written.
#[derive(Debug, Default)]
#[must_use = "the observers must learn what became of the items"]
pub(crate) struct RequestedTraces {
    jobs: Vec<Requested>,
    /// The types of the jobs and of their chains. Most calls have one pair.
    types: Vec<(TypeName, TypeName)>,
    dispatcher: Weak<Dispatcher>,
}

/// A job for which trace contexts were requested.
#[derive(Debug)]
pub(crate) struct RequestedJob {
    requested: Requested,
    types: (TypeName, TypeName),
}

/// A job for which trace contexts were requested, without its types. Most are written, and then nobody reads this: so it is
/// small, and cheap to make.
#[derive(Debug)]
struct Requested {
    at: Timestamp,
    job: JobId,
    chain: ChainId,
    /// The position of its types.
    types: usize,
    /// Whether a context was requested for the chain that the job starts.
    has_chain: bool,
    /// Whether a context was requested for the job itself.
    has_job: bool,
    /// The chains whose waits a context was requested for.
    waits: Vec<ChainId>,
}

/// A chain for which no event follows, and why.
pub(super) type Unreported<'a> = (ChainId, Why<'a>);

/// Why no event follows for a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Why<'a> {
    /// Another chain holds the key.
    Existed(&'a Existing),
    /// The chain was not written.
    NotWritten(NotWritten),
    /// An earlier call had created it, or it is unknown whether it was written.
    Unreported,
}

impl RequestedTraces {
    /// Forgets the jobs. Sends no notification.
    pub(super) fn forget(mut self) {
        self.jobs.clear();
    }

    /// Returns the jobs. Dropping them sends no notification.
    pub(super) fn into_jobs(mut self) -> Vec<RequestedJob> {
        let jobs = std::mem::take(&mut self.jobs);
        jobs.into_iter().filter_map(|requested| self.with_types(requested)).collect()
    }

    fn with_types(&self, requested: Requested) -> Option<RequestedJob> {
        let types = self.types.get(requested.types)?.clone();
        Some(RequestedJob { requested, types })
    }

    /// Adds a job. Nothing has been requested for it yet.
    fn plan(&mut self, about: &About) -> Requested {
        let is_new =
            |(job, chain): &(TypeName, TypeName)| *job != about.job_type || *chain != about.chain_type;
        if self.types.last().is_none_or(is_new) {
            self.types.push((about.job_type.clone(), about.chain_type.clone()));
        }
        Requested {
            at: about.at,
            job: about.job,
            chain: about.chain,
            types: self.types.len() - 1,
            has_chain: false,
            has_job: false,
            waits: Vec::new(),
        }
    }
}

impl RequestedJob {
    /// Calls `call` with each item, in the order of the requests.
    pub(super) fn each(&self, mut call: impl FnMut(Traced, &About)) {
        let Requested { at, job, chain, has_chain, has_job, waits, .. } = &self.requested;
        let (job_type, chain_type) = self.types.clone();
        let about = About::new(*at, Arc::new(AboutJob::new((*job, job_type), (*chain, chain_type))));
        let chain = has_chain.then_some(Traced::Chain);
        let job = has_job.then_some(Traced::Job);
        let waits = waits.iter().map(|chain| Traced::Wait(*chain));
        chain.into_iter().chain(job).chain(waits).for_each(|traced| call(traced, &about));
    }
}

impl Requested {
    const fn is_empty(&self) -> bool {
        !self.has_chain && !self.has_job && self.waits.is_empty()
    }
}

impl Drop for RequestedTraces {
    fn drop(&mut self) {
        if !self.jobs.is_empty()
            && let Some(dispatcher) = self.dispatcher.upgrade()
        {
            for job in std::mem::take(&mut self.jobs) {
                self.with_types(job).iter().for_each(|job| dispatcher.unreported(job));
            }
        }
    }
}

impl<'a> Why<'a> {
    /// Returns why no event follows, or `None` if this call has created the chain.
    pub(super) const fn of(created: &'a Created) -> Option<Self> {
        match created {
            Created::New { repeated: false, .. } => None,
            Created::New { repeated: true, .. } => Some(Self::Unreported),
            Created::Existing(existing) => Some(Self::Existed(existing)),
            Created::Busy => Some(Self::NotWritten(NotWritten::Failed(ErrorKind::Busy))),
            Created::Refused(_) => Some(Self::NotWritten(NotWritten::Failed(ErrorKind::Invalid))),
        }
    }

    /// Returns why no event follows after a command has failed.
    pub(super) fn failed(error: ErrorKind) -> Self {
        NotWritten::of(error).map_or(Self::Unreported, Self::NotWritten)
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
            traces.jobs.reserve(chains.len());
            self.fill_chains(chains, self.now(), &mut traces);
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
                        let shared = about.shared_mut();
                        shared.job = next.id;
                        shared.job_type.clone_from(&next.job.job_type);
                        shared.trace.clone_from(&next.job.trace);
                    }
                    Step::Fail { .. } => {}
                }
            }
        }
        traces
    }

    /// Notifies the observers that none of the items were written.
    pub(crate) fn rolled_back(&self, traces: RequestedTraces, why: NotWritten) {
        traces.into_jobs().iter().for_each(|job| self.untrace(job, Some(why)));
    }

    /// Notifies the observers after the command that writes the items has failed.
    pub(super) fn failed_to_write(&self, traces: RequestedTraces, error: ErrorKind) {
        traces.into_jobs().iter().for_each(|job| self.untrace(job, NotWritten::of(error)));
    }

    /// Notifies the observers of the items of chains in `missing`. Returns the other items.
    pub(super) fn retain_written(
        &self,
        mut traces: RequestedTraces,
        missing: &[Unreported<'_>],
    ) -> RequestedTraces {
        if !missing.is_empty() {
            for requested in std::mem::take(&mut traces.jobs) {
                let Some(job) = traces.with_types(requested) else { continue };
                if !self.is_missing(&job, missing) {
                    traces.jobs.push(job.requested);
                }
            }
        }
        traces
    }

    /// Whether the job's chain is in `missing`. If so, notifies the observers.
    pub(super) fn is_missing(&self, job: &RequestedJob, missing: &[Unreported<'_>]) -> bool {
        let is_its = |(chain, _): &&Unreported<'_>| *chain == job.requested.chain;
        let Some((_, why)) = missing.iter().find(is_its) else { return false };
        match why {
            Why::Existed(existing) => self.existed(job, existing),
            Why::NotWritten(why) => self.untrace(job, Some(*why)),
            Why::Unreported => self.unreported(job),
        }
        true
    }

    /// Notifies the observers of the items for which no event follows, after the end of an attempt has been stored and
    /// announced.
    pub(crate) fn settled(&self, traces: RequestedTraces, outcome: &Outcome, settled: &Settled) {
        match settled {
            // Most outcomes create nothing.
            Settled::Applied(_) if traces.jobs.is_empty() => drop(traces),
            Settled::Applied(applied) => {
                let missing = not_created(outcome.carried(), &applied.created);
                self.retain_written(traces, &missing).forget();
            }
            // The reply of the first call was lost, and with it which of the chains are new.
            _ => drop(traces),
        }
    }

    fn no_traces(&self) -> RequestedTraces {
        RequestedTraces { jobs: Vec::new(), types: Vec::new(), dispatcher: self.weak() }
    }

    fn fill_end(
        &self,
        next: Option<&mut NextJob>,
        create: &mut [NewChain],
        about: &About,
        traces: &mut RequestedTraces,
    ) {
        self.fill_chains(create, about.at, traces);
        if let Some(next) = next {
            let job = (next.id, next.job.job_type.clone());
            let planned = AboutJob {
                chain_trace: about.chain_trace.clone(),
                cause_traces: about.trace.clone().into_iter().collect(),
                ..AboutJob::new(job, (about.chain, about.chain_type.clone()))
            };
            let mut about = About::new(about.at, Arc::new(planned));
            let planned = traces.plan(&about);
            self.fill_job(&mut next.job, &mut about, planned, traces);
        }
    }

    fn fill_chains(&self, chains: &mut [NewChain], now: Timestamp, traces: &mut RequestedTraces) {
        let Some(first) = chains.first() else { return };
        // All chains share one description, which is changed in place: a call may start thousands.
        let job_type = &first.job.job_type;
        let shared = AboutJob::new((first.id.first_job(), job_type.clone()), (first.id, job_type.clone()));
        let mut about = About::new(now, Arc::new(shared));
        for new in chains {
            self.fill_chain(new, &mut about, traces);
        }
    }

    fn fill_chain(&self, new: &mut NewChain, about: &mut About, traces: &mut RequestedTraces) {
        let shared = about.shared_mut();
        (shared.job, shared.chain) = (new.id.first_job(), new.id);
        (shared.trace, shared.chain_trace) = (None, None);
        if shared.job_type != new.job.job_type {
            shared.job_type.clone_from(&new.job.job_type);
            shared.chain_type.clone_from(&new.job.job_type);
        }
        let mut job = traces.plan(about);
        job.has_chain = self.fill(&mut new.trace, Traced::Chain, about);
        about.shared_mut().chain_trace.clone_from(&new.trace);
        self.fill_job(&mut new.job, about, job, traces);
    }

    fn fill_job(
        &self,
        new: &mut NewJob,
        about: &mut About,
        mut job: Requested,
        traces: &mut RequestedTraces,
    ) {
        job.has_job = self.fill(&mut new.trace, Traced::Job, about);
        if !new.blockers.is_empty() {
            about.shared_mut().trace.clone_from(&new.trace);
        }
        for blocker in &mut new.blockers {
            if self.fill(&mut blocker.trace, Traced::Wait(blocker.chain), about) {
                job.waits.push(blocker.chain);
            }
        }
        if !job.is_empty() {
            traces.jobs.push(job);
        }
    }

    /// Fills a missing trace context. Returns whether the observers were called: then they must be notified if the item
    /// is not written, even if they returned no context.
    fn fill(&self, trace: &mut Option<TraceContext>, traced: Traced, about: &About) -> bool {
        let is_missing = trace.is_none();
        if is_missing {
            *trace = self.trace_context(traced, about);
        }
        is_missing
    }
}
