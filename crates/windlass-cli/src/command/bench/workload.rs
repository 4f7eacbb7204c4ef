//! The workloads, generic over the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use windlass::{Attempt, BoxError, Client, Ctx, Data, Done, Job, Running, Store, Transactional, Worker};

use crate::arguments::Bench;

/// Timeout for stopping a worker. By then, only the last completions may be left to store.
const STOP: Duration = Duration::from_secs(10);

/// How long to wait before each start, so that the worker is idle.
const IDLE: Duration = Duration::from_millis(1);

/// A job whose handler does nothing.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(entry, output = u64)]
struct NoOp {
    number: u64,
    /// Filler of the size given by `--payload`.
    padding: String,
}

/// Starts and runs the jobs of a workload.
pub(super) struct Jobs<'a, S: ?Sized> {
    client: &'a Client<S>,
    jobs: u64,
    slots: u32,
    producers: u64,
    batch: u64,
    padding: String,
}

impl<'a, S: Store + ?Sized> Jobs<'a, S> {
    pub(super) fn new(client: &'a Client<S>, bench: &Bench) -> Self {
        let padding = "x".repeat(usize::try_from(bench.payload).unwrap_or_default());
        let Bench { jobs, concurrency: slots, producers, batch, .. } = *bench;
        Self { client, jobs, slots, producers, batch, padding }
    }

    /// Starts jobs with one call each, from concurrent producers.
    pub(super) async fn start_singly(&self) -> Result<(), BoxError> {
        let mut tasks = JoinSet::new();
        for producer in 0..self.producers {
            let (client, padding) = (self.client.clone(), self.padding.clone());
            let numbers = (producer..self.jobs).step_by(usize::try_from(self.producers)?);
            tasks.spawn(async move {
                for number in numbers {
                    client.start(NoOp { number, padding: padding.clone() }).await?;
                }
                Ok::<_, BoxError>(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        Ok(())
    }

    /// Starts jobs in batches, one call per batch.
    pub(super) async fn start_batches(&self) -> Result<(), BoxError> {
        for first in (0..self.jobs).step_by(usize::try_from(self.batch)?) {
            let numbers = first..self.jobs.min(first + self.batch);
            self.client.start_many(numbers.map(|number| self.job(number))).await?;
        }
        Ok(())
    }

    /// Runs a worker until it has completed all jobs.
    pub(super) async fn drain(&self) -> Result<(), BoxError> {
        let left = Countdown::new(self.jobs);
        let worker =
            Worker::new(self.client).concurrency(self.slots).data(Arc::clone(&left)).handle(count_down);
        left.wait(worker.start().await?).await
    }

    /// Measures the time from starting a job to its handler being called, one job at a time on an idle worker.
    pub(super) async fn latencies(&self, jobs: u64) -> Result<Vec<Duration>, BoxError> {
        let (reached, mut reports) = mpsc::unbounded_channel::<Instant>();
        let worker = Worker::new(self.client).data(reached).handle(report).start().await?;
        let mut times = Vec::new();
        for number in 0..jobs {
            tokio::time::sleep(IDLE).await;
            let began = Instant::now();
            let chain = self.client.start(self.job(number)).await?;
            let arrived = reports.recv().await.ok_or("the worker stopped")?;
            times.push(arrived.duration_since(began));
            self.client.wait(chain).await?;
        }
        worker.stop(STOP).await;
        Ok(times)
    }

    /// Measures the time from starting a job to receiving its output, one job at a time on an idle worker.
    pub(super) async fn round_trips(&self, jobs: u64) -> Result<Vec<Duration>, BoxError> {
        let worker = Worker::new(self.client).handle(echo).start().await?;
        let mut times = Vec::new();
        for number in 0..jobs {
            tokio::time::sleep(IDLE).await;
            let began = Instant::now();
            let chain = self.client.start(self.job(number)).await?;
            if self.client.wait(chain).await? != number {
                return Err("a job returned the output of another job".into());
            }
            times.push(began.elapsed());
        }
        worker.stop(STOP).await;
        Ok(times)
    }

    fn job(&self, number: u64) -> NoOp {
        NoOp { number, padding: self.padding.clone() }
    }
}

impl<S: Transactional> Jobs<'_, S> {
    /// Like `drain`, but completes each job in a transaction that its handler could use for its own writes.
    pub(super) async fn drain_in_transactions(&self) -> Result<(), BoxError> {
        let left = Countdown::new(self.jobs);
        let worker =
            Worker::new(self.client).concurrency(self.slots).data(Arc::clone(&left)).handle(finish::<S>);
        left.wait(worker.start().await?).await
    }
}

/// Counts the jobs whose handlers have not run yet.
struct Countdown {
    jobs: AtomicU64,
    none: Notify,
}

impl Countdown {
    fn new(jobs: u64) -> Arc<Self> {
        Arc::new(Self { jobs: AtomicU64::new(jobs), none: Notify::new() })
    }

    fn count_down(&self) {
        if self.jobs.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.none.notify_one();
        }
    }

    /// Waits for the last handler, then stops the worker. Stopping waits until all completions are stored.
    async fn wait<S: Store + ?Sized>(&self, worker: Running<S>) -> Result<(), BoxError> {
        self.none.notified().await;
        worker.stop(STOP).await;
        Ok(())
    }
}

async fn count_down(job: Ctx<NoOp>, Data(left): Data<Arc<Countdown>>) -> Result<u64, BoxError> {
    left.count_down();
    Ok(job.input().number)
}

async fn finish<S: Transactional>(
    attempt: Attempt<NoOp, S>,
    Data(left): Data<Arc<Countdown>>,
) -> Result<Done<NoOp, S>, BoxError> {
    let step = attempt.begin().await?;
    left.count_down();
    Ok(step.done(attempt.input().number)?)
}

async fn report(_: Ctx<NoOp>, Data(reached): Data<mpsc::UnboundedSender<Instant>>) -> Result<u64, BoxError> {
    reached.send(Instant::now())?;
    Ok(0)
}

async fn echo(job: Ctx<NoOp>) -> Result<u64, BoxError> {
    Ok(job.input().number)
}
