//! One run in which everything happens that has a metric or a span.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use windlass::client::CancelMode;
use windlass::command::{Reap, Types};
use windlass::name::{TraceContext, TypeName};
use windlass::notifier::{Hint, Notifier, Publisher, Subscription, Topic};
use windlass::reaper::{Reaper, RunningReaper};
use windlass::store::BoxFuture;
use windlass::time::{ManualClock, Millis};
use windlass::{
    BoxError, Chain, Client, Ctx, HandlerOptions, MemoryStore, Next, Running, Store, Worker, next, plan,
};
use windlass_otel::{StateGauges, Telemetry};

use crate::jobs::{Label, Order, Pack, Parcel, TIMEOUT, client, label, worker};
use crate::specs::{Broken, Failing, die_with_a_job};

/// What still runs after the scenario, and is reported until it is dropped.
pub(crate) struct Left {
    _gauges: StateGauges,
    _workers: [Running<MemoryStore>; 2],
    _reaper: RunningReaper,
}

/// Runs everything, with metrics and spans. Time must be paused.
pub(crate) async fn everything(telemetry: &Telemetry) -> Left {
    chains(telemetry).await;
    changes(telemetry).await;
    ends_of_attempts(telemetry).await;
    losses(telemetry).await;
    errors(telemetry).await;
    subscriptions(telemetry).await;
    let reaper = maintenance(telemetry).await;
    let gauges = state(telemetry).await;
    let client = client(telemetry);
    let (busy, _) = held(&client, 3_600).await;
    Left { _gauges: gauges, _workers: [busy, worker(&client).await], _reaper: reaper }
}

/// Continuations, blockers, retries, and completions from outside.
async fn chains(telemetry: &Telemetry) {
    let client = client(telemetry);
    let worker = worker(&client).await;
    let order = client.start(Order { number: 1 }).await.unwrap();
    client.wait(order).timeout(TIMEOUT).await.unwrap();
    let parcels = [plan(Parcel { failures: 0 }), plan(Parcel { failures: 3 })];
    for chain in client.start_many(parcels).await.unwrap() {
        let _ = client.wait(chain).timeout(TIMEOUT).await;
    }
    worker.stop(TIMEOUT).await;
    let by_hand = client.start(Label { number: 1 }).await.unwrap();
    client.step(by_hand).await.unwrap().of::<Label>().unwrap().done("by hand".into()).await.unwrap();
}

/// Keys, triggers, retries, cancellations and deletions.
async fn changes(telemetry: &Telemetry) {
    let client = client(telemetry);
    let chain = client.start(Label { number: 1 }).key("one").after(TIMEOUT).await.unwrap();
    client.start(Label { number: 1 }).key("one").await.unwrap();
    client.trigger(chain).await.unwrap();
    client.cancel(chain, CancelMode::UnlessRunning).await.unwrap();
    client.retry(chain).await.unwrap();
    client.cancel(chain, CancelMode::UnlessRunning).await.unwrap();
    client.delete(vec![chain.id().into()]).await.unwrap();
    let mut malformed = plan(Label { number: 1 }).build().unwrap();
    malformed.trace = Some(TraceContext::new("nonsense").unwrap());
    let created = client.create(vec![malformed]).await.unwrap();
    let malformed = Chain::<Label>::from_id(created.first().unwrap().chain().unwrap());
    client.step(malformed).await.unwrap().of::<Label>().unwrap().done(String::new()).await.unwrap();
}

/// Waits until something is true. Time is paused.
async fn until(is_true: impl Fn() -> bool) {
    while !is_true() {
        sleep(Duration::from_millis(1)).await; // tidy: paused time
    }
}

/// Attempts that reschedule their job, and that are cancelled.
async fn ends_of_attempts(telemetry: &Telemetry) {
    let client = client(telemetry);
    let (runs, is_obeying) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, obeys) = (Arc::clone(&runs), Arc::clone(&is_obeying));
    let handler = move |job: Ctx<Label>| {
        let (run, obeys) = (counted.fetch_add(1, Ordering::SeqCst), Arc::clone(&obeys));
        async move {
            if run == 0 {
                return Ok(Next::reschedule(Duration::ZERO));
            }
            obeys.store(true, Ordering::SeqCst);
            job.aborted().wait().await;
            Err::<Next<Label>, BoxError>("stopped".into())
        }
    };
    let worker = Worker::new(&client).concurrency(1).handle(handler).start().await.unwrap();
    let chain = client.start(Label { number: 1 }).await.unwrap();
    until(|| is_obeying.load(Ordering::SeqCst)).await;
    client.cancel(chain, CancelMode::Ask).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    worker.stop(TIMEOUT).await;
}

/// How an attempt of [`held`] may run.
fn held_for(seconds: u64) -> HandlerOptions {
    let options = HandlerOptions::new().lease(Duration::from_secs(60)).renewal(Duration::from_secs(1));
    options.timeout(Duration::from_secs(seconds))
}

/// Starts a worker whose attempts run until they are asked to stop, and waits for the first attempt.
async fn held(client: &Client<MemoryStore>, seconds: u64) -> (Running<MemoryStore>, Chain<Label>) {
    let is_running = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&is_running);
    let handler = move |job: Ctx<Label>| {
        begun.store(true, Ordering::SeqCst);
        async move {
            job.aborted().wait().await;
            std::future::pending::<Result<String, BoxError>>().await
        }
    };
    let worker = Worker::new(client).concurrency(1).handle_with(held_for(seconds), handler);
    let worker = worker.start().await.unwrap();
    let chain = client.start(Label { number: 1 }).await.unwrap();
    until(|| is_running.load(Ordering::SeqCst)).await;
    (worker, chain)
}

