//! Explains why a job does not run.

use windlass_core::command::Types;
use windlass_core::{JobRecord, Status, Target, Timestamp};

use super::problem::Problem;
use crate::client::BoxedClient;

/// The maximum number of chains to name.
const NAMED_MAX: usize = 3;

/// Returns what a job waits for. Returns nothing if the job is closed, has a valid lease or only waits for a free slot.
pub(super) async fn reasons(client: &BoxedClient, job: &JobRecord) -> Result<Vec<String>, Problem> {
    match job.status {
        Status::Blocked => blocked(client, job).await,
        Status::Pending => pending(client, job).await,
        Status::Running => {
            let expired = job.lease.as_ref().filter(|lease| lease.until < Timestamp::now());
            let text = |_| "the lease of its worker has expired: another worker will take over".to_owned();
            Ok(expired.map(text).into_iter().collect())
        }
        Status::Completed | Status::Failed | Status::Cancelled => Ok(Vec::new()),
    }
}

async fn blocked(client: &BoxedClient, job: &JobRecord) -> Result<Vec<String>, Problem> {
    let awaited: Vec<_> = job.blockers.iter().filter(|blocker| !blocker.resolved).collect();
    let count = awaited.len();
    let named = awaited.iter().take(NAMED_MAX).map(|blocker| Target::Chain(blocker.chain)).collect();
    let mut reasons: Vec<_> = client
        .chains(named)
        .await?
        .into_iter()
        .flatten()
        .map(|chain| format!("it waits for chain {}, which is {}", chain.id, chain.status()))
        .collect();
    if count > NAMED_MAX {
        reasons.push(format!("it waits for {} more chains", count - NAMED_MAX));
    }
    Ok(reasons)
}

async fn pending(client: &BoxedClient, job: &JobRecord) -> Result<Vec<String>, Problem> {
    let job_type = &job.job_type;
    let mut reasons = Vec::new();
    if job.due_at > Timestamp::now() {
        reasons.push(format!("it is due at {}", job.due_at));
    }
    let counts = client.count(Types::Only(vec![job_type.clone()])).await?;
    if counts.types.iter().any(|count| count.paused) {
        reasons.push(format!("its type `{job_type}` is paused"));
    }
    if !client.workers().await?.iter().any(|worker| worker.types.contains(job_type)) {
        reasons.push(format!("no live worker handles `{job_type}`"));
    }
    Ok(reasons)
}
