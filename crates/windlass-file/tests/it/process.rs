//! Several processes on one folder wake each other, and may start at the same time.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;
use windlass_conformance::latency::{commit_jobs, commit_to_handler, print_times, read_times};
use windlass_core::command::{
    CompleteFromOutside, CompleteFromOutsideReply, Create, Delete, DeleteReply, ListJobs, Step, Target,
};
use windlass_core::queue::{Item, ItemCancelled, QueueEvent};
use windlass_core::{
    AbortReason, BoxError, Client, Ctx, Entry, ErrorKind, InProcessNotifier, Job, Payload, RequestId, Result,
    Store, Transactional, Worker,
};
use windlass_file::{FileNotifier, FileStore, Options};
use windlass_testkit::{is_full_run, print_figure};

use crate::{Folder, new_chain, start, take};

/// Environment variable with the folder for the other process.
const OTHERS_FOLDER: &str = "WINDLASS_TEST_FOLDER";

/// Environment variable with the folder for the processes that start at the same time.
const STARTERS_FOLDER: &str = "WINDLASS_TEST_STARTERS_FOLDER";

/// Environment variable with the folder for the process that has the lock.
const HOLDERS_FOLDER: &str = "WINDLASS_TEST_HOLDERS_FOLDER";

/// Environment variable with the folder for the process that commits jobs.
const COMMITTERS_FOLDER: &str = "WINDLASS_TEST_COMMITTERS_FOLDER";

/// Number of consecutive rounds, and how many of them must be fast.
const ROUNDS: usize = 20;
const FAST_ROUNDS: usize = 19;

/// Maximum number of rounds.
const ROUNDS_MAX: usize = 1_000;

/// A round that takes longer has missed a notification. Shorter than any poll interval and renewal interval here.
const MISSED: Duration = Duration::from_secs(20);
const TIMEOUT: Duration = Duration::from_secs(120);

/// Number of jobs that each of the simultaneous processes starts.
const STARTED: usize = 100;

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

async fn client(path: impl Into<PathBuf>) -> Client<FileStore> {
    Client::new(FileStore::open(Options::new(path)).await.unwrap())
}

/// The longest delay that half of all jobs, and 99 of 100, may have between commit and handler.
const MEDIAN: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(250);

/// Number of jobs that the application commits.
fn commits() -> usize {
    if is_full_run() { 1_000 } else { 200 }
}

/// Another process commits jobs by its own means. A worker of this process runs them.
#[tokio::test(flavor = "multi_thread")]
async fn workers_are_woken_after_the_commits_of_another_process() {
    let folder = Folder::new();
    let client = client(folder.path()).await;
    // A busy machine may need another try.
    for tries in 1.. {
        let delays = commit_to_handler(&client, async {
            let application = process("process::committing_process", COMMITTERS_FOLDER, &folder).output();
            let output = application.await.unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}");
            read_times(&text)
        })
        .await;
        print_figure("file", &delays);
        assert_eq!(delays.jobs(), commits());
        let is_fast = delays.percentile(0.5) < MEDIAN && delays.percentile(0.99) < LONGEST;
        if is_fast && delays.found_by_polling == 0 {
            break;
        }
        assert!(tries < 5, "{delays}");
    }
    client.close().await.unwrap();
}

/// The body of the process that commits jobs. Does nothing without the environment variable.
#[tokio::test(flavor = "multi_thread")]
async fn committing_process() {
    let Some(folder) = std::env::var_os(COMMITTERS_FOLDER) else { return };
    let application = client(folder).await;
    print_times(&commit_jobs(&application, commits()).await);
    application.close().await.unwrap();
}

/// Repeats a round, which returns how long it took, until nearly all of the latest rounds took no longer than `longest`.
/// Other load on the machine may slow rounds down for a while, but no round may miss a notification.
async fn repeat_until_fast(longest: Duration, mut round: impl AsyncFnMut(u32) -> Duration) {
    let began_at = Instant::now();
    let mut took = Vec::new();
    for number in 0.. {
        took.push(round(number).await);
        assert!(took.last() < Some(&MISSED), "a round missed a notification: {took:?}");
        let fast = took.iter().rev().take(ROUNDS).filter(|took| **took <= longest).count();
        if fast >= FAST_ROUNDS {
            break;
        }
        let has_time = took.len() < ROUNDS_MAX && began_at.elapsed() < TIMEOUT;
        assert!(
            has_time,
            "fewer than {FAST_ROUNDS} of any {ROUNDS} consecutive rounds took {longest:?} or less: {took:?}"
        );
    }
    println!("rounds took {took:?}");
}

