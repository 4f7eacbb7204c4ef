//! Layers of `tower` around attempts.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceBuilder};
use windlass_core::command::{Command, Reply};
use windlass_core::{
    AbortReason, AttemptRequest, Backoff, BoxError, BoxFuture, Client, Ctx, Data, Decorator, Ended, Entry,
    ErrorKind, Event, Fatal, Job, JobOptions, MemoryStore, Observer, Running, Status, TowerLayer, Worker,
};

type Result<T, E = BoxError> = std::result::Result<T, E>;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Serialize, Deserialize)]
struct Echo {
    text: String,
}

impl Job for Echo {
    const NAME: &'static str = "echo";
    type Output = String;
    type Next = ();
    type Blockers = ();
    fn options() -> JobOptions {
        let (lease, renewal) = (Some(Duration::from_secs(10)), Some(Duration::from_millis(10)));
        JobOptions { backoff: Some(Backoff::NONE), lease, renewal, ..JobOptions::default() }
    }
}
impl Entry for Echo {}

fn echo(text: &str) -> Echo {
    Echo { text: text.to_owned() }
}

/// What happened, in order, and the events.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<Event>>>);

impl Lines {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Waits until this many events match.
    async fn sees(&self, count: usize, is: impl Fn(&Event) -> bool) {
        let seen = async {
            while self.1.lock().unwrap().iter().filter(|event| is(event)).count() < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, seen).await.expect("the events arrive");
    }
}

impl Observer for Lines {
    fn observe(&self, event: &Event) {
        self.1.lock().unwrap().push(event.clone());
    }
}

fn fixture() -> (Client<MemoryStore>, Lines) {
    let lines = Lines::default();
    (Client::builder(MemoryStore::new()).observer(lines.clone()).build(), lines)
}

/// Counts the handlers that run at the same time, and lets each pass when `go` has a permit.
#[derive(Clone)]
struct Gate {
    running: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    go: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { running: Arc::default(), most: Arc::default(), go: Arc::new(Semaphore::new(0)) }
    }
}

async fn wait(job: Ctx<Echo>, Data(gate): Data<Gate>) -> Result<String> {
    let running = gate.running.fetch_add(1, Ordering::SeqCst) + 1;
    gate.most.fetch_max(running, Ordering::SeqCst);
    gate.go.acquire().await?.forget();
    gate.running.fetch_sub(1, Ordering::SeqCst);
    Ok(job.input().text.clone())
}

/// Starts a worker with four slots, of which a limit lets one run. Starts four jobs, and waits until one handler runs
/// and the leases of all have been renewed.
async fn limited() -> (Client<MemoryStore>, Lines, Gate, Running<MemoryStore>, Vec<windlass_core::Chain<Echo>>)
{
    let ((client, lines), gate) = (fixture(), Gate::new());
    // A boxed service is not `Sync`.
    let stack = ServiceBuilder::new().boxed_clone().concurrency_limit(1);
    let worker = Worker::new(&client).concurrency(4).data(gate.clone()).middleware(TowerLayer::new(stack));
    let worker = worker.handle(wait).start().await.unwrap();
    let chains = client.start_many((0..4).map(|number| echo(&number.to_string()))).await.unwrap();
    for chain in &chains {
        let is = |event: &Event| matches!(event, Event::LeaseRenewed(about) if about.chain == chain.id());
        lines.sees(2, is).await;
    }
    (client, lines, gate, worker, chains)
}

