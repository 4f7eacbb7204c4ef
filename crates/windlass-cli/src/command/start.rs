//! `windlass start`: starts one chain or a batch.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass::ChainId;
use windlass::command::{Created, DueTime, NewBlocker, NewChain, NewJob, NewKey};
use windlass::name::{Key, TypeName};
use windlass::record::Payload;
use windlass::time::Millis;

use super::batch::{self, Batch};
use super::{Context, wait};
use crate::arguments::{JobOptions, Start, StartOptions, chain_id, duration, time};
use crate::exit::{Failure, Result};
use crate::input;
use crate::output::{Output, note};
use crate::store::{Connection, OpenMode};

pub(crate) async fn run(context: &Context, start: Start) -> Result {
    let Start { job_type, input, batch, options, wait, timeout } = start;
    if batch {
        let connection = context.open(OpenMode::CreateFile).await?;
        let starts = Starts { connection: &connection, job_type, options, chains: Vec::new() };
        return batch::run(starts, context.output).await;
    }
    // Validate the input before opening the store: an invalid call must not create a SQLite file.
    let job_type = job_type.ok_or_else(|| Failure::usage("the job type is missing: pass TYPE"))?;
    let new = chain(job_type, input::payload(input.as_deref(), "input").await?, &options)?;
    let connection = context.open(OpenMode::CreateFile).await?;
    let client = connection.client();
    let created = client.create(vec![new]).await?.pop();
    let created = created.ok_or_else(|| Failure::store("the store returned no reply for the chain"))?;
    let started = Started::of(&created)?;
    if wait {
        return wait::print_end(&client, started.chain, timeout, context.output).await;
    }
    print(&started, context.output)
}

/// A job described in JSON: a line of a batch, or `then` or an element of `start` in `$WINDLASS_OUTCOME`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobDescription {
    #[serde(rename = "type")]
    pub(crate) job_type: Option<String>,
    pub(crate) input: Option<Box<RawValue>>,
    pub(crate) key: Option<String>,
    delay: Option<String>,
    at: Option<String>,
    blocked_by: Option<Vec<String>>,
    priority: Option<i8>,
    max_attempts: Option<u32>,
}

impl JobDescription {
    /// Builds the new chain. Missing fields are taken from `default_type` and `options`.
    pub(crate) fn chain(self, default_type: Option<&TypeName>, options: &StartOptions) -> Result<NewChain> {
        let job_type = match (&self.job_type, default_type) {
            (Some(name), _) => TypeName::new(name)?,
            (None, Some(name)) => name.clone(),
            (None, None) => return Err(Failure::usage("`type` is missing, and no default TYPE was given")),
        };
        let input = self.input.as_ref().map_or("null", |input| input.get());
        let input = input::json(input, "input")?;
        chain(job_type, input, &self.apply_to(options)?)
    }

    /// Returns `options`, overridden by the fields that are present here.
    fn apply_to(self, options: &StartOptions) -> Result<StartOptions> {
        let mut options = options.clone();
        options.job = options.job.overridden(self.delay.as_deref(), self.at.as_deref(), self.priority)?;
        options.key = self.key.map(Key::new).transpose()?.or(options.key);
        if let Some(chains) = self.blocked_by {
            let chains = chains.iter().map(|chain| in_field("blocked_by", chain_id(chain)));
            options.blocked_by = chains.collect::<Result<_>>()?;
        }
        options.max_attempts = self.max_attempts.or(options.max_attempts);
        Ok(options)
    }
}

impl JobOptions {
    /// Returns these options, overridden by the fields of a line.
    pub(super) fn overridden(
        mut self,
        delay: Option<&str>,
        at: Option<&str>,
        priority: Option<i8>,
    ) -> Result<Self> {
        match (delay, at) {
            (None, None) => {}
            (Some(delay), None) => {
                (self.delay, self.at) = (Some(in_field("delay", duration(delay))?), None);
            }
            (None, Some(at)) => (self.delay, self.at) = (None, Some(in_field("at", time(at))?)),
            (Some(_), Some(_)) => {
                return Err(Failure::usage("`delay` and `at` are mutually exclusive: remove one"));
            }
        }
        self.priority = priority.or(self.priority);
        Ok(self)
    }
}

/// Adds the field's name to a parse error.
fn in_field<T>(field: &str, value: Result<T, String>) -> Result<T> {
    value.map_err(|why| Failure::usage(format!("`{field}`: {why}")))
}

/// A batch of lines, each of which starts a chain.
struct Starts<'a> {
    connection: &'a Connection,
    /// The type for lines without one.
    job_type: Option<TypeName>,
    options: StartOptions,
    chains: Vec<NewChain>,
}

impl Batch for Starts<'_> {
    type Line = JobDescription;
    type Done = Started;

    const EXAMPLE: &'static str = r#"{"type": "resize", "input": 7}"#;

    fn add(&mut self, line: JobDescription) -> Result<usize> {
        let new = line.chain(self.job_type.as_ref(), &self.options)?;
        let size = new.job.input.bytes().len();
        self.chains.push(new);
        Ok(size)
    }

    async fn send(&mut self) -> Result<Vec<Result<Started>>> {
        let chains = std::mem::take(&mut self.chains);
        let created = self.connection.client().create(chains).await?;
        Ok(created.iter().map(Started::of).collect())
    }
}

/// Builds a new chain whose first job has the given type, input and options.
pub(super) fn chain(job_type: TypeName, input: Payload, options: &StartOptions) -> Result<NewChain> {
    let mut new = NewChain::new(ChainId::new(), NewJob::new(job_type, input));
    new.job.schedule = match (options.job.delay, options.job.at) {
        (Some(delay), _) => DueTime::After(Millis::try_from(delay)?),
        (None, Some(at)) => DueTime::At(at),
        (None, None) => DueTime::Now,
    };
    new.job.priority = options.job.priority.unwrap_or_default();
    new.job.max_attempts = options.max_attempts.or(windlass::JobOptions::default().max_attempts);
    new.job.blockers = options.blocked_by.iter().copied().map(NewBlocker::from).collect();
    new.key = options.key.clone().map(NewKey::new);
    if let (Some(key), Some(hold)) = (&mut new.key, options.hold) {
        key.hold = hold.into();
    }
    new.check()?;
    Ok(new)
}

/// The result of one start.
#[derive(Debug, Serialize)]
struct Started {
    chain: ChainId,
    new: bool,
    status: String,
}

impl Started {
    fn of(created: &Created) -> Result<Self> {
        match created {
            Created::New { job, .. } => {
                Ok(Self { chain: job.chain, new: true, status: job.status.to_string() })
            }
            Created::Existing(existing) => {
                Ok(Self { chain: existing.chain, new: false, status: existing.status.to_string() })
            }
            Created::Busy => Err(Failure::store(
                "the key or a blocker is locked by another transaction: try again later, or end that transaction",
            )),
            Created::Refused(refusal) => Err(refusal.clone().into()),
        }
    }
}

impl fmt::Display for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chain.fmt(f)
    }
}

fn print(started: &Started, output: Output) -> Result {
    if !started.new && !output.is_json() {
        note(&format!("no chain was started: the key is held by this chain, which is {}", started.status));
    }
    output.print(started, || started.to_string())
}
