//! Queries of chains.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass_core::command::{JobFilter, ListChains, ListDependents, ListJobs, Order, Page};
use windlass_core::{ChainId, ChainRecord, ErrorKind, JobRecord, Target};

use super::filter::ChainQuery;
use super::listing::Budget;
use super::problem::Problem;
use super::route::{Call, Given, Json, NoBody, NoQuery, Waited, at_most};
use super::why;
use super::wire::{Chain, ChainDetails, ChainGraph, ChainPage, Ended, Job};
use crate::WAIT_MAX;

/// The maximum number of jobs of a chain, and of its dependents, in one answer.
const JOBS_MAX: u32 = 1_000;

/// The maximum number of blocker chains in one answer.
const BLOCKERS_MAX: usize = 1_000;

/// How long a wait takes at most, unless the caller asks for another time.
const WAIT: Duration = Duration::from_secs(30);

pub(crate) async fn list(call: Call, given: Given<ChainQuery, NoBody>) -> Result<Json<ChainPage>, Problem> {
    let (filter, page, states) = given.query.read()?;
    let fetch = |page| call.client().list_chains(ListChains { filter: filter.clone(), page });
    let (chains, next) = Budget::new().list(page, fetch).await?;
    let chains = chains.iter().filter(|chain| states.matches(&chain.latest));
    let chains = chains.map(|chain| Chain::of(chain, call.sight().in_list())).collect();
    Ok(Json(ChainPage { chains, next: next.map(|cursor| cursor.0) }))
}

/// Returns a chain by its id, or by the id of one of its jobs.
pub(crate) async fn get(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<ChainDetails>, Problem> {
    let chain = stored(&call, Target::Job(given.path.job()?)).await?;
    details(&call, &chain).await
}

pub(crate) async fn by_key(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<ChainDetails>, Problem> {
    let target = Target::Key(given.path.type_name("type")?, given.path.key("key")?);
    let chain = stored(&call, target).await?;
    details(&call, &chain).await
}

async fn details(call: &Call, chain: &ChainRecord) -> Result<Json<ChainDetails>, Problem> {
    let (client, sight) = (call.client(), call.sight());
    let (jobs, _) = jobs_of(call, chain.id, &mut Budget::new()).await?;
    let schedule = match chain.id.occurrence() {
        Some(occurrence) => client.schedule_by_id(occurrence.schedule).await?,
        None => None,
    };
    Ok(Json(ChainDetails {
        chain: Chain::of(chain, sight),
        chain_jobs: jobs.iter().map(|job| Job::of(job, sight.in_list().of_chain(&chain.first))).collect(),
        schedule: schedule.map(|schedule| schedule.name.to_string()),
        why: why::reasons(client, &chain.latest).await?,
    }))
}

pub(crate) async fn graph(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<ChainGraph>, Problem> {
    let (client, sight, mut budget) = (call.client(), call.sight().in_list(), Budget::new());
    let chain = stored(&call, Target::Job(given.path.job()?)).await?;
    let (jobs, more_jobs) = jobs_of(&call, chain.id, &mut budget).await?;
    let blockers: BTreeSet<ChainId> =
        jobs.iter().flat_map(|job| job.blockers.iter().map(|blocker| blocker.chain)).collect();
    let blockers: Vec<_> = blockers.into_iter().collect();
    let shown = blockers.get(..BLOCKERS_MAX).unwrap_or(&blockers);
    let (blocker_chains, more_blockers) = budget.chains(client, shown).await?;
    let fetch = |page| client.list_dependents(ListDependents { chain: chain.id, page });
    let (dependents, more_dependents) = budget.list(oldest_first(), fetch).await?;
    Ok(Json(ChainGraph {
        chain: Chain::of(&chain, sight),
        jobs: jobs.iter().map(|job| Job::of(job, sight.of_chain(&chain.first))).collect(),
        blockers: blocker_chains.iter().map(|chain| Chain::of(chain, sight)).collect(),
        dependents: dependents.iter().map(|job| Job::of(job, sight)).collect(),
        truncated: more_jobs || more_blockers || shown.len() < blockers.len() || more_dependents.is_some(),
    }))
}

/// How long to wait.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    /// The time to wait, in milliseconds: at most 60000. Default: 30000.
    timeout_ms: Option<u64>,
}

pub(crate) async fn wait(call: Call, given: Given<WaitQuery, NoBody>) -> Result<Waited<Ended>, Problem> {
    let _permit = call.wait_permit()?;
    let chain = stored(&call, Target::Job(given.path.job()?)).await?;
    Ok(Waited(closed(&call, chain.id, given.query.timeout_ms).await?))
}

/// Waits for a chain to close, and returns how it stands then.
pub(crate) async fn closed(call: &Call, chain: ChainId, timeout_ms: Option<u64>) -> Result<Ended, Problem> {
    match call.client().closed(chain, at_most(timeout_ms, WAIT, WAIT_MAX)).await {
        Ok(record) => Ok(Ended { closed: true, chain: Chain::of(&record, call.sight()) }),
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            let record = stored(call, Target::Chain(chain)).await?;
            Ok(Ended { closed: record.closed.is_some(), chain: Chain::of(&record, call.sight()) })
        }
        Err(error) => Err(error.into()),
    }
}

/// Waits for a chain that was started with the same request. The start was made, so a wait that fails must not report an
/// error: the answer then has no state of the chain.
pub(crate) async fn closed_after(call: &Call, chain: &str, timeout_ms: Option<u64>) -> Option<Ended> {
    let chain = chain.parse().ok()?;
    match closed(call, chain, timeout_ms).await {
        Ok(ended) => Some(ended),
        Err(problem) => {
            tracing::warn!("the wait for chain {chain} failed: {}", problem.detail());
            None
        }
    }
}

/// Returns a chain, or a problem if it is not stored.
pub(crate) async fn stored(call: &Call, target: Target) -> Result<ChainRecord, Problem> {
    let found = call.client().chain(target.clone()).await?;
    found.ok_or_else(|| {
        Problem::not_found(match target {
            Target::Chain(id) => format!("chain {id} was not found: it may have expired"),
            Target::Job(id) => format!("chain or job {id} was not found: it may have expired"),
            Target::Key(job_type, _) => format!("no chain of type {:?} has this key", job_type.as_str()),
        })
    })
}

/// Returns the first jobs of a chain, and whether there are more.
async fn jobs_of(
    call: &Call,
    chain: ChainId,
    budget: &mut Budget,
) -> Result<(Vec<JobRecord>, bool), Problem> {
    let filter = JobFilter { chain: Some(chain), ..JobFilter::default() };
    let fetch = |page| call.client().list_jobs(ListJobs { filter: filter.clone(), page });
    let (jobs, next) = budget.list(oldest_first(), fetch).await?;
    Ok((jobs, next.is_some()))
}

const fn oldest_first() -> Page {
    Page { order: Order::Oldest, after: None, max: JOBS_MAX }
}
