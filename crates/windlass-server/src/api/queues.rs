//! Jobs of queues, addressed by the callers' own ids.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_core::command::{self, NewChain, NewJob, NewKey};
use windlass_core::{ChainId, Key, KeyHold, Payload, Retention, Target};

use super::chains::{closed_after, stored};
use super::chains_change::millis;
use super::problem::Problem;
use super::route::{Awaited, Call, Created, Given, Json, NoBody, NoQuery};
use super::wire::{Chain, State};
use crate::audit;
use crate::payload::AnyJson;

/// The maximum number of attempts, and how long a result is kept: as in the queues of the library.
const MAX_ATTEMPTS: u32 = 4;
const KEEP: Duration = Duration::from_secs(60 * 60);

/// A job to enqueue.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Enqueue {
    /// The caller's id. While a job with this id is queued, running or has a result, no other one is accepted.
    id: String,
    /// Default: `null`.
    #[serde(default)]
    #[schemars(with = "AnyJson")]
    payload: Option<Box<RawValue>>,
    /// The maximum number of attempts. Default: 4.
    max_attempts: Option<u32>,
    /// How long the result is kept, in milliseconds. Default: 1 hour.
    keep_ms: Option<u64>,
    /// The delay before the job is due, in milliseconds.
    delay_ms: Option<u64>,
    /// Jobs with a higher priority run first. Default: 0.
    #[serde(default)]
    priority: i8,
    /// Waits for the result, up to this time in milliseconds. Default: no wait.
    wait_ms: Option<u64>,
}

/// The outcome of an enqueue.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Enqueued {
    id: String,
    outcome: Outcome,
    chain: String,
    state: State,
    /// The job after the wait, or the job that has completed before.
    job: Option<Chain>,
}

/// The result of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The job is stored and will run.
    Queued,
    /// The id is in use. Nothing was written.
    Duplicate,
    /// The job has completed before. Nothing was written.
    Completed,
}

impl Enqueue {
    fn chain(&self, given: &Given<NoQuery, ()>) -> Result<NewChain, Problem> {
        let payload = self.payload.as_ref().map_or("null", |payload| payload.get());
        let mut job = NewJob::new(given.path.type_name("queue")?, Payload::json(payload.to_owned())?);
        job.max_attempts = Some(self.max_attempts.unwrap_or(MAX_ATTEMPTS));
        job.priority = self.priority;
        if let Some(delay) = self.delay_ms {
            job.schedule = command::DueTime::After(millis(delay)?);
        }
        let key = NewKey { hold: KeyHold::Completed, ..NewKey::new(Key::new(&self.id)?) };
        let keep = self.keep_ms.map_or(KEEP, Duration::from_millis);
        if keep.is_zero() {
            return Err(Problem::invalid("`keep_ms` must be at least 1, got 0"));
        }
        let new = NewChain { key: Some(key), ..NewChain::new(ChainId::new(), job) };
        let new = NewChain { retention: Retention::all(keep), ..new };
        new.check()?;
        Ok(new)
    }
}

pub(crate) async fn enqueue(
    call: Call,
    given: Given<NoQuery, Json<Enqueue>>,
) -> Result<Awaited<Enqueued>, Problem> {
    let Given { path, query, body: Json(wanted) } = given;
    let new = wanted.chain(&Given { path, query, body: () })?;
    let permit = wanted.wait_ms.map(|_| call.wait_permit()).transpose()?;
    let subject = audit::Target {
        job_type: Some(new.job.job_type.to_string()),
        key: Some(wanted.id.clone()),
        ..audit::Target::default()
    };
    let entry = call.audit("enqueue", subject).await?;
    let created = call.client().create(vec![new]).await.map_err(Problem::from);
    let created = created.and_then(|mut created| match created.pop() {
        Some(command::Created::New { job, .. }) => Ok((job.chain, job.status, Outcome::Queued)),
        Some(command::Created::Existing(existing)) if existing.output.is_some() => {
            Ok((existing.chain, existing.status, Outcome::Completed))
        }
        Some(command::Created::Existing(existing)) => {
            Ok((existing.chain, existing.status, Outcome::Duplicate))
        }
        Some(command::Created::Refused(refusal)) => Err(refusal.into()),
        Some(command::Created::Busy) => {
            Err(Problem::unavailable("the id is locked by a transaction: try again"))
        }
        None => Err(Problem::internal("the store returned no reply for the job")),
    });
    let created = entry.end_with(created, |(chain, _, outcome)| {
        let target = audit::Target { chain: Some(chain.to_string()), ..audit::Target::default() };
        let word = if *outcome == Outcome::Queued { "started" } else { "existing" };
        audit::Outcome { targets: vec![target], ..audit::Outcome::word(word) }
    });
    let (chain, status, outcome) = created.await?;
    // The rest only adds what is known about the job: it must not turn an enqueued job into an error.
    Ok(Awaited::Later(Box::pin(async move {
        let shown = match wanted.wait_ms {
            Some(_) => closed_after(&call, &chain.to_string(), wanted.wait_ms).await.map(|ended| ended.chain),
            None => {
                let stored = stored(&call, Target::Chain(chain)).await;
                stored.ok().map(|chain| Chain::of(&chain, call.sight()))
            }
        };
        drop(permit);
        let state = shown.as_ref().map_or_else(|| status.into(), |job| job.state);
        let job = shown.filter(|_| wanted.wait_ms.is_some() || outcome == Outcome::Completed);
        let answer = Enqueued { id: wanted.id, outcome, chain: chain.to_string(), state, job };
        Created { is_new: outcome == Outcome::Queued, answer }
    })))
}

pub(crate) async fn get(call: Call, given: Given<NoQuery, NoBody>) -> Result<Json<Chain>, Problem> {
    let target = Target::Key(given.path.type_name("queue")?, given.path.key("id")?);
    let chain = stored(&call, target).await?;
    Ok(Json(Chain::of(&chain, call.sight())))
}
