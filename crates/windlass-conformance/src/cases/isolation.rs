//! Isolation: the writes of an open transaction are not visible outside it.

use std::future::Future;

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "isolation.job",
        "An uncommitted job is not found from outside the transaction.",
        ["SA-RI01"],
        [Transactions],
        job
    ),
    case!(
        "isolation.status",
        "An uncommitted settlement is not visible from outside.",
        ["SA-RI02", "SA-RI08"],
        [Transactions],
        status
    ),
    case!(
        "isolation.list_jobs",
        "An uncommitted job is not listed.",
        ["SA-RI03"],
        [Transactions, Lists],
        list_jobs
    ),
    case!(
        "isolation.blockers",
        "An uncommitted wait is not visible from outside.",
        ["SA-RI04", "SA-RI12"],
        [Transactions, Lists],
        blockers
    ),
    case!(
        "isolation.deleted",
        "An uncommitted delete is not visible from outside.",
        ["SA-RI05"],
        [Transactions, Delete],
        deleted
    ),
    case!(
        "isolation.chain",
        "An uncommitted chain is not found by its id or key.",
        ["SA-RI06"],
        [Transactions],
        chain
    ),
    case!(
        "isolation.next_due",
        "An uncommitted job does not affect the next due time.",
        ["SA-RI07"],
        [Transactions, NextDue],
        next_due
    ),
    case!(
        "isolation.continuation",
        "An uncommitted continuation is not visible from outside.",
        ["SA-RI09", "SA-RI11"],
        [Transactions, Lists],
        continuation
    ),
    case!(
        "isolation.list_chains",
        "An uncommitted chain is not listed.",
        ["SA-RI10"],
        [Transactions, Lists],
        list_chains
    ),
    case!(
        "isolation.count",
        "Uncommitted changes are not counted.",
        ["SA-RI02"],
        [Transactions, Count],
        count
    ),
];

/// Queries through both handles before, during and after a transaction that runs these commands. The result during the
/// transaction must equal the result before it. After the commit the result must differ.
async fn check<T, F>(s: &Subject, commands: Vec<Command>, observe: impl Fn(Subject) -> F)
where
    T: PartialEq + std::fmt::Debug,
    F: Future<Output = T>,
{
    let before = observe(s.clone()).await;
    let mut tx = s.begin().await;
    for command in commands {
        tx.execute(command).await.expect("the command succeeds in the transaction");
    }
    assert_eq!(observe(s.clone()).await, before, "seen before the commit");
    assert_eq!(observe(s.through_other()).await, before, "seen before the commit through the other handle");
    tx.commit().await.expect("the transaction commits");
    let after = observe(s.through_other()).await;
    assert_ne!(after, before, "not seen after the commit");
    assert_eq!(observe(s.clone()).await, after);
}

fn create(chain: &NewChain) -> Command {
    Create { chains: vec![chain.clone()] }.into()
}

fn settle(attempt: &Acquired, outcome: Outcome) -> Command {
    Settle { settlements: vec![settlement(attempt, outcome)] }.into()
}

async fn job(s: Subject) {
    let new = s.start("a").build();
    let id = new.id.first_job();
    check(&s, vec![create(&new)], |s| async move { s.find_job(id).await }).await;
}

async fn status(s: Subject) {
    let id = s.start("a").await;
    let waiting = s.start("b").blocked_by([id]).await;
    let attempt = s.acquire_one("a").await;
    let observe = |s: Subject| async move { (s.chain(id).await.status(), s.chain(waiting).await.status()) };
    check(&s, vec![settle(&attempt, complete("1"))], observe).await;
    assert_eq!(observe(s.clone()).await, (Status::Completed, Status::Pending));
}

async fn list_jobs(s: Subject) {
    s.start("a").await;
    let observe = |s: Subject| async move { s.run(ListJobs::default()).await };
    check(&s, vec![create(&s.start("a").build())], observe).await;
}

async fn blockers(s: Subject) {
    let blocker = s.start("b").await;
    let new = s.start("a").blocked_by([blocker]).build();
    let observe =
        |s: Subject| async move { s.run(ListDependents { chain: blocker, page: Page::default() }).await };
    check(&s, vec![create(&new)], observe).await;
}

async fn deleted(s: Subject) {
    let id = s.start("a").key("k").await;
    let delete = Delete { chains: vec![id.into()], cascade: false, seen: None };
    let observe = |s: Subject| async move { (s.find_chain(id).await, s.by_key("a", "k").await) };
    check(&s, vec![delete.into()], observe).await;
}

async fn chain(s: Subject) {
    let new = s.start("a").key("k").build();
    let id = new.id;
    let observe = |s: Subject| async move { (s.find_chain(id).await, s.by_key("a", "k").await) };
    check(&s, vec![create(&new)], observe).await;
}

async fn next_due(s: Subject) {
    let observe = |s: Subject| async move { s.run(NextDue { types: Types::All }).await };
    check(&s, vec![create(&s.start("a").after(5_000).build())], observe).await;
}

async fn continuation(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let filter = JobFilter { chain: Some(id), ..JobFilter::default() };
    let observe = |s: Subject| {
        let filter = filter.clone();
        async move { (s.chain(id).await, s.run(ListJobs { filter, page: Page::default() }).await) }
    };
    check(&s, vec![settle(&attempt, continue_with(s.start("b").next_job()))], observe).await;
}

async fn list_chains(s: Subject) {
    s.start("a").await;
    let observe = |s: Subject| async move { s.run(ListChains::default()).await };
    check(&s, vec![create(&s.start("a").build())], observe).await;
}

async fn count(s: Subject) {
    s.start("a").await;
    let observe = |s: Subject| async move { s.run(Count { types: Types::All }).await };
    check(&s, vec![create(&s.start("a").build()), create(&s.start("b").build())], observe).await;
}
