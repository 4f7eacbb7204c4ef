//! Event streams and requests at the same time, on a store that works.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use windlass_core::{Client, Worker, plan};
use windlass_sqlite::SqliteStore;
use windlass_testkit::{is_full_run, print_figure};

use crate::client::{Http, Listening, Nothing, do_nothing};

/// What visitors ask for: pages, and calls of programs.
const PATHS: [&str; 8] = [
    "/",
    "/types",
    "/jobs?limit=20",
    "/chains?limit=20&status=completed",
    "/workers",
    "/api/v1/overview",
    "/api/v1/jobs?limit=10",
    "/api/v1/types",
];

/// Connections that send requests. One address has at most 500 connections, streams included.
const CONNECTIONS: u64 = 64;

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_requests_are_served_while_jobs_run() {
    let (streams, per_second, seconds) = if is_full_run() { (200, 1_000, 30) } else { (50, 200, 3) };
    let folder = tempfile::tempdir().unwrap();
    let store = windlass_sqlite::open(folder.path().join("jobs.db")).await.unwrap();
    let client = Client::new(store);
    let worker = Worker::new(&client).handle(do_nothing).concurrency(8).start().await.unwrap();
    let stop = CancellationToken::new();
    let producing = tokio::spawn(produce(client.clone(), stop.clone()));
    let server = Listening::start(client.clone().into_dyn(), Duration::from_millis(500)).await;
    let http = Http::new();
    let mut watching = JoinSet::new();
    for _ in 0..streams {
        let url = server.url("/api/v1/events?topic=samples&topic=jobs&topic=bulk");
        watching.spawn(http.clone().stream(url, stop.clone()));
    }
    let (answers, took) = send(&server, &http, per_second, seconds).await;
    stop.cancel();
    let started = producing.await.unwrap();
    let samples = watching.join_all().await.into_iter().map(Result::unwrap).min().unwrap();
    assert!(samples > 0, "each stream has samples");
    worker.stop(Duration::from_secs(10)).await;
    let (count, slowest) = (answers.len(), answers.last().unwrap());
    let p95 = answers[count * 95 / 100];
    let rate = count as f64 / took.as_secs_f64();
    print_figure(
        "load on a store that works",
        format!(
            "{streams} streams, {count} requests without an error, {rate:.0} per second; p95 {p95:?}, slowest {slowest:?}; \
             {started} jobs"
        ),
    );
}

/// Starts jobs until `stop`, and waits for each batch. Returns their number.
async fn produce(client: Client<SqliteStore>, stop: CancellationToken) -> usize {
    const BATCH: usize = 200;
    let mut started = 0;
    while !stop.is_cancelled() {
        let chains: Vec<_> = (0..BATCH).map(|_| plan(Nothing)).collect();
        let last = chains[BATCH - 1].handle();
        client.create(chains.into_iter().map(|chain| chain.build().unwrap()).collect()).await.unwrap();
        client.wait(last).await.unwrap();
        started += BATCH;
    }
    started
}

/// Sends requests at a fixed rate. Returns the sorted times that they took, and the time of all.
async fn send(server: &Listening, http: &Http, per_second: u64, seconds: u64) -> (Vec<Duration>, Duration) {
    let (total, began_at) = (per_second * seconds, Instant::now());
    let mut senders = JoinSet::new();
    for sender in 0..CONNECTIONS {
        let (http, server_url) = (http.clone(), server.url(""));
        senders.spawn(async move {
            let mut times = Vec::new();
            for number in (sender..total).step_by(CONNECTIONS as usize) {
                let due_at = began_at + Duration::from_secs_f64(number as f64 / per_second as f64);
                tokio::time::sleep_until(due_at.into()).await; // tidy: the rate of the requests is the test
                let sent_at = Instant::now();
                let path = PATHS[number as usize % PATHS.len()];
                http.get(&format!("{server_url}{path}")).await.unwrap();
                times.push(sent_at.elapsed());
            }
            times
        });
    }
    let mut times: Vec<_> = senders.join_all().await.into_iter().flatten().collect();
    times.sort_unstable();
    (times, began_at.elapsed())
}
