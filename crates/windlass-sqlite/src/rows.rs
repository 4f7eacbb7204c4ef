//! The rows that the rules read and change, in one transaction.
//!
//! Rows are read when the rules request them, and cached. Changes are cached too, until [`flush`](SqliteRows::flush)
//! writes them: before a query that finds rows by anything other than their id, and at the end. A row that changes
//! several times, such as that of a job and its new chain, is written once.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _};
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, Row as SqlRow, params};
use windlass_core::command::{EndedJobs, ScheduleRecord, Types, WorkerInfo};
use windlass_core::model::{ChainRow, Due, JobRow, LockRow, Row, RowKey, Rows};
use windlass_core::{
    ChainId, ClosedAs, Fence, JobId, Key, LockName, RequestId, Result, ScheduleId, ScheduleName, Timestamp,
    TypeName, WorkerId,
};

use crate::error::from_sqlite;
use crate::registry::{read_schedule, read_worker};
use crate::statement::{Prepared, Sql, Texts};
use crate::table::{self, Columns, Stored, id};

/// The rows of one unit of work on a connection.
///
/// A unit that writes must hold the write lock from before its first read to the end of its transaction.
pub(crate) struct SqliteRows<'c> {
    pub(crate) prepared: Prepared<'c>,
    pub(crate) slots: HashMap<JobId, Slot>,
    /// Jobs whose rows were changed since the last flush, in the order of their first change.
    pub(crate) changed: Vec<JobId>,
    /// Whether a change affects who waits for a chain, or which chain a key points at.
    pub(crate) changed_edges: bool,
    pub(crate) changed_keys: bool,
    /// The row of the table `sequence`, once it has been read.
    pub(crate) sequence: Option<Sequence>,
    pub(crate) stored_sequence: Option<Sequence>,
    /// The largest id of a stored job. It is read only for large batches of new jobs. Ids grow with time, so most new
    /// ids are larger than this one, and need not be looked up.
    largest: Option<JobId>,
    /// The largest chain that any job waits or waited for. It is read with the largest id.
    pub(crate) largest_blocker: Option<ChainId>,
    /// The previous value of each change.
    log: Vec<(RowKey, Option<Row>)>,
    #[cfg(feature = "known-bad")]
    pub(crate) spoiled: crate::known_bad::Spoiled,
}

/// Numbers that outlive deleted jobs: a new job never reuses a creation number or a fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// The last creation number.
    pub(crate) last: u64,
    /// The largest fence of a deleted job.
    pub(crate) deleted_fence: Fence,
}

/// A job, and its chain if it is the chain's first.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) job: Option<Arc<JobRow>>,
    pub(crate) chain: Option<Arc<ChainRow>>,
    /// The row in the database.
    pub(crate) stored: Option<(Arc<JobRow>, Option<Arc<ChainRow>>)>,
    /// How many jobs need the chain, as of the last flush.
    pub(crate) needed_by: i64,
    pub(crate) is_changed: bool,
}

/// Rows that a unit of work leaves for the next one on the same connection: running jobs, which will be settled.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    slots: HashMap<JobId, Slot>,
    sequence: Option<Sequence>,
}

/// Maximum number of rows to keep.
const KEPT_MAX: usize = 10_000;

impl<'c> SqliteRows<'c> {
    pub(crate) fn new(connection: &'c Connection, texts: &'c Texts) -> Self {
        Self {
            prepared: Prepared::new(connection, texts),
            slots: HashMap::new(),
            changed: Vec::new(),
            changed_edges: false,
            changed_keys: false,
            sequence: None,
            stored_sequence: None,
            largest: None,
            largest_blocker: None,
            log: Vec::new(),
            #[cfg(feature = "known-bad")]
            spoiled: crate::known_bad::Spoiled::default(),
        }
    }

    /// Prepares for many new jobs.
    pub(crate) fn expect_new_jobs(&mut self) -> Result<()> {
        let stored = first(self.prepared.get(Sql::LargestId)?, [], read_id)?;
        // Jobs that were created and are not written yet are not looked up again.
        self.largest = Some(stored.unwrap_or_else(|| JobId::from_uuid(uuid::Uuid::nil())));
        let blocker = first(self.prepared.get(Sql::LargestBlocker)?, [], read_id)?;
        let blocker = blocker.map_or(uuid::Uuid::nil(), |job| *job.as_uuid());
        self.largest_blocker = Some(ChainId::from_uuid(blocker));
        Ok(())
    }

