//! Changes of chains.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_core::command::{
    self, CancelMode, Cancelled, Delete, DeleteReply, DueTime, NewBlocker, NewChain, NewJob, NewKey, NextJob,
    Retried, SeenJob, Step,
};
use windlass_core::{
    ChainId, ChainRecord, ErrorText, JobId, JobOptions, Key, KeyHold, Millis, Payload, Retention, Status,
    Target, TypeName,
};

use super::chains::{closed_after, stored};
use super::problem::Problem;
use super::route::{Awaited, Call, Created, Given, Json, NoBody, NoQuery, chosen_id, invalid_id};
use super::wire::{Chain, Ended, Job, State, Time, time};
use crate::audit;
use crate::payload::AnyJson;

/// The maximum number of chains in a batch.
const BATCH_MAX: usize = windlass_core::limit::BATCH_MAX_ITEMS;

/// A chain to start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartChain {
    /// The id of the chain: a new UUID, version 7. If the request is repeated with the same id, the chain is started once.
    /// Default: a generated id.
    id: Option<String>,
    /// The type of its first job.
    #[serde(rename = "type")]
    job_type: String,
    /// The input of its first job. Default: `null`.
    #[serde(default)]
    #[schemars(with = "AnyJson")]
    input: Option<Box<RawValue>>,
    /// The deduplication key. While another chain of this type holds it, that chain is returned.
    key: Option<String>,
    /// Which outcomes hold the key after the chain has closed. Default: `open`.
    hold: Option<Hold>,
    /// The maximum time that the key is held, in milliseconds, counted from the creation.
    window_ms: Option<u64>,
    /// The delay before the job is due, in milliseconds.
    delay_ms: Option<u64>,
    /// When the job is due.
    at: Option<Time>,
    /// The chains that must complete before the job runs.
    #[serde(default)]
    blocked_by: Vec<String>,
    /// Jobs with a higher priority run first. Default: 0.
    #[serde(default)]
    priority: i8,
    /// The maximum number of attempts. Default: 25.
    max_attempts: Option<u32>,
    /// How long the closed chain is kept, in milliseconds.
    retention_ms: Option<u64>,
    /// Waits for the chain to close, up to this time in milliseconds. Default: no wait.
    wait_ms: Option<u64>,
}

/// Which outcomes hold a key after its chain has closed.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Hold {
    Open,
    Completed,
    CompletedOrFailed,
    Any,
}

/// Chains to start together, in order. A refused chain does not affect the others.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartChains {
    /// At most 1000 chains. They cannot wait: `wait_ms` is refused.
    chains: Vec<StartChain>,
}

/// The result of a start.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Started {
    /// The chain: the new one, or the one that holds the key.
    pub(crate) chain: String,
    /// Whether the chain did not exist before.
    pub(crate) new: bool,
    pub(crate) status: State,
    /// The state of the chain after the wait.
    pub(crate) ended: Option<Ended>,
}

/// The result of starting many chains, in order.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StartedMany {
    results: Vec<StartResult>,
}

/// The result of starting one of many chains.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StartResult {
    Started(Box<Started>),
    Refused(Problem),
}

