//! Race scenarios on functions that are broken on purpose: the scenarios must detect it.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use windlass_conformance::{LEASE, Subject, complete, continue_with, json, release};
use windlass_core::command::{
    Acquire, Acquired, Cancel, CancelMode, Cancelled, Command, CompleteFromOutside, Create, CreateAndAcquire,
    Delete, Retry, RetryTarget, SetRetention, Settle, Settled, Settlement, Step, Trigger,
};
use windlass_core::{ChainId, JobId, RequestId, Store, Transactional};
use windlass_testkit::wait_until;

use crate::Database;
use crate::race::{TIMEOUT, orphans};

/// How `acquire_v1` and `create_one_acquire_v1` lock a request, and look up the leases that it has taken.
const LOCK_OF_REQUEST: &str = "perform pg_advisory_xact_lock(hashtextextended(by_request::text, 0));";
const LOOKUP_OF_REQUEST: &str = ".lease l where l.request = by_request)";
const NO_LOOKUP: &str = ".lease l where false)";

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

/// Lets a function wait for locks for longer than any test holds them, so that a scenario has the same result on a slow
/// machine.
pub(crate) async fn be_patient(database: &Database, function: &str) {
    let alter = format!("alter function {{}}.{function} set lock_timeout = '120s'");
    sqlx::query(database.sql(&alter)).execute(&database.pool).await.unwrap();
}

/// Waits until this many sessions that run a function wait for a lock.
pub(crate) async fn until_waiting(database: &Database, function: &str, sessions: i64) {
    let waiting =
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and strpos(query, $1) > 0";
    let call = format!("\"{}\".{function}(", database.server.namespace());
    wait_until(&format!("{sessions} sessions wait in {function}"), TIMEOUT, async || {
        let count: i64 = sqlx::query_scalar(waiting).bind(&call).fetch_one(&database.pool).await.unwrap();
        count == sessions
    })
    .await;
}

/// Keeps all others from writing to a table until the transaction ends.
async fn lock_table(database: &Database, table: &str) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut tx = database.pool.begin().await.unwrap();
    let lock = format!("lock table {{}}.{table} in exclusive mode");
    sqlx::query(database.sql(&lock)).execute(&mut *tx).await.unwrap();
    tx
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

/// Creates six chains of type `p`. Returns them with the commands that lock pending jobs, one for each chain.
pub(crate) async fn changes(s: &Subject) -> (Vec<ChainId>, Vec<Command>) {
    let new: Vec<_> = (0..6).map(|_| s.start("p").build()).collect();
    let chains: Vec<_> = new.iter().map(|chain| chain.id).collect();
    s.create(new).await;
    let version = s.chain(chains[3]).await.latest.version;
    let output = json("1");
    let step = Step::Complete { output, retention: None, create: Vec::new() };
    let job = chains[3].first_job();
    let complete = CompleteFromOutside { request: RequestId::new(), job, version, steps: vec![step] };
    s.run(Cancel { chains: vec![chains[5].into()], mode: CancelMode::Ask }).await;
    let cancelled = s.chain(chains[5]).await.latest;
    let retry = Retry { chains: vec![RetryTarget { job: cancelled.id, version: cancelled.version }] };
    s.run(retry.clone()).await;
    let commands = vec![
        Cancel { chains: vec![chains[0].into()], mode: CancelMode::Ask }.into(),
        Trigger { jobs: vec![chains[1].into()] }.into(),
        Delete { chains: vec![chains[2].into()], cascade: false, seen: None }.into(),
        complete.into(),
        // The last two change nothing: the chain is open, and the retry is repeated.
        SetRetention { chains: vec![chains[4].into()], retention: LEASE }.into(),
        retry.into(),
    ];
    (chains, commands)
}

/// Changes pending jobs in an open transaction, each by another command. Returns how long an acquire of other jobs of the
/// same type takes meanwhile.
async fn acquire_beside_open_changes(database: &Database) -> Duration {
    let s = database.subject();
    let (_, commands) = changes(&s).await;
    let mut others = [s.start("p").await, s.start("p").await];
    others.sort();
    let mut tx = database.store.begin().await.unwrap();
    for command in commands {
        database.store.execute_in((&mut tx).into(), command).await.unwrap();
    }
    let began = Instant::now();
    // A store that waits for the rows ends with an error after its time limit.
    let acquired = database.store.acquire(s.acquire_request(&["p"], 8)).await;
    let took = began.elapsed();
    if let Ok(reply) = acquired {
        let mut taken: Vec<_> = reply.jobs.iter().map(|acquired| acquired.job.chain).collect();
        taken.sort();
        assert_eq!(taken, others, "only jobs that the transaction has not changed");
    }
    database.store.rollback(tx).await.unwrap();
    took
}

/// Erases the store, and completes a chain that can be removed now.
async fn expired(s: &Subject) -> ChainId {
    s.store.erase().await.unwrap();
    let chain = s.start("b").retention(1).await;
    s.work("b", complete("1")).await;
    s.advance(3_600_000);
    chain
}

