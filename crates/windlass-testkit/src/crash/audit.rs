//! What must hold when all is over.

use std::{collections::HashMap, time::Duration};

use windlass_core::{
    Capability, ChainId, ChainRecord, Status, Store, Timestamp,
    command::{GetChains, NextDue, Types},
    limit::BATCH_MAX_ITEMS,
};

use crate::wait_until;

/// What is wrong with chains that should all have completed; the default when nothing is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Not stored.
    pub lost: Vec<ChainId>,
    /// Neither completed nor failed nor cancelled.
    pub open: Vec<ChainId>,
    /// Failed or cancelled.
    pub not_completed: Vec<ChainId>,
    /// With a job that somebody holds.
    pub leased: Vec<ChainId>,
    /// Completed, and without their effect.
    pub without_effect: Vec<ChainId>,
    /// Whose effect was applied more than once.
    pub repeated_effect: Vec<ChainId>,
    /// With an effect, though nobody knows of them.
    pub unknown: Vec<ChainId>,
    /// When the earliest job of the whole store is due, and when the earliest lease ends. Nobody asks a store that cannot
    /// tell.
    pub left: (Option<Timestamp>, Option<Timestamp>),
}

/// Looks at chains that should all have completed, each with its effect applied once, on a store without any others.
/// `effects` says how often each chain's was applied, by the test's own ledger.
///
/// # Panics
///
/// Panics when the store does not answer.
pub async fn audit(store: &dyn Store, chains: &[ChainId], effects: &HashMap<ChainId, usize>) -> Audit {
    let mut found = Audit::default();
    for batch in chains.chunks(BATCH_MAX_ITEMS) {
        for (id, chain) in batch.iter().zip(get(store, batch).await) {
            let Some(chain) = chain else {
                found.lost.push(*id);
                continue;
            };
            match chain.status() {
                Status::Completed => {}
                Status::Failed | Status::Cancelled => found.not_completed.push(*id),
                Status::Blocked | Status::Pending | Status::Running => found.open.push(*id),
            }
            if chain.first.lease.is_some() || chain.latest.lease.is_some() {
                found.leased.push(*id);
            }
            match effects.get(id).copied().unwrap_or(0) {
                0 if chain.status() == Status::Completed => found.without_effect.push(*id),
                0 | 1 => {}
                _ => found.repeated_effect.push(*id),
            }
        }
    }
    let known: std::collections::HashSet<&ChainId> = chains.iter().collect();
    found.unknown = effects.keys().filter(|id| !known.contains(id)).copied().collect();
    if store.capabilities().has(Capability::NextDue) {
        let reply = store.next_due(NextDue { types: Types::All }).await.expect("the store answers");
        found.left = (reply.due_at, reply.lease_until);
    }
    found
}

/// Waits until all these chains are closed, looking at one batch after the other.
///
/// # Panics
///
/// Panics when `timeout` is over, and when the store does not answer or has lost a chain.
pub async fn wait_until_closed(store: &dyn Store, chains: &[ChainId], timeout: Duration) {
    let mut left = chains.to_vec();
    wait_until("all chains are closed", timeout, async || {
        while let Some(batch) = left.chunks(BATCH_MAX_ITEMS).next_back() {
            let is_open = |chain: Option<ChainRecord>| chain.expect("no chain is lost").closed.is_none();
            let mut open = get(store, batch).await.into_iter().map(is_open);
            if open.any(|is_open| is_open) {
                return false;
            }
            left.truncate(left.len() - batch.len());
        }
        true
    })
    .await;
}

async fn get(store: &dyn Store, chains: &[ChainId]) -> Vec<Option<ChainRecord>> {
    let chains = chains.iter().copied().map(Into::into).collect();
    store.get_chains(GetChains { chains }).await.expect("the store answers").chains
}
