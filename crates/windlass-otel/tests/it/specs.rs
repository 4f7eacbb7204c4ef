//! The sources' specs of metrics and gauges, as an OTLP receiver sees them over gRPC and HTTP. The list of all specs is in
//! `windlass-conformance`, `tests/covered/telemetry.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use windlass::command::{self, Acquire, Quota};
use windlass::id::{RequestId, WorkerId};
use windlass::memory::{Attempt, Done};
use windlass::name::TypeName;
use windlass::notifier::{Hint, Notifier, Subscription, Topic};
use windlass::observer::{Event, Observer};
use windlass::reaper::Reaper;
use windlass::store::{BoxFuture, Decorator};
use windlass::time::{ManualClock, Millis};
use windlass::{
    Backoff, BoxError, Client, Ctx, Error, ErrorKind, HandlerOptions, Job, MemoryStore, Store, Worker, next,
};
use windlass_otel::Telemetry;

use crate::jobs::{Label, Order, Pack, Parcel, TIMEOUT, label, worker};
use crate::receiver::{Received, Wire, flush, providers, receive};

/// The values that a metric must have: its name, a part of its attributes, and the sum of the series.
type Expected<'a> = &'a [(&'a str, &'a str, f64)];

/// Runs something with a client whose telemetry is exported over each protocol, and checks the metrics.
async fn check(run: impl AsyncFn(Telemetry), expected: Expected<'_>) {
    for wire in [Wire::Grpc, Wire::Http] {
        let received = observe(wire, &run).await;
        for (name, attributes, expected) in expected {
            let value = received.value(name, attributes);
            let is_equal = (value - expected).abs() < f64::EPSILON;
            assert!(
                is_equal,
                "{wire:?}: {name} {attributes}: {value}, not {expected}\n{}",
                received.series()
            );
        }
    }
}

async fn observe(wire: Wire, run: &impl AsyncFn(Telemetry)) -> Received {
    let (received, endpoint) = receive(wire).await;
    let (traces, metrics) = providers(wire, &endpoint, "test");
    run(Telemetry::new().traces(&traces).metrics(&metrics)).await;
    flush(traces, metrics).await;
    received
}

