//! Deletes chains, all or none.

use std::collections::{HashMap, HashSet};

use windlass_core::command::{Delete, DeleteReply, Deleted, DeletedChain};
use windlass_core::limit::DELETE_MAX_CHAINS;
use windlass_core::{ChainId, JobId, Refusal, Result, Status};

use crate::expire::remove_chains;
use crate::manage::check_items;
use crate::row::hex;
use crate::session::{Execute, Session};
use crate::statement::set;
use crate::unit_of_work::{Needs, UnitOfWork};

/// Maximum number of references that a refused delete lists.
const REFERENCES_MAX: usize = 100;

impl Execute for Delete {
    async fn execute(&self, session: &mut Session<'_>) -> Result<DeleteReply> {
        check_items("chains", self.chains.len())?;
        let mut working = UnitOfWork::new(session.now());
        let mut needs = Needs::default();
        self.chains.iter().for_each(|target| needs.target(target));
        working.load_chains(session, &needs).await?;
        let mut seen = HashSet::new();
        let mut chains: Vec<_> =
            self.chains.iter().filter_map(|target| working.find(target)).map(|row| row.id).collect();
        chains.retain(|chain| seen.insert(*chain));
        if self.cascade && !add_cascade(session, &mut chains, seen).await? {
            return Ok(DeleteReply::Refused(vec![Refusal::TooManyChains]));
        }
        if chains.is_empty() {
            return Ok(DeleteReply::Deleted(Deleted::default()));
        }
        let references = references(session, &chains).await?;
        if !references.is_empty() {
            return Ok(DeleteReply::Refused(references));
        }
        let mut needs = Needs::default();
        chains.iter().for_each(|chain| needs.chain(*chain));
        working.load_chains(session, &needs).await?;
        let deleted = chains.iter().filter_map(|chain| working.deleted(*chain)).collect();
        remove_chains(session, chains.into_iter()).await?;
        Ok(DeleteReply::Deleted(Deleted { chains: deleted }))
    }
}

impl UnitOfWork {
    fn deleted(&self, chain: ChainId) -> Option<DeletedChain> {
        let row = self.chain(chain)?;
        let latest = self.latest(row)?;
        let worker = latest.worker.filter(|_| latest.status == Status::Running);
        Some(DeletedChain {
            chain,
            chain_type: row.chain_type.clone(),
            status: latest.status,
            running: worker.map(|worker| (latest.id, worker)),
        })
    }
}

/// Adds the chains that jobs of these chains wait or waited for, transitively. Returns false if there are too many.
async fn add_cascade(
    session: &mut Session<'_>,
    chains: &mut Vec<ChainId>,
    mut seen: HashSet<ChainId>,
) -> Result<bool> {
    let roots: Vec<_> = chains.iter().map(|chain| hex(chain.as_uuid())).collect();
    let limit = (DELETE_MAX_CHAINS + 1).max(roots.len());
    let mut awaited: HashMap<ChainId, Vec<ChainId>> = HashMap::new();
    for row in session.rows(&session.statements.load_cascade, vec![set(&roots)?, limit.into()]).await? {
        let waiting = ChainId::from_uuid(row.uuid("waiting")?);
        awaited.entry(waiting).or_default().push(ChainId::from_uuid(row.uuid("awaited")?));
    }
    let mut next = 0;
    while let Some(chain) = chains.get(next).copied() {
        next += 1;
        let more = awaited.remove(&chain).unwrap_or_default();
        chains.extend(more.into_iter().filter(|chain| seen.insert(*chain)));
        if chains.len() > DELETE_MAX_CHAINS {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the open jobs outside the set that depend on a chain in the set.
async fn references(session: &mut Session<'_>, chains: &[ChainId]) -> Result<Vec<Refusal>> {
    let asked: Vec<_> = chains.iter().map(|chain| hex(chain.as_uuid())).collect();
    let values = vec![set(&asked)?, REFERENCES_MAX.into()];
    let rows = session.rows(&session.statements.open_dependents, values).await?;
    let needed = |row: &crate::provider::Row| {
        let (chain, by) = (ChainId::from_uuid(row.uuid("chain")?), JobId::from_uuid(row.uuid("id")?));
        Ok(Refusal::Needed { chain, by })
    };
    rows.iter().map(needed).collect()
}
