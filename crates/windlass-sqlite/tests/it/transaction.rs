//! The application's rows commit together with its jobs, in the driver's transaction.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Connection, Executor, Row, SqliteConnection, SqlitePool};
use windlass_core::command::{Create, GetJobs, ListJobs};
use windlass_core::{Client, Entry, ErrorKind, Job, Result, Store, Transactional, Worker};
use windlass_sqlite::{Options, SqliteStore, Sqlx};

use crate::lock::is_ready;
use crate::{File, new_chain};

#[derive(Serialize, Deserialize)]
struct Welcome {
    user: i64,
}

impl Job for Welcome {
    const NAME: &'static str = "welcome";
    type Output = i64;
    type Next = ();
    type Blockers = ();
}

impl Entry for Welcome {}

type Attempt<J> = windlass_core::Attempt<J, SqliteStore>;

async fn users(pool: &SqlitePool) -> Vec<String> {
    let rows = pool.fetch_all("select name from users order by id").await.unwrap();
    rows.iter().map(|row| row.get("name")).collect()
}

/// Creates a client on the application's own pool, in a database with a table of the application.
async fn application(file: &File) -> (Client<SqliteStore>, SqlitePool) {
    let connect = SqliteConnectOptions::new().filename(file.path()).create_if_missing(true);
    let connect = connect.busy_timeout(Duration::from_secs(60));
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(connect).await.unwrap();
    pool.execute("create table users (id integer primary key, name text not null)").await.unwrap();
    let store = SqliteStore::over(Sqlx::from(pool.clone()), Options::default()).await.unwrap();
    (Client::new(store), pool)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_and_a_job_commit_together_or_not_at_all() {
    let file = File::new();
    let (client, pool) = application(&file).await;
    for commits in [false, true] {
        let mut tx = client.begin().await.unwrap();
        let add = "insert into users (name) values ('Ada') returning id";
        let user = tx.tx().fetch_one(add).await.unwrap().get("id");
        let chain = tx.start(Welcome { user }).await.unwrap();
        match commits {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        assert_eq!(client.chain(chain).await.unwrap().is_some(), commits);
        assert_eq!(users(&pool).await.len(), usize::from(commits));
    }
}

/// Writes a row in the transaction that completes the job.
async fn welcome(attempt: Attempt<Welcome>) -> Result<windlass_core::Done<Welcome, SqliteStore>> {
    let user = attempt.input().user;
    let mut step = attempt.begin().await?;
    let add = sqlx::query("insert into users (name) values (?1)").bind(format!("user {user}"));
    add.execute(step.tx()).await.unwrap();
    step.done(user)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handlers_rows_commit_with_its_job() {
    let file = File::new();
    let (client, pool) = application(&file).await;
    let worker = Worker::new(&client).concurrency(4).handle(welcome).start().await.unwrap();
    let mut chains = Vec::new();
    for user in 0..20 {
        chains.push(client.start(Welcome { user }).await.unwrap());
    }
    for (user, chain) in (0..).zip(chains) {
        assert_eq!(client.wait(chain).timeout(Duration::from_secs(30)).await.unwrap(), user);
    }
    worker.stop(Duration::from_secs(10)).await;
    assert_eq!(users(&pool).await.len(), 20);
}

#[tokio::test]
async fn commands_run_in_the_applications_own_transaction() {
    let file = File::new();
    let (client, pool) = application(&file).await;
    let mut tx = pool.begin_with("begin immediate").await.unwrap();
    tx.execute("insert into users (name) values ('Ada')").await.unwrap();
    let mut inside = client.in_tx(&mut tx);
    let chain = inside.start(Welcome { user: 1 }).await.unwrap();
    inside.announcements().announce_after(tx.commit()).await.unwrap();
    assert!(client.chain(chain).await.unwrap().is_some());
}

/// Starts a chain in a transaction that was begun on the connection, and commits it.
async fn start_on(client: &Client<SqliteStore>, connection: &mut SqliteConnection, begin: &'static str) {
    connection.execute(begin).await.unwrap();
    connection.execute("insert into users (name) values ('Ada')").await.unwrap();
    client.in_tx(&mut *connection).start(Welcome { user: 1 }).await.unwrap();
    connection.execute("commit").await.unwrap();
}

#[tokio::test]
async fn any_transaction_of_the_driver_will_do() {
    let file = File::new();
    let (client, pool) = application(&file).await;

    // A deferred transaction of the pool, which has read before.
    let mut tx = pool.begin().await.unwrap();
    tx.fetch_all("select name from users").await.unwrap();
    client.in_tx(&mut tx).start(Welcome { user: 1 }).await.unwrap();
    tx.commit().await.unwrap();

    // A transaction that borrows its connection, and one nested in it.
    let mut connection =
        SqliteConnection::connect(&format!("sqlite:{}", file.path().display())).await.unwrap();
    let mut outer = connection.begin().await.unwrap();
    let mut inner = outer.begin().await.unwrap();
    client.in_tx(&mut inner).start(Welcome { user: 1 }).await.unwrap();
    inner.rollback().await.unwrap();
    client.in_tx(&mut outer).start(Welcome { user: 1 }).await.unwrap();
    outer.commit().await.unwrap();

    // Connections on which the application begins transactions itself.
    start_on(&client, &mut connection, "begin").await;
    start_on(&client, &mut connection, "begin immediate").await;
    let mut pooled = pool.acquire().await.unwrap();
    pooled.execute("begin exclusive").await.unwrap();
    client.in_tx(&mut pooled).start(Welcome { user: 1 }).await.unwrap();
    pooled.execute("commit").await.unwrap();

    let jobs = client.store().list_jobs(ListJobs::default()).await.unwrap().jobs;
    assert_eq!((jobs.len(), users(&pool).await.len()), (5, 2));
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deferred_transaction_waits_for_the_write_lock() {
    let file = File::new();
    let (client, pool) = application(&file).await;
    let mut other = pool.begin_with("begin immediate").await.unwrap();
    other.execute("insert into users (name) values ('Ada')").await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let mut inside = client.in_tx(&mut tx);
    let mut starting = Box::pin(async { inside.start(Welcome { user: 1 }).await });
    assert!(!is_ready(&mut starting).await);
    other.commit().await.unwrap();
    let chain = starting.await.unwrap();
    tx.commit().await.unwrap();
    assert!(client.chain(chain).await.unwrap().is_some());
}

#[tokio::test]
async fn a_deferred_transaction_that_read_before_others_wrote_is_a_conflict() {
    let file = File::new();
    let (client, pool) = application(&file).await;
    let mut tx = pool.begin().await.unwrap();
    tx.fetch_all("select name from users").await.unwrap();
    pool.execute("insert into users (name) values ('Ada')").await.unwrap();
    let error = client.in_tx(&mut tx).start(Welcome { user: 1 }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("begin immediate"), "the error names a remedy: {error}");
    tx.rollback().await.unwrap();
    // As the error says, the same transaction succeeds when it is repeated.
    let mut tx = pool.begin().await.unwrap();
    tx.fetch_all("select name from users").await.unwrap();
    client.in_tx(&mut tx).start(Welcome { user: 1 }).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(client.store().list_jobs(ListJobs::default()).await.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn on_a_connection_without_a_transaction_commands_are_refused() {
    let file = File::new();
    let (client, pool) = application(&file).await;
    let mut connection = pool.acquire().await.unwrap();
    let error = client.in_tx(&mut connection).start(Welcome { user: 1 }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = client.store().savepoint((&mut connection).into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("there is no transaction"), "{error}");
    assert!(!connection.is_in_transaction());
    assert!(client.store().list_jobs(ListJobs::default()).await.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn outside_a_transaction_commands_are_refused() {
    let file = File::new();
    let store = file.open().await;
    let mut tx = store.begin().await.unwrap();
    tx.execute("commit").await.unwrap();
    let new = new_chain();
    let create = Create { chains: vec![new.clone()] };
    let error = store.execute_in((&mut tx).into(), create.into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("there is no transaction"), "{error}");
    drop(tx);
    let found = store.get_jobs(GetJobs { jobs: vec![new.id.first_job()] }).await.unwrap();
    assert_eq!(found.jobs, [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_outside_the_callers_own_transaction_reports_the_deadlock() {
    let file = File::new();
    let busy_timeout = Duration::from_secs(5);
    let store = SqliteStore::open(file.options().busy_timeout(busy_timeout)).await.unwrap();
    let client = Client::new(store);
    let mut tx = client.begin().await.unwrap();
    tx.start(Welcome { user: 1 }).await.unwrap();
    let began_at = Instant::now();
    let error = client.start(Welcome { user: 2 }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let cure = "must send its commands through it: `tx.start(…)` after `client.begin()`";
    assert!(error.to_string().contains(cure), "{error}");
    assert!(began_at.elapsed() < 5 * busy_timeout, "it took {:?}", began_at.elapsed());
    tx.commit().await.unwrap();
    let jobs = client.store().list_jobs(ListJobs::default()).await.unwrap().jobs;
    assert_eq!(jobs.len(), 1, "the command that timed out had no effect");
}

/// Commands that queue behind an open transaction share commits once it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_commands_share_a_commit() {
    let file = File::new();
    let store = file.open().await;
    let tx = store.begin().await.unwrap();
    let mut creating: Vec<_> = (0..64).map(|_| store.create(Create { chains: vec![new_chain()] })).collect();
    for create in &mut creating {
        assert!(!is_ready(create).await);
    }
    let before = store.counters().commits;
    store.commit(tx).await.unwrap();
    for create in creating {
        create.await.unwrap();
    }
    let commits = store.counters().commits - before;
    assert!(commits <= 20, "64 commands took {commits} commits");
}
