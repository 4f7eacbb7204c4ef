//! Schedules on worker processes that are killed, paused, or have a wrong clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use windlass_core::{
    BoxError, Client, Ctx, Entry, Job, ScheduleId, Store, Timestamp, TypeName, Worker,
    command::{ChainFilter, ListChains, Page},
    schedule::{Cron, Overlap},
};

use super::{report::reporting, worker_process::WorkerProcess};
use crate::{wait::poll, wait_until};

/// The number of schedules, each with an occurrence per second.
const SCHEDULES: usize = 20;
/// The number of worker processes.
const WORKERS: usize = 5;
/// How long a worker is paused.
const PAUSE: Duration = Duration::from_secs(2);
/// How long the workers have to catch up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A library that makes the clock of a process an hour fast. Rust reads the clock with `clock_gettime`.
const SKEWED_CLOCK: &str = r"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, __func__);
    int result = real(id, at);
    if (id == CLOCK_REALTIME) at->tv_sec += 3600;
    return result;
}
";

/// The job of the schedules.
#[derive(Serialize, Deserialize)]
pub(crate) struct Tick;

impl Job for Tick {
    const NAME: &'static str = "scheduled-tick";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Tick {}

pub(crate) async fn tick(job: Ctx<Tick>) -> Result<(), BoxError> {
    job.occurrence().map(drop).ok_or_else(|| "a schedule starts this job".into())
}

/// Creates a worker that handles the jobs of the schedules and reports.
pub fn schedule_worker<S: Store>(client: &Client<S>) -> Worker<S> {
    Worker::new(client).concurrency(20).middleware(reporting).handle(tick)
}

/// The result of a run with schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleReport {
    /// The number of chains that the schedules have started.
    pub chains: usize,
    /// The number of worker processes that were killed.
    pub kills: usize,
    /// The number of pauses.
    pub pauses: usize,
}

/// Runs schedules on five worker processes for this many seconds. One process has a clock that is an hour fast. Others are
/// paused and killed in turn. Asserts that every occurrence has started exactly one chain, and that each has run.
///
/// # Panics
///
/// Panics if an occurrence is missing or has started early, or if a chain has not completed.
pub async fn run_schedules<S: Store>(
    client: &Client<S>,
    seconds: usize,
    command: impl Fn() -> Command,
) -> ScheduleReport {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let library = skewed_clock(directory.path());
    let start = |is_skewed: bool| {
        let mut command = command();
        if is_skewed {
            command.env("LD_PRELOAD", &library);
        }
        command
    };
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        workers.push(WorkerProcess::start(start(number == 0)).await);
    }
    for number in 0..SCHEDULES {
        let every_second = Cron::new("* * * * * *").expect("a valid expression").overlap(Overlap::Allow);
        let put = client.schedules().put(format!("tick-{number}"), every_second, Tick).await;
        put.expect("the schedule is stored");
    }
    let (mut kills, mut pauses) = (0, 0);
    let last = handled(client).await + Duration::from_secs(seconds as u64);
    while handled(client).await < last {
        // The first one has the wrong clock, the second one is paused, and the others are killed in turn.
        let paused = workers.get_mut(1).expect("the second worker");
        paused.pause().await;
        let later = handled(client).await + PAUSE;
        wait_until("the others continue", PATIENCE, async || handled(client).await >= later).await;
        workers.get_mut(1).expect("the second worker").resume();
        pauses += 1;
        let _ = workers.remove(2).kill();
        kills += 1;
        workers.push(WorkerProcess::start(start(false)).await);
    }
    for number in 0..SCHEDULES {
        client.schedules().pause(format!("tick-{number}")).await.expect("the schedule is paused");
    }
    let chains = check(client, seconds).await;
    for worker in workers {
        let _ = worker.stop().await;
    }
    ScheduleReport { chains, kills, pauses }
}

/// Returns the earliest of the last occurrences that schedules have handled, or the time of their creation.
async fn handled<S: Store>(client: &Client<S>) -> Timestamp {
    let schedules = client.schedules().list().await.expect("the store answers");
    let handled = |schedule: &windlass_core::schedule::Schedule| {
        let created = schedule.details.as_ref().map(|details| details.created_at);
        schedule.handled.unwrap_or_else(|| created.expect("the schedule can be read"))
    };
    schedules.iter().map(handled).min().expect("there are schedules")
}

/// Checks the chains of all occurrences. Returns their number.
async fn check<S: Store>(client: &Client<S>, seconds: usize) -> usize {
    let chains = poll(PATIENCE, || async {
        let chains = list(client).await;
        chains.iter().all(|chain| chain.closed.is_some()).then_some(chains)
    });
    let chains = chains.await.expect("every chain completes");
    let mut times: BTreeMap<ScheduleId, BTreeSet<i64>> = BTreeMap::new();
    for chain in &chains {
        let occurrence = chain.id.occurrence().expect("the id of a chain contains its occurrence");
        assert!(chain.created_at >= occurrence.at, "{} was started early: {occurrence:?}", chain.id);
        let late = chain.created_at.since(occurrence.at);
        assert!(late < Duration::from_secs(60), "{} was started {late:?} late", chain.id);
        let is_new = times.entry(occurrence.schedule).or_default().insert(occurrence.at.as_millis());
        assert!(is_new, "{occurrence:?} has started two chains");
    }
    assert_eq!(times.len(), SCHEDULES, "every schedule has started chains");
    for (schedule, times) in &times {
        let (first, last) = (*times.first().expect("a time"), *times.last().expect("a time"));
        let expected = usize::try_from((last - first) / 1_000 + 1).expect("a small number");
        assert_eq!(times.len(), expected, "{schedule}: an occurrence is missing in {times:?}");
        assert!(times.len() >= seconds, "{schedule}: {} occurrences", times.len());
    }
    chains.len()
}

async fn list<S: Store>(client: &Client<S>) -> Vec<windlass_core::ChainRecord> {
    let types = vec![TypeName::new(Tick::NAME).expect("a valid name")];
    let filter = ChainFilter { types, ..ChainFilter::default() };
    let mut request = ListChains { filter, page: Page { max: 1_000, ..Page::default() } };
    let mut chains = Vec::new();
    loop {
        let reply = client.list_chains(request.clone()).await.expect("the store answers");
        chains.extend(reply.chains);
        match reply.next {
            Some(next) => request.page.after = Some(next),
            None => return chains,
        }
    }
}

/// Compiles the library with the wrong clock.
fn skewed_clock(directory: &Path) -> PathBuf {
    let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
    std::fs::write(&source, SKEWED_CLOCK).expect("a file can be written");
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl").status();
    assert!(compiled.expect("a C compiler").success(), "the library compiles");
    library
}