impl StartChain {
    /// Returns the new chain.
    pub(crate) fn chain(&self) -> Result<NewChain, Problem> {
        let id = match &self.id {
            Some(id) => chosen_id(id)?,
            None => ChainId::new(),
        };
        let input = self.input.as_ref().map_or("null", |input| input.get());
        let job = NewJob::new(TypeName::new(&self.job_type)?, Payload::json(input.to_owned())?);
        let mut new = NewChain::new(id, job);
        new.job.schedule = match (self.delay_ms, time(self.at.as_ref())?) {
            (None, None) => DueTime::Now,
            (Some(delay), None) => DueTime::After(millis(delay)?),
            (None, Some(at)) => DueTime::At(at),
            (Some(_), Some(_)) => return Err(Problem::invalid("pass `delay_ms` or `at`, not both")),
        };
        new.job.priority = self.priority;
        new.job.max_attempts = self.max_attempts.or(JobOptions::default().max_attempts);
        for chain in &self.blocked_by {
            let chain: ChainId = chain.parse().map_err(|_| invalid_id(chain))?;
            new.job.blockers.push(NewBlocker::from(chain));
        }
        match &self.key {
            Some(key) => {
                let window = self.window_ms.map(millis).transpose()?;
                let hold = self.hold.map(KeyHold::from).unwrap_or_default();
                new.key = Some(NewKey { hold, window, ..NewKey::new(Key::new(key)?) });
            }
            None if self.hold.is_some() || self.window_ms.is_some() => {
                return Err(Problem::invalid("`hold` and `window_ms` need a `key`"));
            }
            None => {}
        }
        if let Some(retention) = self.retention_ms {
            new.retention = Retention::all(Duration::from_millis(retention));
        }
        new.check()?;
        Ok(new)
    }
}

impl StartChain {
    /// Refuses what a schedule decides itself.
    pub(crate) fn check_for_schedule(&self) -> Result<(), Problem> {
        let is_plain = self.id.is_none()
            && self.at.is_none()
            && self.delay_ms.is_none()
            && self.blocked_by.is_empty()
            && self.wait_ms.is_none();
        if is_plain {
            return Ok(());
        }
        let text =
            "the job of a schedule has no `id`, `at`, `delay_ms`, `blocked_by` or `wait_ms`: remove them";
        Err(Problem::invalid(text))
    }
}

pub(crate) async fn start(
    call: Call,
    given: Given<NoQuery, Json<StartChain>>,
) -> Result<Awaited<Started>, Problem> {
    let Json(wanted) = given.body;
    let new = wanted.chain()?;
    let permit = wanted.wait_ms.map(|_| call.wait_permit()).transpose()?;
    let entry = call.audit("start", target_of(&new)).await?;
    let created = call.client().create(vec![new]).await.map_err(Problem::from);
    let started = created.and_then(|mut created| match created.pop() {
        Some(created) => Started::of(&created),
        None => Err(Problem::internal("the store returned no reply for the chain")),
    });
    let mut started = entry.end_with(started, |started| started.outcome()).await?;
    let Some(permit) = permit else { return Ok(Awaited::Now(started.into())) };
    Ok(Awaited::Later(Box::pin(async move {
        started.ended = closed_after(&call, &started.chain, wanted.wait_ms).await;
        drop(permit);
        started.into()
    })))
}

pub(crate) async fn start_many(
    call: Call,
    given: Given<NoQuery, Json<StartChains>>,
) -> Result<Json<StartedMany>, Problem> {
    let Json(StartChains { chains }) = given.body;
    if chains.len() > BATCH_MAX {
        let text = format!("a batch has at most {BATCH_MAX} chains, got {}", chains.len());
        return Err(Problem::invalid(text));
    }
    let mut new = Vec::with_capacity(chains.len());
    for (number, chain) in chains.iter().enumerate() {
        if chain.wait_ms.is_some() {
            return Err(Problem::invalid("a batch cannot wait: remove `wait_ms`"));
        }
        let chain = chain.chain();
        new.push(chain.map_err(|problem| {
            Problem::invalid(format!("chain {number} of the batch: {}", problem.detail()))
        })?);
    }
    let targets = new.iter().map(target_of).collect();
    let entry = call.audit("start", audit::Subject { targets, ..audit::Subject::default() }).await?;
    let created = call.client().create(new).await.map_err(Problem::from);
    let created = entry.end_with(created, |created| {
        let changed = created.iter().filter(|created| matches!(created, command::Created::New { .. }));
        audit::Outcome { changed: Some(changed.count() as u64), ..audit::Outcome::word("done") }
    });
    let created = created.await?;
    let results = created.iter().map(|created| match Started::of(created) {
        Ok(started) => StartResult::Started(Box::new(started)),
        Err(problem) => StartResult::Refused(problem),
    });
    Ok(Json(StartedMany { results: results.collect() }))
}

