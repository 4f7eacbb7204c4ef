//! Queries. Each runs in one read transaction, and so sees one state of the database.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Row as SqlRow, params};
use windlass_core::command::{
    ChainFacts, Command, Count, CountReply, Cursor, EndedJobs, JobFacts, ListChains, ListChainsReply,
    ListDependents, ListDependentsReply, ListJobs, ListJobsReply, ListWorkersReply, NextDue, NextDueReply,
    Reply, Target, TypeCount, Types,
};
use windlass_core::model::{self, PageScan};
use windlass_core::{ChainId, ChainRecord, Fence, JobRecord, RequestId, Result, Status, Timestamp, TypeName};

use crate::error::from_sqlite;
use crate::registry::{of_outcome, read_worker};
use crate::rows::{Bind, SqliteRows, all, first};
use crate::session::Attempt;
use crate::statement::Sql;
use crate::table::{Columns, EnumText, corrupt, id};

/// Answers a query.
pub(crate) fn query(rows: &mut SqliteRows<'_>, now: Timestamp, query: &Command) -> Result<Reply> {
    Ok(match query {
        Command::NextDue(request) => Reply::NextDue(rows.next_due(request, now)?),
        Command::ListChains(request) => Reply::ListChains(rows.list_chains(request, now)?),
        Command::ListJobs(request) => Reply::ListJobs(rows.list_jobs(request)?),
        Command::ListDependents(request) => Reply::ListDependents(rows.list_dependents(request)?),
        Command::Count(request) => Reply::Count(rows.count(request, now)?),
        Command::ListWorkers(_) => Reply::ListWorkers(rows.list_workers(now)?),
        _ => return model::execute(rows, now, query),
    })
}

