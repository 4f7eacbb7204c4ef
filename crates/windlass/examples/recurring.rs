//! A recurring job: each run starts its successor under the same key, in the transaction that completes the run.
//!
//! There is always exactly one open chain, even after a crash, and no matter how many processes try to start it.
//!
//! Run with `cargo run --release -p windlass --example recurring`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use windlass::client::{CancelMode, Cancelled, Target};
use windlass::memory::{Attempt, Done};
use windlass::name::{Key, TypeName};
use windlass::{BoxError, Client, Data, Job, MemoryStore, Worker};

/// Delay between two runs. A real service might use a day.
const INTERVAL: Duration = Duration::from_millis(20);

const KEY: &str = "clean-up";

#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct CleanUp {
    run: u32,
}

/// Reports the number of each run to `main`.
type Cleaned = mpsc::UnboundedSender<u32>;

async fn clean_up(a: Attempt<CleanUp>, Data(cleaned): Data<Cleaned>) -> Result<Done<CleanUp>, BoxError> {
    let run = a.input().run;
    println!("cleaning up, run {run}");

    // This chain holds the key until it closes. Its successor takes over the key in the commit that completes this job.
    let mut step = a.begin().await?;
    let successor = CleanUp { run: run + 1 };
    let this = a.chain::<CleanUp>();
    step.client().start(successor).key(KEY).replaces(this).after(INTERVAL).await?;
    cleaned.send(run)?;
    Ok(step.done(())?)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(MemoryStore::new());
    let (cleaned, mut runs): (Cleaned, _) = mpsc::unbounded_channel();
    let worker = Worker::new(&client).data(cleaned).handle(clean_up).start().await?;

    // Every process does this when it starts. Because of the key, only the first start creates a chain.
    let first = client.start(CleanUp { run: 1 }).key(KEY).await?;
    let second = client.start(CleanUp { run: 1 }).key(KEY).await?;
    assert!(first.is_new() && !second.is_new());

    for expected in 1..=3 {
        assert_eq!(runs.recv().await, Some(expected));
    }

    // The key points at the next run. Cancelling that run ends the recurrence: a cancelled job starts no successor.
    // Stop the worker first, so that the run cannot start before it is cancelled.
    worker.stop(Duration::from_secs(10)).await;
    let key = Target::Key(TypeName::new(CleanUp::NAME)?, Key::new(KEY)?);
    let cancelled = client.cancel(key, CancelMode::UnlessRunning).await?;
    assert!(matches!(cancelled, Cancelled::Cancelled { .. }));
    println!("no more");
    Ok(())
}
