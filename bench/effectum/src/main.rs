//! The workloads of `windlass bench` on effectum, which keeps its jobs in SQLite too (`synchronous = normal`).
//!
//! Prints one line per workload: its name, a tab, and jobs per second. The clock stops when the queue has stored that all
//! jobs are done.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use tokio::task::JoinSet;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PRODUCERS: u64 = 16;
const BATCH: u64 = 1_000;
const SLOTS: u16 = 100;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result {
    let number = |at: usize| -> Result<u64> {
        Ok(std::env::args().nth(at).ok_or("usage: bench-effectum STARTED BATCHED DRAINED")?.parse()?)
    };
    let (started, batched, drained) = (number(1)?, number(2)?, number(3)?);
    report("start, 16 producers", started, start(started).await?);
    report("start, batches of 1000", batched, start_in_batches(batched).await?);
    report("drain, 100 slots", drained, drain(drained).await?);
    Ok(())
}

fn report(name: &str, jobs: u64, took: Duration) {
    println!("{name}\t{:.0}", jobs as f64 / took.as_secs_f64());
}

async fn open() -> Result<(tempfile::TempDir, Arc<Queue>)> {
    let directory = tempfile::tempdir()?;
    let queue = Queue::new(&directory.path().join("jobs.db")).await?;
    Ok((directory, Arc::new(queue)))
}

fn job(number: u64) -> Job {
    Job::builder("no-op").payload(format!("{{\"number\":{number}}}").into_bytes()).build()
}

async fn start(jobs: u64) -> Result<Duration> {
    let (_directory, queue) = open().await?;
    let began = Instant::now();
    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS {
        let queue = Arc::clone(&queue);
        producers.spawn(async move {
            for number in (producer..jobs).step_by(PRODUCERS as usize) {
                queue.add_job(job(number)).await?;
            }
            Ok::<_, effectum::Error>(())
        });
    }
    while let Some(producer) = producers.join_next().await {
        producer??;
    }
    let took = began.elapsed();
    queue.close(Duration::from_secs(10)).await?;
    Ok(took)
}

async fn start_in_batches(jobs: u64) -> Result<Duration> {
    let (_directory, queue) = open().await?;
    let began = Instant::now();
    add_all(&queue, jobs).await?;
    let took = began.elapsed();
    queue.close(Duration::from_secs(10)).await?;
    Ok(took)
}

async fn add_all(queue: &Queue, jobs: u64) -> Result {
    for first in (0..jobs).step_by(BATCH as usize) {
        queue.add_jobs((first..jobs.min(first + BATCH)).map(job).collect()).await?;
    }
    Ok(())
}

async fn drain(jobs: u64) -> Result<Duration> {
    let (_directory, queue) = open().await?;
    add_all(&queue, jobs).await?;
    let runner = JobRunner::builder("no-op", no_op).build();
    let began = Instant::now();
    let worker = Worker::builder(&queue, Arc::new(()))
        .max_concurrency(SLOTS)
        .min_concurrency(SLOTS / 2)
        .jobs([runner])
        .build()
        .await?;
    while worker.counts().finished < jobs {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while queue.num_active_jobs().await?.running > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    worker.unregister(None).await?;
    queue.close(Duration::from_secs(10)).await?;
    Ok(took)
}

async fn no_op(_job: RunningJob, _context: Arc<()>) -> std::result::Result<u64, effectum::Error> {
    Ok(0)
}
