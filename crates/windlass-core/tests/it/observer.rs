//! What observers receive: times, durations and trace contexts of events, scopes of attempts, and activities.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::{
    About, Activity, Attempt, AttemptScope, Backoff, BoxError, ChainId, Client, Done, Ended, Entry, Event,
    Frequent, Job, JobOptions, ManualClock, MemoryStore, Observer, Stage, StoreCall, TraceContext, Traced,
    Worker,
};

type Result<T, E = BoxError> = std::result::Result<T, E>;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Serialize, Deserialize)]
struct Parcel {
    /// What the handler does: "then", "done", or fails.
    first: String,
}

impl Job for Parcel {
    const NAME: &'static str = "parcel";
    type Output = String;
    type Next = (Self,);
    type Blockers = ();
    fn options() -> JobOptions {
        JobOptions { backoff: Some(Backoff::NONE), max_attempts: Some(2), ..JobOptions::default() }
    }
}
impl Entry for Parcel {}
impl windlass_core::Then<Self> for Parcel {}

thread_local! {
    static ENTERED: Cell<u32> = const { Cell::new(0) };
}

/// Records everything, in order.
#[derive(Clone, Debug, Default)]
struct Recorder {
    lines: Arc<Mutex<Vec<String>>>,
    abouts: Arc<Mutex<Vec<(String, About)>>>,
    activities: Arc<Mutex<Vec<Activity>>>,
    /// Whether every method of a scope panics.
    panics: bool,
    /// How often a scope was entered.
    turns: Arc<AtomicU32>,
    /// Whether it wants none of the frequent events.
    skips: bool,
    /// Whether it wants no events.
    is_off: bool,
}