/// Attaches a job to an expired chain that a command has chosen and not yet removed. Returns whether each stored job still
/// has its blockers afterwards.
async fn keeps_blockers_of_jobs_that_attach_to_an_expired_chain(database: &Database) -> bool {
    let s = database.subject();
    let chain = expired(&s).await;
    // The command removes the chain's marks before its row.
    let marks = lock_table(database, "ripple").await;
    let expiring = tokio::spawn({
        let s = s.clone();
        async move { s.expire().await }
    });
    until_waiting(database, "expire_v1", 1).await;
    s.start("a").blocked_by([chain]).created().await;
    marks.rollback().await.unwrap();
    expiring.await.unwrap();
    orphans(database).await == 0
}

/// Makes `removable_v1` wait for the lock of [`stop_expire`] between the start of its query and the lock of a chain.
async fn add_stop_to_expire(database: &Database) {
    let stop = format!(
        "limit max_jobs + (select 1 from pg_advisory_xact_lock(hashtextextended('{}', 0)))",
        database.server.namespace()
    );
    spoil(database, "removable_v1", "limit max_jobs + 1", &stop).await;
}

async fn stop_expire(database: &Database) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut tx = database.pool.begin().await.unwrap();
    let lock = "select pg_advisory_xact_lock(hashtextextended($1, 0))";
    sqlx::query(lock).bind(database.server.namespace()).execute(&mut *tx).await.unwrap();
    tx
}

/// Attaches a job to an expired chain after a command has begun to query which chains it may remove. Returns whether each
/// stored job still has its blockers afterwards.
async fn keeps_blockers_of_jobs_that_attach_during_the_query(database: &Database) -> bool {
    let s = database.subject();
    let chain = expired(&s).await;
    let stop = stop_expire(database).await;
    let expiring = tokio::spawn({
        let s = s.clone();
        async move { s.expire().await }
    });
    until_waiting(database, "expire_v1", 1).await;
    s.start("a").blocked_by([chain]).await;
    stop.rollback().await.unwrap();
    expiring.await.unwrap();
    orphans(database).await == 0
}

async fn acquired_by(s: Subject, request: Acquire) -> Vec<JobId> {
    s.run(request).await.jobs.iter().map(|acquired| acquired.job.id).collect()
}

/// Sends an acquire again before the first one has committed. Returns whether both replies have the same job.
async fn returns_the_same_job_to_a_repeated_acquire(database: &Database) -> bool {
    let s = database.subject();
    s.create(vec![s.start("a").build(), s.start("a").build()]).await;
    let request = s.acquire_request(&["a"], 1);
    let leases = lock_table(database, "lease").await;
    let first = tokio::spawn(acquired_by(s.clone(), request.clone()));
    let second = tokio::spawn(acquired_by(s.clone(), request));
    until_waiting(database, "acquire_v1", 2).await;
    leases.rollback().await.unwrap();
    let replies = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((replies.0.len(), replies.1.len()), (1, 1));
    replies.0 == replies.1
}

/// Creates and acquires a job. Before that has committed, repeats the acquire alone, when another job is pending. Returns
/// whether both replies have the same job.
async fn returns_the_created_job_to_a_repeated_acquire(database: &Database) -> bool {
    database.store.erase().await.unwrap();
    let s = database.subject();
    let acquire = s.acquire_request(&["a"], 1);
    let create = Create { chains: vec![s.start("a").build()] };
    let joined = CreateAndAcquire { create, acquire: acquire.clone() };
    let leases = lock_table(database, "lease").await;
    let first = tokio::spawn({
        let s = s.clone();
        async move { s.run(joined).await.acquire.jobs.iter().map(|acquired| acquired.job.id).collect::<Vec<_>>() }
    });
    until_waiting(database, "create_one_acquire_v1", 1).await;
    s.start("a").await;
    let second = tokio::spawn(acquired_by(s.clone(), acquire));
    until_waiting(database, "acquire_v1", 1).await;
    leases.rollback().await.unwrap();
    let replies = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((replies.0.len(), replies.1.len()), (1, 1));
    replies.0 == replies.1
}

/// Repeats an acquire together with a creation. Returns whether it returns the job that it acquired first.
async fn returns_the_same_job_with_a_creation(database: &Database) -> bool {
    database.store.erase().await.unwrap();
    let s = database.subject();
    let before = s.start("a").await;
    let acquire = s.acquire_request(&["a"], 1);
    s.run(acquire.clone()).await;
    let create = Create { chains: vec![s.start("a").build()] };
    let reply = s.run(CreateAndAcquire { create, acquire }).await;
    assert_eq!(reply.acquire.jobs.len(), 1);
    reply.acquire.jobs[0].job.chain == before
}

