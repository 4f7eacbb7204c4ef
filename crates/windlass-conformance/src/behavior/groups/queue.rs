//! Queues: ids chosen by callers, results, and cached results.

mod answer;
mod cancel;
mod consume;
mod encoding;
mod enqueue;
mod events;
mod excluded;
mod hook;
mod lease;
mod names;
mod reaper;
mod stop;
mod transaction;
mod ttl;

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};

pub use excluded::QUEUE_EXCLUDED;
use windlass_core::command::{Acquire, Quota};
use windlass_core::queue::{Consumer, Item, ItemState, ItemStatus, QueueBuilder};
use windlass_core::{Millis, Queue, RequestId, WorkerId};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    let groups = [
        enqueue::cases(),
        answer::cases(),
        ttl::cases(),
        cancel::cases(),
        consume::cases(),
        stop::cases(),
        lease::cases(),
        names::cases(),
        hook::cases(),
        encoding::cases(),
        events::cases(),
        reaper::cases(),
    ];
    groups.into_iter().flatten().collect()
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    let groups = [enqueue::transactional_cases(), transaction::transactional_cases()];
    groups.into_iter().flatten().collect()
}

/// The queue type of most cases.
type Texts = Queue<String, String>;

/// Returns a queue that retries failed jobs quickly.
fn texts<S: Store>(scene: &Scene<S>) -> QueueBuilder<String, String> {
    scene.client.queue("texts").backoff(QUICK_BACKOFF)
}

/// Returns the same queue, as in another process.
fn others<S: Store>(scene: &Scene<S>) -> QueueBuilder<String, String> {
    scene.other.queue("texts").backoff(QUICK_BACKOFF)
}

/// Starts a consumer that returns the payload and the attempt number.
async fn echo(queue: &Texts) -> Consumer {
    let echo = |item: Item<String>| async move { Ok::<_, BoxError>(echoed(item.payload(), item.attempt())) };
    queue.consume(echo).concurrency(1).poll(POLL).await.unwrap()
}

fn echoed(payload: &str, attempt: u32) -> String {
    format!("{payload}, attempt {attempt}")
}

/// Starts a consumer that fails every attempt before this one.
async fn fail_before(queue: &Texts, attempt: u32) -> Consumer {
    let handler = move |item: Item<String>| async move {
        if item.attempt() < attempt {
            return Err(BoxError::from(format!("broken {}", item.attempt())));
        }
        Ok(echoed(item.payload(), item.attempt()))
    };
    queue.consume(handler).concurrency(1).poll(POLL).await.unwrap()
}

/// A consumer whose handler opens the gate `begun`, then waits at the gate `go`.
struct Held {
    consumer: Consumer,
    begun: Gate,
    go: Gate,
    runs: Arc<AtomicU32>,
}

impl Held {
    async fn new(queue: &Texts) -> Self {
        let (begun, go, runs) = (Gate::new(), Gate::new(), Arc::new(AtomicU32::new(0)));
        let (at, gate, count) = (begun.clone(), go.clone(), Arc::clone(&runs));
        let handler = move |item: Item<String>| {
            let (at, gate) = (at.clone(), gate.clone());
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                at.open(1);
                gate.pass().await;
                Ok::<_, BoxError>(echoed(item.payload(), item.attempt()))
            }
        };
        Self { consumer: queue.consume(handler).concurrency(1).poll(POLL).await.unwrap(), begun, go, runs }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Returns the status of a job.
async fn status(queue: &Texts, id: &str) -> ItemStatus<String> {
    queue.status(id).await.unwrap().unwrap()
}

/// Waits until a job is in this state, and returns its status.
async fn state<S: Store>(scene: &Scene<S>, queue: &Texts, id: &str, wanted: ItemState) -> ItemStatus<String> {
    scene
        .soon(&format!("{id} is {wanted:?}"), async {
            loop {
                match queue.status(id).await.unwrap() {
                    Some(status) if status.state == wanted => return status,
                    _ => rest().await,
                }
            }
        })
        .await
}

/// Waits until the job is no longer known.
async fn gone<S: Store>(scene: &Scene<S>, queue: &Texts, id: &str) {
    scene
        .soon(&format!("{id} is removed"), async {
            while queue.status(id).await.unwrap().is_some() {
                rest().await;
            }
        })
        .await;
}

/// Pauses before the store is polled again.
async fn rest() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Never returns.
async fn hang<T>() -> T {
    pending().await
}

/// Acquires a job with this lease, like a worker that dies immediately.
async fn take_and_die<S: Store>(scene: &Scene<S>, queue: &Texts, lease: Duration) {
    let quota = Quota { job_type: queue.name().clone(), max: 1, lease: Millis::try_from(lease).unwrap() };
    let acquire = Acquire {
        request: RequestId::new(),
        worker: WorkerId::new(),
        worker_name: None,
        types: vec![quota],
        max: 1,
    };
    scene
        .soon("a job is taken", async {
            while scene.store.acquire(acquire.clone()).await.unwrap().jobs.is_empty() {
                rest().await;
            }
        })
        .await;
}

impl<S: Store> Scene<S> {
    /// Stops consumers.
    async fn stop_consumers(&self, consumers: impl IntoIterator<Item = Consumer>) {
        for consumer in consumers {
            self.soon("the consumer stops", consumer.stop(Duration::from_secs(5))).await;
        }
    }
}

/// Imports for the queue cases.
mod prelude {
    pub(super) use windlass_core::ErrorKind;
    pub(super) use windlass_core::queue::{Enqueued, Item, ItemState};

    pub(super) use super::super::prelude::*;
    pub(super) use super::{
        Held, Texts, echo, echoed, fail_before, gone, hang, others, rest, state, status, take_and_die, texts,
    };
}
