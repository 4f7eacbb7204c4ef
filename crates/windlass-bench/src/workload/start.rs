use std::time::Duration;

use tokio::task::JoinSet;
use windlass::client::{IntoPlan, Target};
use windlass::{BoxError, Chain, Client, Entry, Store, plan};

use super::{BATCH, Gather, NoOp, Other, Step};

/// A delay that does not pass during a measurement.
const LATER: Duration = Duration::from_secs(100_000);

/// Starts jobs with one call each, from concurrent producers.
pub async fn start<S: Store>(client: &Client<S>, jobs: u64, producers: u64) -> Result<(), BoxError> {
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
    Ok(())
}

/// Starts no-op jobs, `batch` per call.
pub async fn start_all<S: Store>(client: &Client<S>, jobs: u64, batch: u64) -> Result<Vec<Target>, BoxError> {
    let chains = in_batches(client, jobs, batch, |number| NoOp { number }).await?;
    Ok(targets(&chains))
}

/// Starts chains with `steps` steps each.
pub async fn start_chains<S: Store>(
    client: &Client<S>,
    chains: u64,
    steps: u64,
) -> Result<Vec<Target>, BoxError> {
    let chains = in_batches(client, chains, BATCH, |_| Step { left: steps - 1 }).await?;
    Ok(targets(&chains))
}

/// Starts jobs that are blocked by `blockers` chains each, and those chains. Returns the blocked jobs' chains.
pub async fn start_fan_in<S: Store>(
    client: &Client<S>,
    jobs: u64,
    blockers: u64,
) -> Result<Vec<Target>, BoxError> {
    let awaited = in_batches(client, jobs * blockers, BATCH, |number| NoOp { number }).await?;
    let waiting = awaited.chunks(usize::try_from(blockers)?);
    let waiting: Vec<_> = waiting.map(|chains| plan(Gather).blocked_by(chains.to_vec())).collect();
    Ok(targets(&client.start_many(waiting).await?))
}

/// Stores jobs that no worker takes.
pub async fn start_others<S: Store>(client: &Client<S>, jobs: u64) -> Result<(), BoxError> {
    in_batches(client, jobs, BATCH, |number| Other { number }).await.map(drop)
}

/// Stores jobs that are due long after the measurement.
pub async fn start_for_later<S: Store>(client: &Client<S>, jobs: u64) -> Result<(), BoxError> {
    in_batches(client, jobs, BATCH, |number| plan(NoOp { number }).after(LATER)).await.map(drop)
}

async fn in_batches<S: Store, P: IntoPlan>(
    client: &Client<S>,
    jobs: u64,
    batch: u64,
    new: impl Fn(u64) -> P + Sync + Send,
) -> Result<Vec<Chain<P::Job>>, BoxError> {
    let mut chains = Vec::new();
    for first in (0..jobs).step_by(usize::try_from(batch)?) {
        chains.extend(client.start_many((first..jobs.min(first + batch)).map(&new)).await?);
    }
    Ok(chains)
}

fn targets<J: Entry>(chains: &[Chain<J>]) -> Vec<Target> {
    chains.iter().map(|chain| Target::from(*chain)).collect()
}
