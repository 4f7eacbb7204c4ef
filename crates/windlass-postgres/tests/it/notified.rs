//! Clients are notified of what other processes commit, without any setup.

use std::time::Duration;

use tokio::process::Command;
use windlass_conformance::latency::{commit_jobs, commit_to_handler, print_times, read_times};
use windlass_core::{ChainId, Client, Reach};
use windlass_postgres::{Options, PostgresStore, Provider, Sqlx};
use windlass_testkit::{PgBouncer, PostgresServer, is_full_run, print_figure, shared_postgres, wait_until};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest delay that 99 of 100 jobs may have between commit and handler.
const LONGEST: Duration = Duration::from_millis(250);

/// How often the measurement is repeated on a busy machine.
const TRIES: usize = 5;

/// Environment variables with the driver, the server and the schema for the process that commits jobs.
const DRIVER: &str = "WINDLASS_TEST_DRIVER";
const URL: &str = "WINDLASS_TEST_URL";
const SCHEMA: &str = "WINDLASS_TEST_SCHEMA";

/// Number of jobs that the application commits.
fn commits() -> usize {
    if is_full_run() { 1_000 } else { 200 }
}

/// Another process commits jobs by its own means. A worker of this process runs them.
async fn check<P: Provider>(driver: &str, connect: impl AsyncFn(String) -> P) {
    let server = shared_postgres().await;
    let schema = server.namespace().to_string();
    let options = Options::default().schema(schema.as_str());
    let client = Client::new(PostgresStore::open(connect(server.url()).await, options).await.unwrap());
    for tries in 1.. {
        let delays = commit_to_handler(&client, async {
            let mut application = Command::new(std::env::current_exe().unwrap());
            application.args(["--exact", "notified::committing_process", "--nocapture"]).kill_on_drop(true);
            application.env(DRIVER, driver).env(URL, server.url()).env(SCHEMA, &schema);
            let output = application.output().await.unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}");
            read_times(&text)
        })
        .await;
        print_figure(&format!("PostgreSQL with {driver}"), &delays);
        assert_eq!(delays.jobs(), commits());
        if delays.percentile(0.99) < LONGEST && delays.found_by_polling == 0 {
            break;
        }
        assert!(tries < TRIES, "{delays}");
    }
    client.close().await.unwrap();
}

/// The body of the process that commits jobs. Does nothing without the environment variables.
#[tokio::test(flavor = "multi_thread")]
async fn committing_process() {
    let [Ok(driver), Ok(url), Ok(schema)] = [DRIVER, URL, SCHEMA].map(std::env::var) else { return };
    let options = Options::default().schema(schema);
    match driver.as_str() {
        #[cfg(feature = "tokio-postgres")]
        "tokio-postgres" => {
            commit(windlass_postgres::TokioPostgres::connect(&url).await.unwrap(), options).await;
        }
        _ => commit(Sqlx::connect(&url).await.unwrap(), options).await,
    }
}

async fn commit<P: Provider>(provider: P, options: Options) {
    let application = Client::new(PostgresStore::open(provider, options).await.unwrap());
    print_times(&commit_jobs(&application, commits()).await);
    application.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_woken_after_the_commits_of_another_process_through_sqlx() {
    check("sqlx", async |url: String| Sqlx::connect(&url).await.unwrap()).await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn workers_are_woken_after_the_commits_of_another_process_through_tokio_postgres() {
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
