//! Spans and log lines.
#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};
use windlass_core::command::{NewChain, NewJob};
use windlass_core::{
    About, BoxError, ChainId, Client, Ctx, Entry, Event, Job, Log, MemoryStore, Observer, Payload, TypeName,
    Worker,
};
use windlass_testkit::logs::subscribe;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
struct Echo;

impl Job for Echo {
    const NAME: &'static str = "echo";
    type Output = u32;
    type Next = ();
    type Blockers = ();
}
impl Entry for Echo {}

/// Collects log lines with the fields of their spans.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Collected>>);

#[derive(Default)]
struct Collected {
    spans: Vec<String>,
    entered: Vec<usize>,
    lines: Vec<(Level, String)>,
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = String::new();
        span.record(&mut Text(&mut fields));
        let mut collected = self.0.lock().unwrap();
        collected.spans.push(fields);
        Id::from_u64(collected.spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut Text(&mut line));
        let mut collected = self.0.lock().unwrap();
        let spans: Vec<_> =
            collected.entered.iter().map(|index| collected.spans[index - 1].clone()).collect();
        collected.lines.push((*event.metadata().level(), format!("{line}{}", spans.concat())));
    }

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().entered.push(usize::try_from(span.into_u64()).unwrap());
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().entered.pop();
    }
}

async fn echo(job: Ctx<Echo>) -> Result<u32, BoxError> {
    tracing::info!("from the handler");
    if job.attempt() == 1 { Err("no".into()) } else { Ok(7) }
}

#[tokio::test]
async fn a_line_in_a_handler_names_job_chain_type_and_attempt() {
    let collector = Collector::default();
    let _subscribed = subscribe(collector.clone());
    let client = Client::new(MemoryStore::new());
    let worker = Worker::new(&client).concurrency(1).handle(echo).start().await.unwrap();
    let chain = client.start(Echo).max_attempts(1).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    worker.stop(TIMEOUT).await;
    let lines = collector.0.lock().unwrap().lines.clone();
    let line = |part: &str| {
        lines.iter().find(|(_, line)| line.contains(part)).unwrap_or_else(|| panic!("{part}: {lines:?}"))
    };
    let id = chain.id();
    let (_, own) = line("from the handler");
    assert!(own.contains(&format!("job={id} chain={id} job_type=echo attempt=1")), "{own}");
    assert_eq!(line("worker started").0, Level::INFO);
    assert_eq!(line("chain created").0, Level::DEBUG);
    assert_eq!(line("attempt started").0, Level::DEBUG);
    let (level, failed) = line("job failed");
    assert_eq!(*level, Level::ERROR);
    assert!(failed.contains("error=no") && failed.contains(&format!("job={id}")), "{failed}");
    assert_eq!(line("worker stopped").0, Level::INFO);
}

impl Collector {
    /// Returns the warnings that contain this text.
    fn warnings(&self, text: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap().lines.clone();
        let lines = lines.into_iter().filter(|(level, line)| *level == Level::WARN && line.contains(text));
        lines.map(|(_, line)| line).collect()
    }
}

/// Starts jobs that wait for a chain.
async fn start_waiting(client: &Client<MemoryStore>, blocker: ChainId, count: usize) -> Vec<ChainId> {
    let job = || NewJob {
        blockers: vec![blocker.into()],
        ..NewJob::new(TypeName::new("waits").unwrap(), Payload::json("1").unwrap())
    };
    let new: Vec<_> = (0..count).map(|_| NewChain::new(ChainId::new(), job())).collect();
    let ids = new.iter().map(|chain| chain.id).collect();
    client.create(new).await.unwrap();
    ids
}

#[tokio::test]
async fn a_job_that_waits_for_a_failed_chain_is_a_warning() {
    let collector = Collector::default();
    let _subscribed = subscribe(collector.clone());
    let client = Client::new(MemoryStore::new());
    let blocker = client.start(Echo).await.unwrap();
    let waiting = start_waiting(&client, blocker.id(), 1).await;
    client.cancel_unless_running(blocker).await.unwrap();
    client.close().await.unwrap();
    let warnings = collector.warnings("job still waits");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in [format!("job={}", waiting[0]), format!("blocker={}", blocker.id())] {
        assert!(warnings[0].contains(&part), "{warnings:?}");
    }
    assert!(collector.warnings("than are reported").is_empty());
}

