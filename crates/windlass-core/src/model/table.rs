//! Rows with their indexes, and the log of changes.
//!
//! Every index is derived from the rows. Setting a row removes the index entries of its old value and adds
//! those of its new value, except for entries that are the same for both. Undo and replay therefore only need
//! to set rows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldhash::HashMap;

use crate::command::{Types, WorkerInfo};
use crate::error::Result;
use crate::id::{ChainId, JobId, RequestId, WorkerId};
use crate::model::row::{ChainRow, Effect, JobRow, LockRow, Row, RowKey, repeat_window};
use crate::model::rows::{Due, Rows};
use crate::name::{Key, LockName, TypeName};
use crate::record::{ChainRecord, ClosedAs, OnBlockerFailure, Status};
use crate::time::Timestamp;

/// A job ordered by a time, then by creation.
pub(super) type ByTime = (Timestamp, u64, JobId);

/// Rows with their indexes.
#[derive(Debug, Default)]
pub(super) struct Tables {
    jobs: HashMap<JobId, Arc<JobRow>>,
    chains: HashMap<ChainId, Arc<ChainRow>>,
    workers: BTreeMap<WorkerId, Arc<WorkerInfo>>,
    locks: BTreeMap<LockName, LockRow>,
    paused: BTreeSet<TypeName>,
    log: Vec<Effect>,
    next_seq: u64,

    /// The job types that have stored jobs.
    pub(super) types: BTreeMap<TypeName, OfType>,
    /// The sequence numbers of running jobs, by the acquire request that leased them.
    pub(super) requests: HashMap<RequestId, BTreeSet<u64>>,
    /// The chain that each key points at.
    pub(super) keys: HashMap<(TypeName, Key), ChainId>,
    /// The jobs of a chain after the first, by index. The first job has the chain's id and needs no index
    /// entry.
    later_jobs: BTreeMap<(ChainId, u32), JobId>,
    /// The jobs that wait or waited for each chain.
    pub(super) dependents: HashMap<ChainId, BTreeSet<(u64, JobId)>>,
    /// The open jobs among `dependents`.
    pub(super) open_dependents: HashMap<ChainId, BTreeSet<(u64, JobId)>>,
    /// The blocked jobs that still wait for each chain.
    pub(super) waiting: HashMap<ChainId, Waiting>,
    /// How many jobs need each chain's output, now or if they are retried.
    needed: HashMap<ChainId, usize>,
    /// Closed chains that no job needs, by the time they may be deleted.
    pub(super) removable: BTreeSet<(Timestamp, u64, ChainId)>,
    /// Open chains by the time their oldest inner job may be deleted.
    pub(super) trimming: BTreeSet<(Timestamp, ChainId)>,
    /// The time under which each chain is listed in `trimming`.
    trim_at: HashMap<ChainId, Timestamp>,
    /// Closed chains whose dependents still have to be resolved, in the order in which they closed.
    pub(super) rippling: BTreeSet<(Timestamp, u64, ChainId)>,
    /// Jobs in order of creation.
    pub(super) jobs_by_seq: BTreeMap<u64, JobId>,
    /// Chains in order of creation.
    pub(super) chains_by_seq: BTreeMap<u64, ChainId>,
    /// Workers by the time at which their registration expires.
    pub(super) worker_ends: BTreeSet<(Timestamp, WorkerId)>,
    /// Leader locks by the time they expire.
    pub(super) lock_ends: BTreeSet<(Timestamp, LockName)>,
}

/// The jobs of one type.
#[derive(Debug, Default)]
pub(super) struct OfType {
    /// Pending jobs by priority (highest first) and due time.
    pub(super) pending: BTreeMap<Reverse<i8>, BTreeSet<ByTime>>,
    /// Running jobs by lease expiry.
    pub(super) running: BTreeSet<ByTime>,
    /// The number of jobs in each status.
    pub(super) counts: [u64; Status::ALL.len()],
}

