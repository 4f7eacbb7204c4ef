//! Kills, restarts and disconnects the server while worker processes run: no acknowledged chain is lost or stuck, and
//! none takes effect twice.

use std::collections::{HashMap, HashSet};
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use windlass_conformance::json;
use windlass_core::command::{Count, Create, GetChains, NewChain, NewJob, Types};
use windlass_core::{ChainId, Job, Store, TypeName};
use windlass_redis::{Options, RedisStore};
use windlass_testkit::crash::{Audit, GroupLog, WorkerGroup, audit, this_test, wait_until_closed};
use windlass_testkit::{Proxy, RedisServer, wait_until};

use crate::crash::{Mark, NAMESPACE, URL};

const WORKERS: usize = 2;
const NAMESPACE_NAME: &str = "outage";
const CHAINS_PER_CREATE: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(300);
/// Number of chains acknowledged between two outages.
const CHAINS_PER_OUTAGE: usize = 100;

/// Starts chains until stopped. Repeats each start until it is acknowledged.
struct Starter {
    task: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    started: Arc<std::sync::Mutex<Vec<ChainId>>>,
}

impl Starter {
    fn new(store: Arc<RedisStore>) -> Self {
        let (stop, started) = (Arc::new(AtomicBool::new(false)), Arc::<std::sync::Mutex<Vec<_>>>::default());
        let (stopped, list) = (Arc::clone(&stop), Arc::clone(&started));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::SeqCst) {
                let chains: Vec<_> = (0..CHAINS_PER_CREATE).map(|_| new_chain()).collect();
                // Every command is safe to repeat.
                let ends_at = Instant::now() + TIMEOUT;
                while let Err(error) = store.create(Create { chains: chains.clone() }).await {
                    assert!(Instant::now() < ends_at, "{error}");
                }
                list.lock().unwrap().extend(chains.iter().map(|chain| chain.id));
            }
        });
        Self { task, stop, started }
    }

    fn count(&self) -> usize {
        self.started.lock().unwrap().len()
    }

    /// Waits until `more` further chains are acknowledged.
    async fn start(&self, more: usize) {
        let goal = self.count() + more;
        wait_until("chains are started", TIMEOUT, async || self.count() >= goal).await;
    }

    async fn stop(self) -> Vec<ChainId> {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap();
        std::mem::take(&mut *self.started.lock().unwrap())
    }
}

fn new_chain() -> NewChain {
    NewChain::new(ChainId::new(), NewJob::new(TypeName::new(Mark::NAME).unwrap(), json("null")))
}

fn options() -> Options {
    Options::default().namespace(NAMESPACE_NAME)
}

async fn begin(url: String) -> (Starter, WorkerGroup) {
    // Shorter than the default, so that the starter notices outages quickly.
    let options = options().response_timeout(Duration::from_secs(2));
    let mut store = None;
    wait_until("the store is open", TIMEOUT, async || {
        store = RedisStore::open(&url, options.clone()).await.ok();
        store.is_some()
    })
    .await;
    let store = Arc::new(store.unwrap());
    let group = WorkerGroup::start(WORKERS, move || {
        let mut command = this_test("crash::worker_process");
        command.env(URL, &url).env(NAMESPACE, NAMESPACE_NAME);
        command
    })
    .await;
    (Starter::new(store), group)
}

/// Checks that every acknowledged chain completed and took effect once.
async fn check(url: &str, starter: Starter, group: WorkerGroup, outages: usize) -> GroupLog {
    let chains = starter.stop().await;
    let store = RedisStore::open(url, options()).await.unwrap();
    wait_until_closed(&store, &chains, TIMEOUT).await;
    let log = group.stop().await;
    println!("{outages} outages, {} chains of 2 jobs; {log}", chains.len());
    assert_eq!(log.started_twice(), []);
    let mut marks: HashMap<ChainId, HashSet<&str>> = HashMap::new();
    for effect in log.applied() {
        let (chain, mark) = effect.split_once(' ').unwrap();
        marks.entry(chain.parse().unwrap()).or_default().insert(mark);
    }
    let effects = marks.into_iter().map(|(chain, marks)| (chain, marks.len())).collect();
    assert_eq!(audit(&store, &chains, &effects).await, Audit::default());
    log
}

/// Returns the chains that are still stored. Checks that nothing else is stored, that all of them completed, and that
/// the store's data is consistent.
async fn check_what_remains(url: &str, chains: &[ChainId]) -> Vec<ChainId> {
    let store = RedisStore::open(url, options()).await.unwrap();
    let mut remaining = Vec::new();
    for batch in chains.chunks(1_000) {
        let targets = batch.iter().copied().map(Into::into).collect();
        let found = store.get_chains(GetChains { chains: targets }).await.unwrap().chains;
        remaining.extend(found.into_iter().flatten().map(|chain| chain.id));
    }
    wait_until_closed(&store, &remaining, TIMEOUT).await;
    // A job whose completion was lost runs again, so this ignores the workers' effects and audits the store alone.
    let effects = remaining.iter().map(|chain| (*chain, 1)).collect();
    assert_eq!(audit(&store, &remaining, &effects).await, Audit::default());
    for count in store.count(Count { types: Types::All }).await.unwrap().types {
        let open = count.blocked + count.pending + count.running;
        assert_eq!((open, count.completed), (0, remaining.len() as u64), "{count:?}");
    }
    remaining
}

/// Kills and restarts a server `kills` times while chains are started and workers run.
async fn server_killed(sync: &str, kills: usize) -> (RedisServer, Starter, WorkerGroup) {
    let mut server =
        RedisServer::builder().arg("--appendonly", "yes").arg("--appendfsync", sync).start().await;
    let (starter, group) = begin(server.url()).await;
    for _ in 0..kills {
        starter.start(CHAINS_PER_OUTAGE).await;
        server.kill().await;
        server.restart().await;
    }
    starter.start(CHAINS_PER_OUTAGE).await;
    (server, starter, group)
}

fn times(normal: usize, full: usize) -> usize {
    if env::var_os("WINDLASS_FULL").is_some() { full } else { normal }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_no_acknowledged_write() {
    let kills = times(5, 50);
    let (server, starter, group) = server_killed("always", kills).await;
    check(&server.url(), starter, group, kills).await;
}

/// With `everysec`, the server acknowledges writes for up to two seconds while a sync delays writing them to the file.
/// A kill may lose these.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_syncs_each_second_stays_consistent() {
    let kills = times(2, 20);
    let (server, starter, group) = server_killed("everysec", kills).await;
    let chains = starter.stop().await;
    let remaining = check_what_remains(&server.url(), &chains).await;
    println!(
        "{kills} outages, {} of {} chains remain; {}",
        remaining.len(),
        chains.len(),
        group.stop().await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_server_loses_no_acknowledged_write() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::to(server.port()).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    let (starter, group) = begin(url.clone()).await;
    let cuts = times(5, 50);
    for cut in 0..cuts {
        starter.start(CHAINS_PER_OUTAGE).await;
        // Alternate: cut connections with replies in flight, or refuse new connections for a while.
        if cut % 2 == 0 {
            proxy.stall_replies();
            proxy.cut().await;
        } else {
            proxy.refuse().await;
            proxy.cut().await;
        }
        proxy.resume().await;
    }
    starter.start(CHAINS_PER_OUTAGE).await;
    check(&url, starter, group, cuts).await;
}
