//! Graceful shutdown with a deadline. The worker signals its handlers to stop. Jobs that do not finish in time
//! are requeued without counting the attempt, so no job is lost.
//!
//! Run with `cargo run --release -p windlass --example graceful_shutdown`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use windlass::{BoxError, Client, Ctx, Data, Job, MemoryStore, Status, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = u32)]
struct Listens;

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = u32)]
struct DoesNotListen;

/// The work that both handlers wait for. It has no permits until the first worker has stopped.
#[derive(Clone)]
struct App {
    work: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl App {
    async fn work(&self) -> Result<(), BoxError> {
        self.running.add_permits(1);
        self.work.acquire().await?.forget();
        Ok(())
    }
}

/// Watches the abort signal and returns as soon as it fires.
async fn listens(job: Ctx<Listens>, Data(app): Data<App>) -> Result<u32, BoxError> {
    tokio::select! {
        done = app.work() => done.map(|()| job.attempt()),
        reason = job.aborted().wait() => {
            println!("asked to stop: {reason:?}");
            // A real handler would save its progress here. An error after the signal is not a failed attempt: the
            // worker requeues the job.
            Err("stopped half-way".into())
        }
    }
}

/// Ignores the abort signal, so the worker aborts the handler at the deadline.
async fn does_not_listen(job: Ctx<DoesNotListen>, Data(app): Data<App>) -> Result<u32, BoxError> {
    app.work().await?;
    Ok(job.attempt())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(MemoryStore::new());
    let app = App { work: Arc::new(Semaphore::new(0)), running: Arc::new(Semaphore::new(0)) };
    let worker =
        || Worker::new(&client).data(app.clone()).concurrency(2).handle(listens).handle(does_not_listen);

    let first_worker = worker().start().await?;
    let polite = client.start(Listens).await?;
    let stubborn = client.start(DoesNotListen).await?;
    app.running.acquire_many(2).await?.forget();

    // A service calls `worker.run_until(shutdown_signal(), deadline)`, which does this on SIGTERM. The handlers get
    // most of the time to finish, and are then asked to stop.
    let begun = Instant::now();
    first_worker.stop(Duration::from_millis(500)).await;
    println!("stopped after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(60), "a stop keeps its deadline");

    // Another worker can acquire both jobs immediately, without waiting for a lease to expire.
    for chain in [polite.id(), stubborn.id()] {
        let stored = client.chain(chain).await?.ok_or("nothing is lost")?;
        assert_eq!((stored.status(), stored.latest.attempt), (Status::Pending, 0));
    }

    let second_worker = worker().start().await?;
    app.work.add_permits(2);
    let attempts = (client.wait(polite).await?, client.wait(stubborn).await?);
    assert_eq!(attempts, (1, 1), "a requeued attempt does not count");
    println!("both done, each in attempt 1");
    second_worker.stop(Duration::from_secs(10)).await;
    Ok(())
}
