//! The server crashes and restarts, or becomes a standby.

use std::sync::Arc;
use std::time::Duration;

use windlass_conformance::{Subject, complete};
use windlass_core::command::{Count, Create, Settle, Settlement, Types};
use windlass_core::{ErrorKind, ManualClock, Store, Transactional};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::{PostgresServer, wait_until};

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_a_finish_leaves_it_whole() {
    let mut server = PostgresServer::start().await;
    let clock = Arc::new(ManualClock::default());
    let provider = Sqlx::connect(&server.url()).await.unwrap();
    let options = Options::default().clock(clock.clone());
    let store = Arc::new(PostgresStore::open(provider, options).await.unwrap());
    let s = Subject::new(store.clone(), store.clone(), clock);
    let chain = s.start("a").await;
    let attempt = s.acquire_one("a").await;

    let mut tx = store.begin().await.unwrap();
    let outcome = complete("1");
    let settlement = Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome };
    store.run_in((&mut tx).into(), Settle { settlements: vec![settlement] }).await.unwrap();
    server.crash().await;
    let error = store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = store.count(Count { types: Types::All }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    server.restart().await;
    s.apply(&attempt, complete("2")).await;
    assert_eq!(s.chain(chain).await.output(), Some(&windlass_conformance::json("2")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_became_a_standby_is_reported() {
    let mut server = PostgresServer::start().await;
    let provider = Sqlx::connect(&server.url()).await.unwrap();
    let store = PostgresStore::open(provider, Options::default()).await.unwrap();
    server.become_standby().await;
    let s = Subject::new(
        Arc::new(store),
        Arc::new(windlass_core::MemoryStore::new()),
        Arc::new(ManualClock::default()),
    );
    let create = Create { chains: vec![s.start("a").build()] };
    // The first calls may fail because their connection was closed.
    wait_until("the error states the remedy", TIMEOUT, async || {
        let error = s.store.create(create.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error.to_string().contains("connect to the primary")
    })
    .await;
}
