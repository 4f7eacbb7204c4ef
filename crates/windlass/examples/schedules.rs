//! A schedule: a job that starts by itself, declared in code.
//!
//! The schedule is stored, so it survives restarts. Any worker on the store starts its occurrences, none of them twice.
//!
//! Run with `cargo run --release -p windlass --example schedules`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use windlass::schedule::{Cron, Every};
use windlass::{BoxError, Client, Ctx, Data, Job, MemoryStore, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct CleanUp {
    folder: String,
}

/// Reports each run to `main`.
type Cleaned = mpsc::UnboundedSender<String>;

async fn clean_up(job: Ctx<CleanUp>, Data(cleaned): Data<Cleaned>) -> Result<(), BoxError> {
    // The planned time, and the last run that succeeded: "clean up what has been added since".
    let planned = job.occurrence().map(|occurrence| occurrence.at);
    let since = job.last_success().await?;
    println!("cleaning up {}; planned: {planned:?}, since: {since:?}", job.input().folder);
    cleaned.send(job.input().folder.clone())?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(MemoryStore::new());
    let (cleaned, mut runs): (Cleaned, _) = mpsc::unbounded_channel();

    // Every process declares its schedules when it starts. An unchanged declaration changes nothing.
    let often = Every::new(Duration::from_millis(50))?;
    let nightly = Cron::new("0 3 * * *")?.in_zone("Europe/Berlin");
    let worker = Worker::new(&client)
        .data(cleaned)
        .handle(clean_up)
        .schedule("cache", often, CleanUp { folder: "cache".into() })
        .schedule("uploads", nightly, CleanUp { folder: "uploads".into() })
        .start()
        .await?;

    for _ in 0..3 {
        assert_eq!(runs.recv().await.as_deref(), Some("cache"));
    }

    // Operators pause, resume, edit and delete schedules, here or with `windlass schedules`.
    client.schedules().pause("cache").await?;
    let chain = client.schedules().run_now("uploads").await?;
    while runs.recv().await.as_deref() != Some("uploads") {}
    let uploads = client.schedules().get("uploads").await?.ok_or("the schedule is stored")?;
    let details = uploads.details?;
    assert_eq!(details.runs.last().map(|run| run.chain), Some(chain));
    println!("next: {:?}", details.next);

    worker.stop(Duration::from_secs(10)).await;
    Ok(())
}
