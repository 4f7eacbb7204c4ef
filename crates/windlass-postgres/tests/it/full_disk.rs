//! The disk fills up while jobs run, and later has room again.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::Semaphore;
use windlass_core::command::{Create, ListJobs};
use windlass_core::{
    Attempt, Backoff, BoxError, Client, Data, Done, Entry, ErrorKind, Job, JobOptions, Status, Store, Worker,
    plan,
};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::PostgresServer;

const TIMEOUT: Duration = Duration::from_secs(60);
const SLOTS: u32 = 4;
const CHAINS: usize = 20;

/// Tables whose rows are neither compressed nor stored out of line.
const TABLES: &str = "create table receipt (job uuid not null, paper text not null);
    alter table receipt alter paper set storage plain;
    create table filler (bytes text not null);
    alter table filler alter bytes set storage plain";

/// Inserts rows so large that none fits into free space of an existing page.
const FILL: &str = "insert into filler select repeat('x', 7000) from generate_series(1, $1)";

type Postgres = PostgresStore<Sqlx>;

#[derive(Serialize, Deserialize)]
struct Print {
    text: String,
}

impl Job for Print {
    const NAME: &'static str = "print";
    type Output = ();
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        JobOptions { backoff: Some(Backoff::NONE), ..JobOptions::default() }
    }
}

impl Entry for Print {}

#[derive(Clone)]
struct Office {
    /// Gets a permit when an attempt starts.
    running: Arc<Semaphore>,
    /// Lets attempts continue.
    gate: Arc<Semaphore>,
    /// Gets a permit when a receipt did not fit on the disk.
    refused: Arc<Semaphore>,
}

/// Writes a receipt in the transaction that completes the job.
async fn print(
    a: Attempt<Print, Postgres>,
    Data(office): Data<Office>,
) -> Result<Done<Print, Postgres>, BoxError> {
    office.running.add_permits(1);
    let _passed = office.gate.acquire().await?;
    let mut step = a.begin().await?;
    let receipt = sqlx::query("insert into receipt select $1, repeat('x', 7000) from generate_series(1, 10)");
    let written = receipt.bind(a.job().id.as_uuid()).execute(step.tx()).await;
    written.inspect_err(|_| office.refused.add_permits(1))?;
    Ok(step.done(())?)
}

/// Writes ever smaller pieces until the disk is full.
async fn fill(pool: &PgPool) {
    for rows in [100, 10, 1] {
        while let Ok(done) = sqlx::query(FILL).bind(rows).execute(pool).await {
            assert_eq!(done.rows_affected(), u64::try_from(rows).unwrap());
        }
    }
    let error = sqlx::query(FILL).bind(1).execute(pool).await.unwrap_err();
    assert!(error.to_string().contains("No space left on device"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing_and_workers_continue_when_it_has_space() {
    if !PostgresServer::may_mount() {
        eprintln!("skipped: a disk that can be filled needs the right to mount one");
        return;
    }
    // A vacuum would free the space that failed inserts took.
    let server = PostgresServer::builder().small_disk(24).setting("autovacuum", "off").start().await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    sqlx::raw_sql(TABLES).execute(&pool).await.unwrap();
    let store = PostgresStore::open(Sqlx::from(pool.clone()), Options::default()).await.unwrap();
    let client = Client::new(store);
    let [running, gate, refused] = std::array::from_fn(|_| Arc::new(Semaphore::new(0)));
    let office = Office { running, gate, refused };
    let worker = Worker::new(&client).concurrency(SLOTS).poll(Duration::from_millis(100));
    let worker = worker.data(office.clone()).handle(print).start().await.unwrap();
    let prints = (0..CHAINS).map(|number| Print { text: number.to_string() });
    let chains = client.start_many(prints).await.unwrap();
    drop(office.running.acquire_many(SLOTS).await.unwrap());

    fill(&pool).await;
    let (small, large) = (plan(Print { text: "small".into() }), plan(Print { text: noise() }));
    let (known, batch) = (small.handle(), vec![small.build().unwrap(), large.build().unwrap()]);
    let error = client.store().create(Create { chains: batch }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the disk is full; free some space"), "{error}");
    assert!(client.chain(known).await.unwrap().is_none(), "the batch is not stored partially");
    office.gate.add_permits(4);
    drop(office.refused.acquire_many(SLOTS).await.unwrap());
    let stored = client.list_jobs(ListJobs::default()).await.unwrap().jobs;
    assert_eq!(stored.len(), CHAINS, "only the running jobs are stored");
    assert!(stored.iter().all(|job| job.status != Status::Completed), "no job completes without its receipt");

    sqlx::raw_sql("drop table filler").execute(&pool).await.unwrap();
    let large = client.start(Print { text: noise() }).await.unwrap();
    for chain in chains.into_iter().chain([large]) {
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
    }
    worker.stop(TIMEOUT).await;
    let receipts = server.query("select count(*), count(distinct job) from receipt");
    let all = CHAINS + 1;
    assert_eq!(receipts.trim(), format!("{}|{all}", all * 10), "each job has one receipt");
}

/// Returns a text that does not fit into a page, even compressed.
fn noise() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(100_000).collect()
}