fn client(telemetry: &Telemetry) -> Client<MemoryStore> {
    crate::jobs::client(telemetry)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simple_job_has_metrics_and_histograms() {
    let run = async |telemetry: Telemetry| {
        let client = client(&telemetry);
        let worker = worker(&client).await;
        let chain = client.start(Label { number: 1 }).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
    };
    let job = "messaging.destination.name=label,windlass.chain.type=label";
    check(
        run,
        &[
            ("windlass.worker.started", "windlass.worker.name=packer", 1.0),
            ("windlass.worker.stopping", "windlass.worker.name=packer", 1.0),
            ("windlass.worker.stopped", "windlass.worker.name=packer", 1.0),
            ("windlass.chain.created", "windlass.chain.type=label", 1.0),
            ("windlass.job.created", job, 1.0),
            ("windlass.attempt.started", job, 1.0),
            ("windlass.attempt.completed", job, 1.0),
            ("windlass.job.completed", &format!("{job},windlass.result=completed"), 1.0),
            ("windlass.chain.closed", "windlass.chain.type=label,windlass.status=completed", 1.0),
            ("windlass.job.duration", job, 1.0),
            ("windlass.chain.duration", "windlass.chain.type=label,windlass.status=completed", 1.0),
            ("windlass.attempt.duration", &format!("{job},windlass.result=completed"), 1.0),
            ("windlass.job.wait", job, 1.0),
            ("messaging.client.sent.messages", "messaging.operation.name=send", 1.0),
            ("messaging.client.consumed.messages", "messaging.destination.name=label", 1.0),
            ("messaging.process.duration", "messaging.operation.name=process", 1.0),
            ("messaging.client.operation.duration", "messaging.operation.type=send", 1.0),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_are_counted_as_errors() {
    let run = async |telemetry: Telemetry| {
        let client = client(&telemetry);
        let worker = worker(&client).await;
        let chain = client.start(Parcel { failures: 2 }).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
    };
    check(
        run,
        &[
            ("windlass.attempt.started", "", 3.0),
            ("windlass.attempt.failed", "messaging.destination.name=parcel", 2.0),
            ("windlass.attempt.completed", "", 1.0),
            ("windlass.attempt.duration", "windlass.result=retried", 2.0),
            ("windlass.attempt.duration", "windlass.result=completed", 1.0),
            ("messaging.process.duration", "error.type=handler", 2.0),
            ("windlass.job.completed", "", 1.0),
            ("windlass.job.failed", "", 0.0),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn continuations_and_blockers_are_counted() {
    let run = async |telemetry: Telemetry| {
        let client = client(&telemetry);
        let worker = worker(&client).await;
        let chain = client.start(Order { number: 7 }).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
    };
    check(
        run,
        &[
            ("windlass.chain.created", "windlass.chain.type=order", 1.0),
            ("windlass.job.created", "windlass.chain.type=order", 3.0),
            ("windlass.job.completed", "windlass.chain.type=order,windlass.result=continued", 2.0),
            ("windlass.job.completed", "windlass.chain.type=order,windlass.result=completed", 1.0),
            ("windlass.chain.closed", "windlass.chain.type=order", 1.0),
            ("windlass.job.blocked", "messaging.destination.name=pack,windlass.chain.type=order", 1.0),
            ("windlass.job.unblocked", "messaging.destination.name=pack,windlass.chain.type=order", 1.0),
            ("windlass.chain.closed", "windlass.chain.type=label", 1.0),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_from_outside_deletions_and_triggers_are_counted() {
    let run = async |telemetry: Telemetry| {
        let client = client(&telemetry);
        let chain = client.start(Label { number: 1 }).await.unwrap();
        client.step(chain).await.unwrap().of::<Label>().unwrap().done("by hand".into()).await.unwrap();
        client.delete(vec![chain.id().into()]).await.unwrap();
        let later = client.start(Label { number: 2 }).after(Duration::from_secs(3_600)).await.unwrap();
        client.trigger(later).await.unwrap();
    };
    check(
        run,
        &[
            ("windlass.job.completed", "windlass.result=completed", 1.0),
            ("windlass.chain.closed", "windlass.status=completed", 1.0),
            ("windlass.job.duration", "", 1.0),
            ("windlass.attempt.started", "", 0.0),
            ("windlass.attempt.duration", "", 0.0),
            ("windlass.chain.deleted", "windlass.chain.type=label", 1.0),
            ("windlass.job.triggered", "messaging.destination.name=label", 1.0),
        ],
    )
    .await;
}

/// Notifies a handler of renewals.
#[derive(Debug)]
struct Renewals(Arc<Notify>);

impl Observer for Renewals {
    fn observe(&self, event: &Event) {
        if let Event::LeaseRenewed(_) = event {
            self.0.notify_one();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_leases_are_counted() {
    let run = async |telemetry: Telemetry| {
        let renewed = Arc::new(Notify::new());
        let client = Client::builder(MemoryStore::new()).observer(telemetry);
        let client = client.observer(Renewals(Arc::clone(&renewed))).build();
        let watch = move |_: Ctx<Label>| {
            let renewed = Arc::clone(&renewed);
            async move {
                renewed.notified().await;
                Ok::<_, BoxError>("renewed".to_owned())
            }
        };
        let options = HandlerOptions::new().lease(Duration::from_secs(60)).renewal(Duration::from_millis(20));
        let worker = Worker::new(&client).concurrency(1).handle_with(options, watch).start().await.unwrap();
        let chain = client.start(Label { number: 1 }).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
    };
    for wire in [Wire::Grpc, Wire::Http] {
        let received = observe(wire, &run).await;
        assert!(received.value("windlass.attempt.lease_renewed", "=label") >= 1.0, "{}", received.series());
    }
}

/// Acquires a job for a worker that then dies. Its lease ends at once.
pub(crate) async fn die_with_a_job(client: &Client<MemoryStore>) {
    let quota = Quota { job_type: TypeName::new("label").unwrap(), max: 1, lease: Millis::new(1).unwrap() };
    let request = RequestId::new();
    let acquire = Acquire { request, worker: WorkerId::new(), worker_name: None, types: vec![quota], max: 1 };
    let reply = client.store().acquire(acquire).await.unwrap();
    assert_eq!(reply.jobs.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_leases_and_the_reaper_are_counted() {
    let run = async |telemetry: Telemetry| {
        let client = client(&telemetry);
        let chain = client.start(Label { number: 1 }).await.unwrap();
        die_with_a_job(&client).await;
        let worker = worker(&client).await;
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
    };
    check(
        run,
        &[
            ("windlass.job.reaped", "messaging.destination.name=label", 1.0),
            ("windlass.reaper.requeued", "", 1.0),
            ("windlass.attempt.completed", "", 1.0),
        ],
    )
    .await;
}

/// Notifies a test of attempts that time out.
#[derive(Debug)]
struct Timeouts(Arc<Notify>);

impl Observer for Timeouts {
    fn observe(&self, event: &Event) {
        if let Event::AttemptTimedOut(_) = event {
            self.0.notify_one();
        }
    }
}

/// The attempt still runs when its lease expires, because its handler hangs.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_expires_during_an_attempt_is_counted() {
    let run = async |telemetry: Telemetry| {
        let (timed_out, clock) = (Arc::new(Notify::new()), Arc::new(ManualClock::default()));
        let store = MemoryStore::with_clock(Arc::clone(&clock) as Arc<_>);
        let client = Client::<MemoryStore>::builder(store).observer(telemetry);
        let client = client.observer(Timeouts(Arc::clone(&timed_out))).build();
        let (runs, release) = (AtomicUsize::new(0), Arc::new(Notify::new()));
        let gate = Arc::clone(&release);
        let hang_once = move |_: Ctx<Label>| {
            let (run, gate) = (runs.fetch_add(1, Ordering::SeqCst), Arc::clone(&gate));
            async move {
                if run == 0 {
                    gate.notified().await;
                }
                Ok::<_, BoxError>(String::new())
            }
        };
        // The attempt that hangs keeps its slot.
        let options = HandlerOptions::new().lease(Duration::from_secs(60)).timeout(Duration::from_millis(20));
        let worker =
            Worker::new(&client).concurrency(2).handle_with(options, hang_once).start().await.unwrap();
        let chain = client.start(Label { number: 1 }).await.unwrap();
        timed_out.notified().await;
        clock.advance(Duration::from_secs(61));
        let reaper = Reaper::new(&client).without_election().interval(Duration::from_millis(5));
        let reaper = reaper.start().await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        release.notify_one();
        worker.stop(TIMEOUT).await;
        reaper.stop().await;
    };
    let job = "messaging.destination.name=label,windlass.chain.type=label";
    check(
        run,
        &[
            ("windlass.attempt.started", job, 2.0),
            ("windlass.attempt.timed_out", job, 1.0),
            ("windlass.job.reaped", job, 1.0),
            ("windlass.reaper.requeued", "", 1.0),
            ("windlass.attempt.completed", job, 1.0),
        ],
    )
    .await;
}

/// A store whose next calls of these commands fail.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) inner: MemoryStore,
    pub(crate) acquires: AtomicUsize,
    pub(crate) settlements: AtomicUsize,
}

impl Decorator for Failing {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: command::Command) -> BoxFuture<'_, windlass::Result<command::Reply>> {
        let left = match &command {
            command::Command::Acquire(_) => &self.acquires,
            command::Command::Settle(_) | command::Command::Exchange(_) => &self.settlements,
            _ => return self.forward(command),
        };
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "the store is down")) });
        }
        self.forward(command)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_store_and_the_worker_are_counted() {
    let run = async |telemetry: Telemetry| {
        let (acquires, settlements) = (AtomicUsize::new(1), AtomicUsize::new(1));
        let store = Failing { inner: MemoryStore::new(), acquires, settlements };
        let client = Client::builder(store).observer(telemetry).build();
        let chain = client.start(Label { number: 1 }).await.unwrap();
        let worker = Worker::new(&client).concurrency(1).poll(Duration::from_millis(20)).handle(label);
        let worker = worker.start().await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
    };
    check(
        run,
        &[
            ("windlass.worker.error", "", 1.0),
            ("windlass.store.error", "error.type=unavailable", 2.0),
            ("messaging.client.operation.duration", "error.type=unavailable", 2.0),
            ("windlass.job.completed", "", 1.0),
        ],
    )
    .await;
}

/// A notifier whose calls all fail.
#[derive(Debug)]
pub(crate) struct Broken;

fn broken<T>() -> BoxFuture<'static, windlass::Result<T>> {
    Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "the notifier is down")) })
}

impl Notifier for Broken {
    fn publish(&self, _: Hint) -> BoxFuture<'_, windlass::Result<()>> {
        broken()
    }

    fn subscribe(&self, _: Vec<Topic>) -> BoxFuture<'_, windlass::Result<Subscription>> {
        broken()
    }

    fn claim_wake(&self, _: TypeName) -> BoxFuture<'_, windlass::Result<bool>> {
        broken()
    }

    fn close(&self) -> BoxFuture<'_, windlass::Result<()>> {
        broken()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_notifier_are_counted() {
    let run = async |telemetry: Telemetry| {
        let client = Client::builder(MemoryStore::new()).notifier(Broken).observer(telemetry).build();
        let worker = Worker::new(&client).concurrency(1).poll(Duration::from_millis(20)).handle(label);
        let worker = worker.start().await.unwrap();
        let chain = client.start(Label { number: 1 }).await.unwrap();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
        // Waits until all hints have been published, or could not be.
        let _ = client.close().await;
    };
    check(
        run,
        &[
            ("windlass.notifier.error", "windlass.command=publish", 1.0),
            ("windlass.notifier.error", "windlass.command=subscribe", 1.0),
            ("windlass.job.completed", "", 1.0),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_and_busy_slots_are_gauges_of_each_type() {
    for wire in [Wire::Grpc, Wire::Http] {
        let (received, endpoint) = receive(wire).await;
        let (traces, metrics) = providers(wire, &endpoint, "test");
        let client = client(&Telemetry::new().metrics(&metrics));
        let (running, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (reached, gate) = (Arc::clone(&running), Arc::clone(&finish));
        let hold = move |_: Ctx<Label>| {
            let (reached, gate) = (Arc::clone(&reached), Arc::clone(&gate));
            async move {
                reached.notify_one();
                gate.notified().await;
                Ok::<_, BoxError>(String::new())
            }
        };
        let worker = Worker::new(&client).concurrency(3).handle(hold).handle(crate::jobs::parcel);
        let worker = worker.start().await.unwrap();
        let values = async |label_busy: f64, slots: f64| {
            flush(traces.clone(), metrics.clone()).await;
            let gauges = [
                ("windlass.job_type.processing", "=label", label_busy),
                ("windlass.job_type.idle", "=label", slots - label_busy),
                ("windlass.job_type.processing", "=parcel", 0.0),
                ("windlass.job_type.idle", "=parcel", slots),
            ];
            for (name, attributes, expected) in gauges {
                let value = received.value(name, attributes);
                assert!((value - expected).abs() < f64::EPSILON, "{name}{attributes}\n{}", received.series());
            }
        };
        values(0.0, 3.0).await;
        let chain = client.start(Label { number: 1 }).await.unwrap();
        running.notified().await;
        values(1.0, 3.0).await;
        finish.notify_one();
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
        values(0.0, 0.0).await;
    }
}

/// What a handler does in its first attempt, before it fails.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum How {
    Done,
    Reschedule,
    Then,
    /// Does not fail, but continues with an id that is taken.
    ThenTaken,
}

#[derive(serde::Serialize, serde::Deserialize, Job)]
#[job(name = "cast", entry, then(Pull), output = u32, max_attempts = 3, backoff = Backoff::NONE)]
pub(crate) struct Cast {
    pub(crate) how: How,
}

#[derive(serde::Serialize, serde::Deserialize, Job)]
#[job(name = "pull", entry, output = u32)]
pub(crate) struct Pull;

/// Starts a chain, decides the end of its job, and then fails in its first attempt.
pub(crate) async fn cast(a: Attempt<Cast>) -> Result<Done<Cast>, BoxError> {
    let mut step = a.begin().await?;
    step.client().start(Pull).await?;
    let done = match a.input().how {
        How::Done => step.done(2)?,
        How::Reschedule if a.attempt() == 1 => step.reschedule(Duration::ZERO)?,
        How::ThenTaken => step.then(next(Pull).id(a.job().id))?,
        How::Then | How::Reschedule => step.then(Pull)?,
    };
    let fails = a.attempt() == 1 && a.input().how != How::ThenTaken;
    if fails { Err("on second thought".into()) } else { Ok(done) }
}

pub(crate) async fn pull(_: Ctx<Pull>) -> Result<u32, BoxError> {
    Ok(3)
}

/// Runs a chain whose first attempt is rolled back.
async fn taken_back(telemetry: Telemetry, how: How) {
    let client = client(&telemetry);
    let worker = Worker::new(&client).concurrency(1).handle(cast).handle(pull).start().await.unwrap();
    let chain = client.start(Cast { how }).await.unwrap();
    let ended = client.wait(chain).timeout(TIMEOUT).await;
    assert_eq!(ended.is_err(), how == How::ThenTaken, "{ended:?}");
    worker.stop(TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn creations_that_are_rolled_back_are_not_counted() {
    let run = async |telemetry: Telemetry| {
        let client = client(&telemetry);
        let blocker = client.start(Label { number: 1 }).await.unwrap();
        let order = client.start(Order { number: 1 }).await.unwrap();
        let mut tx = client.begin().await.unwrap();
        tx.start_many([Label { number: 2 }, Label { number: 3 }]).await.unwrap();
        let step = tx.step(order).await.unwrap().of::<Order>().unwrap();
        step.then(next(Pack { number: 1 }).blocked_by((blocker,))).await.unwrap();
        tx.rollback().await.unwrap();
    };
    check(
        run,
        &[
            ("windlass.chain.created", "", 2.0),
            ("windlass.job.created", "", 2.0),
            ("windlass.job.blocked", "", 0.0),
            ("windlass.job.completed", "", 0.0),
            ("messaging.client.sent.messages", "", 2.0),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_from_outside_that_are_rolled_back_are_not_counted() {
    let run = async |telemetry: Telemetry| {
        let client = client(&telemetry);
        let chain = client.start(Cast { how: How::Done }).await.unwrap();
        let other = client.start(Pull).await.unwrap();
        let mut tx = client.begin().await.unwrap();
        let step = tx.step(chain).await.unwrap().of::<Cast>().unwrap();
        step.then(Pull).done(1).await.unwrap();
        tx.rollback().await.unwrap();
        // Refused, because the id is taken.
        let taken = next(Pull).id(other.id().first_job());
        let step = client.step(chain).await.unwrap().of::<Cast>().unwrap();
        assert_eq!(step.then(taken).await.unwrap_err().kind(), ErrorKind::Invalid);
    };
    let nothing = [
        "windlass.job.completed",
        "windlass.job.duration",
        "windlass.chain.closed",
        "windlass.job.unblocked",
    ];
    let mut expected = vec![("windlass.job.created", "", 2.0)];
    expected.extend(nothing.map(|name| (name, "", 0.0)));
    check(run, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_of_attempts_that_are_rolled_back_are_not_counted() {
    for how in [How::Done, How::Reschedule, How::Then] {
        let jobs = if how == How::Done { 1.0 } else { 2.0 };
        check(
            async |telemetry: Telemetry| taken_back(telemetry, how).await,
            &[
                ("windlass.job.created", "windlass.chain.type=cast", jobs),
                ("windlass.job.completed", "windlass.chain.type=cast", jobs),
                ("windlass.attempt.failed", "windlass.chain.type=cast", 1.0),
                ("windlass.attempt.rescheduled", "", 0.0),
                ("windlass.chain.created", "windlass.chain.type=pull", 1.0),
                ("windlass.chain.closed", "windlass.chain.type=cast", 1.0),
            ],
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_that_is_refused_is_not_counted() {
    check(
        async |telemetry: Telemetry| taken_back(telemetry, How::ThenTaken).await,
        &[
            ("windlass.job.created", "", 1.0),
            ("windlass.job.completed", "", 0.0),
            ("windlass.job.failed", "messaging.destination.name=cast", 1.0),
            ("windlass.chain.created", "windlass.chain.type=pull", 0.0),
        ],
    )
    .await;
}

/// The write that ends a blocker also unblocks the job that waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_unblocked_once_although_the_first_write_fails() {
    let run = async |telemetry: Telemetry| {
        let (acquires, settlements) = (AtomicUsize::new(0), AtomicUsize::new(1));
        let store = Failing { inner: MemoryStore::new(), acquires, settlements };
        let client = Client::builder(store).observer(telemetry).build();
        let blocker = client.start(Label { number: 1 }).await.unwrap();
        let order = client.start(Order { number: 1 }).await.unwrap();
        let step = client.step(order).await.unwrap().of::<Order>().unwrap();
        step.then(next(Pack { number: 1 }).blocked_by((blocker,))).await.unwrap();
        let worker = Worker::new(&client).concurrency(1).poll(Duration::from_millis(20));
        let worker = worker.handle(label).handle(crate::jobs::pack).handle(crate::jobs::ship);
        let worker = worker.start().await.unwrap();
        client.wait(order).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
    };
    check(
        run,
        &[
            ("windlass.job.unblocked", "", 1.0),
            ("windlass.job.completed", "messaging.destination.name=label", 1.0),
            ("windlass.chain.closed", "", 2.0),
            ("windlass.store.error", "error.type=unavailable", 1.0),
        ],
    )
    .await;
}
