use std::collections::HashSet;

use super::Execution;
use crate::command::{Delete, DeleteReply, Deleted, DeletedChain, check_items};
use crate::error::Result;
use crate::id::ChainId;
use crate::limit::DELETE_MAX_CHAINS;
use crate::refusal::Refusal;

/// The maximum number of references that a refused delete reports.
const REFERENCES_MAX: usize = 100;

impl Execution<'_> {
    pub(super) fn delete(&mut self, request: &Delete) -> Result<DeleteReply> {
        check_items("chains", request.chains.len())?;
        let Some(chains) = self.chains_to_delete(request) else {
            return Ok(DeleteReply::Refused(vec![Refusal::TooManyChains]));
        };
        let references = self.references(&chains);
        if !references.is_empty() {
            return Ok(DeleteReply::Refused(references));
        }
        let mut deleted = Deleted::default();
        for chain in chains {
            let Some(row) = self.tables.chain(chain) else { continue };
            let latest = &self.tables.latest(row).job;
            deleted.chains.push(DeletedChain {
                chain,
                chain_type: row.chain_type.clone(),
                status: latest.status,
                running: latest.lease.map(|lease| (latest.id, lease.worker)),
            });
            self.remove_chain(chain);
        }
        Ok(DeleteReply::Deleted(deleted))
    }

    /// Returns the chains to delete, without duplicates, or `None` if there are too many.
    fn chains_to_delete(&self, request: &Delete) -> Option<Vec<ChainId>> {
        let mut seen = HashSet::new();
        let mut chains: Vec<_> = request.chains.iter().filter_map(|target| self.find(target)).collect();
        chains.retain(|chain| seen.insert(*chain));
        let mut next = 0;
        while let Some(chain) = chains.get(next).copied().filter(|_| request.cascade) {
            next += 1;
            for job in self.jobs_of(chain, usize::MAX) {
                let blockers = self.tables.job(job).map(|row| row.job.blockers.clone()).unwrap_or_default();
                let stored = blockers.iter().filter(|blocker| self.tables.chain(blocker.chain).is_some());
                chains.extend(stored.map(|blocker| blocker.chain).filter(|chain| seen.insert(*chain)));
            }
            if chains.len() > DELETE_MAX_CHAINS {
                return None;
            }
        }
        Some(chains)
    }

    /// Returns the open jobs outside the set that depend on a chain in it.
    fn references(&self, chains: &[ChainId]) -> Vec<Refusal> {
        let deleted: HashSet<_> = chains.iter().collect();
        let mut references = Vec::new();
        for chain in chains {
            for (_, by) in self.tables.open_dependents.get(chain).into_iter().flatten() {
                let outside = self.tables.job(*by).is_some_and(|row| !deleted.contains(&row.job.chain));
                if outside {
                    references.push(Refusal::Needed { chain: *chain, by: *by });
                }
                if references.len() == REFERENCES_MAX {
                    return references;
                }
            }
        }
        references
    }
}
