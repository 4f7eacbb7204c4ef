//! Opening and migrating.

use std::sync::Arc;

use windlass_conformance::{complete, json, type_name};
use windlass_core::command::{Created, NewChain, NewJob};
use windlass_core::{ChainId, Client, ErrorKind, Store};
use windlass_postgres::{Options, PostgresStore, Sqlx};

use crate::{Database, fixture};

async fn check(url: &str, options: Options, kind: ErrorKind, part: &str) {
    let opened = match Sqlx::connect(url).await {
        Ok(provider) => PostgresStore::open(provider, options).await.map(drop),
        Err(error) => Err(error),
    };
    let error = opened.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part) && !error.to_string().contains("s3cret"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_may_open_a_new_schema_at_once() {
    let (server, _, options) = fixture::fresh().await;
    let opening: Vec<_> = (0..16)
        .map(|_| {
            let (url, options) = (server.url(), options.clone());
            tokio::spawn(async move {
                let pool =
                    sqlx::postgres::PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
                PostgresStore::open(Sqlx::from(pool), options).await.map(drop)
            })
        })
        .collect();
    for opened in opening {
        opened.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_open_reports_the_reason() {
    let (server, _, options) = fixture::fresh().await;
    for bad in ["", "Upper", "1st", "a-b", "a\"; drop", "pg_x", &"x".repeat(31)] {
        check(&server.url(), options.clone().schema(bad), ErrorKind::Invalid, "schema").await;
    }
    check(&server.url(), options.clone().prefix("a b"), ErrorKind::Invalid, "prefix").await;
    let url = "postgres://nobody:s3cret@127.0.0.1:1/none";
    let text = "PostgreSQL cannot be reached at 127.0.0.1:1/none: ";
    check(url, options.clone(), ErrorKind::Unavailable, text).await;
    check(url, options.clone(), ErrorKind::Unavailable, "refused").await;
    let socket = "postgres:///none?host=/no/such/directory&port=7";
    let text = "PostgreSQL cannot be reached at /no/such/directory:7/none: ";
    check(socket, options.clone(), ErrorKind::Unavailable, text).await;
    #[cfg(feature = "tokio-postgres")]
    {
        let error = windlass_postgres::TokioPostgres::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(
            error.to_string().starts_with("PostgreSQL cannot be reached at 127.0.0.1:1/none: "),
            "{error}"
        );
        assert!(error.to_string().contains("refused") && !error.to_string().contains("s3cret"), "{error}");
        let numeric = "hostaddr=127.0.0.1 port=1 user=nobody dbname=none";
        let error = windlass_postgres::TokioPostgres::connect(numeric).await.unwrap_err();
        assert!(
            error.to_string().starts_with("PostgreSQL cannot be reached at 127.0.0.1:1/none: "),
            "{error}"
        );
    }
    check("no address at all", options.clone(), ErrorKind::Invalid, "URL is invalid").await;
    check(&server.url(), options.clone().migrate(false), ErrorKind::Outdated, "migrations_sql").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_much_newer_schema_is_refused_and_the_next_one_is_not() {
    let database = Database::new().await;
    let later =
        |version: i64| format!("insert into {{}}.migration (version, name) values ({version}, 'later')");
    sqlx::query(database.sql(&later(3))).execute(&database.pool).await.unwrap();
    let provider = Sqlx::from(database.pool.clone());
    PostgresStore::open(provider, database.options.clone().migrate(false)).await.unwrap();
    sqlx::query(database.sql(&later(99))).execute(&database.pool).await.unwrap();
    check(&database.server.url(), database.options.clone(), ErrorKind::Incompatible, "update this program")
        .await;
}

/// Nothing was released with version 1.
#[tokio::test(flavor = "multi_thread")]
async fn the_layout_of_an_earlier_build_is_refused() {
    let database = Database::new().await;
    let earlier = "update {}.migration set version = 1";
    sqlx::query(database.sql(earlier)).execute(&database.pool).await.unwrap();
    for migrates in [true, false] {
        let options = database.options.clone().migrate(migrates);
        check(&database.server.url(), options, ErrorKind::Incompatible, "drop its tables").await;
    }
}

/// The next version adds its own functions and columns. Programs of both versions run at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn old_and_new_programs_overlap_during_an_upgrade() {
    let database = Database::new().await;
    let old = database.subject();
    old.start("a").await;
    let attempt = old.acquire_one("a").await;
    for step in [
        "alter table {}.job add column tenant text",
        "create function {}.renew_v2(given bigint, jobs uuid[], fences bigint[], leases bigint[])
         returns setof {}.reply_v1 language sql as $$ select * from {}.renew_v1(given, jobs, fences, leases) $$",
        "insert into {}.migration (version, name) values (3, 'the next one')",
    ] {
        sqlx::query(database.sql(step)).execute(&database.pool).await.unwrap();
    }
    old.renew(&attempt).await;
    old.apply(&attempt, complete("1")).await;
    old.start("a").await;
    let provider = Sqlx::from(database.pool.clone());
    let reopened = Arc::new(PostgresStore::open(provider, database.options.clone()).await.unwrap());
    let mut restarted = database.subject();
    restarted.store = reopened;
    restarted.work("a", complete("2")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_is_a_namespace() {
    let (server, _, options) = fixture::fresh().await;
    let open = |prefix: &'static str| {
        let (url, options) = (server.url(), options.clone().prefix(prefix));
        async move { PostgresStore::open(Sqlx::connect(&url).await.unwrap(), options).await.unwrap() }
    };
    let (one, two) = (open("one_").await, open("two_").await);
    let counted = |store: PostgresStore<Sqlx>| async move {
        let count = windlass_core::command::Count { types: windlass_core::command::Types::All };
        store.count(count).await.unwrap().types.len()
    };
    let chain = Database::new().await.subject().start("a").build();
    for store in [&one, &two] {
        store.create(windlass_core::command::Create { chains: vec![chain.clone()] }).await.unwrap();
    }
    two.erase().await.unwrap();
    assert_eq!((counted(one).await, counted(two).await), (1, 0));
}

/// Applications create their client where it is convenient, for example in a constructor or a `OnceLock`.
#[test]
fn a_client_is_created_outside_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(Database::new());
    let client = Client::<PostgresStore<Sqlx>>::new(Arc::clone(&database.store));
    runtime.block_on(async {
        let job = NewJob::new(type_name("a"), json("1"));
        let created = client.create(vec![NewChain::new(ChainId::new(), job)]).await.unwrap();
        assert!(matches!(created[..], [Created::New { .. }]), "{created:?}");
        client.close().await.unwrap();
    });
}