impl From<Started> for Created<Started> {
    fn from(started: Started) -> Self {
        Self { is_new: started.new, answer: started }
    }
}

impl Started {
    fn of(created: &command::Created) -> Result<Self, Problem> {
        Ok(match created {
            command::Created::New { job, repeated } => {
                Self { chain: job.chain.to_string(), new: !repeated, status: job.status.into(), ended: None }
            }
            command::Created::Existing(existing) => {
                let (chain, status) = (existing.chain.to_string(), existing.status.into());
                Self { chain, new: false, status, ended: None }
            }
            command::Created::Busy => {
                return Err(Problem::unavailable(
                    "the key or a blocker is locked by a transaction: try again",
                ));
            }
            command::Created::Refused(refusal) => return Err(refusal.clone().into()),
        })
    }

    fn outcome(&self) -> audit::Outcome {
        let target = audit::Target { chain: Some(self.chain.clone()), ..audit::Target::default() };
        let word = if self.new { "started" } else { "existing" };
        audit::Outcome { targets: vec![target], ..audit::Outcome::word(word) }
    }
}

/// How to end the current job of a chain: with an output, with another job, or with an error.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Complete {
    /// The output of the chain. Default: `null`.
    #[serde(default)]
    #[schemars(with = "AnyJson")]
    output: Option<Box<RawValue>>,
    /// Continues the chain with this job.
    then: Option<Continuation>,
    /// Fails the job with this error.
    fail: Option<String>,
    /// The version of the job that the caller has seen. If the job has changed since, nothing is done.
    version: Option<u64>,
}

/// The job that a chain continues with.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Continuation {
    #[serde(rename = "type")]
    job_type: String,
    /// Default: `null`.
    #[serde(default)]
    #[schemars(with = "AnyJson")]
    input: Option<Box<RawValue>>,
}

impl Complete {
    fn step(self) -> Result<Step, Problem> {
        let payload = |json: Option<Box<RawValue>>| {
            let text = json.as_ref().map_or("null", |json| json.get()).to_owned();
            Payload::json(text).map_err(Problem::from)
        };
        match (self.output, self.then, self.fail) {
            (None, Some(then), None) => {
                let max_attempts = JobOptions::default().max_attempts;
                let job = NewJob::new(TypeName::new(&then.job_type)?, payload(then.input)?);
                let next = NextJob { id: JobId::new(), job: NewJob { max_attempts, ..job } };
                Ok(Step::Continue { next, create: Vec::new() })
            }
            (None, None, Some(error)) => Ok(Step::Fail { error: ErrorText::new(error), retention: None }),
            (output, None, None) => {
                Ok(Step::Complete { output: payload(output)?, retention: None, create: Vec::new() })
            }
            _ => Err(Problem::invalid("pass one of `output`, `then` and `fail`")),
        }
    }
}

pub(crate) async fn complete(
    call: Call,
    given: Given<NoQuery, Json<Complete>>,
) -> Result<Json<Chain>, Problem> {
    let Json(wanted) = given.body;
    let version = wanted.version;
    let step = wanted.step()?;
    let chain = stored(&call, Target::Job(given.path.job()?)).await?;
    if !chain.status().is_open() {
        let text = format!("the chain is already {}: only open chains can be completed", chain.status());
        return Err(Problem::conflict(text));
    }
    check_version(&chain, version)?;
    let entry = call.audit("complete", target(&chain)).await?;
    let completed = call.client().complete(&chain, step).await.map_err(Problem::from);
    let status = entry.end_with(completed, |status| audit::Outcome::word(status)).await?;
    Ok(Json(now(&call, &chain, status).await))
}

/// Options of a cancel.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    /// Whether to ask a running job to stop. Default: a running chain is not cancelled.
    #[serde(default)]
    running: bool,
}

