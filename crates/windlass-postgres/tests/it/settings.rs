//! Settings of the server, the database or the role that change what a statement means or reads. Settings that the
//! store need not handle specially are covered by the conformance suite through tokio-postgres.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use windlass_conformance::{Subject, complete};
use windlass_core::command::{Create, Created};
use windlass_core::{ErrorKind, Finding, ManualClock, Status, Store, Transactional};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::{PgBouncer, PostgresServer, wait_until};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The first version with the privilege `maintain`.
const MAINTAIN: u32 = 170_000;

/// Runs the store's commands outside transactions: creates, acquires, renews and completes jobs, reaps and expires.
async fn check_works(url: &str, options: Options) {
    let store = Arc::new(PostgresStore::open(Sqlx::connect(url).await.unwrap(), options).await.unwrap());
    let s = Subject::new(store.clone(), store.clone(), Arc::new(ManualClock::default()));
    let blocker = s.start("b").key("k").await;
    let waiting = s.start("a").blocked_by([blocker]).await;
    let attempt = s.acquire_one("b").await;
    s.renew(&attempt).await;
    s.complete(&attempt, "1").await;
    s.work("a", complete("2")).await;
    s.expect_status(waiting, Status::Completed).await;
    s.reap().await;
    s.expire().await;
    store.erase().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_transactions_by_default_do_not_stop_the_store() {
    let server = PostgresServer::builder()
        .setting("default_transaction_read_only", "on")
        .setting("default_transaction_isolation", "serializable")
        .setting("idle_in_transaction_session_timeout", "100ms")
        .start()
        .await;
    check_works(&server.url(), Options::default()).await;
    let pooler = PgBouncer::start(&server).await;
    check_works(&pooler.url(), Options::default()).await;

    let store =
        PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap();
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let begin = "begin; set local idle_in_transaction_session_timeout = 0";
    let mut tx = pool.begin_with(begin).await.unwrap();
    let s = Subject::new(
        Arc::new(store),
        Arc::new(windlass_core::MemoryStore::new()),
        Arc::new(ManualClock::default()),
    );
    let create = Create { chains: vec![s.start("a").build()] };
    let store = PostgresStore::open(Sqlx::from(pool.clone()), Options::default()).await.unwrap();
    let error = store.run_in((&mut tx).into(), create).await.unwrap_err();
    assert!(error.to_string().contains("begin a read-write transaction"), "{error}");
}

/// A command may wait for a row for longer than the role's `statement_timeout`: one item is busy, and the timeout does
/// not cancel the rest of the batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_statement_timeout_cancels_no_batch() {
    let server = PostgresServer::start().await;
    let open = async |url: String| {
        Arc::new(PostgresStore::open(Sqlx::connect(&url).await.unwrap(), Options::default()).await.unwrap())
    };
    let hasty = open(server.url()).await;
    server.query("alter role windlass set statement_timeout = '15ms'");
    server.kill_backends();
    let holder = open(format!("{}?options=-c%20statement_timeout%3D0", server.url())).await;
    // The pool replaces its connections.
    wait_until("the store answers", TIMEOUT, async || hasty.health().await.is_ok()).await;
    let clock = Arc::new(ManualClock::default());
    let s = Subject::new(hasty.clone(), holder.clone(), clock);
    // The role's timeout also cancels the commands with which the store notices it.
    let unrelated = Create { chains: vec![s.start("unrelated").build()] };
    wait_until("the store has adapted", TIMEOUT, async || hasty.create(unrelated.clone()).await.is_ok())
        .await;
    let mut tx = holder.begin().await.unwrap();
    let held = s.start("a").key("held").build();
    holder.run_in(PostgresStore::<Sqlx>::tx_ref(&mut tx), Create { chains: vec![held] }).await.unwrap();
    let blocked = s.start("a").key("held").build();
    let created = s.create(vec![blocked, s.start("a").key("free").build()]).await;
    assert!(matches!(created[..], [Created::Busy, Created::New { .. }]), "{created:?}");
    let many: Vec<_> = (0..1_000).map(|n| s.start("b").key(&format!("{n}")).build()).collect();
    assert!(s.create(many).await.iter().all(|created| matches!(created, Created::New { .. })));
    holder.rollback(tx).await.unwrap();
    let found = hasty.health().await.unwrap();
    assert!(found.iter().any(|found| found.remedy.contains("set statement_timeout")), "{found:?}");
}

/// A migration waits for locks for longer than the role's `lock_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_lock_timeout_fails_no_migration() {
    let server = PostgresServer::builder().setting("lock_timeout", "1ms").start().await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("create schema windlass").execute(&mut *tx).await.unwrap();
    let url = server.url();
    let opening = tokio::spawn(async move { check_works(&url, Options::default()).await });
    let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
    wait_until("the migration waits", TIMEOUT, async || server.query(waiting).trim() == "1").await;
    tx.rollback().await.unwrap();
    opening.await.unwrap();
}

