//! Tests of the crash harness on a memory store, with shell scripts as worker processes. The stores that processes can
//! share use the harness in their own tests.

use std::{
    collections::{HashMap, HashSet},
    process::Command,
    sync::Arc,
    time::Duration,
};

use windlass_core::{
    ChainId, ManualClock, MemoryStore, Millis, Payload, RequestId, Store, TypeName, WorkerId,
    command::{Acquire, Create, NewChain, NewJob, Outcome, Quota, Reap, Settle, Settlement, Types},
};
use windlass_testkit::{
    crash::{Audit, GroupLog, Run, WorkerGroup, WorkerProcess, audit, wait_until_closed},
    wait_until,
};

fn job_type() -> TypeName {
    TypeName::new("work").unwrap()
}

async fn create(store: &MemoryStore) -> ChainId {
    let id = ChainId::new();
    let job = NewJob::new(job_type(), Payload::json("1").unwrap());
    store.create(Create { chains: vec![NewChain::new(id, job)] }).await.unwrap();
    id
}

/// Acquires the only job.
async fn acquire(store: &MemoryStore) -> Run {
    let types = vec![Quota { job_type: job_type(), max: 1, lease: Millis::from_days(1) }];
    let request =
        Acquire { request: RequestId::new(), worker: WorkerId::new(), worker_name: None, types, max: 1 };
    let job = store.acquire(request).await.unwrap().jobs.remove(0).job;
    Run { job: job.id, fence: job.fence }
}

async fn complete(store: &MemoryStore, run: Run) {
    let output = Payload::json("2").unwrap();
    settle(store, run, Outcome::Complete { output, retention: None, create: Vec::new() }).await;
}

/// Requeues the only job, whose lease has expired.
async fn reap(store: &MemoryStore) {
    let reap = Reap { types: Types::All, max: 1, except: Vec::new(), renewal_interval: Millis::ZERO };
    assert_eq!(store.reap(reap).await.unwrap().reaped.len(), 1);
}

async fn settle(store: &MemoryStore, run: Run, outcome: Outcome) {
    let settlement = Settlement { job: run.job, fence: run.fence, outcome };
    store.settle(Settle { settlements: vec![settlement] }).await.unwrap();
}

/// Returns a process that reports these lines and ends when it is asked to stop.
fn script(lines: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"printf 'windlass-report %s\n' "$@"; exec cat"#, "sh"]).args(lines);
    command
}

fn started(run: Run) -> String {
    format!("started {} {}", run.job, run.fence.0)
}

#[tokio::test]
async fn an_audit_of_correct_chains_finds_nothing() {
    let store = MemoryStore::new();
    let chain = create(&store).await;
    let run = acquire(&store).await;
    complete(&store, run).await;
    wait_until_closed(&store, &[chain], Duration::from_secs(60)).await;
    assert_eq!(audit(&store, &[chain], &HashMap::from([(chain, 1)])).await, Audit::default());
}

#[tokio::test]
async fn an_audit_finds_lost_open_failed_and_leased_chains() {
    let store = MemoryStore::new();
    let (lost, held) = (ChainId::new(), create(&store).await);
    acquire(&store).await;
    let waiting = create(&store).await;
    let found = audit(&store, &[lost, held, waiting], &HashMap::new()).await;
    assert!(found.left.0.is_some() && found.left.1.is_some());
    let expected =
        Audit { lost: vec![lost], open: vec![held, waiting], leased: vec![held], ..Audit::default() };
    assert_eq!(Audit { left: (None, None), ..found }, expected);
}

#[tokio::test]
async fn an_audit_finds_missing_repeated_and_unknown_effects() {
    let store = MemoryStore::new();
    let mut chains = Vec::new();
    for _ in 0..2 {
        chains.push(create(&store).await);
        let run = acquire(&store).await;
        complete(&store, run).await;
    }
    let unknown = ChainId::new();
    let effects = HashMap::from([(chains[1], 2), (unknown, 1)]);
    let expected = Audit {
        without_effect: vec![chains[0]],
        repeated_effect: vec![chains[1]],
        unknown: vec![unknown],
        ..Audit::default()
    };
    assert_eq!(audit(&store, &chains, &effects).await, expected);
}