impl OfType {
    /// Returns the number of jobs with this status.
    pub(super) fn count(&self, status: Status) -> u64 {
        self.counts.get(status as usize).copied().unwrap_or_default()
    }
}

/// Blocked jobs that wait for a chain. If the chain fails or is cancelled, `patient` jobs keep waiting
/// (`OnBlockerFailure::Wait`). `eager` jobs react to any end of the chain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) patient: BTreeSet<(u64, JobId)>,
    pub(super) eager: BTreeSet<(u64, JobId)>,
}

impl Tables {
    pub(super) fn get_job(&self, id: JobId) -> Option<&Arc<JobRow>> {
        self.jobs.get(&id)
    }

    pub(super) fn get_chain(&self, id: ChainId) -> Option<&Arc<ChainRow>> {
        self.chains.get(&id)
    }

    /// Returns all workers, leader locks and paused types.
    pub(super) fn registry(&self) -> Vec<(RowKey, Row)> {
        let workers =
            self.workers.iter().map(|(id, row)| (RowKey::Worker(*id), Row::Worker(Arc::clone(row))));
        let locks = self.locks.iter().map(|(name, row)| (RowKey::Lock(name.clone()), Row::Lock(*row)));
        let paused = self.paused.iter().map(|name| (RowKey::Paused(name.clone()), Row::Paused));
        workers.chain(locks).chain(paused).collect()
    }

    pub(super) const fn last_seq(&self) -> u64 {
        self.next_seq
    }

    pub(super) fn skip_seq(&mut self, seq: u64) {
        self.next_seq = self.next_seq.max(seq);
    }

    /// Returns a chain in the form that readers see.
    pub(super) fn view(&self, id: ChainId) -> Option<ChainRecord> {
        let row = self.chains.get(&id)?;
        let latest = self.jobs.get(&row.latest)?;
        Some(row.view(self.jobs.get(&id.first_job()).unwrap_or(latest), latest))
    }

    /// Returns the jobs of a chain whose index is in the range, in order.
    pub(super) fn jobs_in(
        &self,
        chain: ChainId,
        places: RangeInclusive<u32>,
    ) -> impl DoubleEndedIterator<Item = (u32, JobId)> {
        let (from, to) = (*places.start(), *places.end());
        let first = (from == 0).then(|| chain.first_job()).filter(|first| self.jobs.contains_key(first));
        let later = (from <= to).then(|| self.later_jobs.range((chain, from)..=(chain, to)));
        let later = later.into_iter().flatten().map(|((_, index), job)| (*index, *job));
        first.map(|first| (0, first)).into_iter().chain(later)
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = &Arc<WorkerInfo>> {
        self.workers.values()
    }

    pub(super) fn has_paused(&self, job_type: &TypeName) -> bool {
        self.paused.contains(job_type)
    }

    pub(super) fn paused(&self) -> impl Iterator<Item = &TypeName> {
        self.paused.iter()
    }

    /// Returns the log and starts an empty one.
    pub(super) fn take_log(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.log)
    }

    /// Discards the log.
    pub(super) fn clear_log(&mut self) {
        self.log.clear();
    }

