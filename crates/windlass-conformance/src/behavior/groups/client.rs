//! How applications use a client, on its own and inside transactions.

mod caller_commit;
mod delete;
mod dependents;
mod events;
mod hooks;
mod keys;
mod list_chains;
mod list_jobs;
mod outside;
mod query;
mod rollback;
mod schedule;
mod start;
mod trigger;
mod types;
mod wait;

use windlass_core::{Capability, Store, Transactional, Tx};

use crate::behavior::{Behavior, Need};

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    let groups = [
        start::cases(),
        keys::cases(),
        schedule::cases(),
        trigger::cases(),
        outside::cases(),
        delete::cases(),
        query::cases(),
        list_chains::cases(),
        list_jobs::cases(),
        dependents::cases(),
        wait::cases(),
        types::cases(),
        events::cases(),
    ];
    groups.into_iter().flatten().collect()
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    let groups = [
        start::transactional_cases(),
        trigger::transactional_cases(),
        outside::transactional_cases(),
        delete::transactional_cases(),
        hooks::transactional_cases(),
        caller_commit::transactional_cases(),
        rollback::transactional_cases(),
    ];
    groups.into_iter().flatten().collect()
}

const ATTEMPTS: Need = Need::Store(Capability::Attempts);
const CANCEL: Need = Need::Store(Capability::Cancel);
const DELETE: Need = Need::Store(Capability::Delete);
const LISTS: Need = Need::Store(Capability::Lists);
const OUTSIDE: Need = Need::Store(Capability::Outside);
const TRIGGER: Need = Need::Store(Capability::Trigger);

/// Commits a transaction or rolls it back.
async fn end<S: Transactional>(tx: Tx<S>, commits: bool) {
    let ended = if commits { tx.commit().await } else { tx.rollback().await };
    ended.expect("the transaction ends");
}