#[tokio::test]
async fn attempts_wait_for_a_concurrency_limit_with_renewed_leases() {
    let (client, _, gate, worker, chains) = limited().await;
    assert_eq!(gate.running.load(Ordering::SeqCst), 1);
    gate.go.add_permits(4);
    for (number, chain) in chains.into_iter().enumerate() {
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), number.to_string());
        assert_eq!(client.chain(chain).await.unwrap().unwrap().latest.attempt, 1);
    }
    assert_eq!(gate.most.load(Ordering::SeqCst), 1);
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn attempts_that_wait_are_released_when_the_worker_stops() {
    let (client, lines, gate, worker, chains) = limited().await;
    let stopping = tokio::spawn(worker.stop_now(TIMEOUT));
    lines.sees(3, |event| matches!(event, Event::AttemptReleased(_))).await;
    gate.go.add_permits(1);
    tokio::time::timeout(TIMEOUT, stopping).await.expect("it stops").unwrap();
    let mut left = Vec::new();
    for chain in chains {
        let job = client.chain(chain).await.unwrap().unwrap().latest;
        left.push((job.status, job.attempt));
    }
    left.sort_unstable();
    let pending = (Status::Pending, 0);
    assert_eq!(left, [pending, pending, pending, (Status::Completed, 1)]);
}

/// Notes that a handler was dropped before its end.
struct NotesDrop(Lines);