pub(crate) async fn cancel(call: Call, given: Given<NoQuery, Json<Cancel>>) -> Result<Json<Chain>, Problem> {
    let chain = stored(&call, Target::Job(given.path.job()?)).await?;
    let running = given.body.0.running;
    let subject = audit::Subject { running, ..target(&chain).into() };
    let entry = call.audit("cancel", subject).await?;
    let cancelled = call.client().cancel(chain.id, cancel_mode(running)).await.map_err(Problem::from);
    let status = match cancelled {
        Ok(Cancelled::Asked { .. }) => Status::Running,
        _ => Status::Cancelled,
    };
    entry.end_with(cancelled.and_then(cancel_result), |word| audit::Outcome::word(word)).await?;
    Ok(Json(now(&call, &chain, status).await))
}

pub(crate) const fn cancel_mode(running: bool) -> CancelMode {
    if running { CancelMode::Ask } else { CancelMode::UnlessRunning }
}

pub(crate) fn cancel_result(cancelled: Cancelled) -> Result<&'static str, Problem> {
    Err(match cancelled {
        Cancelled::Cancelled { .. } => return Ok("cancelled"),
        Cancelled::Asked { .. } => return Ok("asked to stop"),
        Cancelled::Running { .. } => {
            Problem::conflict("the chain is running: pass `\"running\": true` to ask it to stop")
        }
        Cancelled::Closed { closed_as, .. } => {
            Problem::conflict(format!("the chain is already {}", Status::from(closed_as)))
        }
        Cancelled::NotFound => Problem::not_found("the chain was deleted in the meantime"),
        Cancelled::Busy => Problem::unavailable("the chain is locked by a transaction: try again"),
    })
}

/// Options of a retry.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retry {
    /// The version of the latest job that the caller has seen. If the job has changed since, nothing is done.
    version: Option<u64>,
}

pub(crate) async fn retry(call: Call, given: Given<NoQuery, Json<Retry>>) -> Result<Json<Chain>, Problem> {
    let chain = stored(&call, Target::Job(given.path.job()?)).await?;
    check_version(&chain, given.body.0.version)?;
    let entry = call.audit("retry", target(&chain)).await?;
    let retried = call.client().retry(&chain).await.map_err(Problem::from);
    let status = match &retried {
        Ok(Retried::Retried { job, .. }) => job.status,
        _ => chain.status(),
    };
    entry.end_with(retried.and_then(retry_result), |word| audit::Outcome::word(word)).await?;
    Ok(Json(now(&call, &chain, status).await))
}

pub(crate) fn retry_result(retried: Retried) -> Result<&'static str, Problem> {
    Err(match retried {
        Retried::Retried { .. } => return Ok("retried"),
        Retried::AlreadyRetried => return Ok("already retried"),
        Retried::NotRetriable(status) => {
            let text = format!("the chain is {status}: only failed and cancelled chains can be retried");
            Problem::conflict(text)
        }
        Retried::Refused(refusal) => refusal.into(),
        Retried::NotFound => Problem::not_found("the chain was deleted in the meantime"),
        Retried::Busy => Problem::unavailable("the chain is locked by a transaction: try again"),
    })
}

pub(crate) async fn trigger(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Job>, Problem> {
    let chain = stored(&call, Target::Chain(given.path.chain()?)).await?;
    super::jobs::trigger_target(&call, Target::Chain(chain.id)).await
}

/// Options of a delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeleteQuery {
    /// Whether to also delete the chains that its jobs wait or waited for.
    #[serde(default)]
    cascade: bool,
    /// Whether to delete running chains too. Default: if a chain to delete is running, nothing is deleted.
    #[serde(default)]
    running: bool,
}

/// The chains that were deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DeletedChains {
    deleted: Vec<String>,
}