/// The report of the jobs that wait for a chain is limited, but says so.
#[tokio::test]
async fn jobs_beyond_the_limit_of_a_failed_chain_are_a_warning() {
    let collector = Collector::default();
    let _subscribed = subscribe(collector.clone());
    let client = Client::new(MemoryStore::new());
    let blocker = client.start(Echo).await.unwrap();
    for count in [1_000, 1] {
        start_waiting(&client, blocker.id(), count).await;
    }
    client.cancel_unless_running(blocker).await.unwrap();
    client.close().await.unwrap();
    assert_eq!(collector.warnings("job still waits").len(), 1_000);
    let warnings = collector.warnings("than are reported");
    assert!(warnings.len() == 1 && warnings[0].contains("reported=1000"), "{warnings:?}");
}

#[tokio::test]
async fn too_many_failed_chains_at_the_same_time_are_one_warning() {
    let collector = Collector::default();
    let _subscribed = subscribe(collector.clone());
    let client = Client::new(MemoryStore::new());
    let chains = client.start_many((0..1_003).map(|_| Echo)).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    for chain in &chains {
        tx.cancel_unless_running(*chain).await.unwrap();
    }
    tx.commit().await.unwrap();
    client.close().await.unwrap();
    let warnings = collector.warnings("at the same time");
    assert!(warnings.len() == 1 && warnings[0].contains("chains=3"), "{warnings:?}");
}

/// Collects what events are about.
#[derive(Clone, Debug, Default)]
struct Abouts(Arc<Mutex<Vec<About>>>);

impl Observer for Abouts {
    fn observe(&self, event: &Event) {
        if let Event::JobCreated(about) = event {
            self.0.lock().unwrap().push(about.clone());
        }
    }
}

#[tokio::test]
async fn a_missing_handler_is_a_warning() {
    let abouts = Abouts::default();
    let client = Client::builder(MemoryStore::new()).observer(abouts.clone()).build();
    let chain = client.start(Echo).await.unwrap();
    let about = abouts.0.lock().unwrap()[0].clone();
    let collector = Collector::default();
    let _subscribed = subscribe(collector.clone());
    Log.observe(&Event::HandlerMissing(about));
    let warnings = collector.warnings("no handler for acquired job");
    let job = format!("job={}", chain.id());
    assert!(warnings.len() == 1 && warnings[0].contains(&job), "{warnings:?}");
}

#[tokio::test]
async fn a_stop_deadline_of_zero_is_a_warning_that_names_the_cure() {
    async fn hangs(_: Ctx<Echo>) -> Result<u32, BoxError> {
        std::future::pending().await
    }
    let collector = Collector::default();
    let _subscribed = subscribe(collector.clone());
    let warnings = || {
        let lines = collector.0.lock().unwrap().lines.clone();
        lines.into_iter().filter(|(level, _)| *level == Level::WARN).map(|(_, line)| line).collect::<Vec<_>>()
    };
    let client = Client::new(MemoryStore::new());
    for (stops_now, count) in [(true, 0), (false, 1)] {
        let started = Arc::new(tokio::sync::Notify::new());
        let signal = Arc::clone(&started);
        let handler = move |job: Ctx<Echo>| {
            signal.notify_one();
            hangs(job)
        };
        let chain = client.start(Echo).await.unwrap();
        let worker = Worker::new(&client).concurrency(1).handle(handler).start().await.unwrap();
        tokio::time::timeout(TIMEOUT, started.notified()).await.expect("the handler starts");
        if stops_now {
            worker.stop_now(Duration::ZERO).await
        } else {
            worker.stop(Duration::ZERO).await
        }
        let job = client.chain(chain).await.unwrap().unwrap().latest;
        assert_eq!((job.status, job.attempt), (windlass_core::Status::Pending, 0), "its job is released");
        client.delete(vec![chain.into()]).await.unwrap();
        assert_eq!(warnings().len(), count, "{:?}", warnings());
    }
    assert!(warnings()[0].contains("call `stop_now`"), "{:?}", warnings());
    assert!(warnings()[0].contains("pass how long they may take"), "{:?}", warnings());
}

#[tokio::test]
async fn a_worker_does_not_start_with_a_stop_deadline_of_zero() {
    let client = Client::new(MemoryStore::new());
    let error = Worker::new(&client).handle(echo).run_until(async {}, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), windlass_core::ErrorKind::Invalid);
    assert!(error.to_string().contains("pass how long they may take"), "{error}");
}
