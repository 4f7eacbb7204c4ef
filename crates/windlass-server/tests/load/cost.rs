//! What open dashboards cost the store, and how long pages take with a million jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use windlass_core::command::{Command, Reply};
use windlass_core::{BoxFuture, Client, Decorator, MemoryStore, Result, Worker, plan};
use windlass_testkit::{PostgresServer, is_full_run, print_figure, wait_until};

use crate::client::{Http, Listening, Nothing, do_nothing};

/// The maximum time for a page, for 95 of 100 requests.
const PAGE_MAX: Duration = Duration::from_millis(100);

/// A store that counts its calls.
#[derive(Debug)]
struct Counting {
    inner: MemoryStore,
    calls: Arc<AtomicU64>,
}

impl Decorator for Counting {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.forward(command)
    }
}

/// Opens streams until the store has received this many calls. Returns the calls per interval between two samples.
async fn calls_per_interval(streams: usize, calls_min: u64) -> f64 {
    let (interval, began_at) = (Duration::from_millis(50), Instant::now());
    let calls = Arc::new(AtomicU64::new(0));
    let store = Counting { inner: MemoryStore::new(), calls: Arc::clone(&calls) };
    let client = Client::new(store).into_dyn();
    let server = Listening::start(client, interval).await;
    let (http, stop) = (Http::new(), CancellationToken::new());
    let mut watching = JoinSet::new();
    for _ in 0..streams {
        watching.spawn(http.clone().stream(server.url("/api/v1/events"), stop.clone()));
    }
    // The overview of each dashboard is fetched with each sample, and costs nothing more.
    let mut seen = 0;
    wait_until("samples arrive", Duration::from_secs(60), async || {
        for _ in 0..streams {
            http.get(&server.url("/")).await.unwrap();
        }
        seen = calls.load(Ordering::Relaxed);
        seen >= calls_min
    })
    .await;
    // A machine that stalls makes the intervals longer, never the calls more.
    let intervals = began_at.elapsed().as_secs_f64() / interval.as_secs_f64();
    stop.cancel();
    assert!(watching.join_all().await.iter().all(Result::is_ok), "no stream ended before");
    seen as f64 / intervals
}

#[tokio::test(flavor = "multi_thread")]
async fn many_dashboards_cost_the_store_as_much_as_one() {
    let (one, many) = (calls_per_interval(1, 60).await, calls_per_interval(100, 60).await);
    print_figure(
        "calls of the store per interval between samples",
        format!("{one:.2} for one dashboard, {many:.2} for 100"),
    );
    // One count per sample, and the workers with every fifth one. Samples before the first stream count too.
    assert!(one <= 3.0 && many <= 3.0, "{one} for one dashboard, {many} for 100");
}

/// A million stored jobs: a third has ended, and the others wait.
const STORED: u32 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_fast_with_a_million_jobs() {
    let (stored, repeats) = if is_full_run() { (STORED, 100) } else { return };
    let postgres = PostgresServer::start().await;
    let store = windlass_postgres::connect(&postgres.url()).await.unwrap();
    let client = Client::new(store);
    fill(&client, stored).await;
    // Autovacuum does this too, but not at a certain time.
    postgres.query("analyze");
    print_share(&client).await;
    let server = Listening::start(client.clone().into_dyn(), Duration::from_secs(2)).await;
    let http = Http::new();
    let list = http.get(&server.url("/api/v1/chains?limit=1&status=completed")).await.unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let chain = list["chains"][0]["id"].as_str().unwrap().to_owned();
    let next = http.get(&server.url("/api/v1/jobs?limit=50&order=oldest")).await.unwrap();
    let next: serde_json::Value = serde_json::from_str(&next).unwrap();
    let after = next["next"].as_str().unwrap();
    let paths = [
        "/".to_owned(),
        "/types".to_owned(),
        "/jobs".to_owned(),
        "/jobs?status=pending".to_owned(),
        "/jobs?status=completed&type=nothing".to_owned(),
        "/jobs?within=1h&order=oldest".to_owned(),
        format!("/jobs?order=oldest&after={after}"),
        "/chains".to_owned(),
        "/chains?status=failed".to_owned(),
        "/chains?key=key-77777".to_owned(),
        "/chains?key=none".to_owned(),
        format!("/chains/{chain}"),
        format!("/jobs/{chain}"),
        "/workers".to_owned(),
        "/schedules".to_owned(),
        "/bulk".to_owned(),
    ];
    for path in paths {
        let mut times = Vec::new();
        for _ in 0..repeats {
            let began_at = Instant::now();
            http.get(&server.url(&path)).await.unwrap();
            times.push(began_at.elapsed());
        }
        times.sort_unstable();
        let (p50, p95) = (times[times.len() / 2], times[times.len() * 95 / 100]);
        let shown = path.replace(after, "…");
        print_figure(&format!("{stored} jobs, {shown}"), format!("p50 {p50:.1?}, p95 {p95:.1?}"));
        // A normal run shares its cores with other tests.
        assert!(!is_full_run() || p95 < PAGE_MAX, "{shown} took {p95:?}");
    }
}

/// Prints how busy the sampler keeps the store: one count every 2 s, and the workers every 10 s.
async fn print_share(client: &Client<windlass_postgres::PostgresStore<windlass_postgres::Sqlx>>) {
    const CALLS: u32 = 50;
    let began_at = Instant::now();
    for _ in 0..CALLS {
        client.count(windlass_core::command::Types::All).await.unwrap();
    }
    let count = began_at.elapsed() / CALLS;
    let began_at = Instant::now();
    for _ in 0..CALLS {
        client.workers().await.unwrap();
    }
    let workers = began_at.elapsed() / CALLS;
    let share = (count.as_secs_f64() / 2.0 + workers.as_secs_f64() / 10.0) * 100.0;
    print_figure(
        "open dashboards keep the store busy",
        format!(
            "{share:.2} % of one processor at most: a count takes {count:.1?}, the workers {workers:.1?}"
        ),
    );
}

async fn fill(client: &Client<windlass_postgres::PostgresStore<windlass_postgres::Sqlx>>, stored: u32) {
    let worker = Worker::new(client).handle(do_nothing).concurrency(64).start().await.unwrap();
    for batch in 0..stored / 1_000 {
        let mut chains = Vec::new();
        for number in batch * 1_000..(batch + 1) * 1_000 {
            let job = plan(Nothing);
            // Two of three wait for tomorrow, and some have keys.
            let job = if number % 3 != 0 { job.after(Duration::from_secs(86_400)) } else { job };
            let job = if number % 7 == 0 { job.key(format!("key-{number}")) } else { job };
            chains.push(job.build().unwrap());
        }
        client.create(chains).await.unwrap();
    }
    wait_until("the jobs have ended", Duration::from_secs(1_800), async || {
        let counts = client.count(windlass_core::command::Types::All).await.unwrap();
        let ended: u64 = counts.types.iter().map(|count| count.completed).sum();
        ended >= u64::from(stored) / 3
    })
    .await;
    worker.stop(Duration::from_secs(30)).await;
}
