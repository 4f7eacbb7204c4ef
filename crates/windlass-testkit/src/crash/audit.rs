//! Checks of the stored chains at the end of a test.

use std::{collections::HashMap, time::Duration};

use windlass_core::{
    Capability, ChainId, ChainRecord, Status, Store, Timestamp,
    command::{GetChains, NextDue, Types},
    limit::BATCH_MAX_ITEMS,
};

use crate::wait_until;

/// Problems of chains that should all have completed. The default value means that there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Chains that are not stored.
    pub lost: Vec<ChainId>,
    /// Chains that are still open.
    pub open: Vec<ChainId>,
    /// Chains that failed or were cancelled.
    pub not_completed: Vec<ChainId>,
    /// Chains with a job that is leased.
    pub leased: Vec<ChainId>,
    /// Completed chains without their effect.
    pub without_effect: Vec<ChainId>,
    /// Chains whose effect was applied more than once.
    pub repeated_effect: Vec<ChainId>,
    /// Effects of chains that are not in the list.
    pub unknown: Vec<ChainId>,
    /// When the earliest pending job in the whole store is due, and when the earliest lease ends. Both are `None` if
    /// the store does not support that query.
    pub left: (Option<Timestamp>, Option<Timestamp>),
}

/// Checks chains that should all have completed, each with its effect applied once. The store must contain no other
/// chains. `effects` says how often each chain's effect was applied, according to the test's own ledger.
///
/// # Panics
///
/// Panics if the store does not answer.
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

/// Waits until all these chains are closed. Checks one batch after the other.
///
/// # Panics
///
/// Panics if `timeout` expires, if the store does not answer, or if it has lost a chain.
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
