//! A store that executes commands in the order in which they are sent. A worker then acquires a job, and a wait queries a
//! chain, before the command that they follow is answered.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use windlass_core::command::{Command, Reply};
use windlass_core::{
    BoxFuture, Capabilities, Client, Ctx, Data, Decorator, Entry, Event, Job, MemoryStore, Observer, Result,
    Store, Worker,
};

/// Long enough that nothing is found by polling.
const HOUR: Duration = Duration::from_secs(3_600);
const STOP: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for something that happens only if the worker was idle in time.
const CHANCE: Duration = Duration::from_millis(200);
const TRIES: u32 = 30;

#[derive(serde::Serialize, serde::Deserialize)]
struct Number(u32);

impl Job for Number {
    const NAME: &'static str = "number";
    type Output = u32;
    type Next = ();
    type Blockers = ();
}

impl Entry for Number {}

/// A store that withholds the replies to one command while it is closed. If it is late, it executes that command after the
/// acquire that follows: then it is not in order.
#[derive(Debug)]
struct Gate {
    inner: MemoryStore,
    command: &'static str,
    is_late: AtomicBool,
    is_open: watch::Sender<bool>,
    acquired: Notify,
    /// How often the next due time was queried.
    queries: AtomicUsize,
    acquires: AtomicUsize,
}

impl Gate {
    fn before(command: &'static str) -> Arc<Self> {
        let (inner, is_open) = (MemoryStore::new(), watch::Sender::new(true));
        let (is_late, acquired, queries) = (AtomicBool::new(false), Notify::new(), AtomicUsize::new(0));
        let acquires = AtomicUsize::new(0);
        Arc::new(Self { inner, command, is_late, is_open, acquired, queries, acquires })
    }

    async fn pass(&self) {
        self.is_open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
    }
}

impl Decorator for Gate {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn supported(&self) -> Capabilities {
        self.inner.capabilities().ordered()
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        let name = command.name();
        let is_gated = name == self.command;
        let is_late = self.is_late.load(Ordering::SeqCst);
        self.queries.fetch_add(usize::from(name == "next_due"), Ordering::SeqCst);
        self.acquires.fetch_add(usize::from(name == "acquire"), Ordering::SeqCst);
        Box::pin(async move {
            if is_gated && is_late {
                // There is no acquire if the worker was not idle.
                let _ = timeout(CHANCE, self.acquired.notified()).await;
            }
            let reply = self.forward(command).await;
            if name == "acquire" {
                self.acquired.notify_one();
            }
            if is_gated {
                self.pass().await;
            }
            reply
        })
    }
}

async fn report(job: Ctx<Number>, Data(runs): Data<mpsc::UnboundedSender<u32>>) -> Result<u32> {
    let Number(number) = *job.input();
    runs.send(number).unwrap();
    Ok(number)
}

