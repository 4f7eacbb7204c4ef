//! Clients and workers at every default isolation level: conflicts, renewals and the start of unblocked jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::{Barrier, mpsc};
use tokio::time::{Instant, sleep};
use windlass_conformance::complete;
use windlass_core::command::{Create, Delete, GetChains};
use windlass_core::{
    Attempt, BoxError, Client, Ctx, Data, Done, Entry, ErrorKind, Job, JobOptions, Result, Transactional,
    Worker,
};
use windlass_postgres::{Options, PostgresStore, Sqlx};

use super::{LEVELS, Postgres, TIMEOUT, server, sqlx_subject};

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_has_its_own_kind_and_a_delete_is_refused() {
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    let store =
        PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap();
    let blocker = s.start("b").await;
    let attempt = s.acquire_one("b").await;
    let mut tx = store.begin().await.unwrap();
    let get = GetChains { chains: vec![blocker.into()] };
    store.run_in(PostgresStore::<Sqlx>::tx_ref(&mut tx), get.clone()).await.unwrap();
    let delete = Delete { chains: vec![blocker.into()], cascade: false, seen: None };
    let error = store.run_in(PostgresStore::<Sqlx>::tx_ref(&mut tx), delete).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    store.run_in(PostgresStore::<Sqlx>::tx_ref(&mut tx), get).await.expect("the transaction stays usable");
    s.complete(&attempt, "1").await;
    let create = Create { chains: vec![s.start("a").blocked_by([blocker]).build()] };
    let error = store.run_in(PostgresStore::<Sqlx>::tx_ref(&mut tx), create).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    store.rollback(tx).await.unwrap();
}

#[derive(Serialize, Deserialize)]
struct Approval {}

