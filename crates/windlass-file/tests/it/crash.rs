//! Kills and pauses worker processes under load: no job is lost, stuck or executed twice.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use windlass_core::command::{Create, JobFilter, ListJobs, NewChain, NewJob, Page, Pause};
use windlass_core::{BoxError, BoxFuture, ChainId, Client, Fence, Payload, Store, Transactional, TypeName};
use windlass_file::{FileStore, Options};
use windlass_testkit::crash::{self, Effect, JOBS_PER_BATCH, Ledger, Run, WorkerGroup, Workload, this_test};
use windlass_testkit::{is_full_run, print_figure};

use crate::Folder;

/// Environment variable with the folder for the worker processes.
const FOLDER: &str = "WINDLASS_CRASH_FOLDER";

const WORKERS: usize = 3;
/// Long enough that a paused attempt is rarely inside a transaction, whose lock would keep other workers from
/// reaping it.
const PAUSED_WORK: Duration = Duration::from_secs(1);

/// After a kill, the next write of another process takes no longer than this. A busy machine may delay one in twenty.
const PATIENCE: Duration = Duration::from_secs(1);

/// A ledger of jobs that nobody runs. They are created in the transactions that complete the jobs of the workload.
struct Notes;

const NOTE: &str = "note";

impl Ledger for Notes {
    type Store = FileStore;

    fn write(
        tx: <FileStore as Transactional>::Connection<'_>,
        effect: Effect,
    ) -> BoxFuture<'_, Result<(), BoxError>> {
        let Effect { chain, run: Run { job, fence: Fence(fence) } } = effect;
        Box::pin(async move {
            let text = Payload::encode(&(chain.to_string(), job.to_string(), fence))?;
            let note = NewChain::new(ChainId::new(), NewJob::new(TypeName::new(NOTE)?, text));
            tx.execute(&Create { chains: vec![note] }.into())?;
            Ok(())
        })
    }
}

async fn ledger(store: &FileStore) -> Vec<Effect> {
    let filter = JobFilter { types: vec![TypeName::new(NOTE).unwrap()], ..JobFilter::default() };
    let mut effects = Vec::new();
    let mut page = Page { max: 1_000, ..Page::default() };
    loop {
        let reply = store.list_jobs(ListJobs { filter: filter.clone(), page }).await.unwrap();
        for note in reply.jobs {
            let (chain, job, fence): (String, String, u64) = note.input.decode().unwrap();
            let run = Run { job: job.parse().unwrap(), fence: Fence(fence) };
            effects.push(Effect { chain: chain.parse().unwrap(), run });
        }
        match reply.next {
            Some(next) => page = Page { max: 1_000, after: Some(next), ..Page::default() },
            None => return effects,
        }
    }
}

/// The entry point of the worker processes. Does nothing in the test run itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    if crash::is_worker_process() {
        let client = Client::new(FileStore::open(options(env::var_os(FOLDER).unwrap())).await.unwrap());
        crash::serve(crash::ledger_worker::<Notes>(&client).start().await.unwrap()).await;
    }
}

/// Returns a client on a new folder, and a command that starts worker processes on it. The folder is compacted often.
async fn fixture() -> (Folder, Client<FileStore>, impl Fn() -> Command + Send) {
    let folder = Folder::new();
    let store = FileStore::open(options(folder.path())).await.unwrap();
    // Otherwise the notes would be due.
    store.pause(Pause { types: vec![TypeName::new(NOTE).unwrap()], paused: true }).await.unwrap();
    let path = folder.path();
    let command = move || {
        let mut command = this_test("crash::worker_process");
        command.env(FOLDER, &path);
        command
    };
    (folder, Client::new(store), command)
}

fn options(path: impl Into<PathBuf>) -> Options {
    Options::new(path).compact_at_bytes(200_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_lose_and_repeat_nothing() {
    let kills = if is_full_run() { 200 } else { 20 };
    let mut slow = kill_workers(kills).await;
    if slow.len() > kills / 20 {
        // Something else may have kept the machine busy. A store that recovers slowly does so again.
        slow = kill_workers(kills).await;
    }
    assert!(slow.len() <= kills / 20, "{kills} kills, and these writes were slow: {slow:?}");
}

/// Kills worker processes under load, and checks that each job was settled once. Returns the delays of slow writes.
async fn kill_workers(kills: usize) -> Vec<Duration> {
    let (_folder, client, command) = fixture().await;
    let mut group = WorkerGroup::start(WORKERS, command).await;
    let mut workload = Workload::new(&client, Duration::from_millis(20));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_until(client.clone(), Arc::clone(&stop)));
    while group.kills() < kills {
        workload.start_batch().await;
        group.kill_one(client.store()).await;
        workload.wait_for_all_but(2).await;
        assert!(
            workload.jobs() < 2 * kills * JOBS_PER_BATCH,
            "only {} kills found jobs running",
            group.kills()
        );
    }
    workload.wait_for_all_but(0).await;
    let log = group.stop().await;
    stop.store(true, Ordering::Relaxed);
    let mut delays = writer.await.unwrap();
    let (writes, longest) = (delays.len(), delays.iter().max().copied().unwrap_or_default());
    delays.retain(|delay| *delay > PATIENCE);
    let figure = format!(
        "{} jobs; {log}; {writes} writes, {} took longer than {PATIENCE:?}, the longest {longest:?}",
        workload.jobs(),
        delays.len()
    );
    print_figure("file store, killed workers", figure);
    workload.check(&log, &ledger(client.store()).await).await;
    delays
}

/// Writes again and again, so that some process waits for the lock whenever another one is killed. Returns how long each
/// write took.
async fn write_until(client: Client<FileStore>, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let (types, mut delays) = (vec![TypeName::new("unused").unwrap()], Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let (began_at, paused) = (Instant::now(), delays.len() % 2 == 0);
        client.store().pause(Pause { types: types.clone(), paused }).await.unwrap();
        delays.push(began_at.elapsed());
    }
    delays
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_worker_does_not_overwrite_the_new_owner() {
    let (_folder, client, command) = fixture().await;
    let mut group = WorkerGroup::start(WORKERS, command).await;
    let mut workload = Workload::new(&client, PAUSED_WORK);
    workload.overtake(&mut group, 3).await;
    workload.wait_for_all_but(0).await;
    let log = group.stop().await;
    println!("{} jobs; {log}", workload.jobs());
    workload.check(&log, &ledger(client.store()).await).await;
}
