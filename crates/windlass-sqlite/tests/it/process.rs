//! Several processes on one file wake each other, and may start at the same time.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;
use windlass_conformance::latency::{commit_jobs, commit_to_handler, print_times, read_times};
use windlass_core::command::{
    ChangeSchedules, CompleteFromOutside, CompleteFromOutsideReply, Delete, DeleteReply, ListJobs,
    PutSchedule, ScheduleAction, ScheduleChange, Step, Target,
};
use windlass_core::queue::{Item, ItemCancelled, QueueEvent};
use windlass_core::schedule::Once;
use windlass_core::{
    AbortReason, BoxError, Client, Clock, Ctx, Entry, Hint, InProcessNotifier, Job, Millis, Payload,
    RequestId, Result, ScheduleId, ScheduleName, Signal, Store, Timestamp, Topic, TypeName, Worker,
};
use windlass_sqlite::{Options, SqliteNotifier, SqliteStore, Synchronous};
use windlass_testkit::{is_full_run, print_figure};

use crate::{File, new_chain, start, take};

/// Environment variable with the file for the other process.
const OTHERS_FILE: &str = "WINDLASS_TEST_FILE";

/// Environment variable with the file for the processes that start at the same time.
const STARTERS_FILE: &str = "WINDLASS_TEST_STARTERS_FILE";

/// Environment variable with the file for the process that commits jobs.
const COMMITTERS_FILE: &str = "WINDLASS_TEST_COMMITTERS_FILE";

/// Number of consecutive rounds, and how many of them must be fast. With notifications every 100 ms instead of every
/// 10 ms, at most half of the rounds would be.
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

/// Creates a client that does not wait for disk syncs, which may take longer than the measured times.
async fn client(path: impl Into<PathBuf>) -> Client<SqliteStore> {
    let options = Options::new(path).synchronous(Synchronous::Normal);
    let store = Arc::new(SqliteStore::open(options).await.unwrap());
    Client::new(store)
}

/// The longest delay that 99 of 100 jobs may have between commit and handler.
const LONGEST: Duration = Duration::from_millis(250);

/// Number of jobs that the application commits.
fn commits() -> usize {
    if is_full_run() { 1_000 } else { 200 }
}

/// Another process commits jobs by its own means. A worker of this process runs them.
#[tokio::test(flavor = "multi_thread")]
async fn workers_are_woken_after_the_commits_of_another_process() {
    let file = File::new();
    let client = client(file.path()).await;
    // A busy machine may need another try.
    for tries in 1.. {
        let delays = commit_to_handler(&client, async {
            let application = process("process::committing_process", COMMITTERS_FILE, &file).output();
            let output = application.await.unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}");
            read_times(&text)
        })
        .await;
        print_figure("SQLite", &delays);
        assert_eq!(delays.jobs(), commits());
        if delays.percentile(0.99) < LONGEST && delays.found_by_polling == 0 {
            break;
        }
        assert!(tries < 5, "{delays}");
    }
    client.close().await.unwrap();
}

/// The body of the process that commits jobs. Does nothing without the environment variable.
#[tokio::test(flavor = "multi_thread")]
async fn committing_process() {
    let Some(file) = std::env::var_os(COMMITTERS_FILE) else { return };
    let application = client(file).await;
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
/// back through the file. The worker polls so rarely that a round without notifications would not finish in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_wake_each_other_within_fifty_milliseconds() {
    let file = File::new();
    let client = client(file.path()).await;
    let worker = Worker::new(&client)
        .concurrency(1)
        .poll(Duration::from_secs(600))
        .handle(echo)
        .start()
        .await
        .unwrap();
    let mut other = process("process::other_process", OTHERS_FILE, &file).spawn().unwrap();
    let mut output = String::new();
    other.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();
    assert!(other.wait().await.unwrap().success(), "{output}");
    worker.stop(Duration::from_secs(10)).await;
    println!("{output}");
    assert!(output.contains("rounds took"), "{output}");
}

/// Two stores on one file communicate only through the file, as two processes do. The lease is renewed so rarely that
/// the handler would not learn of the request in time from a renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_request_from_another_store_reaches_the_handler_quickly() {
    let file = File::new();
    let (client, elsewhere) = (client(file.path()).await, client(file.path()).await);
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

/// A worker queries for due schedules every few seconds. A schedule that another store changes must start sooner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_from_another_store_starts_quickly() {
    let file = File::new();
    let (client, elsewhere) = (client(file.path()).await, client(file.path()).await);
    let (ran, mut runs) = mpsc::unbounded_channel();
    let handler = move |job: Ctx<Echo>| {
        let ran = ran.clone();
        async move {
            ran.send((job.input().0, Instant::now())).unwrap();
            Ok::<_, BoxError>(job.input().0)
        }
    };
    let worker = Worker::new(&client).handle(handler).start().await.unwrap();
    repeat_until_fast(Duration::from_millis(250), async |round| {
        let past = Once::at(Timestamp::default());
        let began_at = Instant::now();
        elsewhere.schedules().put(format!("{round}"), past, Echo(round)).await.unwrap();
        let (number, ran_at) = timeout(TIMEOUT, runs.recv()).await.unwrap().unwrap();
        assert_eq!(number, round);
        ran_at.duration_since(began_at)
    })
    .await;
    worker.stop(Duration::from_secs(10)).await;
}

