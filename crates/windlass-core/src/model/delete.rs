use std::collections::{HashMap, HashSet};

use super::{Execution, Rows};
use crate::command::{Delete, DeleteReply, Deleted, DeletedChain, SeenJob, check_items};
use crate::error::Result;
use crate::id::ChainId;
use crate::limit::DELETE_MAX_CHAINS;
use crate::refusal::Refusal;

/// The maximum number of reasons that a refused delete reports.
const REASONS_MAX: usize = 100;

impl<R: Rows> Execution<'_, R> {
    pub(super) fn delete(&mut self, request: &Delete) -> Result<DeleteReply> {
        check_items("chains", request.chains.len())?;
        check_items("jobs", request.seen.as_ref().map_or(0, Vec::len))?;
        let Some(chains) = self.chains_to_delete(request)? else {
            return Ok(DeleteReply::Refused(vec![Refusal::TooManyChains]));
        };
        let changed = self.changed(&chains, request.seen.as_deref())?;
        if !changed.is_empty() {
            return Ok(DeleteReply::Refused(changed));
        }
        let references = self.references(&chains)?;
        if !references.is_empty() {
            return Ok(DeleteReply::Refused(references));
        }
        let mut deleted = Deleted::default();
        for chain in chains {
            let Some(row) = self.rows.chain(chain)? else { continue };
            let latest = &self.latest(&row)?.job;
            deleted.chains.push(DeletedChain {
                chain,
                chain_type: row.chain_type.clone(),
                status: latest.status,
                running: latest.lease.as_ref().map(|lease| (latest.id, lease.worker)),
            });
            self.remove_chain(chain)?;
        }
        self.write_former()?;
        Ok(DeleteReply::Deleted(deleted))
    }

    /// Returns the chains to delete, without duplicates, or `None` if there are too many.
    fn chains_to_delete(&mut self, request: &Delete) -> Result<Option<Vec<ChainId>>> {
        let mut seen = HashSet::new();
        let mut chains = Vec::new();
        for target in &request.chains {
            chains.extend(self.find(target)?.map(|row| row.id).filter(|chain| seen.insert(*chain)));
        }
        let mut next = 0;
        while let Some(chain) = chains.get(next).copied().filter(|_| request.cascade) {
            next += 1;
            for job in self.jobs_of(chain, usize::MAX)? {
                let blockers = self.rows.job(job)?.map(|row| row.job.blockers.clone()).unwrap_or_default();
                for blocker in blockers.iter() {
                    if self.rows.chain(blocker.chain)?.is_some() && seen.insert(blocker.chain) {
                        chains.push(blocker.chain);
                    }
                }
            }
            if chains.len() > DELETE_MAX_CHAINS {
                return Ok(None);
            }
        }
        Ok(Some(chains))
    }

    /// Returns the chains that are not in the state that the caller has read. Returns nothing if any state will do.
    fn changed(&mut self, chains: &[ChainId], seen: Option<&[SeenJob]>) -> Result<Vec<Refusal>> {
        let Some(seen) = seen else { return Ok(Vec::new()) };
        let mut versions = HashMap::new();
        for SeenJob { job, version } in seen {
            versions.entry(*job).or_insert(*version);
        }
        let mut changed = Vec::new();
        for chain in chains {
            let Some(row) = self.rows.chain(*chain)? else { continue };
            let latest = &self.latest(&row)?.job;
            if versions.get(&latest.id) != Some(&latest.version) {
                changed.push(Refusal::Changed(*chain));
            }
            if changed.len() == REASONS_MAX {
                return Ok(changed);
            }
        }
        Ok(changed)
    }

    /// Returns the open jobs outside the set that depend on a chain in it.
    fn references(&mut self, chains: &[ChainId]) -> Result<Vec<Refusal>> {
        let deleted: HashSet<_> = chains.iter().collect();
        let mut references = Vec::new();
        for chain in chains {
            for by in self.rows.open_dependents(*chain, usize::MAX)? {
                if self.rows.job(by)?.is_some_and(|row| !deleted.contains(&row.job.chain)) {
                    references.push(Refusal::Needed { chain: *chain, by });
                }
                if references.len() == REASONS_MAX {
                    return Ok(references);
                }
            }
        }
        Ok(references)
    }
}