async fn refusal(url: &str) -> windlass_core::Error {
    let provider = Sqlx::connect(url).await.unwrap();
    PostgresStore::open(provider, Options::default()).await.map(drop).unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_standby_is_refused() {
    let mut server = PostgresServer::start().await;
    check_works(&server.url(), Options::default()).await;
    server.become_standby().await;
    let error = refusal(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("connect to the primary"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_whose_rows_are_hidden_are_refused() {
    let server = PostgresServer::start().await;
    // Superusers see all rows.
    server.query("create role jobs login; grant create on database postgres to jobs");
    let url = format!("postgres://jobs@127.0.0.1:{}/postgres", server.port());
    check_works(&url, Options::default()).await;
    let open = PostgresStore::open(Sqlx::connect(&url).await.unwrap(), Options::default()).await.unwrap();
    server.query(
        "alter table windlass.job enable row level security; alter table windlass.job force row level security",
    );
    for row_security in ["on", "off"] {
        server.query(&format!("alter role jobs set row_security = {row_security}"));
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("`job`"), "{error}");
    }
    server.kill_backends();
    wait_until("the store answers", TIMEOUT, async || open.health().await.is_ok()).await;
    let found = open.health().await.unwrap();
    assert!(found.iter().any(|found| found.problem.contains("row-level security")), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_path_that_hides_the_catalog_is_refused() {
    let server = PostgresServer::builder().setting("search_path", "public, pg_catalog").start().await;
    let error = refusal(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`public, pg_catalog`"), "{error}");
    let server = PostgresServer::builder().setting("search_path", "pg_catalog, public").start().await;
    check_works(&server.url(), Options::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_reports_unusual_defaults() {
    let server = PostgresServer::builder()
        .setting("default_transaction_isolation", "repeatable read")
        .setting("default_transaction_read_only", "on")
        .start()
        .await;
    let store =
        PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap();
    let found = store.health().await.unwrap();
    let problems: Vec<_> = found.iter().map(|found| found.problem.as_str()).collect();
    assert_eq!(
        problems,
        [
            "transactions of role `windlass` are repeatable read by default",
            "transactions of role `windlass` are read-only by default",
        ]
    );
    assert!(found[0].remedy.contains("alter role windlass set default_transaction_isolation"), "{found:?}");
    store.close().await.unwrap();
}

/// The tables belong to another role, which is the safest way to deploy. The store works, but cannot vacuum.
#[tokio::test(flavor = "multi_thread")]
async fn health_reports_a_role_that_may_not_vacuum() {
    let server = PostgresServer::builder().start().await;
    // Not the owner of the database, who may vacuum all tables.
    server.query("create role jobs login; grant create on database postgres to jobs");
    check_works(&server.url().replace("windlass@", "jobs@"), Options::default()).await;
    server.query(&Options::default().roles_sql().unwrap());
    server.query("create role worker login; grant windlass_worker to worker");
    let url = server.url().replace("windlass@", "worker@");
    let store = PostgresStore::open(Sqlx::connect(&url).await.unwrap(), Options::default()).await.unwrap();
    let grant = "grant maintain on windlass.ready, windlass.lease, windlass.tally to worker";
    let found = store.health().await.unwrap();
    assert_eq!(
        found,
        [Finding {
            problem: "role `worker` may not vacuum windlass.ready, windlass.lease, windlass.tally".to_owned(),
            remedy: format!(
                "jobs are safe, but acquiring slows down on a busy queue until autovacuum comes: make the role a member \
                 of the tables' owner, or on PostgreSQL 17 and later run `{grant}`"
            ),
        }]
    );
    // PostgreSQL only warns of a table that the role may not vacuum.
    let vacuum = async || {
        let text = "vacuum windlass.ready; vacuum windlass.lease; vacuum windlass.tally";
        for statement in text.split("; ") {
            sqlx::query(statement).execute(store.provider().pool()).await.unwrap();
        }
    };
    let vacuums = || {
        let text = "select min(vacuum_count) from pg_stat_user_tables
            where schemaname = 'windlass' and relname in ('ready', 'lease', 'tally')";
        server.query(text).parse::<u32>().unwrap()
    };
    vacuum().await;
    let mut expected = 0;
    let version: u32 = server.query("show server_version_num").parse().unwrap();
    if version >= MAINTAIN {
        server.query(grant);
        assert_eq!(store.health().await.unwrap(), []);
        vacuum().await;
        expected += 1;
        wait_until("the tables are vacuumed", TIMEOUT, async || vacuums() == expected).await;
        server.query(&grant.replace("grant", "revoke").replace(" to ", " from "));
        assert_eq!(store.health().await.unwrap(), found);
        vacuum().await;
    }
    server.query("grant jobs to worker");
    assert_eq!(store.health().await.unwrap(), []);
    vacuum().await;
    expected += 1;
    wait_until("the tables are vacuumed", TIMEOUT, async || vacuums() >= expected).await;
    assert_eq!(vacuums(), expected, "the tables were also vacuumed without the privilege");
    store.close().await.unwrap();
}
