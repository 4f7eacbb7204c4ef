//! The server denies access: a wrong password, a missing database, a missing privilege, a changed password.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use windlass_core::command::Types;
use windlass_core::{BoxError, Client, Ctx, Entry, Error, ErrorKind, Job, Notifier, Result, Topic, Worker};
use windlass_postgres::{Options, PostgresNotifier, PostgresStore, Provider, Sqlx};
use windlass_testkit::{PgBouncer, PostgresServer, wait_until};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Less than the acquire timeout of a pool.
const IMMEDIATE: Duration = Duration::from_secs(8);

#[derive(Serialize, Deserialize)]
struct Greet;

impl Job for Greet {
    const NAME: &'static str = "greet";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Greet {}

async fn greet(_: Ctx<Greet>) -> Result<(), BoxError> {
    Ok(())
}

/// A server that checks the passwords of all roles except the superuser's. The role `jobs` may create schemas, and the
/// role `reader` may do nothing. Both have the password `right`.
async fn server() -> PostgresServer {
    // PostgreSQL 13 still uses MD5 by default.
    let server = PostgresServer::builder().setting("password_encryption", "scram-sha-256").start().await;
    let rules =
        "host locked all all scram-sha-256\nhost all windlass all trust\nhost all all all scram-sha-256\n";
    std::fs::write(server.directory().join("data/pg_hba.conf"), rules).unwrap();
    server.query("create role jobs login password 'right'; grant create on database postgres to jobs");
    server.query("create role reader login password 'right'");
    server.query("create database locked");
    server.query("select pg_reload_conf()");
    let rejects = async || Sqlx::connect(&url(&server, "jobs", "wrong", "postgres")).await.is_err();
    wait_until("the server checks passwords", TIMEOUT, rejects).await;
    server
}

fn url(server: &PostgresServer, user: &str, password: &str, database: &str) -> String {
    format!("postgres://{user}:{password}@127.0.0.1:{}/{database}", server.port())
}

/// Returns the error of a call that fails immediately.
async fn denied<T: std::fmt::Debug>(call: impl Future<Output = Result<T>>) -> Error {
    let began = Instant::now();
    let error = call.await.unwrap_err();
    assert!(began.elapsed() < IMMEDIATE, "{:?}: {error}", began.elapsed());
    error
}

#[track_caller]
fn check(error: &Error, parts: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
}

async fn check_open<P: Provider>(connect: impl AsyncFn(String) -> Result<P>) {
    let server = server().await;
    let open = async |url: String, options: Options| -> Result<_> {
        PostgresStore::open(connect(url).await?, options).await
    };
    let error = denied(open(url(&server, "jobs", "wrong", "postgres"), Options::default())).await;
    check(&error, &["password authentication failed for user \"jobs\"", "check the user name and password"]);
    let error = denied(open(url(&server, "jobs", "right", "none"), Options::default())).await;
    check(&error, &["database \"none\" does not exist", "create the database"]);
    let error = denied(open(url(&server, "reader", "right", "postgres"), Options::default())).await;
    check(&error, &["permission denied for database postgres", "grant the privilege to role `reader`"]);

    open(url(&server, "jobs", "right", "postgres"), Options::default()).await.unwrap();
    let error = denied(open(url(&server, "reader", "right", "postgres"), Options::default())).await;
    check(&error, &["permission denied for schema windlass", "grant the privilege to role `reader`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_denied_access_does_not_open() {
    check_open(async |url: String| Sqlx::connect(&url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_denied_access_does_not_open_with_a_lazy_pool() {
    let lazy = async |url: String| Ok(Sqlx::from(sqlx::PgPool::connect_lazy(&url).unwrap()));
    check_open(lazy).await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_denied_access_does_not_open_on_tokio_postgres() {
    use windlass_postgres::TokioPostgres;

    check_open(async |url: String| TokioPostgres::connect(&url).await).await;
    let server = server().await;
    let error = TokioPostgres::connect(&url(&server, "jobs:x", "", "postgres").replace(":x:", "")).await;
    check(&error.unwrap_err(), &["requires a password"]);
}

/// PgBouncer reports denied access with its own SQLSTATE.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_denied_access_does_not_open_through_a_pooler() {
    let server = server().await;
    let pooler = PgBouncer::start(&server).await;
    let error = denied(Sqlx::connect(&pooler.url_of("none"))).await;
    check(&error, &["database \"none\" does not exist", "create the database"]);
    let error = denied(Sqlx::connect(&pooler.url_of("locked"))).await;
    check(&error, &["\"windlass\"", "check the user name and password"]);
    let unknown = format!("postgres://nobody@127.0.0.1:{}/postgres", pooler.port());
    check(&denied(Sqlx::connect(&unknown)).await, &["check the user name and password"]);
}

/// PgBouncer reports a server that is down as a failed login.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_behind_a_pooler_is_unavailable() {
    let mut server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server).await;
    let options = Options::default();
    let store = PostgresStore::open(Sqlx::connect(&pooler.url()).await.unwrap(), options).await.unwrap();
    server.crash().await;
    let client = Client::new(store);
    wait_until("commands fail", TIMEOUT, async || match client.count(Types::All).await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            error.to_string().contains("server login has been failing")
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_disappears_must_be_migrated() {
    let server = PostgresServer::start().await;
    let provider = Sqlx::connect(&server.url()).await.unwrap();
    let client = Client::new(PostgresStore::open(provider, Options::default()).await.unwrap());
    client.start(Greet).await.unwrap();
    server.query("drop schema windlass cascade");
    let error = client.start(Greet).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Outdated, "{error}");
}

/// Runs a worker and a notifier while the password of their role changes. `restore` makes the login work again.
async fn check_rotation<P: Provider + Clone>(
    server: &PostgresServer,
    provider: P,
    restore: impl AsyncFn(&PostgresServer),
) {
    let store = PostgresStore::open(provider.clone(), Options::default()).await.unwrap();
    let notifier = PostgresNotifier::new(provider, &Options::default()).unwrap();
    let client = Client::new(store);
    let worker = Worker::new(&client)
        .concurrency(1)
        .poll(Duration::from_millis(100))
        .handle(greet)
        .start()
        .await
        .unwrap();
    let chain = client.start(Greet).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.health().unwrap();
    notifier.subscribe(vec![Topic::Events]).await.unwrap();

    server.query("alter role jobs password 'new'");
    server.kill_backends();
    let is_denied = |error: &Error| error.kind() == ErrorKind::AccessDenied;
    let unhealthy = async || worker.health().is_err_and(|unhealthy| is_denied(&unhealthy.error));
    wait_until("the worker is unhealthy", TIMEOUT, unhealthy).await;
    // A connection that was being opened when the password changed may have been accepted, and was not killed.
    wait_until("all connections are closed", TIMEOUT, async || {
        server.kill_backends();
        client.count(Types::All).await.is_err_and(|error| is_denied(&error))
    })
    .await;
    let error = denied(client.count(Types::All)).await;
    check(&error, &["\"jobs\"", "check the user name and password"]);
    let subscribe = async || notifier.subscribe(vec![Topic::Events]).await;
    wait_until("the notifier is denied access", TIMEOUT, async || {
        subscribe().await.is_err_and(|error| is_denied(&error))
    })
    .await;

    restore(server).await;
    wait_until("the worker is healthy again", TIMEOUT, async || worker.health().is_ok()).await;
    wait_until("the notifier listens again", TIMEOUT, async || subscribe().await.is_ok()).await;
    let chain = client.start(Greet).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_recovers_when_the_pool_gets_the_new_password() {
    let server = server().await;
    let url = |password| url(&server, "jobs", password, "postgres");
    let pool = Sqlx::pool_options().connect(&url("right")).await.unwrap();
    let restore = async |_: &PostgresServer| {
        pool.set_connect_options(url("new").parse::<PgConnectOptions>().unwrap());
    };
    check_rotation(&server, Sqlx::from(pool.clone()), restore).await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_recovers_when_the_old_password_works_again_on_tokio_postgres() {
    let server = server().await;
    let url = url(&server, "jobs", "right", "postgres");
    let provider = windlass_postgres::TokioPostgres::connect(&url).await.unwrap();
    let restore = async |server: &PostgresServer| {
        server.query("alter role jobs password 'right'");
    };
    check_rotation(&server, provider, restore).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_its_privilege_is_denied() {
    let server = server().await;
    let provider = Sqlx::connect(&url(&server, "jobs", "right", "postgres")).await.unwrap();
    let client = Client::new(PostgresStore::open(provider, Options::default()).await.unwrap());
    client.start(Greet).await.unwrap();
    server.query("reassign owned by jobs to windlass");
    let error = client.start(Greet).await.unwrap_err();
    check(&error, &["permission denied", "windlass", "grant the privilege to role `jobs`"]);
}