    /// Sets or deletes a row together with its index entries, and returns its previous value.
    pub(super) fn install(&mut self, key: &RowKey, after: Option<Row>) -> Option<Row> {
        match (key, after) {
            (RowKey::Job(id), Some(Row::Job(row))) => {
                let before = self.jobs.insert(*id, Arc::clone(&row));
                let unchanged =
                    before.as_ref().map_or(Unchanged::NOTHING, |before| Unchanged::of(before, &row));
                if let Some(before) = &before {
                    self.unindex_job(before, unchanged);
                }
                self.index_job(&row, unchanged);
                before.map(Row::Job)
            }
            (RowKey::Job(id), _) => {
                let before = self.jobs.remove(id)?;
                self.unindex_job(&before, Unchanged::NOTHING);
                Some(Row::Job(before))
            }
            (RowKey::Chain(id), Some(Row::Chain(row))) => {
                let before = self.chains.insert(*id, Arc::clone(&row));
                let moved = before.as_ref().is_none_or(|before| before.seq != row.seq);
                if let Some(before) = &before {
                    self.unindex_chain(before, moved);
                }
                self.index_chain(&row, moved);
                self.reindex_trim(*id);
                before.map(Row::Chain)
            }
            (RowKey::Chain(id), _) => {
                let before = self.chains.remove(id)?;
                self.unindex_chain(&before, true);
                self.reindex_trim(*id);
                Some(Row::Chain(before))
            }
            (RowKey::Worker(id), after) => {
                let before = self.workers.remove(id);
                if let Some(row) = &before {
                    self.worker_ends.remove(&(row.expires_at, *id));
                }
                if let Some(Row::Worker(row)) = after {
                    self.worker_ends.insert((row.expires_at, *id));
                    self.workers.insert(*id, row);
                }
                before.map(Row::Worker)
            }
            (RowKey::Lock(name), after) => {
                let before = self.locks.remove(name);
                if let Some(row) = &before {
                    self.lock_ends.remove(&(row.until, name.clone()));
                }
                if let Some(Row::Lock(row)) = after {
                    self.lock_ends.insert((row.until, name.clone()));
                    self.locks.insert(name.clone(), row);
                }
                before.map(Row::Lock)
            }
            (RowKey::Paused(name), Some(_)) => (!self.paused.insert(name.clone())).then_some(Row::Paused),
            (RowKey::Paused(name), None) => self.paused.remove(name).then_some(Row::Paused),
        }
    }

    fn index_job(&mut self, row: &JobRow, unchanged: Unchanged) {
        let job = &row.job;
        if !unchanged.position {
            self.next_seq = self.next_seq.max(row.seq);
            self.jobs_by_seq.insert(row.seq, job.id);
            if job.index > 0 {
                self.later_jobs.insert((job.chain, job.index), job.id);
            }
        }
        let of_type = self.types.entry(job.job_type.clone()).or_default();
        if let Some(count) = of_type.counts.get_mut(job.status as usize) {
            *count += 1;
        }
        match (job.status, &job.lease) {
            (Status::Pending, _) => {
                let level = of_type.pending.entry(Reverse(job.priority)).or_default();
                level.insert((job.due_at, row.seq, job.id));
            }
            (Status::Running, Some(lease)) => {
                of_type.running.insert((lease.until, row.seq, job.id));
                self.requests.entry(lease.request).or_default().insert(row.seq);
            }
            _ => {}
        }
        if !unchanged.edges {
            self.index_edges(row);
        }
        if job.index > 0 {
            self.reindex_trim(job.chain);
        }
    }

    fn index_edges(&mut self, row: &JobRow) {
        let entry = (row.seq, row.job.id);
        for blocker in row.job.blockers.iter() {
            self.dependents.entry(blocker.chain).or_default().insert(entry);
            if row.job.status.is_open() {
                self.open_dependents.entry(blocker.chain).or_default().insert(entry);
            }
            if row.needs_blockers() {
                self.change_needed(blocker.chain, true);
            }
            if row.job.status == Status::Blocked && !blocker.resolved {
                let waiting = self.waiting.entry(blocker.chain).or_default();
                let patient = row.job.on_blocker_failure == OnBlockerFailure::Wait;
                let jobs = if patient { &mut waiting.patient } else { &mut waiting.eager };
                jobs.insert(entry);
            }
        }
    }

    fn unindex_job(&mut self, row: &JobRow, unchanged: Unchanged) {
        let job = &row.job;
        if !unchanged.position {
            self.jobs_by_seq.remove(&row.seq);
            self.later_jobs.remove(&(job.chain, job.index));
        }
        self.remove_from_type(row);
        if let (Status::Running, Some(lease)) = (job.status, &job.lease)
            && let Some(jobs) = self.requests.get_mut(&lease.request)
        {
            jobs.remove(&row.seq);
            if jobs.is_empty() {
                self.requests.remove(&lease.request);
            }
        }
        if !unchanged.edges {
            self.remove_edges(row);
        }
        if job.index > 0 {
            self.reindex_trim(job.chain);
        }
    }

