//! Jobs.

use windlass_core::Target;
use windlass_core::command::{ListJobs, TriggerReply, Untriggerable};

use super::filter::JobQuery;
use super::listing::Budget;
use super::problem::Problem;
use super::route::{Call, Given, Json, NoBody, NoQuery};
use super::why;
use super::wire::{Attempt, Chain, Job, JobDetails, JobPage};
use crate::audit;

pub(crate) async fn list(call: Call, given: Given<JobQuery, NoBody>) -> Result<Json<JobPage>, Problem> {
    let (filter, page, states) = given.query.read()?;
    let fetch = |page| call.client().list_jobs(ListJobs { filter: filter.clone(), page });
    let (jobs, next) = Budget::new().list(page, fetch).await?;
    let jobs = jobs.iter().filter(|job| states.matches(job));
    let jobs = jobs.map(|job| Job::of(job, call.sight().in_list())).collect();
    Ok(Json(JobPage { jobs, next: next.map(|cursor| cursor.0) }))
}

pub(crate) async fn get(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<JobDetails>, Problem> {
    let (client, id) = (call.client(), given.path.job()?);
    let job = client.job(id).await?;
    let job =
        job.ok_or_else(|| Problem::not_found(format!("job {id} was not found: it may have expired")))?;
    let first = if job.index > 0 { client.job(job.chain.first_job()).await? } else { None };
    let sight = first.as_ref().map_or(call.sight(), |first| call.sight().of_chain(first));
    let attempts = client.attempts(id).await?;
    let blockers: Vec<_> = job.blockers.iter().map(|blocker| blocker.chain).collect();
    let (blockers, _) = Budget::new().chains(client, &blockers).await?;
    let why = why::reasons(client, &job).await?;
    let errors = sight.errors_of_job(&job);
    Ok(Json(JobDetails {
        attempts: attempts.iter().map(|attempt| Attempt::of(attempt, &errors)).collect(),
        blocker_chains: blockers.iter().map(|chain| Chain::of(chain, sight.in_list())).collect(),
        why,
        job: Job::with_errors(&job, sight, &errors),
    }))
}

pub(crate) async fn trigger(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Job>, Problem> {
    trigger_target(&call, Target::Job(given.path.job()?)).await
}

/// Makes a job due now, and returns it.
pub(crate) async fn trigger_target(call: &Call, target: Target) -> Result<Json<Job>, Problem> {
    let chain = call.client().chain(target.clone()).await?.ok_or_else(not_found)?;
    let job = match &target {
        Target::Job(id) => call.client().job(*id).await?.ok_or_else(not_found)?,
        _ => chain.latest,
    };
    let subject = audit::Target {
        chain: Some(job.chain.to_string()),
        job: Some(job.id.to_string()),
        version: Some(job.version.0),
        status: Some(job.status.to_string()),
        ..audit::Target::default()
    };
    let entry = call.audit("trigger", subject).await?;
    let triggered = match call.client().trigger(Target::Job(job.id)).await {
        Err(error) => Err(error.into()),
        Ok(TriggerReply::Triggered(_)) => Ok(()),
        Ok(TriggerReply::Refused(reasons)) => Err(match reasons.into_iter().flatten().next() {
            Some(Untriggerable::NotPending(status)) => {
                Problem::conflict(format!("the job is {status}: only pending jobs can be triggered"))
            }
            Some(Untriggerable::Busy) => {
                Problem::unavailable("the job is locked by a transaction: try again")
            }
            Some(Untriggerable::NotFound) | None => not_found(),
        }),
    };
    entry.end_with(triggered, |()| audit::Outcome::word("triggered")).await?;
    // The job was triggered, so a query that fails must not report an error: the answer is then the job as it was.
    let now = call.client().job(job.id).await.ok().flatten();
    Ok(Json(Job::of(now.as_ref().unwrap_or(&job), call.sight())))
}

fn not_found() -> Problem {
    Problem::not_found("the job was not found: it may have expired")
}
