//! Gauges of the state: one process of three reports them.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use windlass::command;
use windlass::sqlite::{self, Client};
use windlass::store::{BoxFuture, Decorator};
use windlass::{Error, ErrorKind, MemoryStore, plan};
use windlass_otel::{Prometheus, Telemetry};
use windlass_testkit::{is_full_run, print_figure};

use crate::jobs::{Label, Order, Pack};

/// Environment variable of the processes.
const FILE: &str = "WINDLASS_TEST_STATE_FILE";

/// What a process prints before each gauge, and after the last one.
const GAUGE: &str = "gauge: ";
const END: &str = "no more gauges";

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_processes_reports_each_gauge() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let client = Client::new(sqlite::open(&file).await.unwrap());
    client.start_many((0..3).map(|number| plan(Label { number }))).await.unwrap();
    let mut children: Vec<Child> = (0..3).map(|_| process(file.to_str().unwrap())).collect();
    // The series of each process.
    let mut reports = Vec::new();
    for child in &mut children {
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut report = Vec::new();
        loop {
            let line = output.next_line().await.unwrap().expect("the process prints its gauges");
            // The test runner prints before the first line.
            if line.ends_with(END) {
                break;
            }
            if let Some((_, gauge)) = line.split_once(GAUGE) {
                report.push(gauge.to_owned());
            }
        }
        report.sort();
        reports.push(report);
        child.stdout = Some(output.into_inner().into_inner());
    }
    reports.sort();
    let statuses =
        [("blocked", 0), ("cancelled", 0), ("completed", 0), ("failed", 0), ("pending", 3), ("running", 0)];
    let jobs = statuses.map(|(status, jobs)| {
        format!(
            "windlass_state_jobs{{messaging_destination_name=\"label\",windlass_status=\"{status}\"}} {jobs}"
        )
    });
    let label = "{messaging_destination_name=\"label\"}";
    let mut expected = vec![
        format!("windlass_state_blocked_by_failed{label} 0"),
        format!("windlass_state_expired_leases{label} 0"),
        format!("windlass_state_oldest_ready_age_seconds{label}"),
        format!("windlass_state_paused{label} 0"),
        "windlass_state_reporter 1".to_owned(),
    ];
    expected.extend(jobs);
    expected.sort();
    assert_eq!(
        reports,
        [Vec::new(), Vec::new(), expected],
        "one process reports each gauge, the others none"
    );
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().await.unwrap().success());
    }
    client.close().await.unwrap();
}

/// A process that could report. Prints its gauges once it knows whether it leads.
#[tokio::test(flavor = "multi_thread")]
async fn reporting_process() {
    let Ok(file) = std::env::var(FILE) else { return };
    let prometheus = Prometheus::new().unwrap();
    let telemetry = Telemetry::new().metrics(prometheus.meter_provider());
    let client = Client::builder(sqlite::open(file).await.unwrap()).observer(telemetry.clone()).build();
    let gauges = telemetry.watch_state(&client);
    gauges.decided().await;
    let text = prometheus.text().unwrap();
    for line in text.lines().filter(|line| line.starts_with("windlass_state_")) {
        // The age differs from run to run.
        let is_age = line.starts_with("windlass_state_oldest_ready_age_seconds");
        println!("{GAUGE}{}", if is_age { line.split(' ').next().unwrap() } else { line });
    }
    println!("{END}");
    let mut input = String::new();
    tokio::io::stdin().read_to_string(&mut input).await.unwrap();
}

fn process(file: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["state::reporting_process", "--exact", "--nocapture"]).env(FILE, file);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
}

#[tokio::test]
async fn gauges_show_ages_failures_and_what_they_block() {
    let prometheus = Prometheus::new().unwrap();
    let telemetry = Telemetry::new().metrics(prometheus.meter_provider());
    let client = windlass::Client::builder(MemoryStore::new()).observer(telemetry.clone()).build();
    let blocker = client.start(Label { number: 1 }).await.unwrap();
    let order = client.start(Order { number: 1 }).await.unwrap();
    let step = client.step(order).await.unwrap();
    let job = windlass::next(Pack { number: 1 }).blocked_by((blocker,));
    step.of::<Order>().unwrap().then(job).await.unwrap();
    client.step(blocker).await.unwrap().of::<Label>().unwrap().fail("no paper").await.unwrap();
    client.start(Label { number: 2 }).await.unwrap();
    let gauges = telemetry.watch_state(&client);
    assert!(gauges.decided().await && gauges.is_leader());
    let text = prometheus.text().unwrap();
    let has = |line: &str| assert!(text.contains(line), "{line}\n{text}");
    has("windlass_state_jobs{messaging_destination_name=\"label\",windlass_status=\"failed\"} 1");
    has("windlass_state_jobs{messaging_destination_name=\"pack\",windlass_status=\"blocked\"} 1");
    has("windlass_state_blocked_by_failed{messaging_destination_name=\"pack\"} 1");
    has("windlass_state_blocked_by_failed{messaging_destination_name=\"label\"} 0");
    has("windlass_state_oldest_ready_age_seconds{messaging_destination_name=\"label\"}");
    has("windlass_state_expired_leases{messaging_destination_name=\"label\"} 0");
    drop(gauges);
    assert!(!prometheus.text().unwrap().contains("windlass_state_jobs{"), "a dropped guard reports nothing");
}

