//! Processor time of the server per job, by command and batch size.
//!
//! Processor time hardly depends on other load of the machine, unlike jobs per second.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use windlass_conformance::{LEASE, json, type_name};
use windlass_core::command::{
    Acquire, Acquired, Create, Exchange, NewChain, NewJob, Outcome, Quota, Settle, Settlement,
};
use windlass_core::{ChainId, RequestId, Store, WorkerId};
use windlass_redis::known_bad::open_without_short_paths;
use windlass_redis::{Options, RedisStore};
use windlass_testkit::{RedisServer, is_full_run, print_figure};

use crate::fixture::connect;

/// Server, store and a connection that reads the server's statistics.
struct Bench {
    store: Arc<RedisStore>,
    connection: MultiplexedConnection,
    worker: WorkerId,
    _server: RedisServer,
}

impl Bench {
    async fn open(has_short_paths: bool) -> Self {
        let server = RedisServer::start().await;
        let store = match has_short_paths {
            true => RedisStore::open(&server.url(), Options::default()).await.unwrap(),
            false => open_without_short_paths(&server.url(), Options::default()).await.unwrap(),
        };
        let store = Arc::new(store);
        let connection = connect(server.url()).await;
        Self { store, connection, worker: WorkerId::new(), _server: server }
    }

    /// Processor time that the server has used so far, in microseconds.
    async fn used(&mut self) -> f64 {
        let info: String = redis::cmd("INFO").arg("cpu").query_async(&mut self.connection).await.unwrap();
        let of = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().parse::<f64>().unwrap()
        };
        1e6 * (of("used_cpu_sys_main_thread") + of("used_cpu_user_main_thread"))
    }

    async fn create(&self, count: usize) {
        let chain =
            || NewChain::new(ChainId::new(), NewJob::new(type_name("noop"), json("{\"number\":1234}")));
        self.store.create(Create { chains: (0..count).map(|_| chain()).collect() }).await.unwrap();
    }

    fn acquire_request(&self, max: usize) -> Acquire {
        let max = u32::try_from(max).unwrap();
        let quota = Quota { job_type: type_name("noop"), max, lease: LEASE };
        Acquire { request: RequestId::new(), worker: self.worker, worker_name: None, types: vec![quota], max }
    }

    async fn acquire(&self, max: usize) -> Vec<Acquired> {
        self.store.acquire(self.acquire_request(max)).await.unwrap().jobs
    }
}

fn completions(attempts: &[Acquired]) -> Settle {
    let settlements = attempts.iter().map(|attempt| Settlement {
        job: attempt.job.id,
        fence: attempt.job.fence,
        outcome: Outcome::Complete { output: json("null"), retention: None, create: Vec::new() },
    });
    Settle { settlements: settlements.collect() }
}

/// Costs of create, acquire, settle and exchange per job, in microseconds.
async fn costs(has_short_paths: bool, batch: usize, jobs: usize) -> [f64; 4] {
    let mut bench = Bench::open(has_short_paths).await;
    let rounds = jobs / batch;
    bench.create(batch).await;
    bench.store.settle(completions(&bench.acquire(batch).await)).await.unwrap();

    let mut times = vec![bench.used().await];
    for _ in 0..rounds {
        bench.create(batch).await;
    }
    times.push(bench.used().await);
    let mut taken = Vec::new();
    for _ in 0..rounds {
        taken.push(bench.acquire(batch).await);
    }
    times.push(bench.used().await);
    for attempts in &taken {
        bench.store.settle(completions(attempts)).await.unwrap();
    }
    times.push(bench.used().await);
    assert!(taken.iter().all(|taken| taken.len() == batch));

    for _ in 0..=rounds {
        bench.create(batch).await;
    }
    let mut attempts = bench.acquire(batch).await;
    times.push(bench.used().await);
    for _ in 0..rounds {
        let exchange = Exchange { settle: completions(&attempts), acquire: bench.acquire_request(batch) };
        attempts = bench.store.exchange(exchange).await.unwrap().acquire.jobs;
        assert_eq!(attempts.len(), batch);
    }
    times.push(bench.used().await);
    let cost = |from: usize, to: usize| (times[to] - times[from]) / (rounds * batch) as f64;
    [cost(0, 1), cost(1, 2), cost(2, 3), cost(4, 5)]
}

fn print_costs(what: &str, batch: usize, [create, acquire, settle, exchange]: [f64; 4]) {
    print_figure(
        &format!("server µs per job, {what}, batches of {batch}"),
        format!("create {create:.1}, acquire {acquire:.1}, settle {settle:.1}, exchange {exchange:.1}"),
    );
}

/// The short paths take about a third of the library's time. Both are measured in turns, because a loaded machine needs
/// more processor time for the same work.
#[tokio::test(flavor = "multi_thread")]
async fn short_paths_cost_much_less_than_the_library() {
    let factor = if is_full_run() { 10 } else { 1 };
    for (batch, jobs) in [(1, 1_000), (16, 6_400), (64, 12_800), (100, 20_000)] {
        let short = costs(true, batch, jobs * factor).await;
        print_costs("short path", batch, short);
        if batch == 16 || batch == 64 {
            let library = costs(false, batch, jobs * factor).await;
            print_costs("library", batch, library);
            for (short, library) in short.iter().zip(library) {
                assert!(*short < 0.75 * library, "{short:.1} and {library:.1}");
            }
        }
    }
}