    fn remove_edges(&mut self, row: &JobRow) {
        let entry = (row.seq, row.job.id);
        for blocker in row.job.blockers.iter() {
            remove_entry(&mut self.dependents, blocker.chain, entry);
            remove_entry(&mut self.open_dependents, blocker.chain, entry);
            if row.needs_blockers() {
                self.change_needed(blocker.chain, false);
            }
            if let Some(waiting) = self.waiting.get_mut(&blocker.chain) {
                waiting.patient.remove(&entry);
                waiting.eager.remove(&entry);
                if *waiting == Waiting::default() {
                    self.waiting.remove(&blocker.chain);
                }
            }
        }
    }

    fn remove_from_type(&mut self, row: &JobRow) {
        let job = &row.job;
        let Some(of_type) = self.types.get_mut(&job.job_type) else { return };
        match (job.status, &job.lease) {
            (Status::Pending, _) => {
                let level = Reverse(job.priority);
                remove_member(&mut of_type.pending, &level, &(job.due_at, row.seq, job.id));
            }
            (Status::Running, Some(lease)) => {
                of_type.running.remove(&(lease.until, row.seq, job.id));
            }
            _ => {}
        }
        if let Some(count) = of_type.counts.get_mut(job.status as usize) {
            *count -= 1;
        }
        if of_type.counts.iter().all(|count| *count == 0) {
            self.types.remove(&job.job_type);
        }
    }

    fn index_chain(&mut self, row: &ChainRow, moved: bool) {
        if moved {
            self.chains_by_seq.insert(row.seq, row.id);
        }
        if let Some(key) = row.key.as_ref().filter(|key| key.held) {
            self.keys.insert((row.chain_type.clone(), key.key.clone()), row.id);
        }
        if let Some(closed) = row.closed {
            if row.rippling {
                self.rippling.insert((closed.at, row.seq, row.id));
            }
            if let Some(at) = row.removable_at().filter(|_| !self.needed.contains_key(&row.id)) {
                self.removable.insert((at, row.seq, row.id));
            }
        }
    }

    fn unindex_chain(&mut self, row: &ChainRow, moved: bool) {
        if moved {
            self.chains_by_seq.remove(&row.seq);
        }
        if let Some(key) = row.key.as_ref().filter(|key| key.held) {
            let entry = (row.chain_type.clone(), key.key.clone());
            if self.keys.get(&entry) == Some(&row.id) {
                self.keys.remove(&entry);
            }
        }
        if let Some(closed) = row.closed {
            self.rippling.remove(&(closed.at, row.seq, row.id));
        }
        if let Some(at) = row.removable_at() {
            self.removable.remove(&(at, row.seq, row.id));
        }
    }

    /// Counts one job more or one less that needs the chain. A closed chain may be deleted only while no job
    /// needs it.
    fn change_needed(&mut self, chain: ChainId, more: bool) {
        let count = self.needed.entry(chain).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        let unneeded = *count == 0;
        if unneeded {
            self.needed.remove(&chain);
        }
        let Some(row) = self.chains.get(&chain) else { return };
        let Some(at) = row.removable_at() else { return };
        if unneeded {
            self.removable.insert((at, row.seq, chain));
        } else {
            self.removable.remove(&(at, row.seq, chain));
        }
    }

