//! Requests trace contexts from the observers before a write.

use super::Dispatcher;
use crate::command::{NewChain, NewJob, NextJob, Outcome, Step};
use crate::id::{ChainId, JobId};
use crate::name::{TraceContext, TypeName};
use crate::observer::{About, Traced};

/// The items for which trace contexts were requested. The observers are notified of those that are not
/// written.
pub(crate) type Asked = Vec<(Traced, About)>;

impl Dispatcher {
    /// Fills the missing trace contexts of chains to create.
    pub(super) fn ask(&self, chains: &mut [NewChain]) -> Asked {
        let mut asked = Asked::new();
        if self.is_observed() {
            chains.iter_mut().for_each(|new| self.ask_chain(new, &mut asked));
        }
        asked
    }

    /// Fills the missing trace contexts of the jobs and chains that the end of an attempt creates.
    pub(crate) fn ask_outcome(&self, outcome: &mut Outcome, about: &About) -> Asked {
        let mut asked = Asked::new();
        if self.is_observed() {
            match outcome {
                Outcome::Complete { create, .. } => self.ask_end(None, create, about, &mut asked),
                Outcome::Continue { next, create } => self.ask_end(Some(next), create, about, &mut asked),
                _ => {}
            }
        }
        asked
    }

    /// Fills the missing trace contexts of the jobs and chains that a completion from outside creates.
    pub(super) fn ask_steps(&self, steps: &mut [Step], about: &About) -> Asked {
        let mut asked = Asked::new();
        if self.is_observed() {
            for step in steps {
                match step {
                    Step::Complete { create, .. } => self.ask_end(None, create, about, &mut asked),
                    Step::Continue { next, create } => self.ask_end(Some(next), create, about, &mut asked),
                    Step::Fail { .. } => {}
                }
            }
        }
        asked
    }

    /// Notifies the observers that none of the items were written.
    pub(crate) fn rolled_back(&self, asked: &[(Traced, About)]) {
        asked.iter().for_each(|(traced, about)| self.untrace(*traced, about));
    }

    /// Notifies the observers of the items that were not written because their chain is in `missing`. Returns
    /// the other items.
    pub(super) fn keep(&self, mut asked: Asked, missing: &[ChainId]) -> Asked {
        asked.retain(|(traced, about)| {
            let kept = !missing.contains(&about.chain);
            if !kept {
                self.untrace(*traced, about);
            }
            kept
        });
        asked
    }

    fn ask_end(&self, next: Option<&mut NextJob>, create: &mut [NewChain], about: &About, asked: &mut Asked) {
        create.iter_mut().for_each(|new| self.ask_chain(new, asked));
        if let Some(next) = next {
            let about = planned(next.id, &next.job.job_type, about.chain, &about.chain_type);
            self.ask_job(&mut next.job, &about, asked);
        }
    }

    fn ask_chain(&self, new: &mut NewChain, asked: &mut Asked) {
        let about = planned(new.id.first_job(), &new.job.job_type, new.id, &new.job.job_type);
        self.fill(&mut new.trace, Traced::Chain, &about, asked);
        self.ask_job(&mut new.job, &about, asked);
    }

    fn ask_job(&self, job: &mut NewJob, about: &About, asked: &mut Asked) {
        self.fill(&mut job.trace, Traced::Job, about, asked);
        for blocker in &mut job.blockers {
            self.fill(&mut blocker.trace, Traced::Wait(blocker.chain), about, asked);
        }
    }

    fn fill(&self, trace: &mut Option<TraceContext>, traced: Traced, about: &About, asked: &mut Asked) {
        if trace.is_none() {
            *trace = self.trace_context(traced, about);
            // Even without a context: the observers were called, and must be notified if the item is not
            // written.
            asked.push((traced, about.clone()));
        }
    }
}

fn planned(job: JobId, job_type: &TypeName, chain: ChainId, chain_type: &TypeName) -> About {
    let (job_type, chain_type) = (job_type.clone(), chain_type.clone());
    About { job, job_type, chain, chain_type, key: None, attempt: None, worker: None }
}