impl Recorder {
    fn line(&self, line: impl Into<String>) {
        self.lines.lock().unwrap().push(line.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    /// Returns the first event of this name.
    fn about(&self, name: &str) -> About {
        let abouts = self.abouts.lock().unwrap();
        abouts.iter().find(|(event, _)| event == name).unwrap_or_else(|| panic!("no {name}")).1.clone()
    }
}

impl Observer for Recorder {
    fn observe(&self, event: &Event) {
        let about = match event {
            Event::ChainCreated(about)
            | Event::JobCreated(about)
            | Event::AttemptStarted(about)
            | Event::AttemptFailed(about, ..)
            | Event::JobCompleted(about, _)
            | Event::ChainClosed(about, _) => about,
            _ => return,
        };
        let name = format!("{event:?}").split('(').next().unwrap().to_owned();
        self.abouts.lock().unwrap().push((name, about.clone()));
    }

    fn is_on(&self) -> bool {
        !self.is_off
    }

    fn wants(&self, _: Frequent) -> bool {
        !self.skips
    }

    fn trace_context(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        let name = match traced {
            Traced::Chain => "chain",
            Traced::Job => "job",
            Traced::Wait(_) => "wait",
        };
        self.abouts.lock().unwrap().push((format!("trace of {name}"), about.clone()));
        Some(TraceContext::new(format!("{name}-{}", about.job)).unwrap())
    }

    fn existed(&self, traced: Traced, _: &About, existing: ChainId, trace: Option<&TraceContext>) {
        let trace = trace.map(TraceContext::as_str);
        let is_its = trace == Some(format!("chain-{existing}").as_str());
        self.line(format!("existed {traced:?}, with its context: {is_its}"));
    }

    fn measure(&self, activity: &Activity) {
        self.activities.lock().unwrap().push(activity.clone());
    }

    fn attempt(&self, about: &About) -> Option<Box<dyn AttemptScope>> {
        self.line(format!("attempt {}", about.attempt.unwrap()));
        Some(Box::new(Scope(self.clone())))
    }
}

#[derive(Debug)]
struct Scope(Recorder);

impl AttemptScope for Scope {
    fn within(&self, poll: &mut dyn FnMut()) {
        ENTERED.set(ENTERED.get() + 1);
        // A scope that panics does so before the poll, after it, or forgets it, one after the other.
        let turn = self.0.turns.fetch_add(1, Ordering::SeqCst) % 3;
        let is_polled = !self.0.panics || turn == 0;
        if is_polled {
            poll();
            poll();
        }
        ENTERED.set(ENTERED.get() - 1);
        assert!(!self.0.panics || turn == 2, "a scope that panics");
    }

    fn began(&self, stage: Stage) {
        assert!(!self.0.panics, "a scope that panics");
        self.0.line(format!("began {stage:?}"));
    }

    fn closed(&self, stage: Stage, error: Option<&str>) {
        assert!(!self.0.panics, "a scope that panics");
        self.0.line(format!("closed {stage:?} {error:?}"));
    }

    fn ended(&self, _: &About, ended: &Ended) {
        assert!(!self.0.panics, "a scope that panics");
        let ended = format!("{ended:?}");
        self.0.line(format!("ended {}", ended.split(['(', ' ']).next().unwrap()));
    }
}

/// Continues, completes, or fails its first attempt.
async fn deliver(a: Attempt<Parcel, MemoryStore>) -> Result<Done<Parcel, MemoryStore>> {
    tokio::task::yield_now().await;
    a.prepare().await?.commit().await?;
    let what = a.input().first.as_str();
    let step = a.begin().await?;
    match (what, a.attempt()) {
        ("then", _) => Ok(step.then(Parcel { first: "done".into() })?),
        ("fail", 1) => Err("it rains".into()),
        _ => Ok(step.done(format!("entered {}", ENTERED.get()))?),
    }
}

async fn run(recorder: &Recorder, first: &str) -> String {
    let client = Client::builder(MemoryStore::new()).observer(recorder.clone()).build();
    let worker = Worker::new(&client).name("post").concurrency(1).handle(deliver).start().await.unwrap();
    let chain = client.start(Parcel { first: first.into() }).await.unwrap();
    let output = client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    output
}

#[tokio::test]
async fn a_scope_follows_an_attempt_and_its_transactions() {
    let recorder = Recorder::default();
    let output = run(&recorder, "fail").await;
    assert_eq!(output, "entered 1", "the handler runs inside the scope");
    assert_eq!(ENTERED.get(), 0);
    let stages = ["began Prepare", "closed Prepare None", "began Finish"];
    let rolled_back = "closed Finish Some(\"the transaction was rolled back\")";
    let first = [&["attempt 1"], &stages[..], &[rolled_back, "ended Retried"]].concat();
    let second = [&["attempt 2"], &stages[..], &["closed Finish None", "ended Completed"]].concat();
    assert_eq!(recorder.take(), [first, second].concat());
}

#[tokio::test]
async fn a_panicking_scope_does_not_affect_the_attempt() {
    let recorder = Recorder { panics: true, ..Recorder::default() };
    let output = run(&recorder, "fail").await;
    // Inside the scope if that polled it, outside of it otherwise.
    assert!(["entered 0", "entered 1"].contains(&output.as_str()), "{output}");
    assert_eq!(ENTERED.get(), 0);
    assert!(recorder.turns.load(Ordering::SeqCst) > 3, "each turn was taken");
    assert_eq!(recorder.take(), ["attempt 1", "attempt 2"]);
}

/// The others arrive nevertheless.
#[tokio::test]
async fn events_that_nobody_reads_are_not_created() {
    let names = |recorder: &Recorder| {
        let abouts = recorder.abouts.lock().unwrap();
        let names = abouts.iter().map(|(name, _)| name.clone()).filter(|name| !name.starts_with("trace"));
        names.collect::<Vec<_>>()
    };
    let recorder = Recorder::default();
    run(&recorder, "done").await;
    assert_eq!(
        names(&recorder),
        ["ChainCreated", "JobCreated", "AttemptStarted", "JobCompleted", "ChainClosed"]
    );
    let recorder = Recorder { skips: true, ..Recorder::default() };
    async fn plain(_: windlass_core::Ctx<Parcel>) -> Result<String> {
        Ok(String::new())
    }
    let client = Client::builder(MemoryStore::new()).observer(recorder.clone()).build();
    let worker = Worker::new(&client).concurrency(1).handle(plain).start().await.unwrap();
    let chain = client.start(Parcel { first: "done".into() }).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    assert_eq!(names(&recorder), ["JobCreated", "ChainClosed"]);
    let closed = recorder.about("ChainClosed");
    assert_eq!((closed.job, closed.chain), (chain.id().first_job(), chain.id()));
}

#[tokio::test]
async fn events_carry_trace_contexts_and_the_worker() {
    let recorder = Recorder::default();
    run(&recorder, "then").await;
    let text = |trace: &Option<TraceContext>| trace.as_ref().unwrap().as_str().to_owned();
    let created = recorder.about("JobCreated");
    let first = created.job;
    assert_eq!(text(&created.trace), format!("job-{first}"));
    assert_eq!(text(&created.chain_trace), format!("chain-{first}"));
    let started = recorder.about("AttemptStarted");
    assert_eq!(text(&started.trace), format!("job-{first}"), "as stored");
    assert_eq!(text(&started.chain_trace), format!("chain-{first}"), "as stored");
    assert_eq!((started.attempt, started.worker_name.as_ref().unwrap().as_str()), (Some(1), "post"));
    let abouts = recorder.abouts.lock().unwrap().clone();
    let (_, next) = abouts.iter().rfind(|(event, _)| event == "JobCreated").unwrap();
    assert_ne!(next.job, first);
    assert_eq!(text(&next.trace), format!("job-{}", next.job));
    assert_eq!(text(&next.chain_trace), format!("chain-{first}"));
    assert_eq!(next.cause_traces.first().unwrap().as_str(), format!("job-{first}"), "the job before it");
    let (_, closed) = abouts.iter().rfind(|(event, _)| event == "ChainClosed").unwrap();
    assert_eq!(text(&closed.chain_trace), format!("chain-{first}"));
}

#[tokio::test(start_paused = true)]
async fn events_carry_durations_on_the_clock_of_the_store() {
    async fn slow(a: Attempt<Parcel, MemoryStore>) -> Result<Done<Parcel, MemoryStore>> {
        tokio::time::sleep(Duration::from_secs(7)).await; // tidy: the handler works, on paused time
        Ok(a.begin().await?.done(String::new())?)
    }
    let (recorder, clock) = (Recorder::default(), Arc::new(ManualClock::default()));
    let store = MemoryStore::with_clock(Arc::clone(&clock) as _);
    let client = Client::builder(store).observer(recorder.clone()).build();
    let chain = client.start(Parcel { first: "done".into() }).await.unwrap();
    let created_at = recorder.about("JobCreated").at;
    assert_eq!(created_at, windlass_core::Clock::now(&*clock), "the store's clock, not this machine's");
    clock.advance(Duration::from_secs(30));
    let worker = Worker::new(&client).concurrency(1).handle(slow).start().await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    let seconds = |duration: Option<Duration>| duration.unwrap().as_secs();
    let started = recorder.about("AttemptStarted");
    assert_eq!((seconds(started.waited), seconds(started.ran)), (30, 0));
    let completed = recorder.about("JobCompleted");
    assert_eq!((seconds(completed.waited), seconds(completed.ran)), (30, 7));
    assert_eq!((seconds(completed.job_age), seconds(completed.chain_age)), (37, 37));
    assert_eq!(completed.at.since(created_at), Duration::from_secs(37));
    assert_eq!(seconds(recorder.about("ChainClosed").chain_age), 37);
}

#[tokio::test]
async fn an_existing_chain_is_reported_with_its_context() {
    let recorder = Recorder::default();
    let client = Client::builder(MemoryStore::new()).observer(recorder.clone()).build();
    let start = || client.start(Parcel { first: "done".into() }).key("one");
    start().await.unwrap();
    assert!(recorder.take().is_empty());
    start().await.unwrap();
    let expected = ["existed Chain, with its context: true", "existed Job, with its context: true"];
    assert_eq!(recorder.take(), expected);
    let mut tx = client.begin().await.unwrap();
    tx.start(Parcel { first: "done".into() }).key("one").await.unwrap();
    assert_eq!(recorder.take(), expected);
    tx.rollback().await.unwrap();
    assert!(recorder.take().is_empty(), "nothing was rolled back");
}

#[tokio::test]
async fn activities_of_the_client_are_measured() {
    let recorder = Recorder::default();
    run(&recorder, "done").await;
    let activities = recorder.activities.lock().unwrap();
    let calls: Vec<&StoreCall> = activities
        .iter()
        .filter_map(|activity| if let Activity::StoreCalled(call) = activity { Some(call) } else { None })
        .collect();
    let call = |name: &str| calls.iter().find(|call| call.command == name && call.items == 1);
    for name in ["create", "acquire", "get_chains"] {
        assert!(call(name).is_some_and(|call| call.error.is_none()), "{name} with one item: {calls:?}");
    }
    let has = |expected: Activity| assert!(activities.contains(&expected), "{expected:?}: {activities:?}");
    has(Activity::Flushed { batch: "start", items: 1 });
    has(Activity::NotifierConnected);
    let is_capacity = |running: bool| {
        activities.iter().any(|activity| match activity {
            Activity::WorkerCapacity { types, concurrency, is_running, .. } => {
                *is_running == running && *concurrency == 1 && types.len() == 1
            }
            _ => false,
        })
    };
    assert!(is_capacity(true) && is_capacity(false));
}

#[tokio::test]
async fn an_observer_that_is_off_is_not_measured_for_another() {
    let (on, off) = (Recorder::default(), Recorder { is_off: true, ..Recorder::default() });
    let builder = Client::builder(MemoryStore::new()).observer(on.clone()).observer(off.clone());
    let client = builder.build();
    let worker = Worker::new(&client).concurrency(1).handle(deliver).start().await.unwrap();
    let chain = client.start(Parcel { first: "done".into() }).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    assert!(!on.take().is_empty() && !on.activities.lock().unwrap().is_empty());
    assert!(off.take().is_empty() && off.activities.lock().unwrap().is_empty());
}

#[tokio::test]
async fn each_step_from_outside_is_caused_by_the_step_before() {
    let recorder = Recorder::default();
    let client = Client::builder(MemoryStore::new()).observer(recorder.clone()).build();
    let chain = client.start(Parcel { first: "done".into() }).await.unwrap();
    let step = client.step(chain).await.unwrap().of::<Parcel>().unwrap();
    let parcel = || Parcel { first: "done".into() };
    step.then(parcel()).then(parcel()).await.unwrap();
    let abouts = recorder.abouts.lock().unwrap();
    let jobs: Vec<&About> =
        abouts.iter().filter(|(event, _)| event == "trace of job").map(|(_, about)| about).collect();
    let [first, second, third] = &jobs[..] else { panic!("three jobs: {jobs:?}") };
    let cause = |about: &About| about.cause_traces.first().unwrap().as_str().to_owned();
    assert_eq!(cause(second), format!("job-{}", first.job));
    assert_eq!(cause(third), format!("job-{}", second.job));
}

#[tokio::test]
async fn a_dropped_worker_reports_that_its_slots_are_gone() {
    let recorder = Recorder::default();
    let client = Client::builder(MemoryStore::new()).observer(recorder.clone()).build();
    let worker = || Worker::new(&client).concurrency(1).handle(deliver).start();
    let running = || {
        let activities = recorder.activities.lock().unwrap();
        let changes = activities.iter().filter_map(|activity| match activity {
            Activity::WorkerCapacity { is_running, .. } => Some(*is_running),
            _ => None,
        });
        changes.collect::<Vec<_>>()
    };
    drop(worker().await.unwrap());
    assert_eq!(running(), [true, false]);
    worker().await.unwrap().stop(TIMEOUT).await;
    assert_eq!(running(), [true, false, true, false]);
}