#[tokio::test]
#[should_panic(expected = "waiting until all chains are closed")]
async fn waiting_for_an_open_chain_times_out() {
    let store = MemoryStore::new();
    let chain = create(&store).await;
    wait_until_closed(&store, &[chain], Duration::from_millis(20)).await;
}

#[tokio::test]
async fn a_kill_counts_only_with_jobs_running() {
    let store = MemoryStore::new();
    create(&store).await;
    let run = acquire(&store).await;
    let mut group = WorkerGroup::start(2, move || script(&["ready".to_owned(), started(run)])).await;
    assert!(group.kill_one(&store).await);
    complete(&store, run).await;
    assert!(!group.kill_one(&store).await);
    let log = group.stop().await;
    assert_eq!((log.kills, log.idle_kills, log.transcripts.len()), (1, 1, 4));
    // All scripts report the same attempt.
    assert_eq!(log.started_twice(), [run; 3]);
}

/// Returns the log of a worker that was paused while `meanwhile` ran, and then reported `end` for its attempt.
async fn overtake(
    store: &MemoryStore,
    run: Run,
    end: &'static str,
    meanwhile: impl AsyncFnOnce(),
) -> GroupLog {
    let end = format!("{end} {} {}", run.job, run.fence.0);
    let command = move || {
        let mut command = Command::new("sh");
        // It reports the end of its attempt when it is asked to stop, which is after the pause.
        let text = r#"printf 'windlass-report %s\n' ready "$1"; cat; echo "windlass-report $2""#;
        command.args(["-c", text, "sh", &started(run), &end]);
        command
    };
    let mut group = WorkerGroup::start(1, command).await;
    let before = store.counters().round_trips;
    tokio::join!(group.overtake_one(store), async {
        // The group is the first to query the store, and its worker is paused by then.
        wait_until("the group has queried the store", Duration::from_secs(60), async || {
            store.counters().round_trips > before
        })
        .await;
        meanwhile().await;
    });
    group.stop().await
}

#[tokio::test]
async fn an_overtaken_worker_must_not_write() {
    for (end, stale) in [("lost", false), ("settled", true)] {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::with_clock(clock.clone());
        create(&store).await;
        let run = acquire(&store).await;
        let expire = async || {
            clock.advance(Millis::from_days(2));
            reap(&store).await;
        };
        let log = overtake(&store, run, end, expire).await;
        assert_eq!((log.overtaken, &log.taken), (1, &HashSet::from([run])));
        assert_eq!(log.stale_writes(), if stale { vec![run] } else { vec![] });
    }
}

#[tokio::test]
async fn a_command_in_flight_before_a_pause_is_not_stale() {
    let output = Payload::json("2").unwrap();
    let complete = Outcome::Complete { output, retention: None, create: Vec::new() };
    for outcome in [complete, Outcome::Release] {
        let store = MemoryStore::new();
        create(&store).await;
        let run = acquire(&store).await;
        let log = overtake(&store, run, "settled", async || settle(&store, run, outcome).await).await;
        assert_eq!(log.overtaken, 0);
        assert_eq!(log.stale_writes(), []);
    }
}

#[tokio::test]
async fn a_process_reports_up_to_its_end() {
    let lines = ["ready", "applied one", "applied two words"].map(str::to_owned);
    let killed = WorkerProcess::start(script(&lines)).await.kill();
    let mut process = WorkerProcess::start(script(&lines)).await;
    process.pause().await;
    process.resume();
    let stopped = process.stop().await;
    assert_eq!(stopped.applied, ["one", "two words"]);
    assert_eq!(killed.applied, stopped.applied);
}

#[tokio::test]
#[should_panic(expected = "a worker process exited during startup")]
async fn a_process_that_does_not_start_is_reported() {
    let _ = WorkerProcess::start(Command::new("false")).await;
}

#[tokio::test]
#[should_panic(expected = "a worker process failed: exit status: 3")]
async fn a_process_that_fails_is_reported() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo windlass-report ready; cat; exit 3"]);
    let _ = WorkerProcess::start(command).await.stop().await;
}
