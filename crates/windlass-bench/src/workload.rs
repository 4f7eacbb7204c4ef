//! The workloads. A clock stops when the last completion is stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use windlass::command::GetChains;
use windlass::{BoxError, Chain, Client, Ctx, Job, Running, State, Status, Store, Target, Worker};

/// A job that does nothing.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, output = u64)]
pub struct NoOp {
    /// Which one it is. It comes back as the output.
    pub number: u64,
}

/// How long a worker may take to stop; it has nothing left to do by then.
const STOP: Duration = Duration::from_secs(10);

/// How long a worker is left alone before it counts as idle.
const IDLE: Duration = Duration::from_millis(1);

/// How many chains are looked at by one command.
const LOOK: usize = 1_000;

/// Starts jobs, one call each, from concurrent producers.
pub async fn start<S: Store>(client: &Client<S>, jobs: u64, producers: u64) -> Result<Duration, BoxError> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for producer in 0..producers {
        let client = client.clone();
        tasks.spawn(async move {
            for number in (producer..jobs).step_by(usize::try_from(producers)?) {
                client.start(NoOp { number }).await?;
            }
            Ok::<_, BoxError>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(began.elapsed())
}

/// Starts jobs, so many by one call.
pub async fn start_batched<S: Store>(
    client: &Client<S>,
    jobs: u64,
    batch: u64,
) -> Result<Duration, BoxError> {
    let began = Instant::now();
    start_all(client, jobs, batch).await?;
    Ok(began.elapsed())
}

/// One worker completes jobs that do nothing. They were started before the clock; that all of them are
/// completed is checked after it.
pub async fn drain<S: Store>(client: &Client<S>, jobs: u64, slots: u32) -> Result<Duration, BoxError> {
    let chains = start_all(client, jobs, 1_000).await?;
    let began = Instant::now();
    work_off(client, jobs, slots).await?;
    let took = began.elapsed();
    check_completed(client, &chains).await?;
    Ok(took)
}

/// The times from the start of a job on an idle worker to its handler, one job after another.
pub async fn latency<S: Store>(client: &Client<S>, jobs: u64) -> Result<Vec<Duration>, BoxError> {
    let (reached, mut reports) = mpsc::unbounded_channel();
    let report = |_: Ctx<NoOp>, State(reached): State<mpsc::UnboundedSender<Instant>>| async move {
        reached.send(Instant::now())?;
        Ok::<_, BoxError>(0)
    };
    let worker = Worker::new(client).state(reached).handle::<NoOp, _>(report).start().await?;
    let mut times = Vec::new();
    for number in 0..jobs {
        tokio::time::sleep(IDLE).await;
        let began = Instant::now();
        let chain = client.start(NoOp { number }).await?;
        let arrived = reports.recv().await.ok_or("the worker has stopped")?;
        times.push(arrived.duration_since(began));
        client.wait(chain).await?;
    }
    worker.stop(STOP).await;
    Ok(times)
}

/// The times from the start of a job on an idle worker to its output, one job after another.
pub async fn round_trip<S: Store>(client: &Client<S>, jobs: u64) -> Result<Vec<Duration>, BoxError> {
    let worker = Worker::new(client).handle(echo).start().await?;
    let mut times = Vec::new();
    for number in 0..jobs {
        tokio::time::sleep(IDLE).await;
        let began = Instant::now();
        let chain = client.start(NoOp { number }).await?;
        if client.wait(chain).await? != number {
            return Err("a job gave the output of another".into());
        }
        times.push(began.elapsed());
    }
    worker.stop(STOP).await;
    Ok(times)
}

/// Runs a worker until it has completed so many jobs.
pub async fn work_off<S: Store>(client: &Client<S>, jobs: u64, slots: u32) -> Result<(), BoxError> {
    let left = Arc::new(Left { jobs: AtomicU64::new(jobs), none: Notify::new() });
    let worker: Running<S> =
        Worker::new(client).concurrency(slots).state(Arc::clone(&left)).handle(count_down).start().await?;
    left.none.notified().await;
    // The last handlers have run; when the worker has stopped, all that they gave is stored.
    worker.stop(STOP).await;
    Ok(())
}

struct Left {
    jobs: AtomicU64,
    none: Notify,
}

async fn count_down(job: Ctx<NoOp>, State(left): State<Arc<Left>>) -> Result<u64, BoxError> {
    if left.jobs.fetch_sub(1, Ordering::Relaxed) == 1 {
        left.none.notify_one();
    }
    Ok(job.input().number)
}

async fn echo(job: Ctx<NoOp>) -> Result<u64, BoxError> {
    Ok(job.input().number)
}

/// Starts jobs, so many by one call.
pub async fn start_all<S: Store>(
    client: &Client<S>,
    jobs: u64,
    batch: u64,
) -> Result<Vec<Chain<NoOp>>, BoxError> {
    let mut chains = Vec::new();
    for first in (0..jobs).step_by(usize::try_from(batch)?) {
        let numbers = first..jobs.min(first + batch);
        chains.extend(client.start_many(numbers.map(|number| NoOp { number })).await?);
    }
    Ok(chains)
}

async fn check_completed<S: Store>(client: &Client<S>, chains: &[Chain<NoOp>]) -> Result<(), BoxError> {
    for chains in chains.chunks(LOOK) {
        let chains = chains.iter().map(|chain| Target::from(*chain)).collect();
        let reply = client.store().get_chains(GetChains { chains }).await?;
        let is_completed = |chain: &windlass::ChainRecord| chain.status() == Status::Completed;
        if !reply.chains.iter().all(|chain| chain.as_ref().is_some_and(is_completed)) {
            return Err("not every job was completed when the clock stopped".into());
        }
    }
    Ok(())
}