    /// Updates the time at which the oldest inner job of an open chain may be deleted.
    fn reindex_trim(&mut self, chain: ChainId) {
        if let Some(at) = self.trim_at.remove(&chain) {
            self.trimming.remove(&(at, chain));
        }
        let Some(row) = self.chains.get(&chain).filter(|row| row.closed.is_none() && row.latest_index > 1)
        else {
            return;
        };
        let Some((_, inner)) = self.jobs_in(chain, 1..=row.latest_index - 1).next() else { return };
        let Some(closed_at) = self.jobs.get(&inner).and_then(|inner| inner.job.closed_at) else { return };
        let at = closed_at + row.retention.completed.max(repeat_window());
        self.trim_at.insert(chain, at);
        self.trimming.insert((at, chain));
    }
}

impl Rows for Tables {
    type Place = JobId;

    fn job(&mut self, id: JobId) -> Result<Option<Arc<JobRow>>> {
        Ok(self.jobs.get(&id).cloned())
    }

    fn chain(&mut self, id: ChainId) -> Result<Option<Arc<ChainRow>>> {
        Ok(self.chains.get(&id).cloned())
    }

    fn keyed(&mut self, chain_type: &TypeName, key: &Key) -> Result<Option<ChainId>> {
        Ok(self.keys.get(&(chain_type.clone(), key.clone())).copied())
    }

    fn next_seq(&mut self) -> Result<u64> {
        self.next_seq += 1;
        Ok(self.next_seq)
    }

    fn set(&mut self, key: RowKey, after: Option<Row>) -> Result<()> {
        let before = self.install(&key, after.clone());
        self.log.push(Effect { key, before, after });
        Ok(())
    }

    fn mark(&self) -> usize {
        self.log.len()
    }

    fn undo_to(&mut self, mark: usize) -> Result<()> {
        for effect in self.log.split_off(mark).into_iter().rev() {
            self.install(&effect.key, effect.before);
        }
        Ok(())
    }

    fn leased(&mut self, request: RequestId) -> Result<Vec<Arc<JobRow>>> {
        let Some(jobs) = self.requests.get(&request) else { return Ok(Vec::new()) };
        let ids = jobs.iter().filter_map(|seq| self.jobs_by_seq.get(seq));
        let mut rows: Vec<_> = ids.filter_map(|id| self.jobs.get(id)).cloned().collect();
        rows.sort_by_key(|row| (Reverse(row.job.priority), row.job.due_at, row.seq));
        Ok(rows)
    }

    fn due(&mut self, job_type: &TypeName, now: Timestamp, max: usize) -> Result<Vec<Due<JobId>>> {
        let Some(of_type) = self.types.get(job_type) else { return Ok(Vec::new()) };
        let levels = of_type.pending.iter().flat_map(|(Reverse(priority), jobs)| {
            let due = jobs.iter().take_while(|(due_at, ..)| *due_at <= now);
            due.map(|(due_at, seq, place)| Due {
                priority: *priority,
                due_at: *due_at,
                seq: *seq,
                place: *place,
            })
        });
        Ok(levels.take(max).collect())
    }

    fn due_job(&mut self, due: Due<JobId>) -> Result<Option<Arc<JobRow>>> {
        self.job(due.place)
    }

    fn expired_leases(
        &mut self,
        types: &Types,
        except: &[JobId],
        now: Timestamp,
        max: usize,
    ) -> Result<Vec<JobId>> {
        let except: HashSet<_> = except.iter().collect();
        let expired = |of_type: &OfType| -> Vec<ByTime> {
            let expired = of_type.running.iter().take_while(|(until, ..)| *until <= now);
            expired.filter(|(.., job)| !except.contains(job)).take(max).copied().collect()
        };
        let mut jobs: Vec<ByTime> = match types {
            Types::All => self.types.values().flat_map(expired).collect(),
            Types::Only(names) => {
                let names: BTreeSet<_> = names.iter().collect();
                names.into_iter().filter_map(|name| self.types.get(name)).flat_map(expired).collect()
            }
        };
        jobs.sort_unstable();
        jobs.truncate(max);
        Ok(jobs.into_iter().map(|(.., job)| job).collect())
    }

    fn is_paused(&mut self, job_type: &TypeName) -> Result<bool> {
        Ok(self.has_paused(job_type))
    }

