//! Races that a naive store on PostgreSQL loses.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use windlass_conformance::{LEASE, complete};
use windlass_core::Store;
use windlass_core::command::{
    Acquire, Acquired, Create, Created, Delete, DeleteReply, Quota, Renew, RenewLease, Renewed, Settle,
    Settled, Settlement,
};
use windlass_core::{RequestId, Status, Transactional, WorkerId};

use crate::Database;

fn settlement(attempt: &Acquired) -> Settlement {
    Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome: complete("1") }
}

/// Eight blockers of two hundred jobs end at once. On a store that counts waits without a lock, some job stays blocked.
#[tokio::test(flavor = "multi_thread")]
async fn blockers_that_end_at_once_leave_nobody_blocked() {
    let database = Database::new().await;
    let s = database.subject();
    let blockers: Vec<_> = (0..8).map(|_| s.start("b").build()).collect();
    let ids: Vec<_> = blockers.iter().map(|chain| chain.id).collect();
    s.create(blockers).await;
    s.create((0..200).map(|_| s.start("a").blocked_by(ids.clone()).build()).collect()).await;
    let mut settling = JoinSet::new();
    for attempt in s.acquire("b", 8).await {
        let store = database.store.clone();
        settling.spawn(async move {
            loop {
                let reply = store.settle(Settle { settlements: vec![settlement(&attempt)] }).await.unwrap();
                if reply.settled != [Settled::Busy] {
                    return;
                }
            }
        });
    }
    settling.join_all().await;
    // What somebody else held was left with a mark, and an acquire goes on with it.
    let mut taken = 0;
    while taken < 200 {
        let jobs = s.acquire("a", 1_000).await.len();
        assert!(jobs > 0, "only {taken} of 200 were unblocked");
        taken += jobs;
    }
}