impl Drop for NotesDrop {
    fn drop(&mut self) {
        self.0.add("dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_drops_the_handler_and_the_job_is_retried() {
    async fn hangs_first(job: Ctx<Echo>, Data(lines): Data<Lines>) -> Result<String> {
        if job.attempt() == 1 {
            let _notes = NotesDrop(lines);
            std::future::pending::<()>().await;
        }
        Ok(format!("attempt {} after {}", job.attempt(), job.job().error.as_ref().unwrap()))
    }
    let (client, lines) = fixture();
    let stack = ServiceBuilder::new().timeout(Duration::from_millis(50));
    let worker =
        Worker::new(&client).data(lines.clone()).middleware(TowerLayer::new(stack)).handle(hangs_first);
    let worker = worker.start().await.unwrap();
    let chain = client.start(echo("")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 2 after request timed out");
    assert_eq!(lines.all(), ["dropped"]);
    worker.stop(TIMEOUT).await;
}

/// A store whose settlements wait for a permit.
#[derive(Debug)]
struct SlowToSettle {
    store: MemoryStore,
    go: Semaphore,
}

impl Decorator for SlowToSettle {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    fn call(&self, command: Command) -> BoxFuture<'_, windlass_core::Result<Reply>> {
        let settles = match &command {
            Command::Settle(_) => true,
            Command::Exchange(exchange) => !exchange.settle.settlements.is_empty(),
            _ => false,
        };
        Box::pin(async move {
            if settles {
                self.go.acquire().await.unwrap().forget();
            }
            self.forward(command).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_does_not_interrupt_a_settlement() {
    async fn answer(_: Ctx<Echo>) -> Result<String> {
        Ok("done".to_owned())
    }
    let (store, lines) =
        (SlowToSettle { store: MemoryStore::new(), go: Semaphore::new(0) }, Lines::default());
    let client = Client::builder(store).observer(lines.clone()).build();
    let stack = ServiceBuilder::new().timeout(Duration::from_millis(50));
    let worker =
        Worker::new(&client).middleware(TowerLayer::new(stack)).handle(answer).start().await.unwrap();
    let chain = client.start(echo("")).await.unwrap();
    // The handler returns, and the timeout passes.
    tokio::time::sleep(Duration::from_secs(1)).await; // tidy: time is paused
    client.store().go.add_permits(10);
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "done");
    lines.sees(1, |event| matches!(event, Event::MiddlewareFailed(..))).await;
    worker.stop(TIMEOUT).await;
    let is_end = |event: &&Event| {
        matches!(event, Event::JobCompleted(..) | Event::AttemptFailed(..) | Event::AttemptLost(..))
    };
    let events = lines.1.lock().unwrap().clone();
    let ends: Vec<_> = events.iter().filter(is_end).collect();
    assert!(matches!(ends[..], [Event::JobCompleted(..)]), "{ends:?}");
}

/// A layer of an application: refuses some texts, passes a value to the handler, and notes how attempts end.
#[derive(Clone)]
struct Tenancy(Lines);

#[derive(Clone)]
struct TenancyService<V> {
    inner: V,
    lines: Lines,
}

struct Tenant(String);

impl<V> Layer<V> for Tenancy {
    type Service = TenancyService<V>;

    fn layer(&self, inner: V) -> TenancyService<V> {
        TenancyService { inner, lines: self.0.clone() }
    }
}

impl<V> Service<AttemptRequest> for TenancyService<V>
where
    V: Service<AttemptRequest, Response = Ended, Error = BoxError, Future: Send + 'static>,
{
    type Response = Ended;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Ended>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: AttemptRequest) -> Self::Future {
        let Echo { text } = request.attempt().job().input.decode().unwrap();
        match text.as_str() {
            "unknown" => return Box::pin(async { Err(Fatal::new("unknown tenant").into()) }),
            "late" => {
                let (_, inner) = request.into_parts();
                return Box::pin(async { Ok(inner.fail("too late").await) });
            }
            _ => {}
        }
        request.attempt_mut().insert(Tenant(text));
        let (running, lines) = (self.inner.call(request), self.lines.clone());
        Box::pin(async move {
            let ended = running.await?;
            lines.add(format!("{ended:?}"));
            Ok(ended)
        })
    }
}

async fn tenant(job: Ctx<Echo>) -> Result<String> {
    Ok(job.get::<Tenant>().map(|tenant| tenant.0.clone()).ok_or("no tenant")?)
}

#[tokio::test]
async fn a_layer_of_the_application_passes_values_and_ends_attempts() {
    let (client, lines) = fixture();
    let worker = Worker::new(&client).middleware(TowerLayer::new(Tenancy(lines.clone()))).handle(tenant);
    let worker = worker.start().await.unwrap();
    let chain = client.start(echo("ada")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "ada");
    for (text, why) in [("unknown", "unknown tenant"), ("late", "too late")] {
        let chain = client.start(echo(text)).await.unwrap();
        let error = client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
        assert_eq!((error.kind(), error.job_error().unwrap().as_str()), (ErrorKind::ChainFailed, why));
        assert_eq!(client.chain(chain).await.unwrap().unwrap().latest.attempt, 1);
    }
    worker.stop(TIMEOUT).await;
    assert_eq!(lines.all(), ["Completed"]);
}

#[tokio::test]
async fn an_attempt_that_lost_its_job_stores_nothing() {
    let ((client, lines), gate) = (fixture(), Gate::new());
    let worker = Worker::new(&client).data(gate.clone()).middleware(TowerLayer::new(Tenancy(lines.clone())));
    let worker = worker.handle(wait).start().await.unwrap();
    let chain = client.start(echo("ada")).await.unwrap();
    lines.sees(1, |event| matches!(event, Event::AttemptStarted(_))).await;
    client.delete(vec![chain.into()]).await.unwrap();
    gate.go.add_permits(1);
    lines.sees(1, |event| matches!(event, Event::AttemptLost(_))).await;
    worker.stop(TIMEOUT).await;
    assert_eq!(lines.all(), [format!("{:?}", Ended::Lost(AbortReason::NotFound))]);
    assert!(client.chain(chain).await.unwrap().is_none());
}

/// A service that answers without running the attempt.
#[derive(Clone)]
struct Skips;

impl Service<AttemptRequest> for Skips {
    type Response = Ended;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Ended, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: AttemptRequest) -> Self::Future {
        std::future::ready(Ok(Ended::Completed))
    }
}

#[tokio::test]
async fn a_service_that_does_not_run_the_attempt_completes_nothing() {
    let (client, _) = fixture();
    let skips = tower::layer::layer_fn(|_| Skips);
    let worker = Worker::new(&client).middleware(TowerLayer::new(skips)).handle(tenant);
    let worker = worker.start().await.unwrap();
    let chain = client.start(echo("ada")).max_attempts(2).await.unwrap();
    let error = client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    assert!(error.to_string().contains("a middleware did not run the attempt"), "{error}");
    worker.stop(TIMEOUT).await;
}
