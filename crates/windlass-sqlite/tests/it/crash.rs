//! Kills and pauses worker processes under load: no job is lost, stuck or executed twice.

use std::env;
use std::process::Command;
use std::time::Duration;

use sqlx::{Executor, Row};
use windlass_core::{BoxError, BoxFuture, Client, Fence, Transactional};
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::crash::{self, Effect, JOBS_PER_BATCH, Ledger, Run, WorkerGroup, Workload, this_test};

use crate::File;

/// Environment variable with the file for the worker processes.
const FILE: &str = "WINDLASS_CRASH_FILE";
/// Environment variable that makes worker processes use a broken store.
#[cfg(feature = "known-bad")]
const FENCE_IGNORED: &str = "WINDLASS_CRASH_FENCE_IGNORED";

const WORKERS: usize = 3;
/// Long enough that a paused attempt is rarely inside a transaction, whose write lock would keep other workers from
/// reaping it.
const PAUSED_WORK: Duration = Duration::from_secs(1);

/// A ledger in a table of the application.
struct Table;

impl Ledger for Table {
    type Store = SqliteStore;

    fn write(
        tx: <SqliteStore as Transactional>::Connection<'_>,
        effect: Effect,
    ) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(async move {
            let Effect { chain, run: Run { job, fence: Fence(fence) } } = effect;
            let row = sqlx::query("insert into ledger (chain, job, fence) values (?1, ?2, ?3)");
            let row = row.bind(chain.to_string()).bind(job.to_string()).bind(i64::try_from(fence)?);
            row.execute(tx).await?;
            Ok(())
        })
    }
}

async fn ledger(file: &File) -> Vec<Effect> {
    let rows = file.connect().await.fetch_all("select chain, job, fence from ledger").await.unwrap();
    let effect = |row: &sqlx::sqlite::SqliteRow| {
        let fence = Fence(u64::try_from(row.get::<i64, _>("fence")).unwrap());
        let run = Run { job: row.get::<&str, _>("job").parse().unwrap(), fence };
        Effect { chain: row.get::<&str, _>("chain").parse().unwrap(), run }
    };
    rows.iter().map(effect).collect()
}

/// The entry point of the worker processes. Does nothing in the test run itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    if crash::is_worker_process() {
        let client = Client::new(SqliteStore::open(workers_options()).await.unwrap());
        crash::serve(crash::ledger_worker::<Table>(&client).start().await.unwrap()).await;
    }
}

fn workers_options() -> Options {
    let options = Options::new(env::var_os(FILE).unwrap());
    #[cfg(feature = "known-bad")]
    if env::var_os(FENCE_IGNORED).is_some() {
        return options.known_bad(windlass_sqlite::known_bad::KnownBad::FenceIgnored);
    }
    options
}

/// Returns a client on a new file with a ledger, and a command that starts worker processes on it with this variable
/// set.
async fn fixture(variable: Option<&'static str>) -> (File, Client<SqliteStore>, impl Fn() -> Command + Send) {
    let file = File::new();
    let store = SqliteStore::open(Options::new(file.path())).await.unwrap();
    let table = "create table ledger (chain text not null, job text not null, fence integer not null)";
    file.connect().await.execute(table).await.unwrap();
    let path = file.path();
    let command = move || {
        let mut command = this_test("crash::worker_process");
        command.env(FILE, &path).envs(variable.map(|variable| (variable, "1")));
        command
    };
    (file, Client::new(store), command)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_lose_and_repeat_nothing() {
    let kills = if env::var_os("WINDLASS_FULL").is_some() { 200 } else { 20 };
    let (file, client, command) = fixture(None).await;
    let mut group = WorkerGroup::start(WORKERS, command).await;
    let mut workload = Workload::new(&client, Duration::from_millis(20));
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
    println!("{} jobs; {log}", workload.jobs());
    workload.check(&log, &ledger(&file).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_worker_does_not_overwrite_the_new_owner() {
    let (file, client, command) = fixture(None).await;
    let mut group = WorkerGroup::start(WORKERS, command).await;
    let mut workload = Workload::new(&client, PAUSED_WORK);
    workload.overtake(&mut group, 3).await;
    workload.wait_for_all_but(0).await;
    let log = group.stop().await;
    println!("{} jobs; {log}", workload.jobs());
    workload.check(&log, &ledger(&file).await).await;
}

/// Checks the harness: it notices if a paused worker overwrites the work of the new owner.
#[cfg(feature = "known-bad")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_ignores_the_fence_is_caught() {
    // It depends on timing whether a resumed worker finds the new owner still at work, so try several times.
    for _ in 0..30 {
        let (file, client, command) = fixture(Some(FENCE_IGNORED)).await;
        let mut group = WorkerGroup::start(WORKERS, command).await;
        Workload::new(&client, PAUSED_WORK).overtake(&mut group, 1).await;
        let log = group.stop().await;
        if !crash::stale_effects(&log, &ledger(&file).await).is_empty() {
            return;
        }
    }
    panic!("no overtaken worker made a stale write in any round");
}