impl SqliteRows<'_> {
    fn next_due(&mut self, request: &NextDue, now: Timestamp) -> Result<NextDueReply> {
        request.types.check()?;
        let types: BTreeSet<TypeName> = match &request.types {
            Types::All => all(self.prepared.get(Sql::PendingTypes)?, [], read_type)?.into_iter().collect(),
            Types::Only(types) => types.iter().cloned().collect(),
        };
        let mut due_at = None;
        for job_type in &types {
            let earliest = self.head(job_type)?.map(|(at, _)| at);
            due_at = due_at.into_iter().chain(earliest).min();
        }
        let lease_until = self.first_lease(&request.types)?;
        Ok(NextDueReply { now, due_at, lease_until })
    }

    /// Returns the due time and `seq` of the job of a type that is due first, unless the type is paused. The index
    /// sorts by priority before due time, so this reads the first job of each priority.
    pub(crate) fn head(&mut self, job_type: &TypeName) -> Result<Option<(Timestamp, i64)>> {
        if model::Rows::is_paused(self, job_type)? { Ok(None) } else { self.earliest(job_type) }
    }

    fn earliest(&mut self, job_type: &TypeName) -> Result<Option<(Timestamp, i64)>> {
        let (mut earliest, mut below) = (None, i64::MAX);
        while let Some(level) = self.next_level(job_type, below)? {
            let read = |row: &SqlRow<'_>| {
                let mut columns = Columns { row, next: 0 };
                Ok((columns.time()?, columns.number()?))
            };
            let head = first(self.prepared.get(Sql::FirstDue)?, params![job_type.as_str(), level], read)?;
            earliest = earliest.into_iter().chain(head).min();
            below = level;
        }
        Ok(earliest)
    }

    fn first_lease(&mut self, types: &Types) -> Result<Option<Timestamp>> {
        let mut rows =
            self.prepared.get(Sql::RunningLeases)?.query([]).map_err(|error| from_sqlite(&error))?;
        while let Some(row) = rows.next().map_err(|error| from_sqlite(&error))? {
            let mut columns = Columns { row, next: 0 };
            let (until, job_type) = (columns.time()?, columns.text()?);
            let is_meant = match types {
                Types::All => true,
                Types::Only(names) => names.iter().any(|name| name.as_str() == job_type),
            };
            if is_meant {
                return Ok(Some(until));
            }
        }
        Ok(None)
    }

    fn count(&mut self, request: &Count, now: Timestamp) -> Result<CountReply> {
        request.types.check()?;
        let read = |row: &SqlRow<'_>| {
            let mut columns = Columns { row, next: 0 };
            let (job_type, status) = (columns.name(TypeName::new)?, columns.text()?.to_owned());
            Ok((job_type, status, columns.number()?, columns.number()?))
        };
        let mut types: BTreeMap<TypeName, TypeCount> = BTreeMap::new();
        for (job_type, status, jobs, former) in all(self.prepared.get(Sql::CountJobs)?, [], read)? {
            let is_meant = match &request.types {
                Types::All => true,
                Types::Only(names) => names.contains(&job_type),
            };
            if is_meant {
                let count = types.entry(job_type.clone()).or_insert_with(|| no_jobs(job_type));
                add(count, &status, jobs, former);
            }
        }
        types.retain(|_, count| has_jobs(count) || count.paused);
        for (job_type, count) in &mut types {
            count.oldest_ready = self.earliest(job_type)?.map(|(at, _)| at).filter(|at| *at <= now);
        }
        let mut rows = self
            .prepared
            .get(Sql::ExpiredLeases)?
            .query([now.as_millis()])
            .map_err(|error| from_sqlite(&error))?;
        while let Some(row) = rows.next().map_err(|error| from_sqlite(&error))? {
            let job_type = Columns { row, next: 1 }.name(TypeName::new)?;
            if let Some(count) = types.get_mut(&job_type) {
                count.expired_leases += 1;
            }
        }
        Ok(CountReply { types: types.into_values().collect(), closed_estimated: false })
    }

    fn list_workers(&mut self, now: Timestamp) -> Result<ListWorkersReply> {
        let workers = all(self.prepared.get(Sql::ListWorkers)?, [now.as_millis()], read_worker)?;
        Ok(ListWorkersReply { workers })
    }

    fn list_jobs(&mut self, request: &ListJobs) -> Result<ListJobsReply> {
        request.check()?;
        let (page, filter) = (PageScan::new(&request.page)?, &request.filter);
        let (from, to) = bounds(page);
        let of_chain = filter.chain;
        let statement = self.prepared.get(match (of_chain.is_some(), page.is_newest_first()) {
            (false, false) => Sql::ListJobs,
            (false, true) => Sql::ListJobsDown,
            (true, false) => Sql::ListChainJobs,
            (true, true) => Sql::ListChainJobsDown,
        })?;
        let read = |row: &SqlRow<'_>| -> Result<_> {
            let mut columns = Columns { row, next: 0 };
            let (number, seq): (u64, i64) = (columns.number()?, columns.number()?);
            let (job_type, status) = (columns.name(TypeName::new)?, columns.value::<Status>()?);
            let (chain_type, created_at) = (columns.name(TypeName::new)?, columns.time()?);
            let (job_type, chain_type) = (&job_type, &chain_type);
            let facts =
                JobFacts { job_type, status, chain_type, created_at, closed_at: columns.maybe_time()? };
            Ok((number, (seq, filter.passes(facts))))
        };
        let passed = |(seq, passes): (i64, bool)| Ok(passes.then_some(seq));
        let (found, next) = match of_chain {
            None => page.collect(scan(statement, params![from, to], read)?, passed)?,
            Some(chain) => {
                let values = params![from, to, Bind(id(chain.as_uuid()))];
                page.collect(scan(statement, values, read)?, passed)?
            }
        };
        Ok(ListJobsReply { jobs: self.records(found)?, next })
    }

    fn list_dependents(&mut self, request: &ListDependents) -> Result<ListDependentsReply> {
        let page = PageScan::new(&request.page)?;
        let (from, to) = bounds(page);
        let sql = if page.is_newest_first() { Sql::ListDependentsDown } else { Sql::ListDependents };
        let read = |row: &SqlRow<'_>| -> Result<_> {
            let seq: i64 = Columns { row, next: 0 }.number()?;
            Ok((seq.unsigned_abs(), seq))
        };
        let values = params![from, to, Bind(id(request.chain.as_uuid()))];
        let (found, next) =
            page.collect(scan(self.prepared.get(sql)?, values, read)?, |seq| Ok(Some(seq)))?;
        Ok(ListDependentsReply { jobs: self.records(found)?, next })
    }

    fn list_chains(&mut self, request: &ListChains, now: Timestamp) -> Result<ListChainsReply> {
        request.check()?;
        let (page, filter) = (PageScan::new(&request.page)?, &request.filter);
        let (from, to) = bounds(page);
        let sql = if page.is_newest_first() { Sql::ListChainsDown } else { Sql::ListChains };
        let read = |row: &SqlRow<'_>| -> Result<_> {
            let mut columns = Columns { row, next: 0 };
            let (seq, chain) = (columns.number()?, ChainId::from_uuid(columns.id()?));
            let (chain_type, status) = (columns.name(TypeName::new)?, columns.maybe_value::<Status>()?);
            let (created_at, is_awaited) = (columns.time()?, columns.flag()?);
            let (closed_at, key) = (columns.maybe_time()?, columns.maybe_text()?);
            // A chain is listed with its first job. The others are skipped, and count as scanned.
            let passes = |status| {
                let (chain_type, key, is_top_level) = (&chain_type, key, !is_awaited);
                filter.passes(ChainFacts { chain_type, status, created_at, closed_at, key, is_top_level })
            };
            Ok((seq, status.is_some_and(passes).then_some(chain)))
        };
        let rows = scan(self.prepared.get(sql)?, params![from, to], read)?;
        let (found, next): (Vec<ChainId>, Option<Cursor>) = page.collect(rows, Ok)?;
        let chains = found.into_iter().map(|chain| self.chain_record(chain, now)).collect::<Result<_>>()?;
        Ok(ListChainsReply { chains, next })
    }

    fn chain_record(&mut self, chain: ChainId, now: Timestamp) -> Result<ChainRecord> {
        let get = windlass_core::command::GetChains { chains: vec![Target::Chain(chain)] };
        match model::execute(self, now, &get.into())? {
            Reply::GetChains(mut reply) => reply.chains.pop().flatten(),
            _ => None,
        }
        .ok_or_else(|| corrupt(format_args!("the chain {chain} is incomplete")))
    }

    fn records(&mut self, jobs: Vec<i64>) -> Result<Vec<JobRecord>> {
        let mut record = |seq| Ok(self.job_at(seq)?.map(|row| row.job.clone()));
        jobs.into_iter().filter_map(|seq| record(seq).transpose()).collect()
    }

    /// Returns the due times and the revisions of the schedules around a time: the first one, the last one that is due, and
    /// the next one.
    pub(crate) fn next_schedules(&mut self, now: Timestamp) -> Result<Vec<(Timestamp, RequestId)>> {
        let read = |row: &SqlRow<'_>| {
            let mut columns = Columns { row, next: 0 };
            Ok((columns.time()?, RequestId::from_uuid(columns.id()?)))
        };
        scan(self.prepared.get(Sql::NextSchedules)?, [now.as_millis()], read)?.collect()
    }

    /// Returns whether an attempt still holds its job, and if so, whether it was asked to stop.
    pub(crate) fn running(&mut self, (job, fence): Attempt) -> Result<Option<bool>> {
        let read = |row: &SqlRow<'_>| {
            let mut columns = Columns { row, next: 0 };
            Ok((Fence(columns.number()?), columns.flag()?))
        };
        let running = first(self.prepared.get(Sql::RunningAttempt)?, [Bind(id(job.as_uuid()))], read)?;
        Ok(running.filter(|(running, _)| *running == fence).map(|(_, asked)| asked))
    }
}

