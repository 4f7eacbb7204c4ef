//! Clients are notified of what other processes commit, without any setup.

use std::time::Duration;

use windlass_conformance::latency::commit_to_handler;
use windlass_core::{ChainId, Client, Reach};
use windlass_postgres::{Options, PostgresStore, Provider, Sqlx};
use windlass_testkit::{PgBouncer, PostgresServer, is_full_run, print_figure, wait_until};

use crate::fixture;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest delay that 99 of 100 jobs may have between commit and handler.
const LONGEST: Duration = Duration::from_millis(250);

/// How often the measurement is repeated on a busy machine.
const TRIES: usize = 5;

async fn check<P: Provider>(driver: &str, connect: impl AsyncFn(String) -> P) {
    let (server, _, options) = fixture::fresh().await;
    let client = async || {
        Client::new(PostgresStore::open(connect(server.url()).await, options.clone()).await.unwrap())
    };
    let (application, other) = (client().await, client().await);
    let commits = if is_full_run() { 1_000 } else { 200 };
    for tries in 1.. {
        let delays = commit_to_handler(&application, &other, commits).await;
        print_figure(&format!("PostgreSQL with {driver}"), &delays);
        if delays.percentile(0.99) < LONGEST && delays.found_by_polling == 0 {
            break;
        }
        assert!(tries < TRIES, "{delays}");
    }
    application.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_woken_after_the_applications_commits_through_sqlx() {
    check("sqlx", async |url: String| Sqlx::connect(&url).await.unwrap()).await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn workers_are_woken_after_the_applications_commits_through_tokio_postgres() {
    let connect = async |url: String| windlass_postgres::TokioPostgres::connect(&url).await.unwrap();
    check("tokio-postgres", connect).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_knows_why_it_is_not_notified() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server).await;
    let provider = Sqlx::connect(&pooler.url()).await.unwrap();
    let options = Options::default();
    let client = Client::new(PostgresStore::open(provider, options).await.unwrap());
    assert!(matches!(client.reach(), Reach::Process), "nothing has connected yet");
    let _ = client.closed(ChainId::new(), Duration::from_millis(100)).await;
    wait_until("the client knows", TIMEOUT, async || match client.reach() {
        Reach::Lost(error) => error.to_string().contains("pooler"),
        _ => false,
    })
    .await;
    client.close().await.unwrap();
}
