//! The marks that transactions leave for waits that they could not resolve, and their removal.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::Instant;
use windlass_conformance::complete;
use windlass_conformance::snapshot::SCENARIOS;
use windlass_core::Status;
use windlass_core::command::{Acquired, Create, Delete, Settle, Settled, Settlement};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::PostgresServer;

use super::{AtLevel, passes, server, sqlx_subject};
use crate::known_bad::spoil_in;

/// A closing chain that is marked only if its snapshot shows dependents strands a job.
#[tokio::test(flavor = "multi_thread")]
async fn known_bad_marks_strand_a_job() {
    let server = server("repeatable read").await;
    let subject = sqlx_subject(&server).await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let own = "\"windlass\".in_snapshot_v1()";
    spoil_in(&pool, "windlass", "close_chain_v1", own, "false").await;
    for function in ["complete_one_v1", "complete_plain_v1"] {
        spoil_in(&pool, "windlass", function, own, "false").await;
    }
    let strands = [
        "attached_after_the_snapshot",
        "failed_after_a_dependent_attached",
        "cancelled_after_a_dependent_attached",
        "completed_from_outside_after_a_dependent_attached",
    ];
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| strands.contains(name)) {
        assert!(!passes(&subject, *scenario).await, "{name}");
    }
}

/// Marks of chains without dependents are removed.
#[tokio::test(flavor = "multi_thread")]
async fn marks_without_dependents_are_removed() {
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    for (name, scenario) in SCENARIOS {
        assert!(passes(&s, *scenario).await, "{name}");
        s.reap().await;
        assert_eq!(server.query("select count(*) from windlass.ripple"), "0", "{name}");
    }
}

/// If a lock in a snapshot returned an outdated row instead of an error, the mark of the job that attaches would still
/// unblock it. Without lock and mark it stays blocked.
#[tokio::test(flavor = "multi_thread")]
async fn known_bad_locks_are_covered_by_marks() {
    let server = server("repeatable read").await;
    let subject = sqlx_subject(&server).await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let unlocked = "if shared and \"windlass\".in_snapshot_v1() then return '{}'; end if;";
    let begin = "begin\n  if shared then";
    let bad = begin.replacen("begin\n", &format!("begin\n  {unlocked}\n"), 1);
    spoil_in(&pool, "windlass", "lock_chains_v1", begin, &bad).await;
    let snapshot = "boolean := \"windlass\".in_snapshot_v1()";
    spoil_in(&pool, "windlass", "reaches_v1", snapshot, "boolean := false").await;
    let names = [
        "ended_after_the_snapshot",
        "ended_with_carried_chains_after_the_snapshot",
        "continued_after_its_blocker_ended",
        "retried_after_its_blocker_ended",
    ];
    let scenarios = || SCENARIOS.iter().filter(|(name, _)| names.contains(name));
    for (name, scenario) in scenarios() {
        assert!(passes(&subject, *scenario).await, "{name}");
    }
    for function in ["insert_job_v1", "retry_one_v1"] {
        spoil_in(&pool, "windlass", function, "\"windlass\".in_snapshot_v1()", "false").await;
    }
    for (name, scenario) in scenarios() {
        assert!(!passes(&subject, *scenario).await, "{name}");
    }
}

/// PostgreSQL locks an outdated row without an error if the row was locked and updated in different subtransactions. Only the
/// mark of the job that attaches then unblocks it.
#[tokio::test(flavor = "multi_thread")]
async fn known_bad_locks_without_marks_strand_a_job() {
    let server = server("repeatable read").await;
    let subject = sqlx_subject(&server).await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    spoil_in(&pool, "windlass", "insert_job_v1", "\"windlass\".in_snapshot_v1()", "false").await;
    let mut stranded = Vec::new();
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| name.starts_with("ended_")) {
        if !passes(&subject, *scenario).await {
            stranded.push(*name);
        }
    }
    assert_eq!(stranded, ["ended_with_carried_chains_after_the_snapshot"]);
}

/// A bulk import leaves thousands of marks. Each command removes a bounded number of them.
#[tokio::test(flavor = "multi_thread")]
async fn bounded_commands_remove_many_marks() {
    const PAIRS: usize = 500;
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    let mut tx = s.begin().await;
    for _ in 0..5 {
        let pairs = (0..PAIRS).flat_map(|_| {
            let first = s.start("a").build();
            let second = s.start("b").blocked_by([first.id]).build();
            [first, second]
        });
        tx.run(Create { chains: pairs.collect() }).await.unwrap();
    }
    tx.commit().await.unwrap();
    let marks = || server.query("select count(*) from windlass.ripple").parse::<usize>().unwrap();
    assert_eq!(marks(), 5 * PAIRS);
    s.advance(1);
    s.acquire("a", 1).await;
    assert_eq!(marks(), 1_400, "one command sweeps a thousand marks and takes a hundred steps");
    s.acquire("a", 1).await;
    s.acquire("a", 1).await;
    assert_eq!(marks(), 0);
}