/// Time is paused, so that each sleep ends after one reading.
#[tokio::test(start_paused = true)]
async fn many_blocked_jobs_are_examined_in_steps() {
    let prometheus = Prometheus::new().unwrap();
    let telemetry = Telemetry::new().metrics(prometheus.meter_provider());
    let client = windlass::Client::new(MemoryStore::new());
    let blocker = client.start(Label { number: 1 }).await.unwrap();
    let packs = (0..1_500).map(|number| plan(Pack { number }).blocked_by((blocker,)));
    client.start_many(packs).await.unwrap();
    client.step(blocker).await.unwrap().of::<Label>().unwrap().fail("no paper").await.unwrap();
    let gauges = telemetry.watch_state(&client);
    assert!(gauges.decided().await);
    // The second reading completes the count. The third one starts another count, and reports the complete one.
    for expected in [1_000, 1_500, 1_500] {
        let text = prometheus.text().unwrap();
        let line =
            format!("windlass_state_blocked_by_failed{{messaging_destination_name=\"pack\"}} {expected}\n");
        assert!(text.contains(&line), "{line}{text}");
        tokio::time::sleep(Duration::from_millis(15_001)).await; // tidy: time is paused
    }
    drop(gauges);
}

/// The cost of one query of the leader. Every 15 s it should be negligible.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_is_cheap_with_many_jobs() {
    let jobs = if is_full_run() { 1_000_000 } else { 20_000 };
    let directory = tempfile::tempdir().unwrap();
    let client = Client::new(sqlite::open(directory.path().join("jobs.db")).await.unwrap());
    client.start_many((0..jobs).map(|number| plan(Label { number }))).await.unwrap();
    let prometheus = Prometheus::new().unwrap();
    let started_at = Instant::now();
    let gauges = Telemetry::new().metrics(prometheus.meter_provider()).watch_state(&client);
    assert!(gauges.decided().await);
    let took = started_at.elapsed();
    print_figure(&format!("gauges of {jobs} jobs on SQLite"), format!("{took:?}"));
    let expected = format!("windlass_status=\"pending\"}} {jobs}");
    assert!(prometheus.text().unwrap().contains(&expected), "{}", prometheus.text().unwrap());
    drop(gauges);
    client.close().await.unwrap();
}

/// A store that takes long to count.
#[derive(Debug)]
struct Slow(MemoryStore);

impl Decorator for Slow {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn call(&self, command: command::Command) -> BoxFuture<'_, windlass::Result<command::Reply>> {
        Box::pin(async move {
            if let command::Command::Count(_) = command {
                tokio::time::sleep(Duration::from_secs(9)).await; // tidy: time is paused
            }
            self.forward(command).await
        })
    }
}

/// A reading is shown for 30 s from its start.
#[tokio::test(start_paused = true)]
async fn gauges_of_a_slow_store_are_shown_without_interruption() {
    let client = windlass::Client::new(Slow(MemoryStore::new()));
    let prometheus = Prometheus::new().unwrap();
    let gauges = Telemetry::new().metrics(prometheus.meter_provider()).watch_state(&client);
    assert!(gauges.decided().await);
    for second in 0..120 {
        assert!(gauges.is_leader(), "after {second} s");
        tokio::time::sleep(Duration::from_secs(1)).await; // tidy: time is paused
    }
    gauges.stop().await;
}

/// Time is paused, and the store's clock is not: the lock does not expire, so it must be released.
#[tokio::test(start_paused = true)]
async fn another_process_takes_over_when_the_leader_stops() {
    let store = Arc::new(MemoryStore::new());
    let process = || {
        let prometheus = Prometheus::new().unwrap();
        let telemetry = Telemetry::new().metrics(prometheus.meter_provider());
        let client = windlass::Client::<MemoryStore>::builder(Arc::clone(&store)).build();
        let gauges = telemetry.watch_state(&client);
        (prometheus, gauges)
    };
    let reports = |prometheus: &Prometheus| prometheus.text().unwrap().contains("windlass_state_reporter 1");
    let (first, stopped) = process();
    assert!(stopped.decided().await && reports(&first));
    let (second, left) = process();
    assert!(!left.decided().await && !reports(&second));
    stopped.stop().await;
    assert!(!reports(&first));
    tokio::time::sleep(Duration::from_secs(16)).await; // tidy: time is paused
    assert!(left.is_leader() && reports(&second) && !reports(&first));
    left.stop().await;
    assert!(!reports(&second));
}

/// A store that cannot count.
#[derive(Debug)]
struct Uncountable(Arc<MemoryStore>);

impl Decorator for Uncountable {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn call(&self, command: command::Command) -> BoxFuture<'_, windlass::Result<command::Reply>> {
        if let command::Command::Count(_) = command {
            return Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "cannot count")) });
        }
        self.forward(command)
    }
}

/// Time is paused, and the store's clock is not: the lock does not expire.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_query_gives_way() {
    let store = Arc::new(MemoryStore::new());
    let broken = windlass::Client::new(Uncountable(Arc::clone(&store)));
    let client = windlass::Client::<MemoryStore>::builder(store).build();
    let telemetry = || Telemetry::new().metrics(Prometheus::new().unwrap().meter_provider());
    let first = telemetry().watch_state(&broken);
    tokio::time::sleep(Duration::from_secs(1)).await; // tidy: paused time
    let second = telemetry().watch_state(&client);
    let leads = tokio::time::timeout(Duration::from_secs(120), async {
        while !second.is_leader() {
            tokio::time::sleep(Duration::from_secs(1)).await; // tidy: paused time
        }
    });
    leads.await.expect("the second process leads");
    assert!(!first.is_leader());
}
