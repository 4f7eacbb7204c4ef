//! Rows with their indexes, and the log of changes.
//!
//! Every index is derived from the rows. Setting a row removes the index entries of its old value and adds
//! those of its new value, except for entries that are the same for both. Undo and replay therefore only need
//! to set rows.

mod registry;
mod rows;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldhash::HashMap;

use crate::command::{EndedJobs, ScheduleRecord, WorkerInfo};
use crate::id::{ChainId, Fence, JobId, RequestId, ScheduleId, WorkerId};
use crate::model::row::{ChainRow, Effect, JobRow, LockRow, Row, RowKey, repeat_window};
use crate::model::sorted::Sorted;
use crate::name::{Key, LockName, ScheduleName, TypeName};
use crate::record::{ChainRecord, JobRecord, OnBlockerFailure, Status};
use crate::time::Timestamp;

/// The running jobs of each acquire request. Most jobs are acquired, and end, in the order of their ids.
type Requests = HashMap<RequestId, Sorted<JobId>>;

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
    schedules: BTreeMap<ScheduleName, Arc<ScheduleRecord>>,
    /// Former outcomes, also of types without stored jobs.
    former: BTreeMap<TypeName, EndedJobs>,
    log: Vec<Effect>,
    /// Whether changes are logged.
    is_logging: bool,
    next_seq: u64,
    /// The largest fence of a deleted job.
    deleted_fence: Fence,

    /// The job types that have stored jobs.
    pub(super) types: BTreeMap<TypeName, OfType>,
    /// The running jobs, by the acquire request that leased them.
    requests: Requests,
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
    pub(super) removable: Sorted<(Timestamp, u64, ChainId)>,
    /// Open chains by the time their oldest inner job may be deleted.
    pub(super) trimming: BTreeSet<(Timestamp, ChainId)>,
    /// The time under which each chain is listed in `trimming`.
    trim_at: HashMap<ChainId, Timestamp>,
    /// Closed chains whose dependents still have to be resolved, in the order in which they closed.
    pub(super) rippling: BTreeSet<(Timestamp, u64, ChainId)>,
    /// Jobs in order of creation.
    pub(super) jobs_by_seq: Sorted<(u64, JobId)>,
    /// Chains in order of creation.
    pub(super) chains_by_seq: Sorted<(u64, ChainId)>,
    /// Workers by the time at which their registration expires.
    pub(super) worker_ends: BTreeSet<(Timestamp, WorkerId)>,
    /// Leader locks by the time they expire.
    pub(super) lock_ends: BTreeSet<(Timestamp, LockName)>,
    /// Schedules by id.
    schedules_by_id: HashMap<ScheduleId, ScheduleName>,
    /// Schedules by due time.
    schedules_by_due: BTreeSet<(Timestamp, ScheduleName)>,
}

/// The jobs of one type.
#[derive(Debug, Default)]
pub(super) struct OfType {
    /// Pending jobs by priority (highest first) and due time.
    pub(super) pending: BTreeMap<Reverse<i8>, Sorted<ByTime>>,
    /// Running jobs by lease expiry.
    pub(super) running: Sorted<ByTime>,
    /// The number of jobs in each status.
    pub(super) counts: [u64; Status::ALL.len()],
}

/// Where a job is listed under its type.
struct Listed {
    id: JobId,
    seq: u64,
    status: Status,
    priority: i8,
    due_at: Timestamp,
    lease: Option<(Timestamp, RequestId)>,
}

impl Listed {
    fn of(row: &JobRow) -> Self {
        let JobRecord { id, status, priority, due_at, ref lease, .. } = row.job;
        let lease = lease.as_ref().map(|lease| (lease.until, lease.request));
        Self { id, seq: row.seq, status, priority, due_at, lease }
    }
}

impl OfType {
    /// Lists a job and, if it is running, adds it to its request.
    fn add(&mut self, listed: &Listed, requests: &mut Requests) {
        let Listed { id, seq, status, priority, due_at, lease } = *listed;
        if let Some(count) = self.counts.get_mut(status as usize) {
            *count += 1;
        }
        match (status, lease) {
            (Status::Pending, _) => {
                self.pending.entry(Reverse(priority)).or_default().insert((due_at, seq, id));
            }
            (Status::Running, Some((until, request))) => {
                self.running.insert((until, seq, id));
                requests.entry(request).or_default().insert(id);
            }
            _ => {}
        }
    }

