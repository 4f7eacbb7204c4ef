//! Several processes on one file wake each other.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use windlass_core::{Client, Ctx, Entry, Job, Result, Worker};
use windlass_sqlite::{Options, SqliteNotifier, SqliteStore};

use crate::File;

/// The file that the other process is to open.
const OTHERS_FILE: &str = "WINDLASS_TEST_FILE";

const ROUNDS: usize = 20;

#[derive(Serialize, Deserialize)]
struct Echo(u32);

impl Job for Echo {
    const NAME: &'static str = "echo";
    type Output = u32;
    type Next = ();
    type Blockers = ();
}

impl Entry for Echo {}

async fn echo(job: Ctx<Echo>) -> Result<u32> {
    Ok(job.input().0)
}

async fn client(options: Options) -> Client<SqliteStore> {
    let store = Arc::new(SqliteStore::open(options).await.unwrap());
    Client::builder(Arc::clone(&store)).notifier(SqliteNotifier::new(store)).build()
}

/// This process works, and the other one starts jobs and waits for their outputs: there and back by the file alone. Both
/// poll so rarely that they would not be done in time without being woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_wake_each_other_within_fifty_milliseconds() {
    let file = File::new();
    let client = client(Options::new(file.path())).await;
    let worker = Worker::new(&client).poll(Duration::from_secs(600)).handle(echo).start().await.unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "process::the_other_process", "--nocapture"]);
    let other = other.env(OTHERS_FILE, file.path()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let mut other = other.unwrap();
    let mut told = String::new();
    other.stdout.take().unwrap().read_to_string(&mut told).await.unwrap();
    assert!(other.wait().await.unwrap().success(), "{told}");
    worker.stop(Duration::from_secs(10)).await;

    let mut took: Vec<u64> =
        told.lines().filter_map(|line| line.strip_prefix("took ")?.parse().ok()).collect();
    took.sort_unstable();
    println!("there and back, in ms: {took:?}");
    assert_eq!(took.len(), ROUNDS, "{told}");
    assert!(took[ROUNDS / 2] <= 100, "half of the rounds took longer than two wakes: {took:?}");
}

/// What the other process does. Without a file this is not that process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_process() {
    let Some(file) = std::env::var_os(OTHERS_FILE) else { return };
    let client = client(Options::new(file)).await;
    for round in 0..u32::try_from(ROUNDS).unwrap() {
        let began_at = Instant::now();
        let chain = client.start(Echo(round)).await.unwrap();
        assert_eq!(client.wait(chain).timeout(Duration::from_secs(30)).await.unwrap(), round);
        println!("took {}", began_at.elapsed().as_millis());
    }
}
