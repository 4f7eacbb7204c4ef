//! Bulk operations: changes to all chains that match a filter, in the background.
//!
//! An operation visits the chains page by page, in the order of creation. It visits only chains that were created before
//! it started, each once: a retried chain that fails again is not retried again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass_core::command::{ChainFilter, Delete, DeleteReply, Order};
use windlass_core::{ChainRecord, Error, ErrorKind, Refusal, RequestId, Status, Timestamp};

use crate::BULK_MAX;
use crate::api::Problem;
use crate::api::bulk_steps::{cancel_mode, cancel_result, retry_result};
use crate::api::wire::{State, Time};
use crate::api::{BulkFilter, States};
use crate::audit::{Entry, Outcome};
use crate::client::{BoxedClient, BoxedPages};
use crate::events::frame;
use crate::pages::SharedPages;

/// The number of operations that are remembered.
const REMEMBERED: usize = 100;

/// The maximum number of types in a filter.
const TYPES_MAX: usize = 100;

/// The number of progress messages that a slow client can fall behind.
const BUFFERED: usize = 64;

/// The time between two progress messages.
const REPORTED_EVERY: Duration = Duration::from_millis(250);

/// The time between two lines in the audit log.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// The change of each chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    Retry,
    Cancel,
    Delete,
}

/// A bulk operation and its progress.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) action: Action,
    pub(crate) filter: BulkFilter,
    /// Whether a cancel also asks running jobs to stop.
    pub(crate) running: bool,
    pub(crate) dry_run: bool,
    /// The caller that started it.
    pub(crate) started_by: String,
    pub(crate) started_at: Time,
    /// Chains that were created later are not visited.
    pub(crate) cutoff: Time,
    pub(crate) state: Progress,
    /// The number of chains that matched so far.
    pub(crate) visited: u64,
    /// The number of chains that were changed, or would be.
    pub(crate) changed: u64,
    /// The number of chains that could not be changed.
    pub(crate) skipped: u64,
    /// Why the latest chain was skipped, or why the operation failed.
    pub(crate) reason: Option<String>,
    pub(crate) ended_at: Option<Time>,
}

/// Whether an operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Progress {
    Running,
    Completed,
    Aborted,
    /// The store or the audit log failed. Chains that were visited before remain changed.
    Failed,
}

/// A checked operation.
pub(crate) struct Plan {
    action: Action,
    shown: BulkFilter,
    filter: ChainFilter,
    states: States,
    running: bool,
    dry_run: bool,
}

/// An operation that has a permit and a cutoff, and has not begun.
pub(crate) struct Prepared {
    run: Run,
    pages: BoxedPages,
}

/// A prepared operation.
pub(crate) enum Preparation {
    New(Box<Prepared>),
    /// The same request was sent before.
    Repeated(Box<Operation>),
}

