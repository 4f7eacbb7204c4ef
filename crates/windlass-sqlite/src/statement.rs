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
    InsertJob = insert_job,
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
    let parameters: Vec<_> = (1..=COLUMNS.len()).map(|number| format!("?{number}")).collect();
    text.replace("{prefix}", prefix)
        .replace("{columns}", &COLUMNS.join(", "))
        .replace("{parameters}", &parameters.join(", "))
}

/// The statements that were prepared on a connection so far. Looking one up in the connection's own cache costs more
/// than running it, so each unit of work does that once.
pub(crate) struct Prepared<'c> {
    connection: &'c Connection,
    texts: &'c Texts,
    statements: Vec<Option<CachedStatement<'c>>>,
    /// Updates by the set of columns that they change.
    updates: Vec<(u64, CachedStatement<'c>)>,
}

impl<'c> Prepared<'c> {
    pub(crate) fn new(connection: &'c Connection, texts: &'c Texts) -> Self {
        let statements = Sql::ALL.iter().map(|_| None).collect();
        Self { connection, texts, statements, updates: Vec::new() }
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

    /// Returns the update of these columns of a job: bit 0 is the first of [`COLUMNS`]. Its parameters are the values in
    /// order, then `seq`.
    pub(crate) fn update(&mut self, changed: u64) -> Result<&mut CachedStatement<'c>> {
        let place = match self.updates.iter().position(|(columns, _)| *columns == changed) {
            Some(place) => place,
            None => {
                let columns = COLUMNS.iter().enumerate().filter(|(bit, _)| changed >> bit & 1 == 1);
                let set: Vec<_> = columns.map(|(_, column)| format!("{column} = ?")).collect();
                let text = format!("update {}job set {} where seq = ?", self.texts.prefix, set.join(", "));
                let statement = self.connection.prepare_cached(&text).map_err(|error| from_sqlite(&error))?;
                self.updates.push((changed, statement));
                self.updates.len() - 1
            }
        };
        self.updates
            .get_mut(place)
            .map(|(_, statement)| statement)
            .ok_or_else(|| crate::table::corrupt("no update"))
    }
}
