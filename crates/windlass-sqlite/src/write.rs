//! Writes what a command has changed, with one statement for each kind of change.

use std::collections::HashSet;

use serde::Serialize;
use windlass_core::limit::HISTORY_MAX;
use windlass_core::{AttemptEnd, JobId, OnBlockerFailure, Payload, Result, Status};

use crate::provider::{Statement, Value};
use crate::row::{ChainRow, JobRow, Word, hex};
use crate::session::Session;
use crate::statement::set;
use crate::working::{CreatedJob, Working};

impl Working {
    /// Writes every change.
    pub(crate) async fn write(&self, session: &mut Session<'_>) -> Result<()> {
        self.write_changed(session).await?;
        self.write_created(session).await?;
        self.write_waits(session).await?;
        self.write_attempts(session).await
    }

    /// A chain stands in its first job's row: where both have changed, they are written at once. A key is given up before
    /// another chain takes it.
    async fn write_changed(&self, session: &mut Session<'_>) -> Result<()> {
        let mut outputs = Payloads::new();
        let (mut completed, mut both, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut free, mut holding) = (Vec::new(), Vec::new());
        let mut with_chain = HashSet::new();
        for row in self.changed_chains.iter().filter_map(|id| self.chain(*id)) {
            let (chain, gives_up) = (WrittenChain::new(row), row.key.as_ref().is_some_and(|key| !key.held));
            match self.job_at(row.seq).filter(|job| self.changed_jobs.contains(&job.seq) && !gives_up) {
                Some(job) => {
                    with_chain.insert(job.seq);
                    match plain_end(job, row, &mut outputs) {
                        Some(plain) => completed.push(plain),
                        None => both.push(UpdatedBoth { job: UpdatedJob::new(job, &mut outputs), chain }),
                    }
                }
                None if gives_up => free.push(chain),
                None => holding.push(chain),
            }
        }
        for job in self.changed_jobs.iter().filter(|seq| !with_chain.contains(seq)) {
            jobs.extend(self.job_at(*job).map(|job| UpdatedJob::new(job, &mut outputs)));
        }
        let statements = session.statements;
        let outputs: Value = outputs.bytes.into();
        write_set(session, &statements.update_jobs, &jobs, vec![outputs.clone()]).await?;
        write_set(session, &statements.update_chains, &free, Vec::new()).await?;
        let now = self.now.as_millis().into();
        write_set(session, &statements.update_completed, &completed, vec![outputs.clone(), now]).await?;
        write_set(session, &statements.update_both, &both, vec![outputs]).await?;
        write_set(session, &statements.update_chains, &holding, Vec::new()).await
    }

    async fn write_created(&self, session: &mut Session<'_>) -> Result<()> {
        if self.created.is_empty() {
            return Ok(());
        }
        let mut payloads = Payloads::new();
        let jobs: Vec<_> = self.created.iter().filter_map(|job| self.inserted(job, &mut payloads)).collect();
        session.run(&session.statements.insert_jobs, vec![set(&jobs)?, payloads.bytes.into()]).await?;
        let blockers: Vec<_> = self.created.iter().flat_map(|job| self.inserted_blockers(job)).collect();
        if blockers.is_empty() {
            return Ok(());
        }
        session.run(&session.statements.insert_blockers, vec![set(&blockers)?]).await?;
        let needed: Vec<_> = blockers.iter().filter(|blocker| blocker.needed).collect();
        session.run(&session.statements.need_chains, vec![set(&needed)?]).await
    }

    async fn write_waits(&self, session: &mut Session<'_>) -> Result<()> {
        let resolved: Vec<_> = self.resolved.iter().map(|(job, chain)| (job, hex(chain.as_uuid()))).collect();
        let statements = session.statements;
        write_set(session, &statements.resolve_blockers, &resolved, Vec::new()).await?;
        write_set(session, &statements.end_waits, &self.ended_waits, Vec::new()).await?;
        write_set(session, &statements.release_chains, &self.released, Vec::new()).await?;
        write_set(session, &statements.need_again, &self.needing, Vec::new()).await?;
        write_set(session, &statements.wait_again, &self.waiting_again, Vec::new()).await
    }

    async fn write_attempts(&self, session: &mut Session<'_>) -> Result<()> {
        if self.attempts.is_empty() {
            return Ok(());
        }
        let attempt = |(seq, record): &(i64, windlass_core::AttemptRecord)| InsertedAttempt {
            job: *seq,
            fence: record.fence.0,
            attempt: record.attempt,
            worker: hex(record.worker.as_uuid()),
            started_at: record.started_at.as_millis(),
            ended_at: record.ended_at.unwrap_or(self.now).as_millis(),
            ended: record.end.word(),
            error: record.error.as_ref().map(|error| error.as_str().to_owned()),
        };
        let attempts = set(&self.attempts.iter().map(attempt).collect::<Vec<_>>())?;
        session.run(&session.statements.insert_attempts, vec![attempts.clone()]).await?;
        session.run(&session.statements.forget_attempts, vec![attempts, HISTORY_MAX.into()]).await
    }