    fn sequence(&mut self) -> Result<&mut Sequence> {
        if self.sequence.is_none() {
            let read = |row: &SqlRow<'_>| {
                let mut columns = Columns { row, next: 0 };
                Ok(Sequence { last: columns.number()?, deleted_fence: Fence(columns.number()?) })
            };
            let stored = first(self.prepared.get(Sql::Sequence)?, [], read)?.unwrap_or_default();
            (self.sequence, self.stored_sequence) = (Some(stored), Some(stored));
        }
        Ok(self.sequence.get_or_insert_default())
    }

    /// Returns a number that changes when another connection commits.
    pub(crate) fn data_version(&mut self) -> Result<i64> {
        let read = |row: &SqlRow<'_>| Columns { row, next: 0 }.number();
        Ok(first(self.prepared.get(Sql::DataVersion)?, [], read)?.unwrap_or_default())
    }

    /// Uses the rows of an earlier unit of work. No other connection may have written since.
    pub(crate) fn reuse(&mut self, kept: Kept) {
        self.slots = kept.slots;
        (self.sequence, self.stored_sequence) = (kept.sequence, kept.sequence);
    }

    /// Returns the rows that the next unit of work will need, if this one is committed.
    pub(crate) fn keep(self) -> Kept {
        let mut slots = self.slots;
        let is_running = |slot: &Slot| slot.job.as_ref().is_some_and(|row| row.job.lease.is_some());
        slots.retain(|_, slot| is_running(slot));
        if slots.len() > KEPT_MAX {
            slots.clear();
        }
        Kept { slots, sequence: self.stored_sequence }
    }

    /// Ends a command: none of its changes will be reverted.
    pub(crate) fn keep_changes(&mut self) {
        self.log.clear();
    }

    /// Returns the entry of a job, read from the database if it is not known yet.
    fn slot(&mut self, job: JobId) -> Result<&Slot> {
        if !self.slots.contains_key(&job) {
            let slot = if self.largest.is_some_and(|largest| job > largest) {
                Slot::default()
            } else {
                let statement = self.prepared.get(Sql::JobById)?;
                match first(statement, [Bind(id(job.as_uuid()))], table::read)? {
                    Some(stored) => self.complete(stored)?,
                    None => Slot::default(),
                }
            };
            self.slots.insert(job, slot);
        }
        Ok(self.slots.entry(job).or_default())
    }

    /// Returns the job with this creation number.
    pub(crate) fn job_at(&mut self, seq: i64) -> Result<Option<Arc<JobRow>>> {
        let statement = self.prepared.get(Sql::JobBySeq)?;
        let Some(stored) = first(statement, [seq], table::read)? else { return Ok(None) };
        let job = stored.job.job.id;
        if !self.slots.contains_key(&job) {
            let slot = self.complete(stored)?;
            self.slots.insert(job, slot);
        }
        self.job(job)
    }

    /// Adds the blockers and attempts of a job.
    fn complete(&mut self, stored: Stored) -> Result<Slot> {
        let Stored { mut job, chain, blockers, attempts, needed_by } = stored;
        if blockers > 0 {
            job.job.blockers = all(self.prepared.get(Sql::Blockers)?, [job.seq], table::read_blocker)?.into();
        }
        if attempts > 0 {
            job.history = all(self.prepared.get(Sql::Attempts)?, [job.seq], table::read_attempt)?.into();
        }
        let (job, chain) = (Arc::new(job), chain.map(Arc::new));
        let stored = Some((Arc::clone(&job), chain.clone()));
        Ok(Slot { job: Some(job), chain, stored, needed_by, is_changed: false })
    }

    /// Returns one id that a statement finds.
    fn find_id(&mut self, sql: Sql, parameters: impl rusqlite::Params) -> Result<Option<JobId>> {
        self.flush()?;
        first(self.prepared.get(sql)?, parameters, read_id)
    }

    /// Returns the ids that a statement finds.
    pub(crate) fn find_ids(&mut self, sql: Sql, parameters: impl rusqlite::Params) -> Result<Vec<JobId>> {
        self.flush()?;
        all(self.prepared.get(sql)?, parameters, read_id)
    }

    #[cfg(feature = "known-bad")]
    fn early_job(&self, due: Due<i64>) -> Option<Arc<JobRow>> {
        self.slots.values().filter_map(|slot| slot.job.as_ref()).find(|job| job.seq == due.seq).cloned()
    }

    fn mark_changed(&mut self, job: JobId) {
        let slot = self.slots.entry(job).or_default();
        if !std::mem::replace(&mut slot.is_changed, true) {
            self.changed.push(job);
        }
    }

    /// Replaces a row and returns its previous value.
    fn install(&mut self, key: &RowKey, after: Option<Row>) -> Result<Option<Row>> {
        match key {
            RowKey::Job(job) => {
                self.slot(*job)?;
                self.mark_changed(*job);
                let slot = self.slots.entry(*job).or_default();
                let after = match after {
                    Some(Row::Job(row)) => Some(row),
                    _ => None,
                };
                let before = std::mem::replace(&mut slot.job, after);
                let has_blockers =
                    |row: &Option<Arc<JobRow>>| row.as_ref().is_some_and(|row| !row.job.blockers.is_empty());
                self.changed_edges |= has_blockers(&before) || has_blockers(&slot.job);
                Ok(before.map(Row::Job))
            }
            RowKey::Chain(chain) => {
                let job = chain.first_job();
                self.slot(job)?;
                self.mark_changed(job);
                let slot = self.slots.entry(job).or_default();
                let after = match after {
                    Some(Row::Chain(row)) => Some(row),
                    _ => None,
                };
                let before = std::mem::replace(&mut slot.chain, after);
                let has_key = |row: &Option<Arc<ChainRow>>| row.as_ref().is_some_and(|row| row.key.is_some());
                self.changed_keys |= has_key(&before) || has_key(&slot.chain);
                Ok(before.map(Row::Chain))
            }
            key => self.install_registered(key, after),
        }
    }

    /// Runs a statement that returns no rows.
    pub(crate) fn run(&mut self, sql: Sql, parameters: impl rusqlite::Params) -> Result<()> {
        self.prepared.get(sql)?.execute(parameters).map(drop).map_err(|error| from_sqlite(&error))
    }

    /// Returns the highest priority below `below` at which a type has pending jobs.
    pub(crate) fn next_level(&mut self, job_type: &TypeName, below: i64) -> Result<Option<i64>> {
        let statement = self.prepared.get(Sql::NextLevel)?;
        first(statement, params![job_type.as_str(), below], |row| Columns { row, next: 0 }.number())
    }
}