/// This process runs a worker. The other process starts jobs and waits for their outputs, so each round goes there and
/// back through the folder. The worker polls so rarely that a round without notifications would not finish in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_wake_each_other_within_fifty_milliseconds() {
    let folder = Folder::new();
    let client = client(folder.path()).await;
    let worker = Worker::new(&client)
        .concurrency(1)
        .poll(Duration::from_secs(600))
        .handle(echo)
        .start()
        .await
        .unwrap();
    let mut other = process("process::other_process", OTHERS_FOLDER, &folder).spawn().unwrap();
    let mut output = String::new();
    other.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();
    assert!(other.wait().await.unwrap().success(), "{output}");
    worker.stop(Duration::from_secs(10)).await;
    println!("{output}");
    assert!(output.contains("rounds took"), "{output}");
}

/// Two stores on one folder communicate only through the folder, as two processes do. The lease is renewed so rarely that
/// the handler would not learn of the request in time from a renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_request_from_another_store_reaches_the_handler_quickly() {
    let folder = Folder::new();
    let (client, elsewhere) = (client(folder.path()).await, client(folder.path()).await);
    let queue = client.queue::<u32, ()>("numbers").visibility(Duration::from_secs(600)).build().unwrap();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (aborted, mut aborts) = mpsc::unbounded_channel();
    let handler = move |item: Item<u32>| {
        let (begun, aborted) = (begun.clone(), aborted.clone());
        async move {
            begun.send(()).unwrap();
            aborted.send((item.aborted().wait().await, Instant::now())).unwrap();
            Err::<(), _>(BoxError::from("cancelled"))
        }
    };
    let consumer = queue.consume(handler).concurrency(4).await.unwrap();
    let other = elsewhere.queue::<u32, ()>("numbers").build().unwrap();
    repeat_until_fast(Duration::from_millis(150), async |round| {
        queue.enqueue(round.to_string(), round).await.unwrap();
        begins.recv().await.unwrap();
        let began_at = Instant::now();
        assert_eq!(other.cancel_or_ask(round.to_string()).await.unwrap(), ItemCancelled::Asked);
        let (reason, aborted_at) = timeout(TIMEOUT, aborts.recv()).await.unwrap().unwrap();
        assert_eq!(reason, AbortReason::Cancelled);
        aborted_at.duration_since(began_at)
    })
    .await;
    consumer.stop(Duration::from_secs(10)).await;
}

/// Like the test above, for jobs that are no longer the worker's: deleted, and completed from outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_lost_through_another_store_aborts_the_handler_quickly() {
    let folder = Folder::new();
    let (client, elsewhere) = (client(folder.path()).await, client(folder.path()).await);
    let queue = client.queue::<u32, ()>("numbers").visibility(Duration::from_secs(600)).build().unwrap();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (aborted, mut aborts) = mpsc::unbounded_channel();
    let handler = move |item: Item<u32>| {
        let (begun, aborted) = (begun.clone(), aborted.clone());
        async move {
            begun.send(()).unwrap();
            aborted.send((item.aborted().wait().await, Instant::now())).unwrap();
            Err::<(), _>(BoxError::from("lost"))
        }
    };
    let consumer = queue.consume(handler).concurrency(4).await.unwrap();
    let other = elsewhere.store();
    repeat_until_fast(Duration::from_millis(150), async |round| {
        queue.enqueue(round.to_string(), round).await.unwrap();
        begins.recv().await.unwrap();
        let job = other.list_jobs(ListJobs::default()).await.unwrap().jobs.remove(0);
        let began_at = Instant::now();
        let expected = if round % 2 == 0 {
            let delete = Delete { chains: vec![Target::Chain(job.chain)], cascade: false, seen: None };
            let reply = other.delete(delete).await.unwrap();
            assert!(matches!(reply, DeleteReply::Deleted(_)), "{reply:?}");
            AbortReason::NotFound
        } else {
            let output = Payload::json("null").unwrap();
            let steps = vec![Step::Complete { output, retention: None, create: Vec::new() }];
            let (request, version) = (RequestId::new(), job.version);
            let complete = CompleteFromOutside { request, job: job.id, version, steps };
            let reply = other.complete_from_outside(complete).await.unwrap();
            assert!(matches!(reply, CompleteFromOutsideReply::Applied(_)), "{reply:?}");
            AbortReason::AlreadyClosed
        };
        let (reason, aborted_at) = timeout(TIMEOUT, aborts.recv()).await.unwrap().unwrap();
        assert_eq!(reason, expected);
        aborted_at.duration_since(began_at)
    })
    .await;
    consumer.stop(Duration::from_secs(10)).await;
}