    fn inserted<'a>(&'a self, created: &'a CreatedJob, payloads: &mut Payloads) -> Option<InsertedJob<'a>> {
        let row = self.job(created.id)?;
        let chain = self.chain(row.chain).filter(|chain| chain.id.first_job() == row.id);
        let (input_start, input_length) = payloads.push(&created.input);
        let (output_start, output_length) =
            row.output.as_ref().map_or((0, 0), |output| payloads.push(output));
        Some(InsertedJob {
            id: hex(row.id.as_uuid()),
            chain: hex(row.chain.as_uuid()),
            position: row.index,
            r#type: row.job_type.as_str(),
            chain_type: row.chain_type.as_str(),
            status: row.status.word(),
            priority: created.priority,
            due_at: row.due_at.as_millis(),
            max_attempts: row.max_attempts,
            fence: row.fence.0,
            version: row.version.0,
            waits: row.waits,
            blockers: row.blockers,
            on_blocker_failure: row.on_blocker_failure.word(),
            created_at: self.now.as_millis(),
            closed_at: row.closed_at.map(|at| at.as_millis()),
            trace: created.trace.as_ref().map(AsRef::as_ref),
            first: chain.map(InsertedChain::new),
            error: row.error.as_ref().map(|error| error.as_str()),
            input_codec: created.input.codec().as_str(),
            input_start,
            input_length,
            outside: row.outside.map(|request| hex(request.as_uuid())),
            output_codec: row.output.as_ref().map(|output| output.codec().as_str()),
            output_start,
            output_length,
        })
    }

    fn inserted_blockers<'a>(&'a self, created: &'a CreatedJob) -> impl Iterator<Item = InsertedBlocker<'a>> {
        let row = self.job(created.id);
        let blocked = row.is_some_and(|row| row.status == Status::Blocked);
        let eager = row.is_some_and(|row| row.on_blocker_failure != OnBlockerFailure::Wait);
        let needed = row.is_some_and(|row| row.status.is_open() || row.status == Status::Failed);
        created.blockers.iter().enumerate().map(move |(position, blocker)| InsertedBlocker {
            job: job_hex(created.id),
            position,
            chain: hex(blocker.chain.as_uuid()),
            resolved: blocker.resolved,
            waiting: blocked && !blocker.resolved,
            eager,
            needed,
            trace: blocker.trace.as_ref().map(AsRef::as_ref),
        })
    }
}

/// Runs a statement for a set of rows, if there are any.
async fn write_set(
    session: &mut Session<'_>,
    statement: &Statement,
    rows: &[impl Serialize],
    others: Vec<Value>,
) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut values = vec![set(rows)?];
    values.extend(others);
    session.run(statement, values).await
}

/// What is to be written of a job that a worker has just completed and that is all of its chain, if it is one.
fn plain_end<'a>(job: &'a JobRow, chain: &ChainRow, outputs: &mut Payloads) -> Option<PlainEnd<'a>> {
    let plain = job.status == Status::Completed
        && job.ended == Some(AttemptEnd::Completed)
        && job.outside.is_none()
        && !chain.rippling
        && chain.latest == job.id;
    let (output, closed, leaves_at) =
        (job.output.as_ref().filter(|_| plain)?, chain.closed?, chain.leaves_at()?);
    let (start, length) = outputs.push(output);
    Some((
        job.seq,
        closed.retain_until.as_millis(),
        leaves_at.as_millis(),
        output.codec().as_str(),
        start,
        length,
    ))
}

/// See `sql/update_completed.sql`.
type PlainEnd<'a> = (i64, i64, i64, &'a str, usize, usize);

/// Payloads of many rows as one parameter; each row has its place in it. This keeps binary payloads out of the JSON.
struct Payloads {
    bytes: Vec<u8>,
}

impl Payloads {
    fn new() -> Self {
        // SQLite takes an empty blob for nothing at all: one byte in front makes sure that it is never empty.
        Self { bytes: vec![0] }
    }

    /// Adds a payload; gives its start, from 1, and its length.
    fn push(&mut self, payload: &Payload) -> (usize, usize) {
        let start = self.bytes.len() + 1;
        self.bytes.extend_from_slice(payload.bytes());
        (start, payload.bytes().len())
    }
}