/// The bulk operations of a server.
#[derive(Debug)]
pub(crate) struct Bulk {
    known: Mutex<VecDeque<Arc<Job>>>,
    progress: broadcast::Sender<Bytes>,
    pages: Arc<SharedPages>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Job {
    shown: Mutex<Operation>,
    abort: CancellationToken,
    ended: CancellationToken,
}

impl Plan {
    pub(crate) fn new(
        action: Action,
        shown: BulkFilter,
        running: bool,
        dry_run: bool,
    ) -> Result<Self, Problem> {
        if !shown.has_field() {
            return Err(Problem::invalid("the filter is empty: set at least one field, such as `statuses`"));
        }
        if running && action != Action::Cancel {
            return Err(Problem::invalid("`running` only applies to the action `cancel`"));
        }
        let mut shown = shown;
        // The filter is remembered, sent to all streams with each progress message, and logged: it must be small.
        shown.types.sort_unstable();
        shown.types.dedup();
        shown.statuses.sort_unstable();
        shown.statuses.dedup();
        if shown.types.len() > TYPES_MAX {
            let text = format!("a filter has at most {TYPES_MAX} types, got {}", shown.types.len());
            return Err(Problem::invalid(text));
        }
        if let Some(state) = shown.statuses.iter().find(|state| !action.possible().contains(&state.status()))
        {
            let text =
                format!("{} chains cannot be {}: change `statuses`", state.status(), action.participle());
            return Err(Problem::invalid(text));
        }
        if shown.statuses.is_empty() {
            shown.statuses = action.default_states();
        }
        let (filter, states) = shown.read()?;
        // A time can have any number of digits.
        shown.created_from = filter.created_from.map(Time::from);
        shown.created_to = filter.created_to.map(Time::from);
        shown.closed_from = filter.closed_from.map(Time::from);
        shown.closed_to = filter.closed_to.map(Time::from);
        Ok(Self { action, shown, filter, states, running, dry_run })
    }
}

impl Action {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Delete => "delete",
        }
    }

    const fn participle(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Cancel => "cancelled",
            Self::Delete => "deleted in bulk",
        }
    }

    /// Returns the statuses that the action can change. Only closed chains are deleted: a filter that is too wide must not
    /// remove work that is still to be done.
    const fn possible(self) -> &'static [Status] {
        match self {
            Self::Retry => &[Status::Failed, Status::Cancelled],
            Self::Cancel => &[Status::Blocked, Status::Pending, Status::Running],
            Self::Delete => &[Status::Completed, Status::Failed, Status::Cancelled],
        }
    }

    fn default_states(self) -> Vec<State> {
        match self {
            Self::Retry => vec![State::Failed],
            Self::Cancel | Self::Delete => self.possible().iter().copied().map(State::from).collect(),
        }
    }

    /// Returns the order of the visits. A blocker is usually older than the chains that wait for it: it must be retried
    /// before them, and cancelled or deleted after them.
    const fn order(self) -> Order {
        match self {
            Self::Retry => Order::Oldest,
            Self::Cancel | Self::Delete => Order::Newest,
        }
    }
}

impl Bulk {
    pub(crate) fn new(pages: Arc<SharedPages>, stop: CancellationToken) -> Self {
        Self { known: Mutex::default(), progress: broadcast::channel(BUFFERED).0, pages, stop }
    }