/// Attempts that lose their jobs: to another command, to the reaper, and by their timeout. Leases are renewed before.
pub(crate) async fn losses(telemetry: &Telemetry) {
    let client_of = |clock: &Arc<ManualClock>| {
        let store = MemoryStore::with_clock(Arc::clone(clock) as Arc<_>);
        Client::<MemoryStore>::builder(store).observer(telemetry.clone()).build()
    };
    let clock = Arc::new(ManualClock::default());
    let client = client_of(&clock);
    let (worker, chain) = held(&client, 3_600).await;
    sleep(Duration::from_secs(3)).await; // tidy: paused time
    client.step(chain).await.unwrap().of::<Label>().unwrap().done(String::new()).await.unwrap();
    sleep(Duration::from_secs(3)).await; // tidy: paused time
    worker.stop_now(TIMEOUT).await;

    let client = client_of(&clock);
    let (worker, _) = held(&client, 3_600).await;
    clock.advance(Duration::from_secs(61));
    let renewal_interval = Millis::from_secs(1);
    let reap = Reap { types: Types::All, max: 10, except: Vec::new(), renewal_interval };
    assert_eq!(client.store().reap(reap).await.unwrap().reaped.len(), 1);
    sleep(Duration::from_secs(3)).await; // tidy: paused time
    worker.stop_now(TIMEOUT).await;

    let client = client_of(&clock);
    let (worker, _) = held(&client, 5).await;
    sleep(Duration::from_secs(120)).await; // tidy: paused time
    worker.stop_now(TIMEOUT).await;
}

/// A store that fails, and a notifier that fails.
async fn errors(telemetry: &Telemetry) {
    let (acquires, settlements) = (AtomicUsize::new(1), AtomicUsize::new(1));
    let store = Failing { inner: MemoryStore::new(), acquires, settlements };
    let client = Client::builder(store).notifier(Broken).observer(telemetry.clone()).build();
    let chain = client.start(Label { number: 1 }).await.unwrap();
    let worker = Worker::new(&client).name("failing").poll(Duration::from_secs(1)).handle(label);
    let worker = worker.start().await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    let _ = client.close().await;
}

/// A notifier whose subscriptions the test ends.
#[derive(Clone, Debug, Default)]
struct Ending(Arc<Mutex<Vec<Publisher>>>);

impl Notifier for Ending {
    fn publish(&self, _: Hint) -> BoxFuture<'_, windlass::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn subscribe(&self, _: Vec<Topic>) -> BoxFuture<'_, windlass::Result<Subscription>> {
        Box::pin(async {
            let (publisher, subscription) = Subscription::new(|| {});
            self.0.lock().unwrap().push(publisher);
            Ok(subscription)
        })
    }

    fn claim_wake(&self, _: TypeName) -> BoxFuture<'_, windlass::Result<bool>> {
        Box::pin(async { Ok(true) })
    }

    fn close(&self) -> BoxFuture<'_, windlass::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// A worker whose subscription is interrupted, and then ends, so that it subscribes again.
pub(crate) async fn subscriptions(telemetry: &Telemetry) {
    let notifier = Ending::default();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).observer(telemetry.clone());
    let worker = Worker::new(&client.build()).concurrency(1).handle(label).start().await.unwrap();
    sleep(Duration::from_secs(1)).await; // tidy: paused time
    notifier.0.lock().unwrap().iter().for_each(Publisher::gap);
    sleep(Duration::from_secs(1)).await; // tidy: paused time
    notifier.0.lock().unwrap().clear();
    sleep(Duration::from_secs(60)).await; // tidy: paused time
    worker.stop(TIMEOUT).await;
}

/// A standalone reaper that requeues a job and keeps leading, and a chain whose retention ends.
async fn maintenance(telemetry: &Telemetry) -> RunningReaper {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::with_clock(Arc::clone(&clock) as Arc<_>);
    let client = Client::<MemoryStore>::builder(store).observer(telemetry.clone()).build();
    let chain = client.start(Label { number: 1 }).await.unwrap();
    die_with_a_job(&client).await;
    clock.advance(Duration::from_secs(3_600));
    let reaper = Reaper::new(&client).start().await.unwrap();
    reaper.leadership().wait_for(|leads| *leads).await.unwrap();
    sleep(Duration::from_secs(60)).await; // tidy: paused time
    let worker = worker(&client).await;
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    clock.advance(Duration::from_secs(3_600 * 24 * 365));
    sleep(Duration::from_secs(600)).await; // tidy: paused time
    worker.stop(TIMEOUT).await;
    reaper
}

/// A store with a paused type, an expired lease, a failed blocker, and a job that is due for a long time.
async fn state(telemetry: &Telemetry) -> StateGauges {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::with_clock(Arc::clone(&clock) as Arc<_>);
    let client = Client::<MemoryStore>::builder(store).observer(telemetry.clone()).build();
    client.start(Label { number: 1 }).await.unwrap();
    die_with_a_job(&client).await;
    let blocker = client.start(Label { number: 2 }).await.unwrap();
    let order = client.start(Order { number: 1 }).await.unwrap();
    let step = client.step(order).await.unwrap().of::<Order>().unwrap();
    step.then(next(Pack { number: 1 }).blocked_by((blocker,))).await.unwrap();
    client.step(blocker).await.unwrap().of::<Label>().unwrap().fail("no paper").await.unwrap();
    client.start(Label { number: 3 }).await.unwrap();
    client.pause(vec![TypeName::new("label").unwrap()]).await.unwrap();
    clock.advance(Duration::from_secs(60));
    let gauges = telemetry.watch_state(&client);
    assert!(gauges.decided().await);
    gauges
}
