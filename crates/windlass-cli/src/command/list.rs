//! `windlass jobs`, `chains`, `queues`, `workers` and `stats`.

mod limit;

use std::time::Duration;

use serde::Serialize;
use windlass::Status;
use windlass::command::{ChainFilter, JobFilter, ListChains, ListJobs, Order, Page, TypeCount, Types};
use windlass::id::WorkerId;
use windlass::limit::PAGE_MAX;
use windlass::name::TypeName;
use windlass::name::WorkerName;
use windlass::record::{ChainRecord, JobRecord};
use windlass::time::Timestamp;

use super::{Context, show, target};
use crate::arguments::{Chains, JobState, Jobs, ListOptions, Queues};
use crate::exit::{Failure, Result};
use crate::output::truncated;
use crate::store::OpenMode;
use crate::view::{ChainView, CountView, JobView, WorkerView};
use limit::Limit;

/// Maximum width of errors, keys and type lists in a table.
const ERROR_WIDTH: usize = 60;

pub(crate) async fn jobs(context: &Context, jobs: Jobs) -> Result {
    if let Some(name) = &jobs.name {
        // Validate the id before opening the store.
        target::parse(name, target::one_type(&jobs.types)?)?;
    }
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    if let Some(name) = jobs.name {
        let job = target::job(&client, &name, target::one_type(&jobs.types)?).await?;
        return show::job(context.output, &client, &job).await;
    }
    let Jobs { types, statuses, chain_types, chain, when, .. } = jobs;
    let states = StateFilter(statuses);
    let (statuses, created_from, created_to) = (states.statuses(), when.since, when.until);
    let (closed_from, closed_to) = (when.closed_since, when.closed_until);
    let filter =
        JobFilter { types, statuses, chain_types, chain, created_from, created_to, closed_from, closed_to };
    let mut list = ListJobs { filter, page: when.first_page() };
    let (mut rows, mut limit) = (Vec::new(), Limit::new(when.limit));
    loop {
        list.page.max = states.page_size(limit.wanted());
        let reply = client.list_jobs(list.clone()).await?;
        for job in reply.jobs.iter().filter(|job| states.matches(job)) {
            if !limit.take() {
                break;
            }
            match context.output.is_json() {
                true => context.output.object(&JobView::from(job))?,
                false => rows.push(job_row(job)),
            }
        }
        match reply.next {
            Some(next) if limit.needs_next_page() => list.page.after = Some(next),
            _ => break,
        }
    }
    if !context.output.is_json() {
        context.output.table(["ID", "TYPE", "STATUS", "ATTEMPT", "CREATED", "DUE", "ERROR"], &rows)?;
    }
    limit.report("jobs");
    Ok(())
}

pub(crate) async fn chains(context: &Context, chains: Chains) -> Result {
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    if let Some(name) = chains.name {
        let found = target::one(&client, &name, target::one_type(&chains.types)?).await?;
        return show::chain(context.output, &client, &found.chain).await;
    }
    let Chains { types, statuses, key, top_level, when, .. } = chains;
    let states = StateFilter(statuses);
    let (statuses, created_from, created_to) = (states.statuses(), when.since, when.until);
    let (closed_from, closed_to) = (when.closed_since, when.closed_until);
    let filter =
        ChainFilter { types, statuses, top_level, created_from, created_to, closed_from, closed_to, key };
    let mut list = ListChains { filter, page: when.first_page() };
    let (mut rows, mut limit) = (Vec::new(), Limit::new(when.limit));
    loop {
        list.page.max = states.page_size(limit.wanted());
        let reply = client.list_chains(list.clone()).await?;
        for chain in reply.chains.iter().filter(|chain| states.matches(&chain.latest)) {
            if !limit.take() {
                break;
            }
            match context.output.is_json() {
                true => context.output.object(&ChainView::from(chain))?,
                false => rows.push(chain_row(chain)),
            }
        }
        match reply.next {
            Some(next) if limit.needs_next_page() => list.page.after = Some(next),
            _ => break,
        }
    }
    if !context.output.is_json() {
        context
            .output
            .table(["ID", "TYPE", "KEY", "STATUS", "JOBS", "CURRENT", "CREATED", "ERROR"], &rows)?;
    }
    limit.report("chains");
    Ok(())
}

