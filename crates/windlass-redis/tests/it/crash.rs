//! Kills and pauses worker processes under load: no job is lost or stuck, and none takes effect twice.

use std::collections::{HashMap, HashSet};
use std::env;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};
use windlass_core::{BoxError, ChainId, Client, Ctx, Entry, Job, JobOptions, Next, RequestId, Then, Worker};
use windlass_redis::{Options, RedisStore};
use windlass_testkit::crash::{self, Audit, WorkerGroup, audit, this_test, wait_until_closed};
use windlass_testkit::shared_redis;

pub(crate) const URL: &str = "WINDLASS_CRASH_URL";
pub(crate) const NAMESPACE: &str = "WINDLASS_CRASH_NAMESPACE";
/// Environment variable that makes a worker process use the store that ignores fences.
#[cfg(feature = "known-bad")]
const FENCE_IGNORED: &str = "WINDLASS_CRASH_FENCE_IGNORED";
/// Environment variable that makes every job of a worker process take `PAUSED_WORK`.
const PAUSES: &str = "WINDLASS_CRASH_PAUSES";

const WORKERS: usize = 3;
const SLOTS: u32 = 8;
/// Each chain has two jobs.
const CHAINS_PER_KILL: usize = 50;
/// Number of kills after which a worker is paused until other workers have taken over its jobs.
const KILLS_PER_PAUSE: usize = 5;
/// Long enough that the new owner of a job still runs it when the paused worker resumes.
const PAUSED_WORK: Duration = Duration::from_secs(1);
/// Few enough that another worker has free slots, and so acquires the jobs of the paused one as soon as it reaps them.
#[cfg(feature = "known-bad")]
const CHAINS_PER_PAUSE: usize = SLOTS as usize;
const LEASE: Duration = Duration::from_secs(1);

/// Continues with a job whose input is a mark unique to this attempt.
#[derive(Serialize, Deserialize)]
pub(crate) struct Mark;

impl Job for Mark {
    const NAME: &'static str = "mark";
    type Output = ();
    type Next = (Report,);
    type Blockers = ();

    fn options() -> JobOptions {
        JobOptions { lease: Some(LEASE), ..JobOptions::default() }
    }
}

impl Entry for Mark {}
impl Then<Report> for Mark {}

/// Reports the mark in its input. It may report one mark twice. Two different marks in a chain mean that two attempts
/// of the previous job were committed.
#[derive(Serialize, Deserialize)]
pub(crate) struct Report {
    mark: String,
}

impl Job for Report {
    const NAME: &'static str = "report";
    type Output = ();
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        Mark::options()
    }
}

async fn mark(job: Ctx<Mark>) -> Result<Next<Mark>, BoxError> {
    work(&job).await;
    Ok(Next::then(Report { mark: RequestId::new().to_string() }))
}

async fn report(job: Ctx<Report>) -> Result<(), BoxError> {
    work(&job).await;
    crash::applied(format_args!("{} {}", job.job().chain, job.input().mark));
    Ok(())
}

/// Takes a few milliseconds, so that a kill interrupts running attempts.
async fn work<J: Job>(job: &Ctx<J>) {
    if env::var_os(PAUSES).is_some() {
        // Ignore the abort signal, so that the new owner does not end early when the group is stopped.
        return sleep(PAUSED_WORK).await; // tidy: it stands for work
    }
    let duration = Duration::from_millis(u64::from(job.job().id.as_uuid().as_bytes()[15] % 20));
    let _ = timeout(duration, job.aborted().wait()).await;
}

/// Main function of the worker processes. Does nothing in the test run itself.
#[tokio::test]
async fn worker_process() {
    if !crash::is_worker_process() {
        return;
    }
    let worker = Worker::new(&Client::new(open_store().await))
        .concurrency(SLOTS)
        .poll(Duration::from_millis(20))
        .middleware(crash::reporting)
        .handle(mark)
        .handle(report)
        .start();
    crash::serve(worker.await.unwrap()).await;
}

/// Main function of the worker processes with schedules.
#[tokio::test]
async fn schedule_process() {
    if crash::is_worker_process() {
        let client = Client::new(open_store().await);
        crash::serve(crash::schedule_worker(&client).start().await.unwrap()).await;
    }
}