/// Runs a statement whose rows are read one by one, as far as needed.
fn scan<'s, T>(
    statement: &'s mut rusqlite::CachedStatement<'_>,
    parameters: impl rusqlite::Params,
    mut read: impl FnMut(&SqlRow<'_>) -> Result<T> + 's,
) -> Result<impl Iterator<Item = Result<T>> + 's> {
    let mut rows = statement.query(parameters).map_err(|error| from_sqlite(&error))?;
    Ok(std::iter::from_fn(move || match rows.next() {
        Ok(row) => row.map(&mut read),
        Err(error) => Some(Err(from_sqlite(&error))),
    }))
}

/// Returns the first and last number of a page as SQLite integers.
fn bounds(page: PageScan) -> (i64, i64) {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    (number(*page.range().start()), number(*page.range().end()))
}

fn read_type(row: &SqlRow<'_>) -> Result<TypeName> {
    Columns { row, next: 0 }.name(TypeName::new)
}

fn no_jobs(job_type: TypeName) -> TypeCount {
    TypeCount {
        job_type,
        blocked: 0,
        pending: 0,
        running: 0,
        completed: 0,
        failed: 0,
        cancelled: 0,
        ended: EndedJobs::default(),
        oldest_ready: None,
        expired_leases: 0,
        paused: false,
    }
}

fn has_jobs(count: &TypeCount) -> bool {
    let TypeCount { blocked, pending, running, completed, failed, cancelled, .. } = count;
    blocked + pending + running + completed + failed + cancelled > 0
}

fn add(count: &mut TypeCount, status: &str, jobs: u64, former: u64) {
    let Some(status) = Status::from_text(status) else {
        count.paused = true;
        return;
    };
    let total = match status {
        Status::Blocked => &mut count.blocked,
        Status::Pending => &mut count.pending,
        Status::Running => &mut count.running,
        Status::Completed => &mut count.completed,
        Status::Failed => &mut count.failed,
        Status::Cancelled => &mut count.cancelled,
    };
    *total += jobs;
    if let Some(ended) = of_outcome(&mut count.ended, status) {
        *ended += jobs + former;
    }
}