impl Job for Approval {
    const NAME: &'static str = "approval";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Approval {}

#[derive(Serialize, Deserialize)]
struct Ship {}

impl Job for Ship {
    const NAME: &'static str = "ship";
    type Output = ();
    type Next = ();
    type Blockers = (Approval,);
}

impl Entry for Ship {}

async fn ship(_: Ctx<Ship>, Data(started): Data<mpsc::UnboundedSender<Instant>>) -> Result<(), BoxError> {
    Ok(started.send(Instant::now())?)
}

/// Completes the approval in the handler's transaction.
async fn approve(
    a: Attempt<Approval, Postgres>,
    Data(committing): Data<mpsc::UnboundedSender<Instant>>,
) -> Result<Done<Approval, Postgres>, BoxError> {
    let mut step = a.begin().await?;
    sqlx::query("select 1").execute(step.tx()).await?;
    committing.send(Instant::now())?;
    Ok(step.done(())?)
}

/// Which kind of transaction completes the blocker. The snapshots of the first two are older than the dependent.
#[derive(Clone, Copy, Debug)]
enum By {
    OwnTransaction,
    BorrowedTransaction,
    Handler,
}

/// Returns the time from the commit that completes the blocker to the start of its dependent. The worker of the
/// dependent does not poll.
async fn time_to_start(client: &Client<Postgres>, pool: &PgPool, by: By) -> Duration {
    let (sender, mut started) = mpsc::unbounded_channel::<Instant>();
    let worker =
        Worker::new(client).concurrency(1).poll(Duration::from_secs(3_600)).data(sender).handle(ship);
    let worker = worker.start().await.unwrap();
    let approval = client.start(Approval {}).await.unwrap();
    let committed = match by {
        By::OwnTransaction => {
            let mut tx = client.begin().await.unwrap();
            tx.chain(approval).await.unwrap();
            client.start(Ship {}).blocked_by((approval,)).await.unwrap();
            tx.step(approval).await.unwrap().of::<Approval>().unwrap().done(()).await.unwrap();
            let at = Instant::now();
            tx.commit().await.unwrap();
            at
        }
        By::BorrowedTransaction => {
            let mut tx = pool.begin().await.unwrap();
            let mut inside = client.in_tx(&mut tx);
            inside.chain(approval).await.unwrap();
            client.start(Ship {}).blocked_by((approval,)).await.unwrap();
            inside.step(approval).await.unwrap().of::<Approval>().unwrap().done(()).await.unwrap();
            let at = Instant::now();
            inside.announcements().announce_after(tx.commit()).await.unwrap();
            at
        }
        By::Handler => {
            client.start(Ship {}).blocked_by((approval,)).await.unwrap();
            let (sender, mut committing) = mpsc::unbounded_channel::<Instant>();
            let approving =
                Worker::new(client).concurrency(1).data(sender).handle(approve).start().await.unwrap();
            client.wait(approval).timeout(TIMEOUT).await.unwrap();
            approving.stop(TIMEOUT).await;
            committing.recv().await.unwrap()
        }
    };
    let started = tokio::time::timeout(TIMEOUT, started.recv())
        .await
        .expect("the dependent starts without a poll")
        .unwrap();
    worker.stop(TIMEOUT).await;
    started.duration_since(committed)
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_start_soon_after_the_commit() {
    for level in LEVELS {
        let server = server(level).await;
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let store = PostgresStore::open(Sqlx::from(pool.clone()), Options::default()).await.unwrap();
        let client = Client::new(store);
        for by in [By::OwnTransaction, By::BorrowedTransaction, By::Handler] {
            // Repeat, because other load on the machine may delay it.
            let mut took = Vec::new();
            while took.last().is_none_or(|took| *took > Duration::from_millis(250)) {
                assert!(took.len() < 5, "{level}, {by:?}: it took {took:?}");
                took.push(time_to_start(&client, &pool, by).await);
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Long {}

impl Job for Long {
    const NAME: &'static str = "long";
    type Output = u32;
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        JobOptions { lease: Some(Duration::from_secs(2)), ..JobOptions::default() }
    }
}

impl Entry for Long {}

/// Keeps its transaction open for longer than its lease, so that the lease must be renewed meanwhile.
async fn long(a: Attempt<Long, Postgres>) -> Result<Done<Long, Postgres>, BoxError> {
    let mut step = a.atomic().await?;
    sqlx::query("select 1").execute(step.tx()).await?;
    sleep(Duration::from_millis(2_500)).await; // tidy: renewals follow the server's clock, which tests cannot set
    Ok(step.done(a.attempt())?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_outlasts_renewals_does_not_conflict_with_them() {
    for level in LEVELS {
        let server = server(level).await;
        let store = PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default())
            .await
            .unwrap();
        let client = Client::new(store);
        let worker = Worker::new(&client).concurrency(1).handle(long).start().await.unwrap();
        let chain = client.start(Long {}).await.unwrap();
        assert_eq!(
            client.wait(chain).timeout(TIMEOUT).await.unwrap(),
            1,
            "{level}: the first attempt completes the job"
        );
        worker.stop(TIMEOUT).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completing_a_job_that_was_completed_meanwhile_is_a_conflict() {
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    let client = Client::new(
        PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap(),
    );
    let approval = client.start(Approval {}).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    tx.chain(approval).await.unwrap();
    s.work("approval", complete("null")).await;
    let step = tx.step(approval).await.unwrap();
    let error = step.of::<Approval>().unwrap().done(()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    tx.rollback().await.unwrap();
}

#[derive(Serialize, Deserialize)]
struct Transfer {}

impl Job for Transfer {
    const NAME: &'static str = "transfer";
    type Output = ();
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        JobOptions { max_attempts: Some(1), ..JobOptions::default() }
    }
}

impl Entry for Transfer {}

/// Reads the table and adds to it. The first two attempts do so at the same time, which is not serializable.
async fn transfer(
    a: Attempt<Transfer, Postgres>,
    Data((runs, both)): Data<(Arc<AtomicU32>, Arc<Barrier>)>,
) -> Result<Done<Transfer, Postgres>, BoxError> {
    let mut step = a.begin().await?;
    sqlx::query("select sum(amount) from account").execute(step.tx()).await?;
    sqlx::query("insert into account (amount) values (1)").execute(step.tx()).await?;
    if runs.fetch_add(1, Ordering::SeqCst) < 2 {
        both.wait().await;
    }
    Ok(step.done(())?)
}

/// A conflict at the end of an attempt is not the handler's fault: the job runs again, and the attempt does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_at_the_end_of_an_attempt_does_not_count() {
    let server = server("serializable").await;
    server.query("create table account (amount bigint)");
    let store = PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default());
    let client = Client::new(store.await.unwrap());
    let runs = Arc::new(AtomicU32::new(0));
    let state = (Arc::clone(&runs), Arc::new(Barrier::new(2)));
    let worker = Worker::new(&client).concurrency(2).data(state).handle(transfer).start().await.unwrap();
    let chains = client.start_many([Transfer {}, Transfer {}]).await.unwrap();
    for chain in chains {
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
    }
    worker.stop(TIMEOUT).await;
    assert!(runs.load(Ordering::SeqCst) > 2, "no attempt conflicted");
}