pub(crate) async fn delete(
    call: Call,
    given: Given<DeleteQuery, NoBody>,
) -> Result<Json<DeletedChains>, Problem> {
    let DeleteQuery { cascade, running } = given.query;
    let chain = stored(&call, Target::Job(given.path.job()?)).await?;
    // A job that a worker acquires after this check is not deleted.
    let seen = match running {
        true => None,
        false => Some(none_running(&call, &chain, cascade).await?),
    };
    let subject = audit::Subject { running, ..target(&chain).into() };
    let entry = call.audit(if cascade { "delete-cascading" } else { "delete" }, subject).await?;
    let delete = Delete { chains: vec![chain.id.into()], cascade, seen };
    let deleted = match call.client().delete(delete).await {
        Ok(DeleteReply::Deleted(deleted)) => Ok(deleted.chains),
        Ok(DeleteReply::Refused(refusals)) => {
            let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            Err(Problem::conflict(format!("nothing was deleted: {}", reasons.join("; "))))
        }
        Ok(DeleteReply::Busy) => Err(Problem::unavailable("a chain is locked by a transaction: try again")),
        Err(error) => Err(error.into()),
    };
    let deleted = entry.end_with(deleted, |deleted| {
        let target = |deleted: &command::DeletedChain| audit::Target {
            chain: Some(deleted.chain.to_string()),
            status: Some(deleted.status.to_string()),
            ..audit::Target::default()
        };
        audit::Outcome { targets: deleted.iter().map(target).collect(), ..audit::Outcome::word("deleted") }
    });
    let deleted = deleted.await?;
    Ok(Json(DeletedChains { deleted: deleted.iter().map(|chain| chain.chain.to_string()).collect() }))
}

/// Returns the states of the chains to delete, or a problem if one of them is running. With `cascade`, this includes the
/// blockers of the chain.
async fn none_running(call: &Call, chain: &ChainRecord, cascade: bool) -> Result<Vec<SeenJob>, Problem> {
    let states = call.client().idle_states(chain.id, cascade).await?;
    states.map_err(|running| {
        Problem::conflict(format!(
            "nothing was deleted: chain {running} is running; pass `running=true` to delete it anyway"
        ))
    })
}

/// Returns a chain after a change. The change was made, so a query that fails must not report an error: the answer is then
/// the chain as it was, with its new status.
async fn now(call: &Call, before: &ChainRecord, status: Status) -> Chain {
    match stored(call, Target::Chain(before.id)).await {
        Ok(chain) => Chain::of(&chain, call.sight()),
        Err(problem) => {
            tracing::warn!("the chain {} was changed, but not queried: {}", before.id, problem.detail());
            let status = State::from(status);
            Chain { status, state: status, ..Chain::of(before, call.sight()) }
        }
    }
}

fn check_version(chain: &ChainRecord, version: Option<u64>) -> Result<(), Problem> {
    match version {
        Some(version) if version != chain.latest.version.0 => {
            let text =
                format!("the job has version {}, not {version}: query it again", chain.latest.version.0);
            Err(Problem::conflict(text))
        }
        _ => Ok(()),
    }
}

/// Describes a stored chain in the audit log.
pub(crate) fn target(chain: &ChainRecord) -> audit::Target {
    audit::Target {
        chain: Some(chain.id.to_string()),
        job: Some(chain.latest.id.to_string()),
        job_type: Some(chain.chain_type.to_string()),
        version: Some(chain.latest.version.0),
        status: Some(chain.status().to_string()),
        ..audit::Target::default()
    }
}

fn target_of(new: &NewChain) -> audit::Target {
    audit::Target {
        chain: Some(new.id.to_string()),
        job_type: Some(new.job.job_type.to_string()),
        key: new.key.as_ref().map(|key| key.key.to_string()),
        ..audit::Target::default()
    }
}

pub(crate) fn millis(ms: u64) -> Result<Millis, Problem> {
    Ok(Millis::try_from(Duration::from_millis(ms))?)
}

impl From<Hold> for KeyHold {
    fn from(hold: Hold) -> Self {
        match hold {
            Hold::Open => Self::Open,
            Hold::Completed => Self::Completed,
            Hold::CompletedOrFailed => Self::CompletedOrFailed,
            Hold::Any => Self::Any,
        }
    }
}
