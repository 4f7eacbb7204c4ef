//! Writes the changes of a command, with one statement per kind of change.

use std::collections::HashSet;

use serde::Serialize;
use windlass_core::limit::HISTORY_MAX;
use windlass_core::{AttemptEnd, JobId, OnBlockerFailure, Payload, Result, Status};

use crate::provider::{Statement, Value};
use crate::row::{ChainRow, EnumText, JobRow, hex};
use crate::session::Session;
use crate::statement::set;
use crate::unit_of_work::{CreatedJob, UnitOfWork};

impl UnitOfWork {
    /// Writes all changes.
    ///
    /// The statements run in the transaction that loaded the rows. The write lock has been held since, so they need no
    /// conditions on the old state.
    pub(crate) async fn flush(&self, session: &mut Session<'_>) -> Result<()> {
        self.write_changed(session).await?;
        self.write_created(session).await?;
        self.write_waits(session).await?;
        self.write_attempts(session).await
    }

    /// Writes changed jobs and chains. A chain is stored in the row of its first job; if both changed, one statement
    /// writes both. Chains that give up a key are written before any chain that takes one: the unique index on held
    /// keys would otherwise reject the new holder.
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

    /// Writes the changes to waits. `wait_again` comes after `resolve_blockers`: it selects waits that are unresolved.
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
            ended: record.end.enum_text(),
            error: record.error.as_ref().map(|error| error.as_str().to_owned()),
        };
        let attempts = set(&self.attempts.iter().map(attempt).collect::<Vec<_>>())?;
        session.run(&session.statements.insert_attempts, vec![attempts.clone()]).await?;
        session.run(&session.statements.forget_attempts, vec![attempts, HISTORY_MAX.into()]).await
    }

    fn inserted<'a>(&'a self, created: &'a CreatedJob, payloads: &mut Payloads) -> Option<InsertedJob<'a>> {
        let row = self.job(created.id)?;
        let chain = self.chain(row.chain).filter(|chain| chain.id.first_job() == row.id);
        let own = (
            hex(row.id.as_uuid()),
            hex(row.chain.as_uuid()),
            row.index,
            row.job_type.as_str(),
            row.chain_type.as_str(),
            row.status.enum_text(),
            created.priority,
            row.due_at.as_millis(),
            row.max_attempts,
            row.fence.0,
            row.version.0,
            row.waits,
            row.blockers,
            row.on_blocker_failure.enum_text(),
            self.now.as_millis(),
            row.closed_at.map(|at| at.as_millis()),
        );
        let (input_start, input_length) = payloads.push(&created.input);
        let (output_start, output_length) =
            row.output.as_ref().map_or((0, 0), |output| payloads.push(output));
        let carried = (
            created.trace.as_ref().map(AsRef::as_ref),
            row.error.as_ref().map(|error| error.as_str()),
            row.outside.map(|request| hex(request.as_uuid())),
            created.input.codec().as_str(),
            input_start,
            input_length,
            row.output.as_ref().map(|output| output.codec().as_str()),
            output_start,
            output_length,
        );
        Some((own, carried, chain.map(inserted_chain)))
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

/// Runs a statement for a set of rows, unless the set is empty.
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

/// Returns the row for `update_completed` if a worker has just completed this job and the job is its whole chain. Most
/// attempts end this way, and that statement touches fewer columns and indexes than the general one.
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

/// The payloads of many rows as one blob parameter; each row has its offset and length. This keeps binary data out of
/// the JSON.
struct Payloads {
    bytes: Vec<u8>,
}

impl Payloads {
    fn new() -> Self {
        // In SQLite, `substr` of an empty blob is null. The leading byte keeps the parameter from being empty.
        Self { bytes: vec![0] }
    }

    /// Adds a payload. Returns its offset, counted from 1, and its length.
    fn push(&mut self, payload: &Payload) -> (usize, usize) {
        let start = self.bytes.len() + 1;
        self.bytes.extend_from_slice(payload.bytes());
        (start, payload.bytes().len())
    }
}

/// See `sql/insert_jobs.sql`.
type InsertedJob<'a> = (InsertedOwn<'a>, InsertedCarried<'a>, Option<InsertedChain<'a>>);

type InsertedOwn<'a> = (
    String,
    String,
    u32,
    &'a str,
    &'a str,
    &'static str,
    i8,
    i64,
    Option<u32>,
    u64,
    u64,
    u32,
    u32,
    &'static str,
    i64,
    Option<i64>,
);

type InsertedCarried<'a> =
    (Option<&'a str>, Option<&'a str>, Option<String>, &'a str, usize, usize, Option<&'a str>, usize, usize);

type InsertedChain<'a> = (
    String,
    u32,
    Option<&'a str>,
    Option<&'static str>,
    Option<u64>,
    Option<bool>,
    u64,
    u64,
    u64,
    Option<&'a str>,
    Option<i64>,
    Option<&'static str>,
    Option<i64>,
    Option<i64>,
    bool,
);

/// Returns the chain columns of a chain's first job.
fn inserted_chain(chain: &ChainRow) -> InsertedChain<'_> {
    let (key, written) = (chain.key.as_ref(), WrittenChain::new(chain));
    (
        written.latest,
        written.latest_position,
        key.map(|key| key.key.as_str()),
        key.map(|key| key.hold.enum_text()),
        key.and_then(|key| key.window).map(windlass_core::Millis::get),
        written.key_held,
        chain.retention.completed.get(),
        chain.retention.failed.get(),
        chain.retention.cancelled.get(),
        chain.trace.as_ref().map(AsRef::as_ref),
        written.chain_closed_at,
        written.chain_closed_as,
        written.retain_until,
        written.leaves_at,
        written.rippling,
    )
}

/// The columns of a chain that change during its life.
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
            chain_closed_as: row.closed.map(|closed| closed.closed_as.enum_text()),
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
            status: row.status.enum_text(),
            due_at: row.due_at.as_millis(),
            attempt: row.attempt,
            version: row.version.0,
            waits: row.waits,
            closed_at: row.closed_at.map(|at| at.as_millis()),
            closed_by: row.closed_by.map(|worker| hex(worker.as_uuid())),
            ended: row.ended.map(EnumText::enum_text),
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
    /// Whether the job needs the chain, now or when it is retried.
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