/// Two batches end blockers of the same jobs, each in its own order.
#[tokio::test(flavor = "multi_thread")]
async fn batches_in_opposite_order_meet_no_deadlock() {
    let database = Database::new().await;
    let s = database.subject();
    for _ in 0..10 {
        let blockers: Vec<_> = (0..20).map(|_| s.start("b").build()).collect();
        let ids: Vec<_> = blockers.iter().map(|chain| chain.id).collect();
        s.create(blockers).await;
        s.create((0..40).map(|_| s.start("a").blocked_by(ids.clone()).build()).collect()).await;
        let attempts = s.acquire("b", 20).await;
        let (left, right) = attempts.split_at(10);
        let batch = |attempts: Vec<Acquired>| {
            let store = database.store.clone();
            tokio::spawn(async move {
                let settlements = attempts.iter().map(settlement).collect();
                store.settle(Settle { settlements }).await.unwrap().settled
            })
        };
        let (left, right) = (batch(left.to_vec()), batch(right.iter().rev().cloned().collect()));
        for settled in left.await.unwrap().into_iter().chain(right.await.unwrap()) {
            assert!(matches!(settled, Settled::Applied(_)), "{settled:?}");
        }
        let mut taken = 0;
        while taken < 40 {
            let jobs = s.acquire("a", 100).await.len();
            assert!(jobs > 0, "only {taken} of 40 were unblocked");
            taken += jobs;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_by_many_producers_is_one_chain() {
    let database = Database::new().await;
    let s = database.subject();
    let mut creating = JoinSet::new();
    for _ in 0..64 {
        let (store, chain) = (database.store.clone(), s.start("a").key("k").build());
        creating.spawn(async move {
            store.create(Create { chains: vec![chain] }).await.unwrap().chains.remove(0)
        });
    }
    let created = creating.join_all().await;
    let new = created.iter().filter(|one| matches!(one, Created::New { .. })).count();
    let chains: HashSet<_> = created.iter().map(Created::chain).collect();
    assert_eq!((new, chains.len()), (1, 1), "{created:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_workers_take_each_job_once() {
    let database = Database::new().await;
    let s = database.subject();
    for _ in 0..2 {
        s.create((0..500).map(|_| s.start("a").build()).collect()).await;
    }
    let mut working = JoinSet::new();
    for _ in 0..16 {
        let store = database.store.clone();
        working.spawn(async move {
            let (worker, mut taken, mut idle) = (WorkerId::new(), Vec::new(), 0);
            while idle < 20 {
                let quota = Quota { job_type: windlass_conformance::type_name("a"), max: 10, lease: LEASE };
                let request = Acquire { request: RequestId::new(), worker, types: vec![quota], max: 10 };
                let jobs = store.acquire(request).await.unwrap().jobs;
                idle = if jobs.is_empty() { idle + 1 } else { 0 };
                taken.extend(jobs.iter().map(|acquired| acquired.job.id));
            }
            taken
        });
    }
    let taken: Vec<_> = working.join_all().await.into_iter().flatten().collect();
    assert_eq!((taken.len(), taken.iter().collect::<HashSet<_>>().len()), (1_000, 1_000));
}

/// A job is in somebody's open transaction while its worker renews fifty leases: one is busy, and none is delayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_in_an_open_transaction_delays_no_renewal() {
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
    let began = Instant::now();
    let reply = database.store.renew(Renew { leases: attempts.iter().map(lease).collect() }).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "it took {:?}", began.elapsed());
    let held = reply.leases.iter().filter(|one| matches!(one, Renewed::Held { .. })).count();
    assert_eq!((held, reply.leases[7]), (49, Renewed::Busy));
    database.store.rollback(tx).await.unwrap();
}

/// A key that somebody's open transaction takes is busy, and whoever waited gets it after a rollback.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_an_open_transaction_is_busy_and_not_waited_for_without_end() {
    let database = Database::new().await;
    let s = database.subject();
    let mut tx = database.store.begin().await.unwrap();
    let create = Create { chains: vec![s.start("a").key("k").build()] };
    database.store.run_in(&mut tx, create).await.unwrap();
    let chains = vec![s.start("a").key("k").build(), s.start("a").key("l").build(), s.start("a").build()];
    let created = s.create(chains.clone()).await;
    assert_eq!(created[0], Created::Busy);
    assert!(created[1..].iter().all(|one| matches!(one, Created::New { .. })), "{created:?}");
    database.store.rollback(tx).await.unwrap();
    assert!(matches!(s.create(vec![chains[0].clone()]).await[0], Created::New { .. }));
}

/// While an open transaction waits for a chain to stay as it is, the chain's jobs run, are renewed and put back.
#[tokio::test(flavor = "multi_thread")]
async fn attaching_in_an_open_transaction_stops_only_the_end_of_the_blocker() {
    let database = Database::new().await;
    let s = database.subject();
    let blocker = s.start("b").await;
    let mut tx = database.store.begin().await.unwrap();
    let waiting = s.start("a").blocked_by([blocker]).build();
    database.store.run_in(&mut tx, Create { chains: vec![waiting.clone()] }).await.unwrap();
    let attempt = s.acquire_one("b").await;
    assert!(matches!(s.renew(&attempt).await, Renewed::Held { .. }));
    assert_eq!(s.settle(&attempt, complete("1")).await, Settled::Busy);
    database.store.commit(tx).await.unwrap();
    s.apply(&attempt, complete("1")).await;
    s.expect_status(waiting.id, Status::Pending).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_runs_is_deleted_or_settled_and_nothing_is_left_of_it() {
    let database = Database::new().await;
    let s = database.subject();
    for _ in 0..20 {
        let chain = s.start("a").key("k").await;
        let attempt = Arc::new(s.acquire_one("a").await);
        let settling = {
            let (store, attempt) = (database.store.clone(), attempt.clone());
            tokio::spawn(async move {
                store.settle(Settle { settlements: vec![settlement(&attempt)] }).await.unwrap()
            })
        };
        loop {
            let delete = Delete { chains: vec![chain.into()], cascade: false };
            match database.store.delete(delete).await.unwrap() {
                DeleteReply::Busy => {}
                reply => break assert!(matches!(reply, DeleteReply::Deleted(_)), "{reply:?}"),
            }
        }
        settling.await.unwrap();
        assert!(s.find_chain(chain).await.is_none());
        for table in ["job", "chain", "key", "blocker", "attempt"] {
            let count = database.sql(&format!("select count(*) from {{}}.{table}"));
            let left: i64 = sqlx::query_scalar(count).fetch_one(&database.pool).await.unwrap();
            assert_eq!(left, 0, "{table}");
        }
    }
}
