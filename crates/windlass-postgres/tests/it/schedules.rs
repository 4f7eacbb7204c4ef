//! How soon schedules start, what they cost, and how fast many start at once.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::schedule::Once;
use windlass_core::{BoxError, Client, Ctx, Entry, Job, Timestamp, Worker};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::schedules::{check_idle_calls, check_lateness, check_many_at_once};
use windlass_testkit::{PostgresServer, wait_until};

async fn open() -> (PostgresServer, Arc<PostgresStore<Sqlx>>) {
    let server = PostgresServer::start().await;
    let provider = Sqlx::connect(&server.url()).await.unwrap();
    let store = PostgresStore::open(provider, Options::default()).await.unwrap();
    (server, Arc::new(store))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_starts_within_a_tenth_of_a_second() {
    check_lateness("PostgreSQL", open).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_that_are_not_due_cost_less_than_a_call_a_second() {
    let (_server, store) = open().await;
    check_idle_calls("PostgreSQL", store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_schedules_start_at_once_without_delaying_an_acquire() {
    check_many_at_once("PostgreSQL", open).await;
}

#[derive(Serialize, Deserialize)]
struct Report;

impl Job for Report {
    const NAME: &'static str = "report";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Report {}

async fn report(_: Ctx<Report>) -> Result<(), BoxError> {
    Ok(())
}

/// While an application's transaction is open, the schedule that it has changed does not start. Others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_an_open_transaction_has_locked_delays_no_other() {
    let (_server, store) = open().await;
    let client = Client::<PostgresStore<Sqlx>>::new(store);
    let runs = async |name: &str| {
        let schedule = client.schedules().get(name).await.unwrap().unwrap();
        schedule.details.unwrap().runs.len()
    };
    let past = || Once::at(Timestamp::from_millis(1_000).unwrap());
    client.schedules().put("a", past(), Report).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    tx.schedules().pause("a").await.unwrap();
    let worker = Worker::new(&client).handle(report).start().await.unwrap();
    // Both come after it in the order of due schedules.
    for name in ["b", "c"] {
        client.schedules().put(name, past(), Report).await.unwrap();
        let what = format!("`{name}` has started");
        wait_until(&what, Duration::from_secs(60), async || runs(name).await == 1).await;
    }
    assert_eq!(runs("a").await, 0);
    tx.rollback().await.unwrap();
    wait_until("`a` has started", Duration::from_secs(60), async || runs("a").await == 1).await;
    worker.stop(Duration::from_secs(30)).await;
}
