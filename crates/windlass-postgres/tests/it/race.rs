//! Races that a naive store on PostgreSQL loses.

mod managed;

use std::time::{Duration, Instant};

use tokio::time::timeout;
use windlass_conformance::{LEASE, Subject, complete, continue_with, continue_with_chains, race, type_name};
use windlass_core::command::{
    Acquired, Count, Create, Created, NewChain, Outcome, Pause, Renew, RenewLease, Renewed, Settle, Settled,
    Settlement, Types,
};
use windlass_core::{Client, ErrorKind, Status, Store, Transactional};
use windlass_postgres::{PostgresStore, Sqlx};
use windlass_testkit::{is_full_run, wait_until};

use crate::Database;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Repeats `take` until it takes less than `bound` once, at most five times. A faulty store always takes longer; a
/// correct one may be delayed by other load on the machine.
async fn repeat_until_within(bound: Duration, mut take: impl AsyncFnMut(usize) -> Duration) {
    let mut took = Vec::new();
    while took.last().is_none_or(|took| *took >= bound) {
        assert!(took.len() < 5, "it took {took:?}");
        took.push(take(took.len()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrently_completed_blockers_leave_no_job_blocked() {
    race::blockers_end_at_once(Database::new().await.subject()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_to_a_closing_chain_strands_no_job() {
    race::attached_while_closing(Database::new().await.subject()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_producers_of_one_key_create_one_chain() {
    race::one_key(Database::new().await.subject()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_settled_twice_continues_once() {
    race::continued_twice(Database::new().await.subject()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_workers_acquire_each_job_once() {
    race::sixteen_workers(Database::new().await.subject()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_deleted_completely() {
    let database = Database::new().await;
    race::deleted_while_running(database.subject()).await;
    for table in ["job", "ready", "leaving", "ripple", "key", "blocker", "attempt"] {
        let count = database.sql(&format!("select count(*) from {{}}.{table}"));
        let left: i64 = sqlx::query_scalar(count).fetch_one(&database.pool).await.unwrap();
        assert_eq!(left, 0, "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_opposite_order_do_not_deadlock() {
    race::batches_in_opposite_order(Database::new().await.subject()).await;
}

/// An open transaction has locked one job while its worker renews fifty leases: one is busy, and none is delayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_locked_by_an_open_transaction_does_not_delay_renewals() {
    let database = Database::new().await;
    let s = database.subject();
    s.create((0..50).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", 50).await;
    let mut tx = database.store.begin().await.unwrap();
    sqlx::query(database.sql("select from {}.job where id = $1 for update"))
        .bind(attempts[7].job.id.as_uuid())
        .execute(&mut *tx)
        .await
        .unwrap();
    let lease =
        |attempt: &Acquired| RenewLease { job: attempt.job.id, fence: attempt.job.fence, lease: LEASE };
    let renew = database.store.renew(Renew { leases: attempts.iter().map(lease).collect() });
    let reply = timeout(TIMEOUT, renew).await.expect("nothing waits for the transaction").unwrap();
    let held = reply.leases.iter().filter(|one| matches!(one, Renewed::Held { .. })).count();
    assert_eq!((held, reply.leases[7]), (49, Renewed::Busy));
    database.store.rollback(tx).await.unwrap();
}

/// A key taken in an open transaction is busy, and free again after a rollback.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_an_open_transaction_is_busy_after_a_bounded_wait() {
    let database = Database::new().await;
    let s = database.subject();
    let mut tx = database.store.begin().await.unwrap();
    let create = Create { chains: vec![s.start("a").key("k").build()] };
    database.store.run_in((&mut tx).into(), create).await.unwrap();
    let busy = s.start("a").key("k").build();
    let waits = s.start("b").blocked_by([busy.id]).build();
    let chains = vec![busy, waits, s.start("a").key("l").build(), s.start("a").build()];
    let created = s.create(chains.clone()).await;
    assert_eq!(created[..2], [Created::Busy, Created::Busy], "an item that waits for it is busy too");
    assert!(created[2..].iter().all(|one| matches!(one, Created::New { .. })), "{created:?}");
    database.store.rollback(tx).await.unwrap();
    assert!(matches!(s.create(vec![chains[0].clone()]).await[0], Created::New { .. }));
}

/// Keys held by an open transaction do not delay other items of the same batch.
#[tokio::test(flavor = "multi_thread")]
async fn locked_keys_do_not_delay_free_ones() {
    let database = Database::new().await;
    let s = database.subject();
    // A faulty store waits one second for each of the five held keys.
    repeat_until_within(Duration::from_secs(1), async |round| {
        let keyed = |key: usize| s.start("a").key(&format!("k{round}:{key:02}")).build();
        let mut tx = database.store.begin().await.unwrap();
        let held = Create { chains: (0..55).step_by(11).map(keyed).collect() };
        database.store.run_in((&mut tx).into(), held).await.unwrap();
        let began = Instant::now();
        let created = s.create((0..55).map(keyed).collect()).await;
        let took = began.elapsed();
        let busy: Vec<_> = (0..55).filter(|place| created[*place] == Created::Busy).collect();
        assert_eq!(busy, [0, 11, 22, 33, 44]);
        assert!(created.iter().filter(|one| matches!(one, Created::New { .. })).count() == 50, "{created:?}");
        database.store.rollback(tx).await.unwrap();
        took
    })
    .await;
}

/// Creates chains with a client while an open transaction holds one of their keys. The transaction ends once the client
/// has tried twice. If the client gave up before that, repeats everything with another key.
async fn create_beside_holder(
    database: &Database,
    s: &Subject,
    chains: impl Fn(&str) -> Vec<NewChain>,
) -> (Vec<NewChain>, Vec<Created>) {
    let store =
        PostgresStore::open(Sqlx::from(database.pool.clone()), database.options.clone()).await.unwrap();
    let client = Client::builder(store).build();
    for round in 0..10 {
        let key = format!("held{round}");
        let mut tx = database.store.begin().await.unwrap();
        let held = Create { chains: vec![s.start("a").key(&key).build()] };
        database.store.run_in((&mut tx).into(), held).await.unwrap();
        let chains = chains(&key);
        let before = client.store().counters().round_trips;
        let create = client.create(chains.clone());
        let end = async {
            let tried_twice = async || client.store().counters().round_trips >= before + 2;
            wait_until("the client tried twice", TIMEOUT, tried_twice).await;
            database.store.rollback(tx).await.unwrap();
        };
        let (created, ()) = tokio::join!(create, end);
        let created = created.unwrap();
        if !created.contains(&Created::Busy) {
            return (chains, created);
        }
    }
    panic!("the client gave up before the transaction ended in every round");
}

/// A client retries a held key on its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_retries_a_locked_key() {
    let database = Database::new().await;
    let s = database.subject();
    let chains = |held: &str| vec![s.start("a").key(held).build(), s.start("a").build()];
    let (_, created) = create_beside_holder(&database, &s, chains).await;
    assert!(created.iter().all(|one| matches!(one, Created::New { .. })), "{created:?}");
}

/// A retried item keeps its meaning. Its blocker is a chain of the same call whose key belongs to an existing chain, so
/// it must wait for that existing chain.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_chain_waits_for_the_blocker_it_named() {
    let database = Database::new().await;
    let s = database.subject();
    let holder = s.start("b").key("k").await;
    let chains = |held: &str| {
        let named = s.start("b").key("k").build();
        let waiting = s.start("a").key(held).blocked_by([named.id]).build();
        vec![named, waiting]
    };
    let (chains, created) = create_beside_holder(&database, &s, chains).await;
    let waiting = chains[1].id;
    assert!(
        matches!(&created[..], [Created::Existing(it), Created::New { .. }] if it.chain == holder),
        "{created:?}"
    );
    s.expect_status(waiting, Status::Blocked).await;
    s.work("b", complete("1")).await;
    s.expect_status(waiting, Status::Pending).await;
}

/// While an open transaction attaches a job to a chain, the chain's jobs can be acquired and renewed. Only closing the
/// chain is busy.
#[tokio::test(flavor = "multi_thread")]
async fn attaching_in_an_open_transaction_blocks_only_the_completion_of_the_blocker() {
    let database = Database::new().await;
    let s = database.subject();
    let blocker = s.start("b").await;
    let mut tx = database.store.begin().await.unwrap();
    let waiting = s.start("a").blocked_by([blocker]).build();
    database.store.run_in((&mut tx).into(), Create { chains: vec![waiting.clone()] }).await.unwrap();
    let attempt = s.acquire_one("b").await;
    assert!(matches!(s.renew(&attempt).await, Renewed::Held { .. }));
    assert_eq!(s.settle(&attempt, complete("1")).await, Settled::Busy);
    database.store.commit(tx).await.unwrap();
    s.apply(&attempt, complete("1")).await;
    s.expect_status(waiting.id, Status::Pending).await;
}

/// A key points at a chain that an open transaction is closing. A job that waits for that chain by its key is not
/// stored until the transaction ends. Otherwise it would wait forever for a chain whose dependents were already
/// resolved.
#[tokio::test(flavor = "multi_thread")]
async fn attaching_by_key_to_a_closing_chain_strands_no_job() {
    let database = Database::new().await;
    let s = database.subject();
    s.start("b").key("k").await;
    let (closing, worker) = (s.acquire_one("b").await, s.start("a").await);
    let attempt = s.acquire_one("a").await;
    let mut tx = database.store.begin().await.unwrap();
    let settlement = Settlement { job: closing.job.id, fence: closing.job.fence, outcome: complete("1") };
    database.store.run_in((&mut tx).into(), Settle { settlements: vec![settlement] }).await.unwrap();

    let named = s.start("b").key("k").build();
    let waiting = s.start("a").blocked_by([named.id]).build();
    let created = s.create(vec![named.clone(), waiting.clone()]).await;
    assert_eq!(created, [Created::Busy, Created::Busy]);
    let next = continue_with_chains(s.start("a").blocked_by([named.id]).next_job(), vec![named.clone()]);
    assert_eq!(s.settle(&attempt, next.clone()).await, Settled::Busy);

    database.store.commit(tx).await.unwrap();
    let created = s.create(vec![named.clone(), waiting.clone()]).await;
    assert!(created.iter().all(|one| matches!(one, Created::New { .. })), "{created:?}");
    s.apply(&attempt, next).await;
    s.work("b", complete("1")).await;
    for chain in [waiting.id, worker] {
        s.expect_status(chain, Status::Pending).await;
    }
}

/// Many jobs continue with jobs that have blockers, and another transaction has locked one blocker. That one is busy,
/// and the others are not delayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_blocker_does_not_delay_other_continuations() {
    const JOBS: usize = 200;
    let database = Database::new().await;
    let s = database.subject();
    // A delay of 20 ms for each of them would add up to four seconds.
    repeat_until_within(Duration::from_secs(2), async |_| {
        let blockers: Vec<_> = (0..JOBS).map(|_| s.start("b").build()).collect();
        s.create(blockers.clone()).await;
        s.create((0..JOBS).map(|_| s.start("a").build()).collect()).await;
        let attempts = s.acquire("a", 1_000).await;
        let mut tx = database.store.begin().await.unwrap();
        sqlx::query(database.sql("select from {}.chain where id = $1 for update"))
            .bind(blockers[7].id.as_uuid())
            .execute(&mut *tx)
            .await
            .unwrap();
        let settlements = attempts.iter().zip(&blockers).map(|(attempt, blocker)| Settlement {
            job: attempt.job.id,
            fence: attempt.job.fence,
            outcome: continue_with(s.start("a").blocked_by([blocker.id]).next_job()),
        });
        let (settle, began) = (Settle { settlements: settlements.collect() }, Instant::now());
        let settled = s.run(settle).await.settled;
        let took = began.elapsed();
        database.store.rollback(tx).await.unwrap();
        assert_eq!(settled.iter().filter(|one| **one == Settled::Busy).count(), 1);
        assert_eq!(settled[7], Settled::Busy);
        took
    })
    .await;
}

/// Chains expire while jobs attach to them: the blocker of every stored job still exists.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_not_removed_while_a_job_attaches_to_it() {
    const CHAINS: usize = 300;
    let database = Database::new().await;
    let s = database.subject();
    for _ in 0..8 {
        let chains: Vec<_> = (0..CHAINS).map(|_| s.start("b").retention(1).build()).collect();
        s.create(chains.clone()).await;
        for attempt in s.acquire("b", 1_000).await.chunks(CHAINS) {
            let settlements = attempt.iter().map(|attempt| Settlement {
                job: attempt.job.id,
                fence: attempt.job.fence,
                outcome: complete("1"),
            });
            s.run(Settle { settlements: settlements.collect() }).await;
        }
        s.advance(3_600_000);
        let (leaving, attaching) = (s.clone(), s.through_other());
        let last = chains[CHAINS - 1].id;
        let expiring = tokio::spawn(async move { leaving.expire().await });
        for _ in 0..40 {
            attaching.start("a").blocked_by([last]).created().await;
        }
        expiring.await.unwrap();
        assert_eq!(orphans(&database).await, 0, "jobs whose blockers were removed");
    }
}

/// Returns how many waits of stored jobs are for a chain that is not stored.
pub(crate) async fn orphans(database: &Database) -> i64 {
    let orphans =
        "select count(*) from {}.blocker b where not exists (select from {}.chain c where c.id = b.chain)";
    sqlx::query_scalar(database.sql(orphans)).fetch_one(&database.pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_in_an_open_transaction_makes_another_busy() {
    let database = Database::new().await;
    let pause = Pause { types: vec![type_name("a")], paused: true };
    let mut tx = database.store.begin().await.unwrap();
    database.store.run_in((&mut tx).into(), pause.clone()).await.unwrap();
    let other = timeout(TIMEOUT, database.store.pause(pause.clone()))
        .await
        .expect("it does not wait for locks for long");
    assert_eq!(other.unwrap_err().kind(), ErrorKind::Busy);
    database.store.rollback(tx).await.unwrap();
    assert_eq!(database.store.pause(pause).await.unwrap().were_paused, [false]);
}

/// A transaction settles an attempt that has lost its job. The job is pending again, and an acquire takes it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_settlement_in_an_open_transaction_does_not_hold_up_acquires() {
    let database = Database::new().await;
    let s = database.subject();
    s.start("a").await;
    let late = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    assert_eq!(s.reap().await.reaped.len(), 1);
    let mut tx = database.store.begin().await.unwrap();
    let settlement = Settlement { job: late.job.id, fence: late.job.fence, outcome: complete("1") };
    let settle = Settle { settlements: vec![settlement] };
    let settled = database.store.run_in((&mut tx).into(), settle).await.unwrap();
    assert!(!matches!(settled.settled[0], Settled::Applied(_)), "{settled:?}");
    // It may be skipped while the transaction is open, but nobody waits for it.
    let other = s.start("a").await;
    let taken = s.acquire("a", 2).await;
    assert!(taken.iter().any(|acquired| acquired.job.chain == other), "{taken:?}");
    database.store.rollback(tx).await.unwrap();
    assert_eq!(taken.len() + s.acquire("a", 2).await.len(), 2);
}

/// A request is repeated after its jobs were requeued, and once more after it has taken them again.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_took_a_job_twice_returns_it_once() {
    let database = Database::new().await;
    let s = database.subject();
    s.start("a").await;
    let request = s.acquire_request(&["a"], 5);
    assert_eq!(s.run(request.clone()).await.jobs.len(), 1);
    s.advance(LEASE.get() + 1);
    assert_eq!(s.reap().await.reaped.len(), 1);
    let again = s.run(request.clone()).await.jobs;
    let repeated = s.run(request).await.jobs;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].job, repeated[0].job);
    assert_eq!(repeated.len(), 1);
}

/// Jobs whose rows stay locked do not keep the reaper from others.
#[tokio::test(flavor = "multi_thread")]
async fn locked_jobs_do_not_hide_other_expired_leases() {
    let database = Database::new().await;
    let s = database.subject();
    for _ in 0..5 {
        s.start("a").await;
    }
    let attempts = s.acquire("a", 4).await;
    s.advance(1);
    let last = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    let mut tx = database.store.begin().await.unwrap();
    for attempt in &attempts {
        sqlx::query(database.sql("select from {}.job where id = $1 for update"))
            .bind(attempt.job.id.as_uuid())
            .execute(&mut *tx)
            .await
            .unwrap();
    }
    let reap = windlass_core::command::Reap {
        types: windlass_core::command::Types::All,
        max: 2,
        except: Vec::new(),
        renewal_interval: windlass_core::Millis::ZERO,
    };
    let reaped = s.run(reap).await.reaped;
    assert_eq!(reaped.iter().map(|reaped| reaped.job.job).collect::<Vec<_>>(), [last.job.id]);
    database.store.rollback(tx).await.unwrap();
}

/// An operator has locked a pending job, against the rule that locks its row of `ready` first. Acquires skip it, return each
/// other job once, and count them once.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_skips_a_job_that_an_operator_has_locked() {
    let database = Database::new().await;
    let s = database.subject();
    let chains: Vec<_> = (0..10).map(|_| s.start("a").build()).collect();
    let locked = chains[5].id;
    s.create(chains.clone()).await;
    let mut tx = database.pool.begin().await.unwrap();
    let lock = database.sql("select id from {}.job where id = $1 for update");
    sqlx::query(lock).bind(locked.as_uuid()).execute(&mut *tx).await.unwrap();
    let mut acquired: Vec<_> = s.acquire("a", 10).await.iter().map(|acquired| acquired.job.chain).collect();
    acquired.sort();
    let mut others: Vec<_> = chains.iter().map(|chain| chain.id).filter(|chain| *chain != locked).collect();
    others.sort();
    assert_eq!(acquired, others);
    tx.rollback().await.unwrap();
    let count = database.store.count(Count { types: Types::All }).await.unwrap();
    assert_eq!((count.types[0].pending, count.types[0].running), (1, 9));
    assert_eq!(s.acquire_one("a").await.job.chain, locked);
}

/// A transaction of the application holds a blocker, a job and a key for seconds. Meanwhile, others start, acquire and
/// settle jobs that do not need these rows. Nothing is busy or delayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_does_not_delay_unrelated_jobs() {
    const JOBS: usize = 20;
    let time_open = Duration::from_secs(if is_full_run() { 10 } else { 3 });
    let database = Database::new().await;
    let s = database.subject();
    let (blocker, settled) = (s.start("blocker").await, s.start("settled").await);
    let (blocking, settling) = (s.acquire_one("blocker").await, s.acquire_one("settled").await);
    let (waiting, keyed) = (s.start("a").blocked_by([blocker]).build(), s.start("a").key("held").build());
    let mut tx = database.store.begin().await.unwrap();
    let create = Create { chains: vec![waiting.clone(), keyed.clone()] };
    database.store.run_in((&mut tx).into(), create).await.unwrap();
    let settlements = vec![settlement(&settling, complete("1"))];
    database.store.run_in((&mut tx).into(), Settle { settlements }).await.unwrap();

    let opened = Instant::now();
    let mut rounds = Vec::new();
    while opened.elapsed() < time_open {
        let began = Instant::now();
        work_on_unrelated_jobs(&s, JOBS, rounds.len()).await;
        rounds.push(began.elapsed());
    }
    rounds.sort();
    // A round takes some milliseconds. Half of them may be delayed by other load on the machine.
    let median = rounds[rounds.len() / 2];
    assert!(median < Duration::from_secs(1), "{median:?}: {} rounds", rounds.len());

    // The transaction has held its rows all the time.
    assert_eq!(s.start("a").key("held").created().await, Created::Busy);
    assert_eq!(s.settle(&blocking, complete("1")).await, Settled::Busy);
    assert_eq!(s.settle(&settling, complete("1")).await, Settled::Busy);
    database.store.commit(tx).await.unwrap();
    s.complete(&blocking, "1").await;
    s.expect_status(settled, Status::Completed).await;
    for chain in [waiting, keyed] {
        s.expect_status(chain.id, Status::Pending).await;
    }
}

/// Starts chains with a key and chains that wait for them, and completes all. Fails if one of them is busy.
async fn work_on_unrelated_jobs(s: &Subject, jobs: usize, round: usize) {
    let first: Vec<_> = (0..jobs).map(|job| s.start("b").key(&format!("{round}:{job}")).build()).collect();
    let second: Vec<_> = first.iter().map(|blocker| s.start("c").blocked_by([blocker.id]).build()).collect();
    let created = s.create(first.into_iter().chain(second).collect()).await;
    assert!(created.iter().all(|one| matches!(one, Created::New { .. })), "{created:?}");
    for job_type in ["b", "c"] {
        let attempts = s.acquire(job_type, 1_000).await;
        assert_eq!(attempts.len(), jobs, "{job_type}");
        let settlements = attempts.iter().map(|attempt| settlement(attempt, complete("1"))).collect();
        let settled = s.run(Settle { settlements }).await.settled;
        assert!(settled.iter().all(|one| matches!(one, Settled::Applied(_))), "{settled:?}");
    }
}

fn settlement(attempt: &Acquired, outcome: Outcome) -> Settlement {
    Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome }
}
