//! The content of a chain's page: the chain, the ends of its list of jobs, and its neighbors.

use std::collections::BTreeSet;

use windlass_core::command::{JobFilter, ListDependents, ListJobs, Order, Page};
use windlass_core::{ChainId, ChainRecord, JobId, JobRecord, Target};

use super::chains::stored;
use super::listing::Budget;
use super::problem::Problem;
use super::route::Call;
use super::why;
use super::wire::{Blocker, State, Time};

/// Jobs from the beginning of a long chain.
const FIRST_JOBS: u32 = 20;

/// Jobs from the end of a long chain.
const NEWEST_JOBS: u32 = 30;

/// The blockers of one job, and the dependents of the chain, that are drawn.
pub(crate) const SIDE_MAX: usize = 12;

/// A chain with some of its jobs, and its neighbors. It does not depend on the caller.
#[derive(Debug)]
pub(crate) struct Excerpt {
    pub(crate) chain: ChainRecord,
    /// The first jobs of a long chain. Without jobs in between, these are all.
    pub(crate) first: Vec<JobLine>,
    /// The number of jobs that are left out.
    pub(crate) between: u32,
    /// The newest jobs of a long chain, in order.
    pub(crate) newest: Vec<JobLine>,
    /// The chains that the jobs wait or waited for, if they are still stored: at most [`SIDE_MAX`] per job.
    pub(crate) blockers: Vec<ChainLine>,
    /// The jobs of other chains that wait or waited for this chain: at most [`SIDE_MAX`].
    pub(crate) dependents: Vec<JobLine>,
    pub(crate) has_more_dependents: bool,
    /// The name of the schedule that started the chain, if one did.
    pub(crate) schedule: Option<String>,
    /// Why the latest job does not run, if it is open and should.
    pub(crate) why: Vec<String>,
}

/// A job, without its payloads and errors.
#[derive(Debug)]
pub(crate) struct JobLine {
    pub(crate) id: String,
    pub(crate) index: u32,
    pub(crate) job_type: String,
    pub(crate) state: State,
    pub(crate) attempt: u32,
    pub(crate) started_at: Option<Time>,
    pub(crate) closed_at: Option<Time>,
    pub(crate) blockers: Vec<Blocker>,
}

/// A chain, without its payloads and errors.
#[derive(Debug)]
pub(crate) struct ChainLine {
    pub(crate) id: String,
    pub(crate) chain_type: String,
    pub(crate) state: State,
}

/// Returns a chain by its id, or by the id of one of its jobs.
pub(crate) async fn query(call: &Call, id: JobId) -> Result<Excerpt, Problem> {
    let (client, mut budget) = (call.client(), Budget::new());
    let chain = stored(call, Target::Job(id)).await?;
    let jobs = chain.latest.index + 1;
    let is_long = jobs > FIRST_JOBS + NEWEST_JOBS;
    let max = if is_long { FIRST_JOBS } else { FIRST_JOBS + NEWEST_JOBS };
    let first = jobs_of(call, chain.id, Order::Oldest, max, &mut budget).await?;
    let mut newest = if is_long {
        jobs_of(call, chain.id, Order::Newest, NEWEST_JOBS, &mut budget).await?
    } else {
        Vec::new()
    };
    newest.sort_unstable_by_key(|job| job.index);
    let shown = || first.iter().chain(&newest);
    let blockers: BTreeSet<ChainId> =
        shown().flat_map(|job| job.blockers.iter().take(SIDE_MAX).map(|blocker| blocker.chain)).collect();
    let blockers: Vec<_> = blockers.into_iter().collect();
    let (blockers, _) = budget.chains(client, &blockers).await?;
    // One more, to know whether there are more.
    let page = Page { order: Order::Oldest, after: None, max: SIDE_MAX as u32 + 1 };
    let fetch = |page| client.list_dependents(ListDependents { chain: chain.id, page });
    let (dependents, _) = budget.list(page, fetch).await?;
    let schedule = match chain.id.occurrence() {
        Some(occurrence) => client.schedule_by_id(occurrence.schedule).await?,
        None => None,
    };
    // Jobs may have been added between the queries.
    let end = newest.first().map_or(0, |job| job.index);
    Ok(Excerpt {
        between: end.saturating_sub(first.len() as u32),
        first: first.iter().map(JobLine::from).collect(),
        newest: newest.iter().map(JobLine::from).collect(),
        blockers: blockers.iter().map(ChainLine::from).collect(),
        has_more_dependents: dependents.len() > SIDE_MAX,
        dependents: dependents.iter().take(SIDE_MAX).map(JobLine::from).collect(),
        schedule: schedule.map(|schedule| schedule.name.to_string()),
        why: why::reasons(client, &chain.latest).await?,
        chain,
    })
}

/// Returns jobs from one end of a chain.
async fn jobs_of(
    call: &Call,
    chain: ChainId,
    order: Order,
    max: u32,
    budget: &mut Budget,
) -> Result<Vec<JobRecord>, Problem> {
    let filter = JobFilter { chain: Some(chain), ..JobFilter::default() };
    let fetch = |page| call.client().list_jobs(ListJobs { filter: filter.clone(), page });
    let (jobs, _) = budget.list(Page { order, after: None, max }, fetch).await?;
    Ok(jobs)
}

impl From<&JobRecord> for JobLine {
    fn from(job: &JobRecord) -> Self {
        Self {
            id: job.id.to_string(),
            index: job.index,
            job_type: job.job_type.to_string(),
            state: State::of(job),
            attempt: job.attempt,
            started_at: job.started_at.map(Time::from),
            closed_at: job.closed_at.map(Time::from),
            blockers: job.blockers.iter().map(Blocker::from).collect(),
        }
    }
}

impl From<&ChainRecord> for ChainLine {
    fn from(chain: &ChainRecord) -> Self {
        Self {
            id: chain.id.to_string(),
            chain_type: chain.chain_type.to_string(),
            state: State::of(&chain.latest),
        }
    }
}