/// Events reach subscribers of another client in this process, even if that client has its own notifier.
#[tokio::test]
async fn events_reach_subscribers_of_another_client_in_this_process() {
    let folder = Folder::new();
    let (store, inside) = (Arc::new(folder.open().await), InProcessNotifier::new());
    let notifier = || FileNotifier::over(inside.clone(), &store);
    let [client, watching] = [notifier(), notifier()]
        .map(|notifier| Client::<FileStore>::builder(Arc::clone(&store)).notifier(notifier).build());
    let [queue, watched] =
        [client, watching].map(|client| client.queue::<u32, ()>("numbers").build().unwrap());
    let mut events = watched.events().await.unwrap();
    queue.enqueue("a", 1).await.unwrap();
    let event = timeout(Duration::from_secs(10), events.next()).await.unwrap();
    assert_eq!(event, Some(QueueEvent::Queued { id: "a".to_owned() }));
}

/// Returns a command that runs one test of this program in another process, with the folder in `variable`.
fn process(test: &str, variable: &str, folder: &Folder) -> Command {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", test, "--nocapture"]).env(variable, folder.path());
    other.stdout(Stdio::piped()).kill_on_drop(true);
    other
}

/// A process is stopped while it has the lock, and killed later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_is_named_and_a_killed_one_is_forgotten() {
    let folder = Folder::new();
    let options = Options::new(folder.path()).busy_timeout(Duration::from_millis(300));
    let store = FileStore::open(options).await.unwrap();
    let mut holder = process("process::holding_process", HOLDERS_FOLDER, &folder).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().unwrap().contains("holding") {}
    let id = holder.id().unwrap();
    let stop = Command::new("sh").args(["-c", &format!("kill -STOP {id}")]).status().await.unwrap();
    assert!(stop.success());
    let error = store.create(Create { chains: vec![new_chain()] }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains(&format!("process {id} (")), "{error}");
    assert!(error.to_string().contains("continue or end it"), "{error}");
    let jobs = store.list_jobs(ListJobs::default()).await.unwrap().jobs;
    assert!(jobs.is_empty(), "queries do not wait");
    holder.kill().await.unwrap();
    let killed_at = Instant::now();
    start(&store, vec![new_chain()]).await;
    assert!(killed_at.elapsed() < Duration::from_secs(1), "{:?}", killed_at.elapsed());
    assert_eq!(take(&store, 10).await.len(), 1, "the transaction of the killed process left nothing");
}

/// The body of the process that has the lock. Does nothing without the environment variable.
#[tokio::test]
async fn holding_process() {
    let Some(folder) = std::env::var_os(HOLDERS_FOLDER) else { return };
    let store = FileStore::open(Options::new(folder)).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    tx.execute(&Create { chains: vec![new_chain()] }.into()).unwrap();
    println!("holding");
    std::future::pending::<()>().await;
}

/// Eight processes open a folder that does not exist yet. Each starts jobs and takes as many as it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_start_together_share_the_work() {
    let folder = Folder::new();
    let starters: Vec<_> = (0..8)
        .map(|_| process("process::starter_process", STARTERS_FOLDER, &folder).spawn().unwrap())
        .collect();
    let mut taken = Vec::new();
    for starter in starters {
        let output = starter.wait_with_output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        taken.extend(text.lines().filter_map(|line| Some(line.strip_prefix("took ")?.to_owned())));
    }
    let different: HashSet<_> = taken.iter().collect();
    let left = take(&folder.open().await, 1_000).await.len();
    assert_eq!((different.len(), taken.len() + left), (taken.len(), 8 * STARTED), "each job was taken once");
}

/// The body of a starter process. Does nothing without the environment variable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starter_process() {
    let Some(folder) = std::env::var_os(STARTERS_FOLDER) else { return };
    let store = FileStore::open(Options::new(folder).busy_timeout(TIMEOUT)).await.unwrap();
    start(&store, (0..STARTED).map(|_| new_chain()).collect()).await;
    loop {
        let jobs = take(&store, 7).await;
        if jobs.is_empty() {
            return;
        }
        jobs.iter().for_each(|acquired| println!("took {}", acquired.job.id));
    }
}

/// The body of the other process. Does nothing without the environment variable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_process() {
    let Some(folder) = std::env::var_os(OTHERS_FOLDER) else { return };
    let client = client(folder).await;
    // A round has two notifications: there and back.
    repeat_until_fast(Duration::from_millis(100), async |round| {
        let began_at = Instant::now();
        let chain = client.start(Echo(round)).await.unwrap();
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), round);
        began_at.elapsed()
    })
    .await;
}