    /// Returns the progress of all operations from now on, as encoded events.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Bytes> {
        self.progress.subscribe()
    }

    /// Takes a permit for an operation, and fixes its cutoff.
    pub(crate) async fn prepare(
        &self,
        client: &BoxedClient,
        mut plan: Plan,
        id: RequestId,
        by: String,
    ) -> Result<Preparation, Problem> {
        let now = client.now().await?;
        let cutoff = plan.filter.created_to.map_or(now, |to| to.min(now));
        plan.filter.created_to = Some(cutoff);
        let pages = client.chain_pages(plan.filter.clone(), plan.action.order()).await?;
        let operation = Operation {
            id: id.to_string(),
            action: plan.action,
            filter: plan.shown.clone(),
            running: plan.running,
            dry_run: plan.dry_run,
            started_by: by,
            started_at: Timestamp::now().into(),
            cutoff: cutoff.into(),
            state: Progress::Running,
            visited: 0,
            changed: 0,
            skipped: 0,
            reason: None,
            ended_at: None,
        };
        let (abort, ended) = (self.stop.child_token(), CancellationToken::new());
        let job = Arc::new(Job { shown: Mutex::new(operation), abort, ended });
        if let Some(known) = self.remember(&job)? {
            return Ok(Preparation::Repeated(Box::new(known)));
        }
        let (client, progress) = (client.clone(), self.progress.clone());
        let run = Run { job, plan, client, progress, pages: Arc::clone(&self.pages) };
        Ok(Preparation::New(Box::new(Prepared { run, pages })))
    }

    /// Remembers an operation. If one with its id is known, returns that one instead.
    fn remember(&self, job: &Arc<Job>) -> Result<Option<Operation>, Problem> {
        let mut known = self.known();
        let wanted = job.shown().clone();
        if let Some(same) = known.iter().find(|job| job.shown().id == wanted.id) {
            let same = same.shown().clone();
            if same.is_same_request(&wanted) {
                return Ok(Some(same));
            }
            return Err(Problem::conflict("another bulk operation has this id: choose a new one"));
        }
        let running = known.iter().filter(|job| job.is_running()).count();
        if running >= BULK_MAX {
            let text = format!("{running} bulk operations are running: wait for one, or abort it");
            return Err(Problem::conflict(text));
        }
        known.push_front(Arc::clone(job));
        while known.len() > REMEMBERED
            && let Some(last) = known.iter().rposition(|job| !job.is_running())
        {
            known.remove(last);
        }
        Ok(None)
    }

    /// Returns the operations, newest first.
    pub(crate) fn list(&self) -> Vec<Operation> {
        self.known().iter().map(|job| job.shown().clone()).collect()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Operation> {
        self.find(id).map(|job| job.shown().clone())
    }

    /// Aborts an operation, waits for its current step and returns it.
    pub(crate) async fn abort(&self, id: &str) -> Option<Operation> {
        let job = self.find(id)?;
        job.abort.cancel();
        job.ended.cancelled().await;
        let shown = job.shown().clone();
        Some(shown)
    }

    /// Ends an operation that has not begun. It is forgotten, and not reported: the caller gets an error.
    pub(crate) fn discard(&self, prepared: &Prepared) {
        let job = &prepared.run.job;
        self.known().retain(|known| !Arc::ptr_eq(known, job));
        job.fail("the operation was not started: see the log of the server");
    }

    fn find(&self, id: &str) -> Option<Arc<Job>> {
        self.known().iter().find(|job| job.shown().id == id).cloned()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Operation {
    /// Whether a request repeats the one that started this operation.
    fn is_same_request(&self, other: &Self) -> bool {
        let request = |operation: &Self| (operation.action, operation.running, operation.dry_run);
        // A filter is compared as it is shown.
        let filter = |operation: &Self| serde_json::to_value(&operation.filter).ok();
        request(self) == request(other)
            && filter(self) == filter(other)
            && self.started_by == other.started_by
    }
}

impl Prepared {
    pub(crate) fn operation(&self) -> Operation {
        self.run.job.shown().clone()
    }

    /// Starts the operation. `entry` is its entry in the audit log.
    pub(crate) fn begin(self, entry: Entry) -> Operation {
        let operation = self.operation();
        tokio::spawn(self.run.all(self.pages, entry));
        operation
    }
}

impl Job {
    fn shown(&self) -> std::sync::MutexGuard<'_, Operation> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_running(&self) -> bool {
        self.shown().state == Progress::Running
    }

    fn fail(&self, reason: &str) {
        let mut shown = self.shown();
        shown.state = Progress::Failed;
        shown.reason = Some(reason.to_owned());
        shown.ended_at = Some(Timestamp::now().into());
    }
}

struct Run {
    job: Arc<Job>,
    plan: Plan,
    client: BoxedClient,
    progress: broadcast::Sender<Bytes>,
    pages: Arc<SharedPages>,
}

impl Run {
    async fn all(self, pages: BoxedPages, entry: Entry) {
        let visited = self.visit(pages, &entry).await;
        let mut ended = self.job.shown().clone();
        let word = match visited {
            Ok(Visited::All) => {
                ended.state = Progress::Completed;
                "completed"
            }
            Ok(Visited::Some) => {
                ended.state = Progress::Aborted;
                "aborted"
            }
            Err(problem) => {
                ended.reason = Some(problem.detail().to_owned());
                ended.state = Progress::Failed;
                "failed"
            }
        };
        ended.ended_at = Some(Timestamp::now().into());
        // First, so that an operation that is shown as ended is in the log.
        entry.end(&Outcome { changed: Some(ended.changed), ..Outcome::word(word) }).await;
        *self.job.shown() = ended;
        self.report();
    }

    /// Visits all chains, until the operation is aborted.
    async fn visit(&self, mut pages: BoxedPages, entry: &Entry) -> Result<Visited, Problem> {
        let (mut reported_at, mut logged_at) = (Instant::now(), Instant::now());
        // Pages may match nothing for a long time.
        while let Some(page) = self.job.abort.run_until_cancelled(pages.next()).await {
            let Some(chains) = page? else { return Ok(Visited::All) };
            for chain in chains.iter().filter(|chain| self.plan.states.matches(&chain.latest)) {
                if self.job.abort.is_cancelled() {
                    return Ok(Visited::Some);
                }
                if entry.is_log_broken() || logged_at.elapsed() >= LOGGED_EVERY {
                    let changed = Some(self.job.shown().changed);
                    let outcome = Outcome { changed, ..Outcome::word("running") };
                    // An abort does not wait for a disk that has stalled.
                    let Some(logged) = self.job.abort.run_until_cancelled(entry.progress(&outcome)).await
                    else {
                        return Ok(Visited::Some);
                    };
                    logged?;
                    logged_at = Instant::now();
                }
                let changed = self.change(chain).await.or_else(skipped)?;
                self.count(changed);
                if reported_at.elapsed() >= REPORTED_EVERY {
                    self.report();
                    reported_at = Instant::now();
                }
            }
        }
        Ok(Visited::Some)
    }

    /// Counts a chain that was visited.
    fn count(&self, changed: Result<(), Problem>) {
        let mut shown = self.job.shown();
        shown.visited += 1;
        match changed {
            Ok(()) => shown.changed += 1,
            Err(problem) => {
                shown.skipped += 1;
                shown.reason = Some(problem.detail().to_owned());
            }
        }
    }

    /// Sends the progress to the streams.
    fn report(&self) {
        // Before the streams: a page that is fetched after a message must show the changes that it reports.
        if !self.plan.dry_run {
            self.pages.clear();
        }
        if self.progress.receiver_count() > 0 {
            let shown = self.job.shown().clone();
            let _ = self.progress.send(frame("bulk", &shown));
        }
    }

    async fn change(&self, chain: &ChainRecord) -> Change {
        let (client, plan) = (&self.client, &self.plan);
        Ok(match plan.action {
            _ if plan.dry_run => Ok(()),
            Action::Retry => retry_result(client.retry(chain).await?).map(drop),
            Action::Cancel => {
                let mode = cancel_mode(plan.running);
                cancel_result(client.cancel(chain.id, mode).await?).map(drop)
            }
            Action::Delete => return delete(client, chain).await,
        })
    }
}

impl Drop for Run {
    /// Ends the operation. If it has panicked or has not begun, it must not keep its place, and an abort must not wait for it.
    fn drop(&mut self) {
        if self.job.is_running() {
            self.job.fail("the operation broke off: see the log of the server");
            self.report();
        }
        self.job.ended.cancel();
    }
}

/// Which chains an operation has visited.
enum Visited {
    All,
    /// It was aborted before.
    Some,
}

/// The change of one chain: an error of the store, or the chain's own result. A chain that cannot be changed, because it is
/// locked for example, says nothing about the others.
type Change = Result<Result<(), Problem>, Error>;

/// Returns whether an error of the store concerns only one chain.
fn skipped(error: Error) -> Result<Result<(), Problem>, Problem> {
    match error.kind() {
        ErrorKind::Busy
        | ErrorKind::Invalid
        | ErrorKind::NotFound
        | ErrorKind::Changed
        | ErrorKind::Conflict
        | ErrorKind::LeaseLost => Ok(Err(error.into())),
        _ => Err(error.into()),
    }
}

/// Deletes a chain, unless it has changed since it was listed.
async fn delete(client: &BoxedClient, chain: &ChainRecord) -> Change {
    let delete = Delete { chains: vec![chain.id.into()], cascade: false, seen: Some(vec![chain.into()]) };
    Ok(match client.delete(delete).await? {
        DeleteReply::Deleted(_) => Ok(()),
        DeleteReply::Refused(refusals) if matches!(refusals[..], [Refusal::Changed(_)]) => {
            Err(Problem::conflict("the chain has changed in the meantime"))
        }
        DeleteReply::Refused(refusals) => {
            let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            Err(Problem::conflict(reasons.join("; ")))
        }
        DeleteReply::Busy => Err(Problem::conflict("the chain is locked by a transaction")),
    })
}