/// Like the test of a cancel request, for jobs that are no longer the worker's: deleted, and completed from outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_lost_through_another_store_aborts_the_handler_quickly() {
    let file = File::new();
    let (client, elsewhere) = (client(file.path()).await, client(file.path()).await);
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
    let file = File::new();
    let (store, inside) = (Arc::new(file.open().await), InProcessNotifier::new());
    let notifier = || SqliteNotifier::over(inside.clone(), &store);
    let [client, watching] = [notifier(), notifier()]
        .map(|notifier| Client::<SqliteStore>::builder(Arc::clone(&store)).notifier(notifier).build());
    let [queue, watched] =
        [client, watching].map(|client| client.queue::<u32, ()>("numbers").build().unwrap());
    let mut events = watched.events().await.unwrap();
    queue.enqueue("a", 1).await.unwrap();
    let event = timeout(Duration::from_secs(10), events.next()).await.unwrap();
    assert_eq!(event, Some(QueueEvent::Queued { id: "a".to_owned() }));
    // The event arrives once, although both notifiers could deliver it.
    queue.enqueue("b", 1).await.unwrap();
    let event = timeout(Duration::from_secs(10), events.next()).await.unwrap();
    assert_eq!(event, Some(QueueEvent::Queued { id: "b".to_owned() }));
}

/// A schedule that no worker can read stays the first one that is due. Others behind it are still announced.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_schedule_hides_no_other() {
    let file = File::new();
    let (store, other) = (Arc::new(file.open().await), file.open().await);
    let topics = vec![Topic::Schedules, Topic::Scheduled(TypeName::new("t").unwrap())];
    let mut hints = other.notifier().subscribe(topics).await.unwrap();
    let now = file.clock.now();
    let content = PutSchedule {
        due_at: Some(now),
        handled: None,
        definition: Some("{}".into()),
        state: "{}".into(),
        chain: None,
        state_if_not_created: "{}".into(),
    };
    let unreadable = ScheduleChange {
        name: ScheduleName::new("unreadable").unwrap(),
        id: ScheduleId::new(),
        expected: None,
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(content),
    };
    store.change_schedules(ChangeSchedules { changes: vec![unreadable] }).await.unwrap();
    let hint = timeout(TIMEOUT, hints.next()).await.unwrap();
    assert!(matches!(hint, Some(Signal::Hint(Hint::SchedulesChanged))), "{hint:?}");
    file.clock.advance(Millis::from_secs(60));
    let client = Client::<SqliteStore>::new(Arc::clone(&store));
    let (due, later) = (file.clock.now(), file.clock.now() + Duration::from_secs(60));
    for (name, at) in [("due", due), ("later", later)] {
        client.schedules().put(name, Once::at(at), Echo(1)).await.unwrap();
        let hint = timeout(TIMEOUT, hints.next()).await.unwrap();
        assert!(matches!(hint, Some(Signal::Hint(Hint::SchedulesChanged))), "{name}: {hint:?}");
    }
}

/// Returns a command that runs one test of this program in another process, with the file in `variable`.
fn process(test: &str, variable: &str, file: &File) -> Command {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", test, "--nocapture"]).env(variable, file.path());
    other.stdout(Stdio::piped()).kill_on_drop(true);
    other
}

/// Eight processes open a file that does not exist yet. Each starts jobs and takes as many as it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_start_together_migrate_once_and_share_the_work() {
    let file = File::new();
    let starters: Vec<_> =
        (0..8).map(|_| process("process::starter_process", STARTERS_FILE, &file).spawn().unwrap()).collect();
    let mut taken = Vec::new();
    for starter in starters {
        let output = starter.wait_with_output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        taken.extend(text.lines().filter_map(|line| Some(line.strip_prefix("took ")?.to_owned())));
    }
    let steps: Vec<i64> = sqlx::query_scalar("select step from windlass_migration order by step")
        .fetch_all(&mut file.connect().await)
        .await
        .unwrap();
    assert_eq!(steps, [1, 2, 3], "each migration ran once");
    let different: HashSet<_> = taken.iter().collect();
    let left = take(&file.open().await, 1_000).await.len();
    assert_eq!((different.len(), taken.len() + left), (taken.len(), 8 * STARTED), "each job was taken once");
}

/// The body of a starter process. Does nothing without the environment variable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starter_process() {
    let Some(file) = std::env::var_os(STARTERS_FILE) else { return };
    let store = SqliteStore::open(Options::new(file).busy_timeout(TIMEOUT)).await.unwrap();
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
    let Some(file) = std::env::var_os(OTHERS_FILE) else { return };
    let client = client(file).await;
    // A round has two notifications: there and back.
    repeat_until_fast(Duration::from_millis(100), async |round| {
        let began_at = Instant::now();
        let chain = client.start(Echo(round)).await.unwrap();
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), round);
        began_at.elapsed()
    })
    .await;
}