    /// Undoes [`add`](Self::add).
    fn remove(&mut self, listed: &Listed, requests: &mut Requests) {
        let Listed { id, seq, status, priority, due_at, lease } = *listed;
        if let Some(count) = self.counts.get_mut(status as usize) {
            *count -= 1;
        }
        match (status, lease) {
            (Status::Pending, _) => {
                remove_member(&mut self.pending, &Reverse(priority), &(due_at, seq, id));
            }
            (Status::Running, Some((until, request))) => {
                self.running.remove(&(until, seq, id));
                if let Some(jobs) = requests.get_mut(&request) {
                    jobs.remove(&id);
                    if jobs.is_empty() {
                        requests.remove(&request);
                    }
                }
            }
            _ => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

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

    pub(super) const fn last_seq(&self) -> u64 {
        self.next_seq
    }

    pub(super) fn skip_seq(&mut self, seq: u64) {
        self.next_seq = self.next_seq.max(seq);
    }

    /// Lets the fences of new jobs start above the fence of a deleted job.
    pub(super) fn note_deleted(&mut self, fence: Fence) {
        self.deleted_fence = self.deleted_fence.max(fence);
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
        // The id may be that of a later job of another chain.
        let is_own = |first: &JobId| self.jobs.get(first).is_some_and(|row| row.job.chain == chain);
        let first = (from == 0).then(|| chain.first_job()).filter(is_own);
        let later = (from <= to).then(|| self.later_jobs.range((chain, from)..=(chain, to)));
        let later = later.into_iter().flatten().map(|((_, index), job)| (*index, *job));
        first.map(|first| (0, first)).into_iter().chain(later)
    }

    /// Begins to log changes.
    pub(super) const fn start_log(&mut self) {
        self.is_logging = true;
    }

    /// Ends the log and returns it.
    pub(super) fn take_log(&mut self) -> Vec<Effect> {
        self.is_logging = false;
        std::mem::take(&mut self.log)
    }

    /// Ends the log and discards it.
    pub(super) fn clear_log(&mut self) {
        self.is_logging = false;
        self.log.clear();
    }

    /// Applies an effect of an earlier command. If the effect deletes a job, new jobs start above its fence.
    pub(super) fn apply_effect(&mut self, key: &RowKey, after: Option<Row>) -> Option<Row> {
        let is_deleted = after.is_none();
        let before = self.install(key, after);
        if let Some(Row::Job(row)) = before.as_ref().filter(|_| is_deleted) {
            self.note_deleted(row.job.fence);
        }
        before
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
                // A chain without inner jobs that had none before is in no list.
                if row.latest_index > 1 || before.as_ref().is_some_and(|before| before.latest_index > 1) {
                    self.reindex_trim(*id);
                }
                before.map(Row::Chain)
            }
            (RowKey::Chain(id), _) => {
                let before = self.chains.remove(id)?;
                self.unindex_chain(&before, true);
                self.reindex_trim(*id);
                Some(Row::Chain(before))
            }
            (key, after) => self.install_registered(key, after),
        }
    }

    fn index_job(&mut self, row: &JobRow, unchanged: Unchanged) {
        let job = &row.job;
        if !unchanged.position {
            self.next_seq = self.next_seq.max(row.seq);
            self.jobs_by_seq.insert((row.seq, job.id));
            if job.index > 0 {
                self.later_jobs.insert((job.chain, job.index), job.id);
            }
        }
        if !self.types.contains_key(&job.job_type) {
            self.types.insert(job.job_type.clone(), OfType::default());
        }
        self.add_to_type(row);
        if !unchanged.edges {
            self.index_edges(row);
        }
        if job.index > 0 {
            self.reindex_trim(job.chain);
        }
    }

    /// Lists a job under its type and, if it is running, under its request.
    fn add_to_type(&mut self, row: &JobRow) {
        if let Some(of_type) = self.types.get_mut(&row.job.job_type) {
            of_type.add(&Listed::of(row), &mut self.requests);
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
            self.jobs_by_seq.remove(&(row.seq, job.id));
            self.later_jobs.remove(&(job.chain, job.index));
        }
        self.remove_from_type(&job.job_type, &Listed::of(row));
        if self.types.get(&job.job_type).is_some_and(OfType::is_empty) {
            self.types.remove(&job.job_type);
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

    /// Undoes [`add_to_type`](Self::add_to_type).
    fn remove_from_type(&mut self, job_type: &TypeName, listed: &Listed) {
        if let Some(of_type) = self.types.get_mut(job_type) {
            of_type.remove(listed, &mut self.requests);
        }
    }

    /// Lists a job, which was listed as `before`, under the same type again.
    fn relist(&mut self, before: &Listed, row: &JobRow) {
        if let Some(of_type) = self.types.get_mut(&row.job.job_type) {
            of_type.remove(before, &mut self.requests);
            of_type.add(&Listed::of(row), &mut self.requests);
        }
    }

    fn index_chain(&mut self, row: &ChainRow, moved: bool) {
        if moved {
            self.chains_by_seq.insert((row.seq, row.id));
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
            self.chains_by_seq.remove(&(row.seq, row.id));
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

/// Removes a member from one of several sets. Removes the set if it becomes empty.
fn remove_member<K: Ord, T: Copy + Ord>(sets: &mut BTreeMap<K, Sorted<T>>, key: &K, member: &T) {
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