#[derive(Serialize)]
struct InsertedJob<'a> {
    id: String,
    chain: String,
    position: u32,
    r#type: &'a str,
    chain_type: &'a str,
    status: &'static str,
    priority: i8,
    due_at: i64,
    max_attempts: Option<u32>,
    fence: u64,
    version: u64,
    waits: u32,
    blockers: u32,
    on_blocker_failure: &'static str,
    created_at: i64,
    closed_at: Option<i64>,
    trace: Option<&'a str>,
    #[serde(flatten)]
    first: Option<InsertedChain<'a>>,
    error: Option<&'a str>,
    input_codec: &'a str,
    input_start: usize,
    input_length: usize,
    outside: Option<String>,
    output_codec: Option<&'a str>,
    output_start: usize,
    output_length: usize,
}

/// What a chain's first job carries for the chain.
#[derive(Serialize)]
struct InsertedChain<'a> {
    #[serde(flatten)]
    chain: WrittenChain,
    key: Option<&'a str>,
    key_hold: Option<&'static str>,
    key_window: Option<u64>,
    retain_completed: u64,
    retain_failed: u64,
    retain_cancelled: u64,
    chain_trace: Option<&'a str>,
}

impl<'a> InsertedChain<'a> {
    fn new(chain: &'a ChainRow) -> Self {
        let key = chain.key.as_ref();
        Self {
            chain: WrittenChain::new(chain),
            key: key.map(|key| key.key.as_str()),
            key_hold: key.map(|key| key.hold.word()),
            key_window: key.and_then(|key| key.window).map(windlass_core::Millis::get),
            retain_completed: chain.retention.completed.get(),
            retain_failed: chain.retention.failed.get(),
            retain_cancelled: chain.retention.cancelled.get(),
            chain_trace: chain.trace.as_ref().map(AsRef::as_ref),
        }
    }
}

/// What changes in the life of a chain.
#[derive(Serialize)]
struct WrittenChain {
    seq: i64,
    latest: String,
    latest_position: u32,
    key_held: Option<bool>,
    chain_closed_at: Option<i64>,
    chain_closed_as: Option<&'static str>,
    retain_until: Option<i64>,
    leaves_at: Option<i64>,
    trim_at: Option<i64>,
    rippling: bool,
}

impl WrittenChain {
    fn new(row: &ChainRow) -> Self {
        Self {
            seq: row.seq,
            latest: job_hex(row.latest),
            latest_position: row.latest_index,
            key_held: row.key.as_ref().map(|key| key.held),
            chain_closed_at: row.closed.map(|closed| closed.at.as_millis()),
            chain_closed_as: row.closed.map(|closed| closed.closed_as.word()),
            retain_until: row.closed.map(|closed| closed.retain_until.as_millis()),
            leaves_at: row.leaves_at().map(|at| at.as_millis()),
            trim_at: row.trim_at.map(|at| at.as_millis()),
            rippling: row.rippling,
        }
    }
}

#[derive(Serialize)]
struct UpdatedBoth<'a> {
    #[serde(flatten)]
    job: UpdatedJob<'a>,
    #[serde(flatten)]
    chain: WrittenChain,
}

#[derive(Serialize)]
struct UpdatedJob<'a> {
    seq: i64,
    status: &'static str,
    due_at: i64,
    attempt: u32,
    version: u64,
    waits: u32,
    closed_at: Option<i64>,
    closed_by: Option<String>,
    ended: Option<&'static str>,
    outside: Option<String>,
    cancel_requested: bool,
    error: Option<&'a str>,
    output_codec: Option<&'a str>,
    output_start: usize,
    output_length: usize,
}

impl<'a> UpdatedJob<'a> {
    fn new(row: &'a JobRow, outputs: &mut Payloads) -> Self {
        let (output_start, output_length) = row.output.as_ref().map_or((0, 0), |output| outputs.push(output));
        Self {
            seq: row.seq,
            status: row.status.word(),
            due_at: row.due_at.as_millis(),
            attempt: row.attempt,
            version: row.version.0,
            waits: row.waits,
            closed_at: row.closed_at.map(|at| at.as_millis()),
            closed_by: row.closed_by.map(|worker| hex(worker.as_uuid())),
            ended: row.ended.map(Word::word),
            outside: row.outside.map(|request| hex(request.as_uuid())),
            cancel_requested: row.cancel_requested,
            error: row.error.as_ref().map(|error| error.as_str()),
            output_codec: row.output.as_ref().map(|output| output.codec().as_str()),
            output_start,
            output_length,
        }
    }
}

#[derive(Serialize)]
struct InsertedBlocker<'a> {
    job: String,
    position: usize,
    chain: String,
    resolved: bool,
    waiting: bool,
    eager: bool,
    /// Whether the job needs the chain, or may need it when it is retried.
    #[serde(skip)]
    needed: bool,
    trace: Option<&'a str>,
}

#[derive(Serialize)]
struct InsertedAttempt {
    job: i64,
    fence: u64,
    attempt: u32,
    worker: String,
    started_at: i64,
    ended_at: i64,
    ended: &'static str,
    error: Option<String>,
}

fn job_hex(id: JobId) -> String {
    hex(id.as_uuid())
}
