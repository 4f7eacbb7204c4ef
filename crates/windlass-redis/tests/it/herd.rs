//! With many idle workers and few jobs, about as many workers query the store as there are jobs, not all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use windlass_core::command::{Command, Reply};
use windlass_core::{
    BoxError, BoxFuture, Capabilities, Client, Ctx, Data, Decorator, Hint, MemoryStore, Notifier, Result,
    Subscription, Topic, TypeName, Worker,
};
use windlass_redis::{Options, RedisNotifier};
use windlass_testkit::{shared_redis, wait_until};

use crate::noop::Noop;

const WORKERS: usize = 50;
const JOBS: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs until released, so that its worker does not acquire another job.
async fn wait_for_release(_: Ctx<Noop>, Data(released): Data<Arc<Semaphore>>) -> Result<(), BoxError> {
    drop(released.acquire().await?);
    Ok(())
}

/// Counts the acquires that reach the store.
#[derive(Debug, Default)]
struct Counting {
    store: MemoryStore,
    acquires: AtomicUsize,
}

impl Decorator for Counting {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    /// Without exchanges, every acquire is a separate command.
    fn supported(&self) -> Capabilities {
        Capabilities::CORE
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        if matches!(command, Command::Acquire(_)) {
            self.acquires.fetch_add(1, Ordering::SeqCst);
        }
        self.forward(command)
    }
}

/// A Redis notifier with or without its wake budget. Counts calls of `claim_wake`.
#[derive(Debug)]
struct Hints {
    notifier: RedisNotifier,
    has_budget: bool,
    asked: Arc<AtomicUsize>,
}

impl Notifier for Hints {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        self.notifier.publish(hint)
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        self.notifier.subscribe(topics)
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let claimed = !self.has_budget || self.notifier.claim_wake(job_type).await?;
            self.asked.fetch_add(1, Ordering::SeqCst);
            Ok(claimed)
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.notifier.close()
    }
}

/// Returns how many acquires reach the store when a few jobs are started while many workers are idle.
async fn acquires(has_budget: bool) -> usize {
    let server = shared_redis().await;
    let options = Options::default().namespace(server.namespace());
    let notifier = RedisNotifier::open(&server.url(), &options).await.unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let hints = Hints { notifier, has_budget, asked: Arc::clone(&asked) };
    let client = Client::builder(Counting::default()).notifier(hints).build();
    let released = Arc::new(Semaphore::new(0));
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let worker = Worker::new(&client).concurrency(1).data(Arc::clone(&released)).handle(wait_for_release);
        workers.push(worker.start().await.unwrap());
    }
    let count = || client.store().acquires.load(Ordering::SeqCst);
    wait_until("every worker has polled once", TIMEOUT, async || count() >= WORKERS).await;

    let before = count();
    let chains = client.start_many((0..JOBS).map(|_| Noop)).await.unwrap();
    // A worker whose claim is granted acquires before it claims again.
    wait_until("every worker has claimed or is running a job", TIMEOUT, async || {
        asked.load(Ordering::SeqCst) >= WORKERS
    })
    .await;
    let acquires = count() - before;
    released.add_permits(JOBS);
    for chain in chains {
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
    }
    for worker in workers {
        worker.stop(TIMEOUT).await;
    }
    acquires
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_workers_query_as_there_are_jobs() {
    let with_budget = acquires(true).await;
    let without = acquires(false).await;
    println!(
        "{WORKERS} idle workers, {JOBS} jobs: {with_budget} acquires with a wake budget, {without} without"
    );
    assert!(with_budget < 2 * JOBS, "{with_budget} acquires for {JOBS} jobs");
    assert!(without > WORKERS / 2, "{without} acquires of {WORKERS} workers");
}
