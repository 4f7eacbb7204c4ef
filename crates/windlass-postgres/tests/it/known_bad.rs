//! Race scenarios on functions that are broken on purpose: the scenarios must detect it.

use sqlx::PgPool;
use windlass_conformance::complete;
use windlass_core::Transactional;
use windlass_core::command::{Acquired, Create, Settle, Settled, Settlement};

use crate::Database;

/// Replaces `part` in the text of a function. Panics if it is missing: otherwise a change of the functions could turn a
/// faulty store into a correct one unnoticed.
pub(crate) async fn spoil_in(pool: &PgPool, schema: &str, function: &str, part: &str, by: &str) {
    let text =
        "select pg_get_functiondef(oid) from pg_proc where proname = $1 and pronamespace = $2::regnamespace";
    let text: String = sqlx::query_scalar(text).bind(function).bind(schema).fetch_one(pool).await.unwrap();
    assert!(text.contains(part), "{function} no longer has {part:?}: break it in another place");
    sqlx::raw_sql(sqlx::AssertSqlSafe(text.replacen(part, by, 1))).execute(pool).await.unwrap();
}

async fn spoil(database: &Database, function: &str, part: &str, by: &str) {
    spoil_in(&database.pool, database.server.namespace(), function, part, by).await;
}

fn settle(attempt: &Acquired) -> Settle {
    let outcome = complete("1");
    Settle { settlements: vec![Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome }] }
}

/// Completes two blockers in overlapping transactions. Returns whether the job that waits for both can be acquired
/// afterwards.
async fn is_unblocked_by_overlapping_ends(database: &Database) -> bool {
    let s = database.subject();
    let (one, two) = (s.start("b").await, s.start("b").await);
    s.start("a").blocked_by([one, two]).await;
    let attempts = s.acquire("b", 2).await;
    let mut tx = database.store.begin().await.unwrap();
    database.store.run_in((&mut tx).into(), settle(&attempts[0])).await.unwrap();
    s.complete(&attempts[1], "1").await;
    database.store.commit(tx).await.unwrap();
    s.acquire("a", 1).await.len() == 1
}

/// Attaches a job to a chain in a transaction during which the chain completes. Returns whether the job can be acquired
/// afterwards.
async fn is_unblocked_after_attaching_to_an_end(database: &Database) -> bool {
    let s = database.subject();
    let blocker = s.start("b").await;
    let attempt = s.acquire_one("b").await;
    let mut tx = database.store.begin().await.unwrap();
    let waiting = s.start("a").blocked_by([blocker]).build();
    database.store.run_in((&mut tx).into(), Create { chains: vec![waiting] }).await.unwrap();
    let settled = s.settle(&attempt, complete("1")).await;
    database.store.commit(tx).await.unwrap();
    if settled == Settled::Busy {
        s.complete(&attempt, "1").await;
    }
    s.acquire("a", 1).await.len() == 1
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lock_on_waiting_jobs_concurrent_completions_strand_one() {
    let database = Database::new().await;
    assert!(is_unblocked_by_overlapping_ends(&database).await);
    spoil(&database, "lock_waiting_v1", "begin", "begin return wanted;").await;
    assert!(!is_unblocked_by_overlapping_ends(&database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lock_on_blockers_attaching_to_a_closing_chain_strands_the_job() {
    let database = Database::new().await;
    assert!(is_unblocked_after_attaching_to_an_end(&database).await);
    spoil(
        &database,
        "lock_chains_v1",
        "if cardinality(wanted) = 0 then",
        "if shared or cardinality(wanted) = 0 then",
    )
    .await;
    // A blocker that is not locked must not be reported as busy either.
    spoil(&database, "lock_chains_v1", "return wanted;", "return '{}';").await;
    assert!(!is_unblocked_after_attaching_to_an_end(&database).await);
}
