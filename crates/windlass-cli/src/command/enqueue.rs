//! `windlass enqueue` and `windlass result`: jobs of a queue, addressed by the caller's own ids.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass::client::Target;
use windlass::name::{Key, TypeName};
use windlass::queue::{Enqueued, ItemState};
use windlass::{ErrorKind, Queue};

use super::batch::{self, Batch};
use super::{Context, wait};
use crate::arguments::{Enqueue, JobOptions, QueueResult};
use crate::exit::{Code, Failure, Result};
use crate::input;
use crate::shell::quoted;
use crate::store::{Connection, OpenMode};

/// Payloads and results as JSON text, kept byte for byte.
type Json = Box<RawValue>;

pub(crate) async fn enqueue(context: &Context, enqueue: &Enqueue) -> Result {
    let name = &enqueue.queue;
    let Some(id) = &enqueue.id else {
        let connection = context.open(OpenMode::CreateFile).await?;
        let queue = queue(&connection, enqueue)?;
        let items = Items { queue, options: enqueue.job.clone(), jobs: Vec::new() };
        return batch::run(items, context.output).await;
    };
    let payload: Json = input::payload(enqueue.payload.as_deref(), "payload").await?.decode()?;
    let connection = context.open(OpenMode::CreateFile).await?;
    let queue = queue(&connection, enqueue)?;
    let enqueued = with_options(queue.enqueue(id, payload), &enqueue.job).await?;
    if enqueue.wait {
        return print_end(context, &connection, name, id, enqueue.timeout).await;
    }
    let done = Done::of(id.to_string(), enqueued);
    context.output.print(&done, || done.text())
}

pub(crate) async fn result(context: &Context, wanted: &QueueResult) -> Result {
    let QueueResult { queue: name, id } = wanted;
    let connection = context.open(OpenMode::Existing).await?;
    let client = connection.client();
    let target = Target::Key(name.clone(), id.clone());
    let record = client.chain(target).await?.ok_or_else(|| {
        Failure::not_found(format!(
            "queue `{name}` has no job `{id}`: it was never enqueued, or its result has expired"
        ))
    })?;
    if record.closed.is_none() {
        let text = format!(
            "job `{id}` of queue `{name}` is {}: use `windlass wait --type {} {}` to wait for it",
            record.status(),
            quoted(name),
            quoted(id)
        );
        return Err(Failure::new(Code::TimedOut, text));
    }
    wait::ended_well(&record)?;
    wait::print_output(&record, context.output)
}

/// A batch of lines, each a job for the queue.
struct Items {
    queue: Queue<Json, Json>,
    /// The options of all lines, unless a line overrides them.
    options: JobOptions,
    jobs: Vec<(Item, JobOptions)>,
}

/// One line of a batch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    id: String,
    #[serde(default)]
    payload: Option<Json>,
    delay: Option<String>,
    at: Option<String>,
    priority: Option<i8>,
}

impl Batch for Items {
    type Line = Item;
    type Done = Done;

    const EXAMPLE: &'static str = r#"{"id": "a.jpg", "payload": 7}"#;

    fn add(&mut self, line: Item) -> Result<usize> {
        let payload = line.payload.as_ref().map_or("null", |payload| payload.get());
        let size = input::json(payload, "payload")?.bytes().len();
        Key::new(&line.id)?;
        let options = self.options.clone();
        let options = options.overridden(line.delay.as_deref(), line.at.as_deref(), line.priority)?;
        self.jobs.push((line, options));
        Ok(size)
    }

    async fn send(&mut self) -> Result<Vec<Result<Done>>> {
        let jobs = std::mem::take(&mut self.jobs);
        let plans = jobs.iter().map(|(job, options)| {
            let payload = job.payload.clone().unwrap_or_else(|| RawValue::NULL.to_owned());
            with_options(self.queue.enqueue(&job.id, payload), options)
        });
        let enqueued = self.queue.enqueue_many(plans.collect::<Vec<_>>()).await?;
        // These errors concern the store, not the line. The following lines would fail too, so stop the batch.
        let is_of_store = |error: &&windlass::Error| {
            matches!(
                error.kind(),
                ErrorKind::Unavailable
                    | ErrorKind::AccessDenied
                    | ErrorKind::Outdated
                    | ErrorKind::Incompatible
                    | ErrorKind::Closed
                    | ErrorKind::Corrupt
            )
        };
        if let Some(error) = enqueued.iter().filter_map(|it| it.as_ref().err()).find(is_of_store) {
            return Err(error.clone().into());
        }
        let ids = jobs.into_iter().map(|(job, _)| job.id);
        Ok(ids.zip(enqueued).map(|(id, enqueued)| Ok(Done::of(id, enqueued?))).collect())
    }
}

/// The result of enqueueing one job.
#[derive(Serialize)]
struct Done {
    id: String,
    outcome: &'static str,
    state: &'static str,
    result: Option<Json>,
}

impl Done {
    fn of(id: String, enqueued: Enqueued<Json>) -> Self {
        let (outcome, state, result) = match enqueued {
            Enqueued::Queued => ("queued", "queued", None),
            Enqueued::Duplicate(state) => ("duplicate", state_name(state), None),
            Enqueued::Completed(result) => ("completed", "completed", Some(result)),
        };
        Self { id, outcome, state, result }
    }

    fn text(&self) -> String {
        match (&self.result, self.outcome) {
            (Some(result), outcome) => format!("{outcome} {result}"),
            (None, "duplicate") => format!("duplicate {}", self.state),
            (None, outcome) => outcome.to_owned(),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}", self.id, self.text())
    }
}

/// Sets the options of a job.
fn with_options(
    mut job: windlass::queue::Enqueue<'static, Json, Json>,
    options: &JobOptions,
) -> windlass::queue::Enqueue<'static, Json, Json> {
    job = match (options.delay, options.at) {
        (Some(delay), _) => job.after(delay),
        (None, Some(at)) => job.at(at),
        (None, None) => job,
    };
    match options.priority {
        Some(priority) => job.priority(priority),
        None => job,
    }
}

fn queue(connection: &Connection, enqueue: &Enqueue) -> Result<Queue<Json, Json>> {
    let queue = connection.client().queue(enqueue.queue.as_str());
    Ok(queue.attempts(enqueue.max_attempts).result_ttl(enqueue.keep).build()?)
}

async fn print_end(
    context: &Context,
    connection: &Connection,
    queue: &TypeName,
    id: &Key,
    timeout: Duration,
) -> Result {
    let client = connection.client();
    match client.chain(Target::Key(queue.clone(), id.clone())).await? {
        Some(record) => wait::print_end(&client, record.id, timeout, context.output).await,
        None => Err(Failure::not_found(format!("job `{id}` of queue `{queue}` was deleted before it ended"))),
    }
}

const fn state_name(state: ItemState) -> &'static str {
    match state {
        ItemState::Queued => "queued",
        ItemState::Processing => "processing",
        ItemState::Failing => "failing",
        ItemState::Completed => "completed",
        ItemState::Failed => "failed",
        ItemState::Cancelled => "cancelled",
    }
}
