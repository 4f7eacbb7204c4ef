//! What open dashboards cost the store, and how long pages take with a million jobs.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use windlass_core::command::{Beat, Command, Reply, Types};
use windlass_core::schedule::Every;
use windlass_core::{
    BoxFuture, Client, Decorator, MemoryStore, Millis, Result, Store, TypeName, Worker, WorkerId, WorkerName,
    plan,
};
use windlass_postgres::{PostgresStore, Sqlx};
use windlass_testkit::{PostgresServer, is_full_run, print_figure, wait_until};

use crate::client::{Http, Listening, Nothing, do_nothing};

/// The maximum time for a page, for 95 of 100 requests.
const PAGE_MAX: Duration = Duration::from_millis(100);

/// The maximum share of the server's processor time for an open dashboard.
const SHARE_MAX: f64 = 0.03;

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
    check_share(&client).await;
    fill_small_lists(&client).await;
    let server = Listening::start(client.clone().into_dyn(), Duration::from_secs(2)).await;
    let http = Http::new();
    for number in 0..20 {
        let (url, key) = (server.url("/api/v1/bulk"), format!("key-{number}"));
        // Four run at a time.
        wait_until("an operation starts", Duration::from_secs(60), async || {
            http.count_chains(&url, &key).await.is_ok()
        })
        .await;
    }
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
        "/schedules/schedule-7".to_owned(),
        "/bulk".to_owned(),
        format!("/find?q={chain}"),
        "/find?q=key-77777".to_owned(),
    ];
    for path in paths {
        let mut times = Vec::new();
        for number in 0..repeats {
            // Equal requests would share a page. A parameter without a value is ignored.
            let separator = if path.contains('?') { '&' } else { '?' };
            let url = server.url(&format!("{path}{separator}r{number}="));
            let began_at = Instant::now();
            http.get(&url).await.unwrap();
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

/// Stores workers and schedules, so that their pages are not empty.
async fn fill_small_lists(client: &Client<PostgresStore<Sqlx>>) {
    for number in 0..100 {
        let name = WorkerName::new(format!("worker-{number}")).unwrap();
        let types = vec![TypeName::of::<Nothing>().unwrap()];
        let (worker, ttl) = (WorkerId::new(), Millis::from_days(1));
        let beat = Beat { worker, name: Some(name), types, concurrency: 10, running: 5, ttl };
        client.store().beat(beat).await.unwrap();
        let hourly = Every::new(Duration::from_secs(3_600)).unwrap();
        client.schedules().put(format!("schedule-{number}"), hourly, Nothing).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_dashboard_takes_little_processor_time_of_a_store_that_drains() {
    let jobs = if is_full_run() { 200_000 } else { 3_000 };
    let postgres = PostgresServer::start().await;
    let client = Client::new(windlass_postgres::connect(&postgres.url()).await.unwrap());
    for _ in 0..jobs / 1_000 {
        let chains = (0..1_000).map(|_| plan(Nothing).build().unwrap()).collect();
        client.create(chains).await.unwrap();
    }
    // Connections with a name of their own: PostgreSQL has a process for each.
    let named = format!("{}?application_name=dashboard", postgres.url());
    let dashboard = Client::new(windlass_postgres::connect(&named).await.unwrap());
    let server = Listening::start(dashboard.into_dyn(), Duration::from_secs(2)).await;
    let (http, stop) = (Http::new(), CancellationToken::new());
    let events = server.url("/api/v1/events?topic=samples&topic=bulk");
    let watching = tokio::spawn(http.clone().stream(events, stop.clone()));
    let urls = [server.url("/"), server.url("/chains")];
    let refreshing = tokio::spawn(refresh(http, urls, stop.clone()));
    let (before, dashboard_before) = processor_times(&postgres);
    let worker = Worker::new(&client).handle(do_nothing).concurrency(64).start().await.unwrap();
    wait_until("the jobs have ended", Duration::from_secs(1_800), async || {
        // The counts of this test are part of what is measured.
        tokio::time::sleep(Duration::from_secs(1)).await; // tidy: the interval between two counts
        let counts = client.count(Types::All).await.unwrap();
        counts.types.iter().map(|count| count.completed).sum::<u64>() >= jobs
    })
    .await;
    let (after, dashboard_after) = processor_times(&postgres);
    worker.stop(Duration::from_secs(30)).await;
    stop.cancel();
    watching.await.unwrap().unwrap();
    refreshing.await.unwrap();
    // The time of a process that has ended in between is missing in the second measurement.
    let (all, of_dashboard) =
        (after.saturating_sub(before), dashboard_after.saturating_sub(dashboard_before));
    assert!(of_dashboard < all, "the times are measured: {of_dashboard:?} of {all:?}");
    let share = of_dashboard.as_secs_f64() / (all - of_dashboard).as_secs_f64();
    print_figure(
        "an open dashboard while PostgreSQL drains",
        format!(
            "{:.2} % more processor time of the server: {of_dashboard:.1?} and {all:.1?} for {jobs} jobs",
            share * 100.0
        ),
    );
    // In a normal run, the drain is over before the second sample.
    if is_full_run() {
        assert!(share > 0.0 && share < SHARE_MAX, "the dashboard adds {:.2} %", share * 100.0);
    }
}

/// Fetches the open pages of a dashboard with each sample. A list is really fetched every 5 s at most.
async fn refresh(http: Http, urls: [String; 2], stop: CancellationToken) {
    let mut samples = tokio::time::interval(Duration::from_secs(2));
    while stop.run_until_cancelled(samples.tick()).await.is_some() {
        for url in &urls {
            http.get(url).await.unwrap();
        }
    }
}

/// Returns the processor time of all processes of the server, and of those that serve the dashboard.
fn processor_times(postgres: &PostgresServer) -> (Duration, Duration) {
    let sql = "select string_agg(pid::text, ' ') from pg_stat_activity where application_name = 'dashboard'";
    let (dashboard, main) = (postgres.query(sql), postgres.pid().unwrap());
    let children = fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap();
    let time = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        let nanoseconds = stat.split(' ').next().and_then(|text| text.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or_default())
    };
    let sum = |pids: &str| pids.split_whitespace().map(time).sum();
    (sum(&children), sum(&dashboard))
}

/// Checks how busy the sampler keeps the store: one count every 2 s, and the workers every 10 s.
async fn check_share(client: &Client<PostgresStore<Sqlx>>) {
    const CALLS: u32 = 50;
    let began_at = Instant::now();
    for _ in 0..CALLS {
        client.count(Types::All).await.unwrap();
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
    assert!(share < SHARE_MAX * 100.0, "{share:.2} %");
}

async fn fill(client: &Client<PostgresStore<Sqlx>>, stored: u32) {
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
        let counts = client.count(Types::All).await.unwrap();
        let ended: u64 = counts.types.iter().map(|count| count.completed).sum();
        ended >= u64::from(stored) / 3
    })
    .await;
    worker.stop(Duration::from_secs(30)).await;
}
