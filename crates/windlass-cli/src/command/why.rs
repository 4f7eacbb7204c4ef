//! Explains why a job does not run.

use windlass::command::Types;
use windlass::name::TypeName;
use windlass::record::{ChainRecord, JobRecord};
use windlass::time::Timestamp;
use windlass::{Client, Status, Store};

use super::list::named;
use crate::exit::Result;
use crate::shell::quoted;

/// The maximum number of chains to name. The others are only counted.
const NAMED_MAX: usize = 3;

/// Returns what a job is waiting for, with a remedy where there is one. Returns nothing if the job is closed, has a
/// valid lease or only waits for a free slot.
pub(crate) async fn reasons(client: &Client<dyn Store>, job: &JobRecord) -> Result<Vec<String>> {
    match job.status {
        Status::Blocked => blocked(client, job).await,
        Status::Pending => pending(client, job).await,
        Status::Running => Ok(running(job)),
        Status::Completed | Status::Failed | Status::Cancelled => Ok(Vec::new()),
    }
}

/// Like [`reasons`], but without the due time of the job, which the error of a wait contains already.
pub(crate) async fn further_reasons(client: &Client<dyn Store>, job: &JobRecord) -> Result<Vec<String>> {
    match job.status {
        Status::Pending => unhandled(client, &job.job_type).await,
        _ => reasons(client, job).await,
    }
}

async fn blocked(client: &Client<dyn Store>, job: &JobRecord) -> Result<Vec<String>> {
    let chains = client.blockers(job.id).await?;
    let awaited = job.blockers.iter().zip(chains);
    let awaited = awaited.filter(|(blocker, _)| !blocker.resolved).filter_map(|(_, chain)| chain);
    // A completed blocker is about to be marked as resolved, so it is not a reason to report.
    let awaited = awaited.filter(|chain| chain.status() != Status::Completed);
    let (open, ended): (Vec<ChainRecord>, Vec<_>) = awaited.partition(|chain| chain.status().is_open());
    let unnamed = (open.len() + ended.len()).saturating_sub(NAMED_MAX);
    let mut reasons = Vec::new();
    for chain in ended.iter().take(NAMED_MAX) {
        let (id, outcome) =
            (chain.id, if chain.status() == Status::Failed { "failed" } else { "was cancelled" });
        reasons.push(format!("it waits for chain {id}, which {outcome} (`windlass retry {id}`)"));
    }
    for chain in open.into_iter().take(NAMED_MAX.saturating_sub(ended.len())) {
        let (id, job_type, word) = (chain.id, &chain.latest.job_type, chain.status());
        let mut reason = format!("it waits for chain {id}, whose job `{job_type}` is {word}");
        if chain.status() == Status::Pending {
            let why = pending(client, &chain.latest).await?.join(", ");
            reason = if why.is_empty() { reason } else { format!("{reason}: {why}") };
        }
        reasons.push(reason);
    }
    if unnamed > 0 {
        reasons.push(format!("it waits for more chains ({unnamed})"));
    }
    Ok(reasons)
}

async fn pending(client: &Client<dyn Store>, job: &JobRecord) -> Result<Vec<String>> {
    let mut reasons = Vec::new();
    if job.due_at > Timestamp::now() {
        reasons.push(format!("it is due at {}", job.due_at));
    }
    reasons.extend(unhandled(client, &job.job_type).await?);
    Ok(reasons)
}

/// Returns why no worker acquires jobs of a type.
async fn unhandled(client: &Client<dyn Store>, job_type: &TypeName) -> Result<Vec<String>> {
    let (mut reasons, argument) = (Vec::new(), quoted(job_type));
    let counts = client.count(Types::Only(vec![job_type.clone()])).await?;
    if counts.types.iter().any(|count| count.paused) {
        reasons.push(format!("`{job_type}` is paused (`windlass resume {argument}`)"));
    }
    if !client.workers().await?.iter().any(|worker| worker.types.contains(job_type)) {
        reasons
            .push(format!("no live worker handles `{job_type}` (`windlass work {argument} --exec COMMAND`)"));
    }
    Ok(reasons)
}

fn running(job: &JobRecord) -> Vec<String> {
    let expired = job.lease.as_ref().filter(|lease| lease.until < Timestamp::now());
    let reason = expired.map(|lease| {
        let worker = named(lease.worker, lease.worker_name.as_ref());
        format!("the lease of worker {worker} has expired; another worker will take over")
    });
    reason.into_iter().collect()
}
