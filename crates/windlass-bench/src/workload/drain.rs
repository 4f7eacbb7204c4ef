use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use windlass::client::Target;
use windlass::command::GetChains;
use windlass::record::ChainRecord;
use windlass::{
    Attempt, BoxError, Client, Ctx, Data, Done, Next, Running, Status, Store, Transactional, Worker,
};

use super::{BATCH, Gather, NoOp, STOP, Step};

/// Runs a worker until it has completed `jobs` no-op jobs.
pub async fn drain_all<S: Store>(client: &Client<S>, jobs: u64, slots: u32) -> Result<(), BoxError> {
    drain_by(client, jobs, slots, 1).await
}

/// Runs several workers until they have completed `jobs` no-op jobs.
pub async fn drain_by<S: Store>(
    client: &Client<S>,
    jobs: u64,
    slots: u32,
    workers: u32,
) -> Result<(), BoxError> {
    let left = Remaining::new(jobs);
    let mut running = Vec::new();
    for _ in 0..workers {
        let worker = Worker::new(client).concurrency(slots).data(Arc::clone(&left)).handle(count_down);
        running.push(worker.start().await?);
    }
    left.none.notified().await;
    for worker in running {
        worker.stop(STOP).await;
    }
    Ok(())
}

/// Like [`drain_all`], but completes each job in a transaction that its handler could use for its own writes.
pub async fn drain_in_transactions<S: Transactional>(
    client: &Client<S>,
    jobs: u64,
    slots: u32,
) -> Result<(), BoxError> {
    let left = Remaining::new(jobs);
    let worker = Worker::new(client).concurrency(slots).data(Arc::clone(&left)).handle(finish);
    left.wait(worker.start().await?).await
}

/// Runs a worker until it has completed `steps` steps of chains.
pub async fn drain_steps<S: Store>(client: &Client<S>, steps: u64, slots: u32) -> Result<(), BoxError> {
    let left = Remaining::new(steps);
    let worker = Worker::new(client).concurrency(slots).data(Arc::clone(&left)).handle(step);
    left.wait(worker.start().await?).await
}

/// Runs a worker until it has completed `jobs` jobs, including those that are blocked by others.
pub async fn drain_fan_in<S: Store>(client: &Client<S>, jobs: u64, slots: u32) -> Result<(), BoxError> {
    let left = Remaining::new(jobs);
    let worker = Worker::new(client).concurrency(slots).data(Arc::clone(&left));
    left.wait(worker.handle(count_down).handle(gather).start().await?).await
}

/// Checks that these chains are completed.
///
/// # Errors
/// If one of them is not.
pub async fn check_completed<S: Store>(client: &Client<S>, chains: &[Target]) -> Result<(), BoxError> {
    for chains in chains.chunks(usize::try_from(BATCH)?) {
        let reply = client.store().get_chains(GetChains { chains: chains.to_vec() }).await?;
        let is_completed = |chain: &ChainRecord| chain.status() == Status::Completed;
        if !reply.chains.iter().all(|chain| chain.as_ref().is_some_and(is_completed)) {
            return Err("not every job was completed when the clock stopped".into());
        }
    }
    Ok(())
}

/// Counts the jobs whose handlers have not run yet.
struct Remaining {
    jobs: AtomicU64,
    none: Notify,
}

impl Remaining {
    fn new(jobs: u64) -> Arc<Self> {
        Arc::new(Self { jobs: AtomicU64::new(jobs), none: Notify::new() })
    }

    fn count_down(&self) {
        if self.jobs.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.none.notify_one();
        }
    }

    /// Waits for the last handler, then stops the worker. Stopping waits until all completions are stored.
    async fn wait<S: Store>(&self, worker: Running<S>) -> Result<(), BoxError> {
        self.none.notified().await;
        worker.stop(STOP).await;
        Ok(())
    }
}

async fn count_down(job: Ctx<NoOp>, Data(left): Data<Arc<Remaining>>) -> Result<u64, BoxError> {
    left.count_down();
    Ok(job.input().number)
}

async fn finish<S: Transactional>(
    attempt: Attempt<NoOp, S>,
    Data(left): Data<Arc<Remaining>>,
) -> Result<Done<NoOp, S>, BoxError> {
    let step = attempt.begin().await?;
    left.count_down();
    Ok(step.done(attempt.input().number)?)
}

async fn step(job: Ctx<Step>, Data(left): Data<Arc<Remaining>>) -> Result<Next<Step>, BoxError> {
    left.count_down();
    Ok(match job.input().left {
        0 => Next::done(0),
        more => Next::then(Step { left: more - 1 }),
    })
}

async fn gather(job: Ctx<Gather>, Data(left): Data<Arc<Remaining>>) -> Result<u64, BoxError> {
    left.count_down();
    Ok(job.blockers().iter().sum())
}
