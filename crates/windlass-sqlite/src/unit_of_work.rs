//! The rows that one write command reads and changes.
//!
//! A command runs in three steps inside one `begin immediate` transaction:
//!
//! 1. It loads every row that it may need, with a fixed number of set-based statements.
//! 2. It decides item by item in memory. A later item sees the changes of an earlier one.
//! 3. It writes the changes, with a fixed number of set-based statements.
//!
//! The transaction holds the write lock throughout, so no row can change between the first step and the last.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use windlass_core::command::Target;
use windlass_core::limit::RIPPLE_MAX;
use windlass_core::{
    AttemptEnd, AttemptRecord, Blocker, ChainId, ClosedAs, Fence, JobId, Key, OnBlockerFailure, Payload,
    Result, Status, Timestamp, TraceContext, TypeName,
};

use crate::provider::Row;
use crate::row::{ChainRow, JobRow, hex};
use crate::session::Session;
use crate::statement::set;

/// The first `seq` of jobs that are not stored yet. The database assigns the final one when it inserts the job.
const UNWRITTEN: i64 = 1 << 62;

/// The unit of work of one command: the rows that it loaded, and its changes to them.
#[derive(Debug)]
pub(crate) struct UnitOfWork {
    pub(crate) now: Timestamp,
    jobs: HashMap<JobId, JobRow>,
    chains: HashMap<ChainId, ChainRow>,
    /// The chain that each key points at.
    keys: HashMap<(TypeName, Key), ChainId>,
    /// The ids of stored jobs, each with its chain.
    taken: HashMap<JobId, ChainId>,
    /// The waits of the chains that a search for cycles may visit.
    pub(crate) waits: HashMap<ChainId, Waits>,
    /// The blocked jobs that wait for each chain, in order of creation.
    pub(crate) waiting: HashMap<ChainId, BTreeMap<i64, JobId>>,
    /// Closed chains with unresolved dependents, in the order in which they closed.
    pub(crate) rippling: BTreeSet<(Timestamp, i64, ChainId)>,
    /// Whether all chains that an earlier command left with unresolved dependents are loaded.
    knows_marks: bool,
    /// Chains whose dependents are loaded. With `true`, all of them; with `false`, only those that a failed or
    /// cancelled chain affects.
    loaded: HashSet<(ChainId, bool)>,
    /// How many more dependents this command may resolve.
    pub(crate) ripple_left: usize,

    pub(crate) created: Vec<CreatedJob>,
    pub(crate) changed_jobs: BTreeSet<i64>,
    pub(crate) changed_chains: BTreeSet<ChainId>,
    pub(crate) resolved: Vec<(i64, ChainId)>,
    /// Jobs that closed while they were blocked.
    pub(crate) ended_waits: Vec<i64>,
    /// Jobs that no longer need their blockers.
    pub(crate) released: Vec<i64>,
    /// Cancelled jobs that were reopened, and need their blockers again.
    pub(crate) needing: Vec<i64>,
    /// Reopened jobs that wait for their unresolved blockers again.
    pub(crate) waiting_again: Vec<i64>,
    pub(crate) attempts: Vec<(i64, AttemptRecord)>,
    by_seq: HashMap<i64, JobId>,
    log: Vec<Before>,
    #[cfg(feature = "known-bad")]
    pub(crate) keeps_refused: bool,
}

/// The parts of a job that is not stored yet which its [`JobRow`] lacks.
#[derive(Debug)]
pub(crate) struct CreatedJob {
    pub(crate) id: JobId,
    pub(crate) input: Payload,
    pub(crate) priority: i8,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) blockers: Vec<Blocker>,
}

/// The chains that a chain's latest job waits for.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) status: Status,
    /// Each chain, with whether the wait for it is resolved.
    pub(crate) chains: Vec<(ChainId, bool)>,
}

/// The previous value of an entry, used to undo a refused settlement.
#[derive(Debug)]
enum Before {
    Job(JobId, Option<JobRow>),
    Chain(ChainId, Option<ChainRow>),
    Key((TypeName, Key), Option<ChainId>),
    Created { waited_for: Vec<ChainId>, seq: i64 },
}

/// The rows that a command has to load.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    ids: BTreeSet<String>,
    keys: BTreeSet<(String, String)>,
}

impl Needs {
    pub(crate) fn job(&mut self, id: JobId) {
        self.ids.insert(hex(id.as_uuid()));
    }

    pub(crate) fn chain(&mut self, id: ChainId) {
        self.ids.insert(hex(id.as_uuid()));
    }

    pub(crate) fn key(&mut self, chain_type: &TypeName, key: &Key) {
        self.keys.insert((chain_type.to_string(), key.to_string()));
    }