/// An open transaction holds a thousand dependents, and their other blockers leave marks that cannot be resolved. Chains
/// that end later are not delayed by them.
#[tokio::test(flavor = "multi_thread")]
async fn marks_that_cannot_be_resolved_do_not_starve_others() {
    const STUCK: usize = 1_000;
    let server = PostgresServer::start().await;
    let s = sqlx_subject(&server).await;
    let shared = s.start("shared").await;
    let others: Vec<_> = (0..STUCK).map(|_| s.start("other").build()).collect();
    let ids: Vec<_> = others.iter().map(|chain| chain.id).collect();
    s.create(others).await;
    s.create(ids.iter().map(|id| s.start("a").blocked_by([shared, *id]).build()).collect()).await;
    let mut tx = s.begin().await;
    let attempt = s.acquire_one("shared").await;
    let settlement = Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome: complete("1") };
    tx.run(Settle { settlements: vec![settlement] }).await.unwrap();
    let attempts = s.acquire("other", 1_000).await;
    let settlements = attempts.iter().map(|attempt| Settlement {
        job: attempt.job.id,
        fence: attempt.job.fence,
        outcome: complete("1"),
    });
    let began = Instant::now();
    let settled = s.run(Settle { settlements: settlements.collect() }).await.settled;
    assert!(settled.iter().all(|one| matches!(one, Settled::Applied(_))));
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "the command waited for each chain: {:?}",
        began.elapsed()
    );
    s.advance(1);
    let blocker = s.start("b").await;
    let waiting = s.start("c").blocked_by([blocker]).await;
    s.work("b", complete("1")).await;
    s.expect_status(waiting, Status::Pending).await;
    tx.commit().await.unwrap();
    for _ in 0..40 {
        s.advance(1);
        s.reap().await;
    }
    assert_eq!(s.acquire("a", 1_000).await.len(), STUCK);
    assert_eq!(server.query("select count(*) from windlass.ripple"), "0");
}

/// A transaction of the application resolves only what it has ended itself: no other session sees it before the commit.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_does_not_take_the_marks_of_others() {
    let server = PostgresServer::start().await;
    let mut s = sqlx_subject(&server).await;
    let store =
        PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap();
    let own = s.transactions.replace(Arc::new(AtLevel {
        store: Arc::new(store),
        begin: "begin isolation level repeatable read",
    }));
    let (blocker, unrelated) = (s.start("b").await, s.start("c").await);
    let waiting = s.start("a").blocked_by([blocker]).await;
    let settlement = |attempt: &Acquired| Settlement {
        job: attempt.job.id,
        fence: attempt.job.fence,
        outcome: complete("1"),
    };
    let (first, second) = (s.acquire_one("b").await, s.acquire_one("c").await);
    let mut tx = s.begin().await;
    tx.run(Settle { settlements: vec![settlement(&first)] }).await.unwrap();
    tx.commit().await.unwrap();
    s.transactions = own;
    s.advance(1);
    let mut open = s.begin().await;
    open.run(Settle { settlements: vec![settlement(&second)] }).await.unwrap();
    s.reap().await;
    s.expect_status(waiting, Status::Pending).await;
    open.commit().await.unwrap();
    s.expect_status(unrelated, Status::Completed).await;
}

/// Deleting or expiring a chain also removes its marks.
#[tokio::test(flavor = "multi_thread")]
async fn removing_a_chain_removes_its_marks() {
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    let marks = || server.query("select count(*) from windlass.ripple");
    for deletes in [true, false] {
        let chain = s.start("a").retention(1).await;
        let attempt = s.acquire_one("a").await;
        let mut tx = s.begin().await;
        let settlement = Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome: complete("1") };
        tx.run(Settle { settlements: vec![settlement] }).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(marks(), "1");
        if deletes {
            s.run(Delete { chains: vec![chain.into()], cascade: false, seen: None }).await;
        } else {
            s.advance(3_600_000);
            s.expire().await;
        }
        assert_eq!(s.find_chain(chain).await, None);
        assert_eq!(marks(), "0");
    }
}

/// Logical replication refuses deletes from a published table without a key.
#[tokio::test(flavor = "multi_thread")]
async fn published_tables_can_be_changed() {
    let server = PostgresServer::start().await;
    let s = sqlx_subject(&server).await;
    server.query("create publication everything for all tables");
    let blocker = s.start("b").key("k").await;
    let waiting = s.start("a").blocked_by([blocker]).retention(1).await;
    s.work("b", complete("1")).await;
    s.work("a", complete("2")).await;
    s.advance(30 * 24 * 3_600_000);
    s.expire().await;
    assert_eq!((s.find_chain(blocker).await, s.find_chain(waiting).await), (None, None));
}