pub(crate) async fn queues(context: &Context, Queues { types }: Queues) -> Result {
    let connection = context.open(OpenMode::Existing).await?;
    let wanted = if types.is_empty() { Types::All } else { Types::Only(types.clone()) };
    let reply = connection.client().count(wanted).await?;
    check_stored(&types, &reply.types)?;
    if context.output.is_json() {
        let mut counts = reply.types.iter().map(|count| CountView::of(count, reply.closed_estimated));
        return counts.try_for_each(|count| context.output.object(&count));
    }
    let about = if reply.closed_estimated { "~" } else { "" };
    let rows: Vec<_> = reply.types.iter().map(|count| count_row(count, about)).collect();
    let headings =
        ["TYPE", "BLOCKED", "PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "OLDEST READY", "NOTE"];
    context.output.table(headings, &rows)
}

pub(crate) async fn workers(context: &Context) -> Result {
    let connection = context.open(OpenMode::Existing).await?;
    let workers = connection.client().workers().await?;
    if context.output.is_json() {
        return workers.iter().try_for_each(|worker| context.output.object(&WorkerView::from(worker)));
    }
    let rows: Vec<_> = workers
        .iter()
        .map(|worker| {
            let types: Vec<_> = worker.types.iter().map(TypeName::as_str).collect();
            [
                worker.worker.to_string(),
                worker.name.as_ref().map(ToString::to_string).unwrap_or_default(),
                format!("{}/{}", worker.running, worker.concurrency),
                ago(worker.started_at),
                ago(worker.seen_at),
                truncated(&types.join(" "), ERROR_WIDTH),
            ]
        })
        .collect();
    context.output.table(["ID", "NAME", "BUSY", "STARTED", "LAST SEEN", "TYPES"], &rows)
}

pub(crate) async fn stats(context: &Context) -> Result {
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let (reply, workers) = (client.count(Types::All).await?, client.workers().await?);
    let sum = |number: fn(&TypeCount) -> u64| reply.types.iter().map(number).sum::<u64>();
    let stats = Stats {
        types: reply.types.len(),
        blocked: sum(|count| count.blocked),
        pending: sum(|count| count.pending),
        running: sum(|count| count.running),
        completed: sum(|count| count.completed),
        failed: sum(|count| count.failed),
        cancelled: sum(|count| count.cancelled),
        closed_estimated: reply.closed_estimated,
        expired_leases: sum(|count| count.expired_leases),
        paused: reply.types.iter().filter(|count| count.paused).count(),
        oldest_ready: reply
            .types
            .iter()
            .filter_map(|count| count.oldest_ready)
            .min()
            .map(|at| at.to_string()),
        workers: workers.len(),
        slots: workers.iter().map(|worker| u64::from(worker.concurrency)).sum(),
    };
    if context.output.is_json() {
        return context.output.object(&stats);
    }
    context.output.table(["METRIC", "VALUE"], &stats.rows())
}

#[derive(Serialize)]
struct Stats {
    types: usize,
    blocked: u64,
    pending: u64,
    running: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    closed_estimated: bool,
    expired_leases: u64,
    paused: usize,
    oldest_ready: Option<String>,
    workers: usize,
    slots: u64,
}

impl Stats {
    fn rows(&self) -> [[String; 2]; 12] {
        let row = |what: &str, count: &dyn ToString| [what.to_owned(), count.to_string()];
        let about = if self.closed_estimated { "~" } else { "" };
        let closed = |what: &str, count: u64| [what.to_owned(), format!("{about}{count}")];
        [
            row("types", &self.types),
            row("blocked", &self.blocked),
            row("pending", &self.pending),
            row("running", &self.running),
            closed("completed", self.completed),
            closed("failed", self.failed),
            closed("cancelled", self.cancelled),
            row("expired leases", &self.expired_leases),
            row("paused types", &self.paused),
            row("oldest ready", &self.oldest_ready.as_deref().unwrap_or("-")),
            row("workers", &self.workers),
            row("slots", &self.slots),
        ]
    }
}

impl ListOptions {
    fn first_page(&self) -> Page {
        let order = if self.oldest { Order::Oldest } else { Order::Newest };
        Page { order, after: None, max: 1 }
    }
}

/// The `--status` filter. An empty filter matches every job.
pub(super) struct StateFilter(pub(super) Vec<JobState>);

impl StateFilter {
    /// Returns the statuses to query. They may match more jobs than the filter does.
    pub(super) fn statuses(&self) -> Vec<Status> {
        self.0.iter().map(|state| state.status()).collect()
    }

    /// Whether a job that the store returned passes the filter.
    pub(super) fn matches(&self, job: &JobRecord) -> bool {
        self.0.is_empty() || self.0.iter().any(|state| state.matches(job))
    }

    /// Returns how many rows to request: `wanted`, or a full page if some will be filtered out.
    fn page_size(&self, wanted: usize) -> u32 {
        let all_listed = self.0.iter().all(|state| state.is_status());
        let wanted = if all_listed { wanted } else { PAGE_MAX };
        u32::try_from(wanted.clamp(1, PAGE_MAX)).unwrap_or(1)
    }
}

pub(super) fn job_row(job: &JobRecord) -> [String; 7] {
    [
        job.id.to_string(),
        job.job_type.to_string(),
        JobState::of(job).as_str().to_owned(),
        attempts(job),
        ago(job.created_at),
        if job.status.is_open() { job.due_at.to_string() } else { String::new() },
        job.error.as_ref().map(|error| truncated(error.as_str(), ERROR_WIDTH)).unwrap_or_default(),
    ]
}

pub(super) fn chain_row(chain: &ChainRecord) -> [String; 8] {
    [
        chain.id.to_string(),
        chain.chain_type.to_string(),
        chain.key.as_ref().map(|key| truncated(key.key.as_str(), ERROR_WIDTH)).unwrap_or_default(),
        JobState::of(&chain.latest).as_str().to_owned(),
        (chain.latest.index + 1).to_string(),
        chain.latest.job_type.to_string(),
        ago(chain.created_at),
        chain.latest.error.as_ref().map(|error| truncated(error.as_str(), ERROR_WIDTH)).unwrap_or_default(),
    ]
}

/// Returns an error if a type has neither a stored job nor is paused.
pub(super) fn check_stored(types: &[TypeName], counts: &[TypeCount]) -> Result {
    let is_known = |named: &TypeName| counts.iter().any(|count| count.job_type == *named && is_stored(count));
    match types.iter().find(|named| !is_known(named)) {
        Some(unknown) => Err(Failure::not_found(format!(
            "no job of type `{unknown}` is stored: check the name, --store and --namespace"
        ))),
        None => Ok(()),
    }
}

/// Whether the store contains jobs of this type or has it paused.
fn is_stored(count: &TypeCount) -> bool {
    let TypeCount { blocked, pending, running, completed, failed, cancelled, paused, .. } = count;
    *paused || blocked + pending + running + completed + failed + cancelled > 0
}

fn count_row(count: &TypeCount, about: &str) -> [String; 9] {
    let note = match (count.paused, count.expired_leases) {
        (true, _) => "paused".to_owned(),
        (false, 0) => String::new(),
        (false, expired) => format!("{expired} expired leases"),
    };
    let closed = |count: u64| if count == 0 { "0".to_owned() } else { format!("{about}{count}") };
    [
        count.job_type.to_string(),
        count.blocked.to_string(),
        count.pending.to_string(),
        count.running.to_string(),
        closed(count.completed),
        closed(count.failed),
        closed(count.cancelled),
        count.oldest_ready.map(ago).unwrap_or_default(),
        note,
    ]
}

pub(super) fn attempts(job: &JobRecord) -> String {
    match job.max_attempts {
        Some(max) => format!("{}/{max}", job.attempt),
        None => job.attempt.to_string(),
    }
}

/// Formats the time since `at`, rounded down to whole seconds, minutes, hours or days.
pub(super) fn ago(at: Timestamp) -> String {
    let seconds = Timestamp::now().since(at).as_secs();
    let rough = match seconds {
        0..60 => seconds,
        60..3_600 => seconds - seconds % 60,
        3_600..86_400 => seconds - seconds % 3_600,
        _ => seconds - seconds % 86_400,
    };
    format!("{} ago", humantime::format_duration(Duration::from_secs(rough)))
}

/// Formats a worker as its name, if it has one, and its id.
pub(super) fn named(worker: WorkerId, name: Option<&WorkerName>) -> String {
    name.map_or_else(|| worker.to_string(), |name| format!("{name} ({worker})"))
}

pub(super) fn worker_text(worker: Option<WorkerId>) -> String {
    worker.map(|worker| worker.to_string()).unwrap_or_default()
}