/// Starts jobs while the gate is closed until a handler runs before it opens. Returns whether that happened.
async fn runs_behind_a_closed_gate(store: &Arc<Gate>) -> bool {
    let client: Client<Gate> = Client::new(Arc::clone(store));
    let (sender, mut runs) = mpsc::unbounded_channel();
    let worker = Worker::new(&client).poll(HOUR).data(sender).handle(report).start().await.unwrap();
    let mut is_early = false;
    for number in 0..TRIES {
        store.is_open.send_replace(false);
        let starting = tokio::spawn({
            let client = client.clone();
            async move { client.start(Number(number)).await }
        });
        is_early = timeout(CHANCE, runs.recv()).await.is_ok();
        assert!(!starting.is_finished());
        store.is_open.send_replace(true);
        let chain = starting.await.unwrap().unwrap();
        if !is_early {
            assert_eq!(timeout(TIMEOUT, runs.recv()).await.expect("the hint is published"), Some(number));
        }
        assert_eq!(client.wait(chain).poll(HOUR).timeout(TIMEOUT).await.unwrap(), number);
        if is_early {
            break;
        }
    }
    worker.stop(STOP).await;
    is_early
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_before_its_creation_is_answered() {
    assert!(runs_behind_a_closed_gate(&Gate::before("create")).await);
}

/// Notes when a job is created and when it starts.
#[derive(Clone, Debug, Default)]
struct Order(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Order {
    fn observe(&self, event: &Event) {
        match event {
            Event::JobCreated(_) => self.0.lock().unwrap().push("created"),
            Event::AttemptStarted(_) => self.0.lock().unwrap().push("started"),
            Event::JobCompleted(..) => self.0.lock().unwrap().push("completed"),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_is_reported_before_its_attempt() {
    let (store, order) = (Gate::before("create"), Order::default());
    let client: Client<Gate> = Client::builder(Arc::clone(&store)).observer(order.clone()).build();
    let (sender, mut runs) = mpsc::unbounded_channel();
    let worker = Worker::new(&client).poll(HOUR).data(sender).handle(report).start().await.unwrap();
    tokio::time::sleep(CHANCE).await; // tidy: time is paused
    for number in 0..3 {
        store.is_open.send_replace(false);
        let opening = async {
            // The acquire is answered meanwhile.
            tokio::time::sleep(Duration::from_millis(1)).await; // tidy: time is paused
            store.is_open.send_replace(true);
        };
        let (started, ()) = tokio::join!(client.start(Number(number)), opening);
        started.unwrap();
        assert_eq!(runs.recv().await, Some(number));
        tokio::time::sleep(CHANCE).await; // tidy: time is paused
    }
    let order: Vec<_> =
        order.0.lock().unwrap().iter().copied().filter(|event| *event != "completed").collect();
    assert_eq!(order, ["created", "started"].repeat(3));
    worker.stop(STOP).await;
}

/// The worker is woken too early and finds nothing. The hint that was withheld meanwhile wakes it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_created_later_than_expected_is_announced() {
    let store = Gate::before("create");
    store.is_late.store(true, Ordering::SeqCst);
    let client: Client<Gate> = Client::new(Arc::clone(&store));
    let (sender, mut runs) = mpsc::unbounded_channel();
    let worker = Worker::new(&client).poll(HOUR).data(sender).handle(report).start().await.unwrap();
    for number in 0..5 {
        client.start(Number(number)).await.unwrap();
        assert_eq!(timeout(TIMEOUT, runs.recv()).await.expect("the job is found"), Some(number));
    }
    worker.stop(STOP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_before_the_completion_is_answered() {
    let store = Gate::before("settle");
    let client: Client<Gate> = Client::new(Arc::clone(&store));
    let (sender, _runs) = mpsc::unbounded_channel::<u32>();
    let worker = Worker::new(&client).poll(HOUR).data(sender).handle(report).start().await.unwrap();
    store.is_open.send_replace(false);
    let chain = client.start(Number(7)).await.unwrap();
    let output = client.wait(chain).poll(HOUR).timeout(TIMEOUT).await;
    store.is_open.send_replace(true);
    assert_eq!(output.unwrap(), 7);
    worker.stop(STOP).await;
}

/// A caller that has its answer may close the client: what the completion announces must not be lost.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_after_the_completion_is_announced() {
    let (store, order) = (Gate::before("settle"), Order::default());
    let client: Client<Gate> = Client::builder(Arc::clone(&store)).observer(order.clone()).build();
    let (sender, _runs) = mpsc::unbounded_channel::<u32>();
    let worker = Worker::new(&client).poll(HOUR).data(sender).handle(report).start().await.unwrap();
    tokio::time::sleep(CHANCE).await; // tidy: time is paused
    for number in 1..=3 {
        store.is_open.send_replace(false);
        let chain = client.start(Number(number)).await.unwrap();
        let opening = async {
            // The chain is closed and found meanwhile.
            tokio::time::sleep(Duration::from_millis(2)).await; // tidy: time is paused
            store.is_open.send_replace(true);
        };
        let (output, ()) = tokio::join!(client.wait(chain).poll(HOUR).timeout(TIMEOUT), opening);
        assert_eq!(output.unwrap(), number);
        let completed = order.0.lock().unwrap().iter().filter(|event| **event == "completed").count();
        assert_eq!(completed, number as usize);
    }
    worker.stop(STOP).await;
}

/// A job that would wait for a busy handler is announced, so that another worker can run it.
#[tokio::test(start_paused = true)]
async fn a_worker_whose_handlers_are_busy_is_not_woken_early() {
    let store = Gate::before("create");
    let client: Client<Gate> = Client::new(Arc::clone(&store));
    let (sender, mut runs) = mpsc::unbounded_channel::<u32>();
    let worker = Worker::new(&client).concurrency(1).prefetch(10).poll(HOUR).data(sender);
    let worker = worker.handle(report_and_hang).start().await.unwrap();
    for (number, is_early) in [(1, true), (2, false)] {
        tokio::time::sleep(CHANCE).await; // tidy: time is paused
        let acquires = store.acquires.load(Ordering::SeqCst);
        store.is_open.send_replace(false);
        let opening = async {
            tokio::time::sleep(CHANCE).await; // tidy: time is paused
            let woken = store.acquires.load(Ordering::SeqCst) > acquires;
            store.is_open.send_replace(true);
            woken
        };
        let (started, woken) = tokio::join!(client.start(Number(number)), opening);
        started.unwrap();
        assert_eq!(woken, is_early, "{number}");
    }
    assert_eq!(runs.recv().await, Some(1));
    worker.stop_now(STOP).await;
}

async fn report_and_hang(job: Ctx<Number>, runs: Data<mpsc::UnboundedSender<u32>>) -> Result<u32> {
    report(job, runs).await?;
    std::future::pending().await
}

/// A key that is held wakes the worker for nothing. It does not query the store for the next due time each time.
#[tokio::test(start_paused = true)]
async fn duplicates_cost_few_queries() {
    let store = Gate::before("create");
    let client: Client<Gate> = Client::new(Arc::clone(&store));
    let queue = client.queue::<u32, u32>("doubled").build().unwrap();
    let double = |item: windlass_core::queue::Item<u32>| async move {
        Ok::<_, windlass_core::BoxError>(2 * item.payload())
    };
    let consumer = queue.consume(double).poll(HOUR).await.unwrap();
    tokio::time::sleep(CHANCE).await; // tidy: time is paused
    assert_eq!(queue.enqueue_and_wait("id", 1).await.unwrap(), 2);
    let queries = store.queries.load(Ordering::SeqCst);
    for _ in 0..50 {
        queue.enqueue("id", 1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await; // tidy: time is paused
    }
    let queries = store.queries.load(Ordering::SeqCst) - queries;
    assert!(queries <= 3, "{queries} queries");
    consumer.stop(STOP).await;
}

/// The queries of a queue do not depend on the order either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_answers_whether_its_wait_is_early_or_not() {
    let store = Gate::before("settle");
    let client: Client<Gate> = Client::new(Arc::clone(&store));
    let queue = client.queue::<u32, u32>("doubled").build().unwrap();
    let double = |item: windlass_core::queue::Item<u32>| async move {
        Ok::<_, windlass_core::BoxError>(2 * item.payload())
    };
    let consumer = queue.consume(double).concurrency(3).await.unwrap();
    for number in 0..20 {
        assert_eq!(queue.enqueue_and_wait(number.to_string(), number).await.unwrap(), 2 * number);
    }
    consumer.stop(STOP).await;
}