/// Cancels two running jobs. While the command waits for the second one, the first one has become pending, and an acquire
/// has locked its row of `ready`. Returns whether the command says that both are busy, and leaves the job to acquires.
async fn leaves_a_job_that_became_pending_to_an_acquire(database: &Database) -> bool {
    let s = database.subject();
    // Jobs are locked in the order of their ids.
    let mut chains = [s.start("a").await, s.start("a").await];
    chains.sort();
    let attempts = s.acquire("a", 2).await;
    let first = attempts.iter().find(|attempt| attempt.job.chain == chains[0]).unwrap();
    let (job, fence) = (first.job.id, first.job.fence);
    let requeue = Settle { settlements: vec![Settlement { job, fence, outcome: release() }] };
    let lock = || database.sql("select from {}.job where id = $1 for update skip locked");

    let mut requeuing = database.store.begin().await.unwrap();
    database.store.run_in((&mut requeuing).into(), requeue).await.unwrap();
    let mut holding = database.pool.begin().await.unwrap();
    sqlx::query(lock()).bind(chains[1].as_uuid()).execute(&mut *holding).await.unwrap();
    let cancelling = tokio::spawn({
        let (s, chains) = (s.clone(), chains.map(Into::into).to_vec());
        async move { s.run(Cancel { chains, mode: CancelMode::Ask }).await }
    });
    until_waiting(database, "cancel_v1", 1).await;
    database.store.commit(requeuing).await.unwrap();
    wait_until("the cancel has locked the first job", TIMEOUT, async || {
        // All rows, so that this lock is released before the next check.
        sqlx::query(lock()).bind(job.as_uuid()).fetch_all(&database.pool).await.unwrap().is_empty()
    })
    .await;
    let acquiring = tokio::spawn({
        let s = s.clone();
        async move { s.acquire("a", 1).await }
    });
    until_waiting(database, "acquire_v1", 1).await;
    holding.rollback().await.unwrap();

    let (cancelled, acquired) = (cancelling.await.unwrap(), acquiring.await.unwrap());
    // The acquire may be woken after the inner subtransaction of the lock has ended, but before the outer one is rolled back.
    // It then waits for the whole command, and skips the job after a deadlock. A later acquire takes it.
    let left = s.acquire("a", 1).await;
    let is_taken_once = acquired.iter().chain(&left).map(|acquired| acquired.job.id).eq([job]);
    is_taken_once && cancelled.chains == [Cancelled::Busy, Cancelled::Busy]
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

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lock_on_expired_chains_a_job_attaches_to_one_that_is_removed() {
    let database = Database::new().await;
    be_patient(&database, "expire_v1").await;
    assert!(keeps_blockers_of_jobs_that_attach_to_an_expired_chain(&database).await);
    spoil(&database, "removable_v1", "for update of c skip locked", "").await;
    assert!(!keeps_blockers_of_jobs_that_attach_to_an_expired_chain(&database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_second_query_for_dependents_a_chain_is_removed_after_a_job_attached() {
    let database = Database::new().await;
    be_patient(&database, "expire_v1").await;
    add_stop_to_expire(&database).await;
    assert!(keeps_blockers_of_jobs_that_attach_during_the_query(&database).await);
    spoil(&database, "removable_v1", "continue when exists", "continue when false and exists").await;
    assert!(!keeps_blockers_of_jobs_that_attach_during_the_query(&database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lock_or_a_lookup_a_repeated_acquire_takes_other_jobs() {
    for (part, by) in [(LOCK_OF_REQUEST, "null;"), (LOOKUP_OF_REQUEST, NO_LOOKUP)] {
        let database = Database::new().await;
        be_patient(&database, "acquire_v1").await;
        assert!(returns_the_same_job_to_a_repeated_acquire(&database).await);
        spoil(&database, "acquire_v1", part, by).await;
        assert!(!returns_the_same_job_to_a_repeated_acquire(&database).await, "{part}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lock_a_job_is_created_for_a_request_that_takes_another() {
    let database = Database::new().await;
    for function in ["acquire_v1", "create_one_acquire_v1"] {
        be_patient(&database, function).await;
    }
    assert!(returns_the_created_job_to_a_repeated_acquire(&database).await);
    spoil(&database, "create_one_acquire_v1", LOCK_OF_REQUEST, "null;").await;
    assert!(!returns_the_created_job_to_a_repeated_acquire(&database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lookup_a_job_is_created_for_a_request_that_has_taken_another() {
    let database = Database::new().await;
    assert!(returns_the_same_job_with_a_creation(&database).await);
    spoil(&database, "create_one_acquire_v1", LOOKUP_OF_REQUEST, NO_LOOKUP).await;
    assert!(!returns_the_same_job_with_a_creation(&database).await);
}

/// Without the second look at `ready`, the command and the acquire wait for each other.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_second_look_at_ready_rows_a_command_deadlocks_with_an_acquire() {
    let database = Database::new().await;
    for function in ["acquire_v1", "cancel_v1"] {
        be_patient(&database, function).await;
    }
    assert!(leaves_a_job_that_became_pending_to_an_acquire(&database).await);
    let raise = "raise exception using errcode = 'WL003', message = 'a job has just become pending';";
    spoil(&database, "lock_rows_v1", raise, "null;").await;
    assert!(!leaves_a_job_that_became_pending_to_an_acquire(&database).await);
}