/// Five processes, one of them paused and one with a clock that is an hour fast, and kills in between.
#[tokio::test]
async fn every_occurrence_of_a_schedule_starts_once() {
    let server = shared_redis().await;
    let (url, namespace) = (server.url(), server.namespace().to_owned());
    let store = RedisStore::open(&url, Options::default().namespace(&namespace)).await.unwrap();
    let seconds = if env::var_os("WINDLASS_FULL").is_some() { 60 } else { 8 };
    let client = Client::new(store);
    let report = crash::run_schedules(&client, seconds, || {
        let mut command = this_test("crash::schedule_process");
        command.env(URL, &url).env(NAMESPACE, &namespace);
        command
    });
    println!("{:?}", report.await);
}

/// Opens the store of a worker process.
async fn open_store() -> RedisStore {
    let url = env::var(URL).unwrap();
    let options = Options::default().namespace(env::var(NAMESPACE).unwrap());
    #[cfg(feature = "known-bad")]
    if env::var_os(FENCE_IGNORED).is_some() {
        let bad = windlass_redis::known_bad::KnownBad::FenceIgnored;
        return windlass_redis::known_bad::open(&url, options, bad).await.unwrap();
    }
    RedisStore::open(&url, options).await.unwrap()
}

/// Returns a client in a fresh namespace, and a function that creates commands for worker processes there. Sets the
/// environment variables `variables` for them.
async fn fixture(
    variables: &'static [&'static str],
) -> (Client<RedisStore>, impl Fn() -> Command + Clone + Send) {
    let server = shared_redis().await;
    let (url, namespace) = (server.url(), server.namespace().to_owned());
    let store = RedisStore::open(&url, Options::default().namespace(&namespace)).await.unwrap();
    let command = move || {
        let mut command = this_test("crash::worker_process");
        command.env(URL, &url).env(NAMESPACE, &namespace);
        command.envs(variables.iter().map(|variable| (variable, "1")));
        command
    };
    (Client::new(store), command)
}

async fn start_chains(client: &Client<RedisStore>, count: usize) -> Vec<ChainId> {
    let chains = client.start_many((0..count).map(|_| Mark)).await.unwrap();
    chains.into_iter().map(|chain| chain.id()).collect()
}

#[tokio::test]
async fn killed_and_paused_workers_lose_and_repeat_nothing() {
    let kills = if env::var_os("WINDLASS_FULL").is_some() { 200 } else { 20 };
    let (client, command) = fixture(&[]).await;
    let mut group = WorkerGroup::start(WORKERS, command).await;

    let (mut chains, mut killed) = (Vec::new(), 0);
    while killed < kills {
        chains.extend(start_chains(&client, CHAINS_PER_KILL).await);
        killed += usize::from(group.kill_one(client.store()).await);
        if killed % KILLS_PER_PAUSE == 0 {
            group.overtake_one(client.store()).await;
        }
        assert!(
            chains.len() < 2 * kills * CHAINS_PER_KILL,
            "only {killed} of {kills} kills found jobs running"
        );
    }
    // A paused worker may have had no job left to take over.
    while group.overtaken() == 0 {
        assert!(chains.len() < 3 * kills * CHAINS_PER_KILL, "no paused worker was overtaken");
        chains.extend(start_chains(&client, CHAINS_PER_KILL).await);
        group.overtake_one(client.store()).await;
    }
    wait_until_closed(client.store(), &chains, Duration::from_secs(300)).await;
    let log = group.stop().await;
    println!("{} chains of 2 jobs; {log}", chains.len());

    assert!(log.kills >= kills && log.overtaken > 0);
    assert_eq!(log.started_twice(), []);
    assert_eq!(log.stale_writes(), []);
    let mut marks: HashMap<ChainId, HashSet<&str>> = HashMap::new();
    for effect in log.applied() {
        let (chain, mark) = effect.split_once(' ').unwrap();
        marks.entry(chain.parse().unwrap()).or_default().insert(mark);
    }
    let effects = marks.into_iter().map(|(chain, marks)| (chain, marks.len())).collect();
    assert_eq!(audit(client.store(), &chains, &effects).await, Audit::default());
}

/// The harness detects a paused worker that overwrites the work of the new owner.
#[cfg(feature = "known-bad")]
#[tokio::test]
async fn a_store_that_ignores_the_fence_is_caught() {
    let (client, command) = fixture(&[FENCE_IGNORED, PAUSES]).await;
    // A stale write succeeds only if the new owner is still running when the paused worker resumes, so try often.
    for _ in 0..30 {
        let mut group = WorkerGroup::start(WORKERS, command.clone()).await;
        start_chains(&client, CHAINS_PER_PAUSE).await;
        group.overtake_one(client.store()).await;
        if !group.stop().await.stale_writes().is_empty() {
            return;
        }
    }
    panic!("no overtaken worker made a stale write in any round");
}
