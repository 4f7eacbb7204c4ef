//! Lists and counts jobs and chains.

use windlass_core::command::{
    Count, CountReply, Cursor, ListAttempts, ListAttemptsReply, ListChains, ListChainsReply, ListDependents,
    ListDependentsReply, ListJobs, ListJobsReply, Order, Page, TypeCount,
};
use windlass_core::limit::PAGE_SCAN_MAX;
use windlass_core::{
    AttemptRecord, ChainRecord, Error, ErrorKind, Fence, JobRecord, Result, Status, Timestamp, TypeName,
    WorkerId,
};

use crate::get::{read_into, type_set};
use crate::provider::{Row, Value};
use crate::row::{ChainRow, EnumText};
use crate::session::{Execute, Session};
use crate::statement::set;

impl Execute for ListChains {
    async fn execute(&self, session: &mut Session<'_>) -> Result<ListChainsReply> {
        self.check()?;
        let filter = &self.filter;
        let mut values = page(&self.page)?;
        values.extend([types(&filter.types)?, statuses(&filter.statuses)?, filter.top_level.into()]);
        values.extend([time(filter.created_from), time(filter.created_to)]);
        let rows = session.rows(&session.statements.list_chains, values).await?;
        let mut chains: Vec<ChainRecord> = Vec::new();
        for row in stored(&rows) {
            let facts = ChainRow::read(row)?;
            let same = chains.last().is_some_and(|chain| chain.id == facts.id);
            let mut chain = if same { chains.pop() } else { None };
            read_into(&mut chain, facts, row)?;
            chains.extend(chain);
        }
        Ok(ListChainsReply { chains, next: next(&rows)? })
    }
}

impl Execute for ListJobs {
    async fn execute(&self, session: &mut Session<'_>) -> Result<ListJobsReply> {
        self.check()?;
        let filter = &self.filter;
        let mut values = page(&self.page)?;
        values.extend([types(&filter.types)?, statuses(&filter.statuses)?, types(&filter.chain_types)?]);
        values.extend([time(filter.created_from), time(filter.created_to)]);
        let statements = session.statements;
        let rows = match filter.chain {
            None => session.rows(&statements.list_jobs, values).await?,
            Some(chain) => {
                values.push(chain.as_uuid().into());
                session.rows(&statements.list_chain_jobs, values).await?
            }
        };
        Ok(ListJobsReply { jobs: jobs(&rows)?, next: next(&rows)? })
    }
}

impl Execute for ListDependents {
    async fn execute(&self, session: &mut Session<'_>) -> Result<ListDependentsReply> {
        self.page.check()?;
        let mut values = page(&self.page)?;
        values.push(self.chain.as_uuid().into());
        let rows = session.rows(&session.statements.list_dependents, values).await?;
        Ok(ListDependentsReply { jobs: jobs(&rows)?, next: next(&rows)? })
    }
}

impl Execute for ListAttempts {
    async fn execute(&self, session: &mut Session<'_>) -> Result<ListAttemptsReply> {
        let values = vec![self.job.as_uuid().into()];
        let rows = session.rows(&session.statements.list_attempts, values).await?;
        Ok(ListAttemptsReply { attempts: rows.iter().map(attempt).collect::<Result<_>>()? })
    }
}

impl Execute for Count {
    async fn execute(&self, session: &mut Session<'_>) -> Result<CountReply> {
        self.types.check()?;
        let now = session.now();
        let values = vec![type_set(&self.types)?, now.as_millis().into()];
        let rows = session.rows(&session.statements.count_jobs, values).await?;
        let types = rows.iter().map(|row| count(row, now)).collect::<Result<_>>()?;
        Ok(CountReply { types, closed_estimated: false })
    }
}

/// Returns the parameters that all lists share.
fn page(page: &Page) -> Result<Vec<Value>> {
    let not_ours =
        |_| Error::new(ErrorKind::Invalid, "the cursor is not from this store: start from the first page");
    let after = page.after.as_ref().map(|Cursor(text)| text.parse::<u64>().map_err(not_ours)).transpose()?;
    let after = after.map(|after| i64::try_from(after).unwrap_or(i64::MAX));
    Ok(vec![(page.order == Order::Newest).into(), after.into(), PAGE_SCAN_MAX.into(), page.max.into()])
}

/// Encodes the types as a parameter; null means all.
fn types(types: &[TypeName]) -> Result<Value> {
    if types.is_empty() {
        return Ok(Value::Null);
    }
    set(&types.iter().map(AsRef::<str>::as_ref).collect::<Vec<_>>())
}

/// Encodes the statuses as a parameter; null means all.
fn statuses(statuses: &[Status]) -> Result<Value> {
    if statuses.is_empty() {
        return Ok(Value::Null);
    }
    set(&statuses.iter().map(|status| status.enum_text()).collect::<Vec<_>>())
}

fn time(at: Option<Timestamp>) -> Value {
    at.map(Timestamp::as_millis).into()
}

/// Returns the rows that have a job. An empty page is one row without a job.
fn stored(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| row.value("seq") != Some(&Value::Null))
}

fn jobs(rows: &[Row]) -> Result<Vec<JobRecord>> {
    stored(rows).map(Row::job).collect()
}

/// Returns the cursor of the next page, if there is one.
fn next(rows: &[Row]) -> Result<Option<Cursor>> {
    let Some(row) = rows.first() else { return Ok(None) };
    let last = row.maybe_integer("last")?.filter(|_| row.flag("more").unwrap_or_default());
    Ok(last.map(|last| Cursor(last.to_string())))
}

fn attempt(row: &Row) -> Result<AttemptRecord> {
    Ok(AttemptRecord {
        attempt: row.number("attempt")?,
        fence: Fence(row.number("fence")?),
        worker: WorkerId::from_uuid(row.uuid("worker")?),
        started_at: row.time("started_at")?,
        ended_at: row.maybe_time("ended_at")?,
        end: row.enum_value("ended")?,
        error: row.maybe_error()?,
    })
}

fn count(row: &Row, now: Timestamp) -> Result<TypeCount> {
    let of = |status| Ok::<u64, Error>(row.maybe_number(status)?.unwrap_or_default());
    Ok(TypeCount {
        job_type: row.type_name("type")?,
        blocked: of("blocked")?,
        pending: of("pending")?,
        running: of("running")?,
        completed: of("completed")?,
        failed: of("failed")?,
        cancelled: of("cancelled")?,
        oldest_ready: row.maybe_time("oldest_due")?.filter(|due_at| *due_at <= now),
        expired_leases: of("expired")?,
        paused: row.flag("paused")?,
    })
}