    fn first_rippling(&mut self) -> Result<Option<ChainId>> {
        Ok(self.rippling.first().map(|(.., chain)| *chain))
    }

    fn next_waiting(&mut self, chain: ChainId, closed_as: ClosedAs) -> Result<Option<JobId>> {
        let Some(waiting) = self.waiting.get(&chain) else { return Ok(None) };
        let patient = waiting.patient.first().filter(|_| closed_as == ClosedAs::Completed);
        Ok(waiting.eager.first().into_iter().chain(patient).min().map(|(_, job)| *job))
    }

    fn open_dependents(&mut self, chain: ChainId, max: usize) -> Result<Vec<JobId>> {
        let dependents = self.open_dependents.get(&chain).into_iter().flatten();
        Ok(dependents.take(max).map(|(_, job)| *job).collect())
    }

    fn chain_jobs(&mut self, chain: ChainId, indexes: RangeInclusive<u32>, max: usize) -> Result<Vec<JobId>> {
        Ok(self.jobs_in(chain, indexes).take(max).map(|(_, job)| job).collect())
    }

    fn first_removable(&mut self, now: Timestamp) -> Result<Option<ChainId>> {
        Ok(self.removable.first().filter(|(at, ..)| *at <= now).map(|(.., chain)| *chain))
    }

    fn first_trimmable(&mut self, now: Timestamp) -> Result<Option<ChainId>> {
        Ok(self.trimming.first().filter(|(at, _)| *at <= now).map(|(_, chain)| *chain))
    }

    fn worker(&mut self, id: WorkerId) -> Result<Option<Arc<WorkerInfo>>> {
        Ok(self.workers.get(&id).cloned())
    }

    fn expired_workers(&mut self, now: Timestamp, max: usize) -> Result<Vec<WorkerId>> {
        let expired = self.worker_ends.iter().take_while(|(at, _)| *at <= now);
        Ok(expired.take(max).map(|(_, worker)| *worker).collect())
    }

    fn lock(&mut self, name: &LockName) -> Result<Option<LockRow>> {
        Ok(self.locks.get(name).copied())
    }

    fn expired_locks(&mut self, now: Timestamp, max: usize) -> Result<Vec<LockName>> {
        let expired = self.lock_ends.iter().take_while(|(at, _)| *at <= now);
        Ok(expired.take(max).map(|(_, name)| name.clone()).collect())
    }
}

/// Removes a member from one of several sets. Removes the set if it becomes empty.
fn remove_member<K: Ord, T: Ord>(sets: &mut BTreeMap<K, BTreeSet<T>>, key: &K, member: &T) {
    let Some(set) = sets.get_mut(key) else { return };
    set.remove(member);
    if set.is_empty() {
        sets.remove(key);
    }
}

/// Removes a job from a chain's list. Removes the list if it becomes empty.
fn remove_entry(lists: &mut HashMap<ChainId, BTreeSet<(u64, JobId)>>, chain: ChainId, entry: (u64, JobId)) {
    let Some(list) = lists.get_mut(&chain) else { return };
    list.remove(&entry);
    if list.is_empty() {
        lists.remove(&chain);
    }
}

/// Which index entries of a job stay the same across a change. Most changes keep the job's position and its
/// edges, and there may be many edges.
#[derive(Clone, Copy)]
struct Unchanged {
    position: bool,
    edges: bool,
}

impl Unchanged {
    const NOTHING: Self = Self { position: false, edges: false };

    fn of(before: &JobRow, after: &JobRow) -> Self {
        let position = |row: &JobRow| (row.seq, row.job.chain, row.job.index);
        let kind = |row: &JobRow| {
            (row.job.status.is_open(), row.job.status == Status::Blocked, row.needs_blockers())
        };
        let same_blockers = Arc::ptr_eq(&before.job.blockers, &after.job.blockers);
        Self {
            position: position(before) == position(after),
            edges: same_blockers && kind(before) == kind(after),
        }
    }
}
