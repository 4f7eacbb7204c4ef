//! Requests trace contexts from the observers before a write.

use super::Dispatcher;
use crate::command::{NewChain, NewJob, NextJob, Outcome, Step};
use crate::id::{ChainId, JobId};
use crate::name::{TraceContext, TypeName};
use crate::observer::{About, Traced};

/// The items for which trace contexts were requested. The observers are notified of those that are not
/// written.
pub(crate) type RequestedTraces = Vec<(Traced, About)>;

impl Dispatcher {
    /// Fills the missing trace contexts of chains to create.
    pub(super) fn request_traces(&self, chains: &mut [NewChain]) -> RequestedTraces {
        let mut traces = RequestedTraces::new();
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
        let mut traces = RequestedTraces::new();
        let (next, create) = match outcome {
            Outcome::Complete { create, .. } if !create.is_empty() => (None, create),
            Outcome::Continue { next, create } => (Some(next), create),
            _ => return traces,
        };
        if self.is_observed() {
            self.fill_end(next, create, &about(), &mut traces);
        }
        traces
    }

    /// Fills the missing trace contexts of the jobs and chains that a completion from outside creates.
    pub(super) fn request_step_traces(&self, steps: &mut [Step], about: &About) -> RequestedTraces {
        let mut traces = RequestedTraces::new();
        if self.is_observed() {
            for step in steps {
                match step {
                    Step::Complete { create, .. } => self.fill_end(None, create, about, &mut traces),
                    Step::Continue { next, create } => self.fill_end(Some(next), create, about, &mut traces),
                    Step::Fail { .. } => {}
                }
            }
        }
        traces
    }

    /// Notifies the observers that none of the items were written.
    pub(crate) fn rolled_back(&self, traces: &[(Traced, About)]) {
        traces.iter().for_each(|(traced, about)| self.untrace(*traced, about));
    }

    /// Notifies the observers of the items that were not written because their chain is in `missing`. Returns
    /// the other items.
    pub(super) fn retain_written(&self, mut traces: RequestedTraces, missing: &[ChainId]) -> RequestedTraces {
        traces.retain(|(traced, about)| {
            let kept = !missing.contains(&about.chain);
            if !kept {
                self.untrace(*traced, about);
            }
            kept
        });
        traces
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
            let about = planned(next.id, &next.job.job_type, about.chain, &about.chain_type);
            self.fill_job(&mut next.job, &about, traces);
        }
    }

    fn fill_chain(&self, new: &mut NewChain, traces: &mut RequestedTraces) {
        let about = planned(new.id.first_job(), &new.job.job_type, new.id, &new.job.job_type);
        self.fill(&mut new.trace, Traced::Chain, &about, traces);
        self.fill_job(&mut new.job, &about, traces);
    }

    fn fill_job(&self, job: &mut NewJob, about: &About, traces: &mut RequestedTraces) {
        self.fill(&mut job.trace, Traced::Job, about, traces);
        for blocker in &mut job.blockers {
            self.fill(&mut blocker.trace, Traced::Wait(blocker.chain), about, traces);
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
            traces.push((traced, about.clone()));
        }
    }
}

fn planned(job: JobId, job_type: &TypeName, chain: ChainId, chain_type: &TypeName) -> About {
    let (job_type, chain_type) = (job_type.clone(), chain_type.clone());
    About { job, job_type, chain, chain_type, key: None, attempt: None, worker: None, worker_name: None }
}