impl Rows for SqliteRows<'_> {
    type RowId = i64;

    fn job(&mut self, id: JobId) -> Result<Option<Arc<JobRow>>> {
        Ok(self.slot(id)?.job.clone())
    }

    fn chain(&mut self, id: ChainId) -> Result<Option<Arc<ChainRow>>> {
        Ok(self.slot(id.first_job())?.chain.clone())
    }

    fn keyed(&mut self, chain_type: &TypeName, key: &Key) -> Result<Option<ChainId>> {
        #[cfg(feature = "known-bad")]
        if let Some(holder) = self.spoiled.keys.get(&(chain_type.clone(), key.clone())) {
            return Ok(*holder);
        }
        if self.changed_keys {
            self.flush()?;
        }
        let statement = self.prepared.get(Sql::Keyed)?;
        let job = first(statement, [chain_type.as_str(), key.as_str()], read_id)?;
        Ok(job.map(|job| ChainId::from_uuid(*job.as_uuid())))
    }

    fn next_seq(&mut self) -> Result<u64> {
        let sequence = self.sequence()?;
        sequence.last += 1;
        Ok(sequence.last)
    }

    fn deleted_fence(&mut self) -> Result<Fence> {
        Ok(self.sequence()?.deleted_fence)
    }

    fn note_deleted_fence(&mut self, fence: Fence) -> Result<()> {
        let sequence = self.sequence()?;
        sequence.deleted_fence = sequence.deleted_fence.max(fence);
        Ok(())
    }

    fn set(&mut self, key: RowKey, after: Option<Row>) -> Result<()> {
        let before = self.install(&key, after)?;
        self.log.push((key, before));
        Ok(())
    }

    fn mark(&mut self) -> usize {
        self.log.len()
    }

    fn undo_to(&mut self, mark: usize) -> Result<()> {
        #[cfg(feature = "known-bad")]
        if self.spoiled.keeps_refused {
            return Ok(());
        }
        for (key, before) in self.log.split_off(mark).into_iter().rev() {
            self.install(&key, before)?;
        }
        Ok(())
    }

    fn leased(&mut self, request: RequestId) -> Result<Vec<Arc<JobRow>>> {
        let jobs = self.find_ids(Sql::Leased, [Bind(id(request.as_uuid()))])?;
        jobs.into_iter().filter_map(|job| self.job(job).transpose()).collect()
    }

    fn due(&mut self, job_type: &TypeName, now: Timestamp, max: usize) -> Result<Vec<Due<i64>>> {
        #[cfg(feature = "known-bad")]
        if let Some(due) = self.spoiled.due.take() {
            return Ok(due);
        }
        self.flush()?;
        let (mut due, mut below) = (Vec::new(), i64::MAX);
        while due.len() < max
            && let Some(level) = self.next_level(job_type, below)?
        {
            let priority = i8::try_from(level).map_err(|_| table::corrupt("a priority is out of range"))?;
            let values = params![job_type.as_str(), level, now.as_millis(), max - due.len()];
            let read = |row: &SqlRow<'_>| {
                let mut columns = Columns { row, next: 0 };
                let (due_at, row_id) = (columns.time()?, columns.number::<i64>()?);
                Ok(Due { priority, due_at, seq: row_id.unsigned_abs(), row_id })
            };
            due.extend(all(self.prepared.get(Sql::DueJobs)?, values, read)?);
            below = level;
        }
        Ok(due)
    }

    fn due_job(&mut self, due: Due<i64>) -> Result<Option<Arc<JobRow>>> {
        #[cfg(feature = "known-bad")]
        if let Some(early) = self.early_job(due) {
            return Ok(Some(early));
        }
        self.job_at(due.row_id)
    }

    fn expired_leases(
        &mut self,
        types: &Types,
        except: &[JobId],
        now: Timestamp,
        max: usize,
    ) -> Result<Vec<JobId>> {
        self.flush()?;
        let except: HashSet<_> = except.iter().collect();
        let statement = self.prepared.get(Sql::ExpiredLeases)?;
        let mut rows = statement.query([now.as_millis()]).map_err(|error| from_sqlite(&error))?;
        let mut jobs = Vec::new();
        while jobs.len() < max
            && let Some(row) = rows.next().map_err(|error| from_sqlite(&error))?
        {
            let mut columns = Columns { row, next: 0 };
            let (job, job_type) = (JobId::from_uuid(columns.id()?), columns.text()?);
            let is_meant = match types {
                Types::All => true,
                Types::Only(names) => names.iter().any(|name| name.as_str() == job_type),
            };
            if is_meant && !except.contains(&job) {
                jobs.push(job);
            }
        }
        Ok(jobs)
    }

    fn is_paused(&mut self, job_type: &TypeName) -> Result<bool> {
        let statement = self.prepared.get(Sql::IsPaused)?;
        statement.exists([job_type.as_str()]).map_err(|error| from_sqlite(&error))
    }

    fn first_rippling(&mut self) -> Result<Option<ChainId>> {
        Ok(self.find_id(Sql::FirstRippling, [])?.map(|job| ChainId::from_uuid(*job.as_uuid())))
    }

    fn next_waiting(&mut self, chain: ChainId, closed_as: ClosedAs) -> Result<Option<JobId>> {
        if self.changed_edges {
            self.flush()?;
        }
        if self.slot(chain.first_job())?.needed_by == 0 {
            return Ok(None);
        }
        let sql = if closed_as == ClosedAs::Completed { Sql::NextWaiting } else { Sql::NextEager };
        self.find_id(sql, [Bind(id(chain.as_uuid()))])
    }

    fn open_dependents(&mut self, chain: ChainId, max: usize) -> Result<Vec<JobId>> {
        self.find_ids(Sql::OpenDependents, params![Bind(id(chain.as_uuid())), limit(max)])
    }

    fn chain_jobs(&mut self, chain: ChainId, indexes: RangeInclusive<u32>, max: usize) -> Result<Vec<JobId>> {
        let values = params![Bind(id(chain.as_uuid())), indexes.start(), indexes.end(), limit(max)];
        self.find_ids(Sql::ChainJobs, values)
    }

    fn first_removable(&mut self, now: Timestamp) -> Result<Option<ChainId>> {
        let job = self.find_id(Sql::FirstRemovable, [now.as_millis()])?;
        Ok(job.map(|job| ChainId::from_uuid(*job.as_uuid())))
    }

    fn first_trimmable(&mut self, now: Timestamp) -> Result<Option<ChainId>> {
        let job = self.find_id(Sql::FirstTrimmable, [now.as_millis()])?;
        Ok(job.map(|job| ChainId::from_uuid(*job.as_uuid())))
    }

    fn former(&mut self, job_type: &TypeName) -> Result<EndedJobs> {
        self.get_former(job_type)
    }

    fn worker(&mut self, worker: WorkerId) -> Result<Option<Arc<WorkerInfo>>> {
        let statement = self.prepared.get(Sql::GetWorker)?;
        Ok(first(statement, [Bind(id(worker.as_uuid()))], read_worker)?.map(Arc::new))
    }

    fn expired_workers(&mut self, now: Timestamp, max: usize) -> Result<Vec<WorkerId>> {
        let statement = self.prepared.get(Sql::ExpiredWorkers)?;
        let read = |row: &SqlRow<'_>| Ok(WorkerId::from_uuid(Columns { row, next: 0 }.id()?));
        all(statement, params![now.as_millis(), limit(max)], read)
    }

    fn lock(&mut self, name: &LockName) -> Result<Option<LockRow>> {
        let read = |row: &SqlRow<'_>| {
            let mut columns = Columns { row, next: 0 };
            Ok(LockRow { token: RequestId::from_uuid(columns.id()?), until: columns.time()? })
        };
        first(self.prepared.get(Sql::GetLock)?, [name.as_str()], read)
    }

    fn expired_locks(&mut self, now: Timestamp, max: usize) -> Result<Vec<LockName>> {
        let statement = self.prepared.get(Sql::ExpiredLocks)?;
        let read = |row: &SqlRow<'_>| Columns { row, next: 0 }.name(LockName::new);
        all(statement, params![now.as_millis(), limit(max)], read)
    }

    fn schedule(&mut self, name: &ScheduleName) -> Result<Option<Arc<ScheduleRecord>>> {
        first(self.prepared.get(Sql::GetSchedule)?, [name.as_str()], read_schedule)
    }

    fn schedule_by_id(&mut self, schedule: ScheduleId) -> Result<Option<Arc<ScheduleRecord>>> {
        let statement = self.prepared.get(Sql::ScheduleById)?;
        first(statement, [Bind(id(schedule.as_uuid()))], read_schedule)
    }

    fn schedules_after(
        &mut self,
        after: Option<&ScheduleName>,
        max: usize,
    ) -> Result<Vec<Arc<ScheduleRecord>>> {
        // No name is empty, so all come after the empty text.
        let after = after.map_or("", ScheduleName::as_str);
        all(self.prepared.get(Sql::SchedulesAfter)?, params![after, limit(max)], read_schedule)
    }

    fn schedules_by_due(
        &mut self,
        now: Timestamp,
        skip: usize,
        max: usize,
    ) -> Result<Vec<Arc<ScheduleRecord>>> {
        let parameters = params![limit(skip), limit(max), now.as_millis()];
        all(self.prepared.get(Sql::SchedulesByDue)?, parameters, read_schedule)
    }

    fn schedule_due_time(&mut self, skip: usize) -> Result<Option<Timestamp>> {
        let statement = self.prepared.get(Sql::ScheduleDueTime)?;
        first(statement, [limit(skip)], |row| Columns { row, next: 0 }.time())
    }
}

/// A value that is bound without a copy.
pub(crate) struct Bind<'a>(pub(crate) ValueRef<'a>);

impl ToSql for Bind<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(self.0))
    }
}

fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

fn read_id(row: &SqlRow<'_>) -> Result<JobId> {
    Ok(JobId::from_uuid(Columns { row, next: 0 }.id()?))
}

/// Runs a statement and reads its first row.
pub(crate) fn first<T>(
    statement: &mut CachedStatement<'_>,
    parameters: impl rusqlite::Params,
    read: impl FnOnce(&SqlRow<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut rows = statement.query(parameters).map_err(|error| from_sqlite(&error))?;
    rows.next().map_err(|error| from_sqlite(&error))?.map(read).transpose()
}

/// Runs a statement and reads all its rows.
pub(crate) fn all<T>(
    statement: &mut CachedStatement<'_>,
    parameters: impl rusqlite::Params,
    read: impl Fn(&SqlRow<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut rows = statement.query(parameters).map_err(|error| from_sqlite(&error))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(|error| from_sqlite(&error))? {
        found.push(read(row)?);
    }
    Ok(found)
}
