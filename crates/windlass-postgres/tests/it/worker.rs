//! Jobs created in one transaction with rows of the application, and completed with the rows they write.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::command::Types;
use windlass_core::{
    Attempt, Backoff, BoxError, Client, Done, Entry, ErrorKind, Job, JobOptions, Transactional, Worker,
};
use windlass_postgres::{PostgresNotifier, PostgresStore, Provider, Sqlx};
use windlass_testkit::shared_postgres;

use crate::{Database, fixture};

const TIMEOUT: Duration = Duration::from_secs(60);

type Postgres = PostgresStore<Sqlx>;

#[derive(Serialize, Deserialize)]
struct Greet {
    user: i64,
}

impl Job for Greet {
    const NAME: &'static str = "greet";
    type Output = i64;
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        JobOptions { backoff: Some(Backoff::NONE), ..JobOptions::default() }
    }
}

impl Entry for Greet {}

/// Writes a row in the transaction that completes the job. The first attempt fails after all writes.
async fn greet(a: Attempt<Greet, Postgres>) -> Result<Done<Greet, Postgres>, BoxError> {
    let user = a.input().user;
    let mut step = a.begin().await?;
    sqlx::query("insert into greeting (user_id) values ($1)").bind(user).execute(step.tx()).await?;
    let done = step.done(user)?;
    if a.attempt() == 1 {
        return Err("on second thought".into());
    }
    Ok(done)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_and_jobs_commit_together_or_not_at_all() {
    let database = Database::new().await;
    let url = database.server.fresh_database();
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let tables = "create table account (id bigint generated always as identity, name text);
        create table greeting (user_id bigint)";
    sqlx::raw_sql(tables).execute(&pool).await.unwrap();
    let options = windlass_postgres::Options::default();
    let store = PostgresStore::open(Sqlx::from(pool.clone()), options.clone()).await.unwrap();
    let notifier = PostgresNotifier::new(Sqlx::from(pool.clone()), &options).unwrap();
    let client = Client::builder(store).notifier(notifier).build();

    let sign_up = async |name: &str| {
        let mut tx = client.begin().await.unwrap();
        let insert = sqlx::query_scalar("insert into account (name) values ($1) returning id").bind(name);
        let user: i64 = insert.fetch_one(tx.tx()).await.unwrap();
        let chain = tx.start(Greet { user }).await.unwrap();
        (tx, chain, user)
    };
    let (tx, forgotten, _) = sign_up("Nobody").await;
    tx.rollback().await.unwrap();
    let worker = Worker::new(&client).handle(greet).start().await.unwrap();
    let (tx, chain, user) = sign_up("Ada").await;
    tx.commit().await.unwrap();

    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), user);
    worker.stop(TIMEOUT).await;
    let count = "select (select count(*) from account), (select count(*) from greeting)";
    let counted: (i64, i64) = sqlx::query_as(count).fetch_one(&pool).await.unwrap();
    assert_eq!(counted, (1, 1), "a rolled-back row and a rolled-back job leave no trace");
    let stored: i64 = sqlx::query_scalar("select count(*) from windlass.job where id = $1")
        .bind(forgotten.id().as_uuid())
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(stored, 0);
}

/// Ends the transaction without the driver noticing. A start must be refused, because it would commit on its own.
async fn check_outside<P: Provider>(provider: P, end: impl AsyncFn(&mut P::Tx)) {
    let (_server, _, options) = fixture::fresh().await;
    let client = Client::new(PostgresStore::open(provider, options).await.unwrap());
    let mut tx = client.store().begin().await.unwrap();
    end(&mut tx).await;
    let error = client.in_tx(P::tx_ref(&mut tx)).start(Greet { user: 1 }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("begin a transaction first"), "{error}");
    drop(tx);
    let counted = client.count(Types::All).await.unwrap();
    assert!(counted.types.is_empty(), "{counted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_a_transaction_commands_are_refused() {
    let provider = Sqlx::connect(&shared_postgres().await.url()).await.unwrap();
    check_outside(provider, async |tx| {
        sqlx::raw_sql("commit").execute(&mut **tx).await.unwrap();
    })
    .await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn outside_a_transaction_commands_are_refused_on_tokio_postgres() {
    let url = shared_postgres().await.url();
    let provider = windlass_postgres::TokioPostgres::connect(&url).await.unwrap();
    check_outside(provider, async |tx| tx.batch_execute("commit").await.unwrap()).await;
}