    pub(crate) fn target(&mut self, target: &Target) {
        match target {
            Target::Chain(id) => self.chain(*id),
            Target::Job(id) => self.job(*id),
            Target::Key(chain_type, key) => self.key(chain_type, key),
        }
    }
}

impl UnitOfWork {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            now,
            jobs: HashMap::new(),
            chains: HashMap::new(),
            keys: HashMap::new(),
            taken: HashMap::new(),
            waits: HashMap::new(),
            waiting: HashMap::new(),
            rippling: BTreeSet::new(),
            knows_marks: false,
            loaded: HashSet::new(),
            ripple_left: RIPPLE_MAX,
            created: Vec::new(),
            changed_jobs: BTreeSet::new(),
            changed_chains: BTreeSet::new(),
            resolved: Vec::new(),
            ended_waits: Vec::new(),
            released: Vec::new(),
            needing: Vec::new(),
            waiting_again: Vec::new(),
            attempts: Vec::new(),
            by_seq: HashMap::new(),
            log: Vec::new(),
            #[cfg(feature = "known-bad")]
            keeps_refused: false,
        }
    }

    /// Starts the next part of the same command, with the same time and the rest of its budget. All changes so far must
    /// have been written.
    pub(crate) fn next_part(&self) -> Self {
        Self { ripple_left: self.ripple_left, ..Self::new(self.now) }
    }

    /// Loads chains with their latest jobs.
    pub(crate) async fn load_chains(&mut self, session: &mut Session<'_>, needs: &Needs) -> Result<()> {
        if needs.ids.is_empty() && needs.keys.is_empty() {
            return Ok(());
        }
        let values = vec![set(&needs.ids)?, set(&needs.keys)?];
        for row in session.rows(&session.statements.load_chains, values).await? {
            let chain = ChainRow::read(&row)?;
            let latest = JobRow::read(&row)?;
            let id = latest.id;
            self.learn_job(latest);
            if let Some(asked) = row.maybe_uuid("asked")? {
                self.taken.insert(JobId::from_uuid(asked), chain.id);
            } else {
                // Only look-ups by key need the output. If the same job was also loaded by id, its row lacks it.
                let output = row.maybe_payload("output_codec", "output")?;
                if let Some(latest) = self.jobs.get_mut(&id) {
                    latest.output = output;
                }
                if let Some(key) = &chain.key {
                    self.keys.insert((chain.chain_type.clone(), key.key.clone()), chain.id);
                }
            }
            self.learn_chain(chain, &row)?;
        }
        Ok(())
    }

    /// Adds a chain as it is stored. Usually no job waits for it and no closed chain has unresolved dependents; then
    /// nothing remains to be loaded for its end.
    fn learn_chain(&mut self, chain: ChainRow, row: &Row) -> Result<()> {
        if !row.flag("is_awaited")? {
            self.loaded.insert((chain.id, true));
        }
        self.knows_marks |= !row.flag("any_rippling")?;
        self.chains.entry(chain.id).or_insert(chain);
        Ok(())
    }

    /// Adds the job of a row as it is stored. Adds its chain too if the job is the chain's latest.
    pub(crate) fn learn(&mut self, row: &Row) -> Result<()> {
        let (job, chain) = (JobRow::read(row)?, ChainRow::read(row)?);
        self.taken.insert(job.id, chain.id);
        if chain.latest == job.id {
            self.learn_chain(chain, row)?;
        }
        self.learn_job(job);
        Ok(())
    }

    /// Loads the jobs that are affected when these chains close, each given with whether it completes. Also loads the
    /// dependents that an earlier command left unresolved, and the chains of dependents that fail with their blocker.
    pub(crate) async fn load_dependents(
        &mut self,
        session: &mut Session<'_>,
        closing: &[(ChainId, bool)],
    ) -> Result<()> {
        if self.knows_marks && closing.iter().all(|(chain, _)| self.loaded.contains(&(*chain, true))) {
            return Ok(());
        }
        // One row for each dependent, and up to two more for each chain, including the chains of dependents that fail.
        let limit = 4 * RIPPLE_MAX + 2 * closing.len();
        let asked: Vec<_> = closing.iter().map(|(chain, done)| (hex(chain.as_uuid()), done)).collect();
        let values = vec![set(&asked)?, self.now.as_millis().into(), (2 * RIPPLE_MAX).into(), limit.into()];
        let rows = session.rows(&session.statements.load_dependents, values).await?;
        let mut needs = Needs::default();
        let mut awaited = HashSet::new();
        for row in &rows {
            let chain = ChainId::from_uuid(row.uuid("awaited")?);
            awaited.insert(chain);
            if !self.chains.contains_key(&chain) {
                needs.chain(chain);
            }
            if row.maybe_integer("seq")?.is_none() {
                // A row without a job marks the end of this chain's dependents.
                self.loaded.insert((chain, row.flag("completed")?));
            } else {
                let job = JobRow::read(row)?;
                self.waiting.entry(chain).or_default().insert(job.seq, job.id);
                if job.on_blocker_failure == OnBlockerFailure::Fail {
                    needs.chain(job.chain);
                }
                self.learn_job(job);
            }
        }
        self.load_chains(session, &needs).await?;
        self.knows_marks = rows.len() < 2 * RIPPLE_MAX;
        let marked = awaited.iter().filter_map(|chain| self.chains.get(chain)).filter(|row| row.rippling);
        self.rippling = marked.filter_map(ripple_place).collect();
        Ok(())
    }

    /// Whether no chain has unresolved dependents, neither of this command nor of an earlier one.
    pub(crate) fn has_rippled(&self) -> bool {
        self.knows_marks && self.rippling.is_empty()
    }

    /// Whether all jobs that this end of the chain affects are loaded. That is always so for a chain that this command
    /// creates: only jobs of the same command can wait for it.
    pub(crate) fn has_all_waiting(&self, chain: &ChainRow, closed_as: ClosedAs) -> bool {
        Self::is_unwritten(chain.seq)
            || self.loaded.contains(&(chain.id, true))
            || closed_as != ClosedAs::Completed && self.loaded.contains(&(chain.id, false))
    }

    /// Adds a job as it is stored.
    pub(crate) fn learn_job(&mut self, job: JobRow) {
        self.by_seq.insert(job.seq, job.id);
        self.jobs.entry(job.id).or_insert(job);
    }

    /// Whether the chain of a loaded job is loaded.
    pub(crate) fn has_chain_of(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|row| self.chains.contains_key(&row.chain))
    }

    pub(crate) fn job(&self, id: JobId) -> Option<&JobRow> {
        self.jobs.get(&id)
    }

    pub(crate) fn job_at(&self, seq: i64) -> Option<&JobRow> {
        self.by_seq.get(&seq).and_then(|id| self.jobs.get(id))
    }

    pub(crate) fn chain(&self, id: ChainId) -> Option<&ChainRow> {
        self.chains.get(&id)
    }

    pub(crate) fn latest(&self, chain: &ChainRow) -> Option<&JobRow> {
        self.jobs.get(&chain.latest)
    }

    pub(crate) fn is_taken(&self, id: JobId) -> bool {
        self.taken.contains_key(&id) || self.jobs.contains_key(&id)
    }

    /// Returns the chain that a key points at, even if the chain's retention is over.
    pub(crate) fn pointed_at(&self, chain_type: &TypeName, key: &Key) -> Option<&ChainRow> {
        self.keys.get(&(chain_type.clone(), key.clone())).and_then(|chain| self.chains.get(chain))
    }

    /// Returns the stored chain of a target.
    pub(crate) fn find(&self, target: &Target) -> Option<&ChainRow> {
        match target {
            Target::Chain(id) => self.chain(*id),
            Target::Job(id) => self.taken.get(id).and_then(|chain| self.chain(*chain)),
            Target::Key(chain_type, key) => {
                self.pointed_at(chain_type, key).filter(|row| row.is_found_by_key(self.now))
            }
        }
    }

    pub(crate) fn point(&mut self, chain_type: TypeName, key: Key, chain: ChainId) {
        let entry = (chain_type, key);
        let before = self.keys.insert(entry.clone(), chain);
        self.log.push(Before::Key(entry, before));
    }

    /// Returns the provisional `seq` of the next job to be created.
    pub(crate) fn next_seq(&self) -> i64 {
        UNWRITTEN + i64::try_from(self.created.len()).unwrap_or(0)
    }

    /// Whether a `seq` is provisional: the job is not stored yet.
    pub(crate) const fn is_unwritten(seq: i64) -> bool {
        seq >= UNWRITTEN
    }

    /// Returns the job that is not stored yet and has this `seq`.
    pub(crate) fn created_at(&self, seq: i64) -> Option<&CreatedJob> {
        self.created.get(usize::try_from(seq.checked_sub(UNWRITTEN)?).ok()?)
    }

    /// Mutable version of [`created_at`](Self::created_at).
    pub(crate) fn created_at_mut(&mut self, seq: i64) -> Option<&mut CreatedJob> {
        self.created.get_mut(usize::try_from(seq.checked_sub(UNWRITTEN)?).ok()?)
    }

    /// Adds a job that is not stored yet. If it is blocked, registers it as a dependent of its unresolved blockers.
    pub(crate) fn create_job(&mut self, row: JobRow, created: CreatedJob) {
        let waited_for: Vec<_> = match row.status {
            Status::Blocked => created
                .blockers
                .iter()
                .filter(|blocker| !blocker.resolved)
                .map(|blocker| blocker.chain)
                .collect(),
            _ => Vec::new(),
        };
        for chain in &waited_for {
            self.waiting.entry(*chain).or_default().insert(row.seq, row.id);
        }
        self.log.push(Before::Created { waited_for, seq: row.seq });
        self.by_seq.insert(row.seq, row.id);
        self.log.push(Before::Job(row.id, self.jobs.insert(row.id, row)));
        self.created.push(created);
    }

    /// Replaces a job and marks it as changed.
    pub(crate) fn put_job(&mut self, row: JobRow) {
        if !Self::is_unwritten(row.seq) {
            self.changed_jobs.insert(row.seq);
        }
        self.log.push(Before::Job(row.id, self.jobs.insert(row.id, row)));
    }

    /// Adds or replaces a chain. Marks it as changed if it is stored.
    pub(crate) fn put_chain(&mut self, row: ChainRow) {
        if !Self::is_unwritten(row.seq) {
            self.changed_chains.insert(row.id);
        }
        self.log.push(Before::Chain(row.id, self.chains.insert(row.id, row)));
    }

    /// Returns how the attempt with this fence ended, if it ended in this command.
    pub(crate) fn end_of(&self, job: &JobRow, fence: Fence) -> Option<AttemptEnd> {
        let closed = job.ended.filter(|_| job.fence == fence);
        let put_back = || {
            let mut attempts = self.attempts.iter();
            attempts
                .find(|(seq, record)| *seq == job.seq && record.fence == fence)
                .map(|(_, record)| record.end)
        };
        closed.or_else(put_back)
    }

    /// Returns a mark for [`undo_to`](Self::undo_to).
    pub(crate) const fn mark(&self) -> usize {
        self.log.len()
    }

    /// Undoes all creations since the mark.
    pub(crate) fn undo_to(&mut self, mark: usize) {
        #[cfg(feature = "known-bad")]
        if self.keeps_refused {
            return;
        }
        for before in self.log.split_off(mark).into_iter().rev() {
            match before {
                Before::Job(id, row) => restore(&mut self.jobs, id, row),
                Before::Chain(id, row) => restore(&mut self.chains, id, row),
                Before::Key(entry, chain) => restore(&mut self.keys, entry, chain),
                Before::Created { waited_for, seq } => {
                    self.created.pop();
                    self.by_seq.remove(&seq);
                    for chain in waited_for {
                        if let Some(jobs) = self.waiting.get_mut(&chain) {
                            jobs.remove(&seq);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(feature = "known-bad")]
impl UnitOfWork {
    /// Replaces keys, and whether chains are open, with values that were read before the transaction.
    pub(crate) fn believe_chains(&mut self, early: Option<Self>) {
        let Some(early) = early else { return };
        for (id, row) in &mut self.chains {
            row.closed = early.chains.get(id).map_or(row.closed, |early| early.closed);
        }
        self.keys = early.keys;
    }

    /// Replaces jobs and chains with values that were read before the transaction.
    pub(crate) fn believe_rows(&mut self, early: Self) {
        self.jobs = early.jobs;
        self.chains = early.chains;
    }

    /// Replaces the number of waits of each job with the one that was read before the transaction.
    pub(crate) fn believe_waits(&mut self, early: &Self) {
        for (id, row) in &mut self.jobs {
            row.waits = early.jobs.get(id).map_or(row.waits, |early| early.waits);
        }
    }
}

/// Returns the sort key of a closed chain among those with unresolved dependents.
pub(crate) fn ripple_place(row: &ChainRow) -> Option<(Timestamp, i64, ChainId)> {
    row.closed.map(|closed| (closed.at, row.seq, row.id))
}

/// Restores the previous value of an entry.
fn restore<K: Eq + std::hash::Hash, V>(places: &mut HashMap<K, V>, key: K, before: Option<V>) {
    match before {
        Some(value) => places.insert(key, value),
        None => places.remove(&key),
    };
}

/// Reads which chains the latest jobs of chains wait for.
pub(crate) fn read_waits(rows: &[Row]) -> Result<HashMap<ChainId, Waits>> {
    let mut waits = HashMap::new();
    for row in rows {
        let waiting = ChainId::from_uuid(row.uuid("waiting")?);
        let status = row.enum_value("status")?;
        let waits = waits.entry(waiting).or_insert_with(|| Waits { status, chains: Vec::new() });
        waits.chains.push((ChainId::from_uuid(row.uuid("awaited")?), row.flag("resolved")?));
    }
    Ok(waits)
}
