//! The SQL statements, one file each.

use rusqlite::{CachedStatement, Connection};
use windlass_core::Result;

use crate::error::from_sqlite;
use crate::table::COLUMNS;

macro_rules! statements {
    ($($name:ident = $file:ident,)*) => {
        /// A statement, named after its file in `sql/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Sql { $($name,)* }

        impl Sql {
            const ALL: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$name, stringify!($file), include_str!(concat!("../sql/", stringify!($file), ".sql"))),)*];
        }
    };
}

statements! {
    DataVersion = data_version,
    JobById = job_by_id,
    LargestId = largest_id,
    LargestBlocker = largest_blocker,
    CountNeeding = count_needing,
    JobBySeq = job_by_seq,
    Blockers = blockers,
    Attempts = attempts,
    Keyed = keyed,
    Sequence = sequence,
    Leased = leased,
    NextLevel = next_level,
    DueJobs = due_jobs,
    ExpiredLeases = expired_leases,
    IsPaused = is_paused,
    FirstRippling = first_rippling,
    NextWaiting = next_waiting,
    NextEager = next_eager,
    OpenDependents = open_dependents,
    ChainJobs = chain_jobs,
    FirstRemovable = first_removable,
    FirstTrimmable = first_trimmable,
    GetWorker = get_worker,
    ExpiredWorkers = expired_workers,
    GetLock = get_lock,
    ExpiredLocks = expired_locks,
    DeleteJob = delete_job,
    InsertBlocker = insert_blocker,
    UpdateBlocker = update_blocker,
    ChangeNeeded = change_needed,
    InsertAttempt = insert_attempt,
    DeleteAttempt = delete_attempt,
    DeleteAttempts = delete_attempts,
    DeleteBlockers = delete_blockers,
    FreeKey = free_key,
    UpdateTrim = update_trim,
    UpdateTally = update_tally,
    ClearTally = clear_tally,
    GetFormer = get_former,
    PutFormer = put_former,
    UpdateSequence = update_sequence,
    PutWorker = put_worker,
    DeleteWorker = delete_worker,
    PutLock = put_lock,
    DeleteLock = delete_lock,
    Pause = pause,
    Resume = resume,
    PendingTypes = pending_types,
    FirstDue = first_due,
    RunningLeases = running_leases,
    CountJobs = count_jobs,
    ListWorkers = list_workers,
    ListJobs = list_jobs,
    ListJobsDown = list_jobs_down,
    ListChainJobs = list_chain_jobs,
    ListChainJobsDown = list_chain_jobs_down,
    ListChains = list_chains,
    ListChainsDown = list_chains_down,
    ListDependents = list_dependents,
    ListDependentsDown = list_dependents_down,
    RunningAttempt = running_attempt,
    GetSchedule = get_schedule,
    ScheduleById = schedule_by_id,
    SchedulesAfter = list_schedules,
    SchedulesByDue = schedules_by_due,
    ScheduleDueTime = schedule_due_time,
    NextSchedules = next_schedules,
    PutSchedule = put_schedule,
    DeleteSchedule = delete_schedule,
}

/// The texts of all statements with the table prefix filled in.
#[derive(Clone, Debug)]
pub(crate) struct Texts {
    prefix: String,
    texts: Vec<String>,
}

impl Texts {
    pub(crate) fn new(prefix: &str) -> Self {
        let texts = Sql::ALL.iter().map(|(.., text)| fill(text, prefix)).collect();
        Self { prefix: prefix.to_owned(), texts }
    }

    /// Returns all statements with their names.
    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &str)> {
        Sql::ALL.iter().zip(&self.texts).map(|((_, name, _), text)| (*name, text.as_str()))
    }

    fn get(&self, sql: Sql) -> &str {
        self.texts.get(sql as usize).map_or("", String::as_str)
    }
}

/// Fills the columns and the table prefix into a statement. The prefix was checked when the store was opened.
pub(crate) fn fill(text: &str, prefix: &str) -> String {
    if !text.contains("{columns}") {
        return text.replace("{prefix}", prefix);
    }
    text.replace("{prefix}", prefix).replace("{columns}", &COLUMNS.join(", "))
}

/// The statements that were prepared on a connection so far. Looking one up in the connection's own cache costs more
/// than running it, so each unit of work does that once.
pub(crate) struct Prepared<'c> {
    connection: &'c Connection,
    texts: &'c Texts,
    statements: Vec<Option<CachedStatement<'c>>>,
    /// Writes of jobs by their kind and the set of columns that they write.
    writes: Vec<(Write, CachedStatement<'c>)>,
}

/// A write of a job's row, with the set of its columns: bit 0 is the first of [`COLUMNS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// Inserts these columns. The others are null.
    Insert(u64),
    /// Changes these columns.
    Update(u64),
}

impl Write {
    const fn columns(self) -> u64 {
        match self {
            Self::Insert(columns) | Self::Update(columns) => columns,
        }
    }

    fn text(self, prefix: &str) -> String {
        let columns = COLUMNS.iter().enumerate().filter(|(bit, _)| self.columns() >> bit & 1 == 1);
        let columns: Vec<_> = columns.map(|(_, column)| *column).collect();
        match self {
            Self::Insert(_) => {
                let parameters = vec!["?"; columns.len()].join(", ");
                format!("insert into {prefix}job ({}) values ({parameters})", columns.join(", "))
            }
            Self::Update(_) => format!("update {prefix}job set {} = ? where seq = ?", columns.join(" = ?, ")),
        }
    }
}

impl<'c> Prepared<'c> {
    pub(crate) fn new(connection: &'c Connection, texts: &'c Texts) -> Self {
        let statements = Sql::ALL.iter().map(|_| None).collect();
        Self { connection, texts, statements, writes: Vec::new() }
    }

    pub(crate) fn get(&mut self, sql: Sql) -> Result<&mut CachedStatement<'c>> {
        let text = self.texts.get(sql);
        let slot =
            self.statements.get_mut(sql as usize).ok_or_else(|| crate::table::corrupt("no statement"))?;
        match slot {
            Some(statement) => Ok(statement),
            empty => {
                let statement = self.connection.prepare_cached(text).map_err(|error| from_sqlite(&error))?;
                Ok(empty.insert(statement))
            }
        }
    }

    /// Returns the statement of a write. Its parameters are the values of the columns in order, and then `seq` for an
    /// update.
    pub(crate) fn write(&mut self, write: Write) -> Result<&mut CachedStatement<'c>> {
        let index = match self.writes.iter().position(|(known, _)| *known == write) {
            Some(index) => index,
            None => {
                let text = write.text(&self.texts.prefix);
                let statement = self.connection.prepare_cached(&text).map_err(|error| from_sqlite(&error))?;
                self.writes.push((write, statement));
                self.writes.len() - 1
            }
        };
        self.writes
            .get_mut(index)
            .map(|(_, statement)| statement)
            .ok_or_else(|| crate::table::corrupt("no statement"))
    }
}
