//! Race scenarios on functions that are broken on purpose: the scenarios must detect it.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use windlass_conformance::{LEASE, complete, continue_with};
use windlass_core::command::{
    Acquired, Cancel, CancelMode, Command, CompleteFromOutside, Create, CreateAndAcquire, Delete,
    SetRetention, Settle, Settled, Settlement, Step, Trigger,
};
use windlass_core::{ChainId, RequestId, Store, Transactional};

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

/// Attaches a job to a chain in a transaction during which the chain completes, together with `others`. Returns whether the
/// job can be acquired afterwards.
async fn is_unblocked_after_attaching_to_an_end(database: &Database, others: usize) -> bool {
    let s = database.subject();
    let blocker = s.start("b").await;
    for _ in 0..others {
        s.start("b").await;
    }
    let attempts = s.acquire("b", 1 + u32::try_from(others).unwrap()).await;
    let mut tx = database.store.begin().await.unwrap();
    let waiting = s.start("a").blocked_by([blocker]).build();
    database.store.run_in((&mut tx).into(), Create { chains: vec![waiting] }).await.unwrap();
    let settlements = attempts.iter().flat_map(|attempt| settle(attempt).settlements).collect();
    let reply = database.store.settle(Settle { settlements }).await.unwrap();
    database.store.commit(tx).await.unwrap();
    for (attempt, settled) in attempts.iter().zip(reply.settled) {
        if settled == Settled::Busy {
            s.complete(attempt, "1").await;
        }
    }
    s.acquire("a", 1).await.len() == 1
}

/// Lets two chains continue with jobs that wait for each other, in overlapping transactions. Returns how many continued.
async fn continued_by_waiting_for_each_other(database: &Database) -> usize {
    let s = database.subject();
    let chains = [s.start("b").await, s.start("b").await];
    let attempts = s.acquire("b", 2).await;
    let other = |attempt: &Acquired| {
        let own = attempt.job.chain;
        chains.into_iter().find(|chain| *chain != own).unwrap()
    };
    let mut transactions = Vec::new();
    let mut continued = 0;
    for attempt in &attempts {
        let next = s.start("a").blocked_by([other(attempt)]).next_job();
        let mut command = settle(attempt);
        command.settlements[0].outcome = continue_with(next);
        let mut tx = database.store.begin().await.unwrap();
        let reply = database.store.run_in((&mut tx).into(), command).await.unwrap();
        continued += usize::from(matches!(reply.settled[0], Settled::Applied(_)));
        transactions.push(tx);
    }
    for tx in transactions {
        database.store.commit(tx).await.unwrap();
    }
    continued
}

/// Changes pending jobs in an open transaction, each by another command. Returns how long an acquire of other jobs of the
/// same type takes meanwhile.
async fn acquire_beside_open_changes(database: &Database) -> Duration {
    let s = database.subject();
    let chains: Vec<ChainId> = {
        let new: Vec<_> = (0..7).map(|_| s.start("p").build()).collect();
        let ids = new.iter().map(|chain| chain.id).collect();
        s.create(new).await;
        ids
    };
    let version = s.chain(chains[3]).await.latest.version;
    let commands: [Command; 5] = [
        Cancel { chains: vec![chains[0].into()], mode: CancelMode::Ask }.into(),
        Trigger { jobs: vec![chains[1].into()] }.into(),
        Delete { chains: vec![chains[2].into()], cascade: false, seen: None }.into(),
        CompleteFromOutside {
            request: RequestId::new(),
            job: chains[3].first_job(),
            version,
            steps: vec![Step::Complete {
                output: windlass_conformance::json("1"),
                retention: None,
                create: Vec::new(),
            }],
        }
        .into(),
        // Changes nothing, because the chain is open, but locks it.
        SetRetention { chains: vec![chains[4].into()], retention: LEASE }.into(),
    ];
    let mut tx = database.store.begin().await.unwrap();
    for command in commands {
        database.store.execute_in((&mut tx).into(), command).await.unwrap();
    }
    let began = Instant::now();
    // A store that waits for the rows ends with an error after its time limit.
    let acquired = database.store.acquire(s.acquire_request(&["p"], 7)).await;
    let took = began.elapsed();
    if let Ok(reply) = acquired {
        let mut taken: Vec<_> = reply.jobs.iter().map(|acquired| acquired.job.chain).collect();
        taken.sort();
        assert_eq!(taken, &chains[5..], "only jobs that the transaction has not changed");
    }
    database.store.rollback(tx).await.unwrap();
    took
}

/// A transaction that changes pending jobs locks their rows of `ready` first, so that acquires skip them.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_lock_on_ready_rows_an_open_transaction_delays_acquires() {
    const LIMIT: Duration = Duration::from_millis(900);
    let database = Database::new().await;
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        fastest = fastest.min(acquire_beside_open_changes(&database).await);
        database.store.erase().await.unwrap();
    }
    assert!(fastest < LIMIT, "{fastest:?}");
    spoil(
        &database,
        "lock_ready_v1",
        "if cardinality(pending) = 0 then",
        "if true then return '{}'; end if; if false then",
    )
    .await;
    assert!(acquire_beside_open_changes(&database).await >= LIMIT);
}

/// An update alone does not conflict with the lock that attaches a job to the chain.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_full_lock_a_completion_strands_a_job_that_attaches() {
    let database = Database::new().await;
    for (function, others) in [("complete_one_v1", 0), ("complete_plain_v1", 1)] {
        assert!(is_unblocked_after_attaching_to_an_end(&database, others).await, "{function}");
        spoil(&database, function, "for update", "for no key update").await;
        assert!(!is_unblocked_after_attaching_to_an_end(&database, others).await, "{function}");
    }
}

/// The conformance cases and random sequences only see that the replies are right.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_job_for_an_idle_worker_is_not_acquired_separately() {
    let database = Database::new().await;
    let s = database.subject();
    spoil(&database, "acquire_v1", "begin", "begin raise exception 'called';").await;
    for key in [None, Some("k")] {
        let new = s.start("a");
        let create = Create { chains: vec![key.map_or(new.clone(), |key| new.key(key)).build()] };
        let joined = CreateAndAcquire { create, acquire: s.acquire_request(&["a"], 10) };
        let reply = database.store.create_and_acquire(joined).await.unwrap();
        assert_eq!(reply.acquire.jobs.len(), 1);
    }
    let create = Create { chains: vec![s.start("a").build(), s.start("a").build()] };
    let joined = CreateAndAcquire { create, acquire: s.acquire_request(&["a"], 10) };
    assert!(database.store.create_and_acquire(joined).await.is_err(), "several jobs are acquired");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_full_lock_two_continuations_wait_for_each_other() {
    let database = Database::new().await;
    assert_eq!(continued_by_waiting_for_each_other(&database).await, 1);
    spoil(&database, "lock_chains_v1", "'update'", "'no key update'").await;
    assert_eq!(continued_by_waiting_for_each_other(&database).await, 2);
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
    assert!(is_unblocked_after_attaching_to_an_end(&database, 0).await);
    spoil(&database, "lock_chains_v1", "if shared then", "if shared then return '{}';").await;
    assert!(!is_unblocked_after_attaching_to_an_end(&database, 0).await);
}
