//! The rules' access to the tables.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;

use foldhash::HashSet;

use super::{ByTime, Listed, OfType, Tables};
use crate::command::{EndedJobs, ScheduleRecord, Types, WorkerInfo};
use crate::error::Result;
use crate::id::{ChainId, Fence, JobId, RequestId, ScheduleId, WorkerId};
use crate::model::row::{ChainRow, Effect, JobRow, LockRow, Row, RowKey};
use crate::model::rows::{Due, Rows};
use crate::name::{Key, LockName, ScheduleName, TypeName};
use crate::record::ClosedAs;
use crate::time::Timestamp;

impl Rows for Tables {
    type RowId = JobId;

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

    fn deleted_fence(&mut self) -> Result<Fence> {
        Ok(self.deleted_fence)
    }

    fn note_deleted_fence(&mut self, fence: Fence) -> Result<()> {
        self.note_deleted(fence);
        Ok(())
    }

    fn set(&mut self, key: RowKey, after: Option<Row>) -> Result<()> {
        if self.is_logging {
            let before = self.install(&key, after.clone());
            self.log.push(Effect { key, before, after });
        } else {
            self.install(&key, after);
        }
        Ok(())
    }

    /// Changes the stored row in place if that is possible: without a copy of the row, and with as few changes of the
    /// indexes as possible. A log needs the row as it was. Blockers, and jobs after the first of a chain, are in other
    /// indexes too.
    fn update_job(&mut self, mut row: Arc<JobRow>, change: impl FnOnce(&mut JobRow)) -> Result<Arc<JobRow>> {
        let id = row.job.id;
        let in_place = !self.is_logging && row.job.index == 0 && row.job.blockers.is_empty();
        if let Some(stored) = self.jobs.get_mut(&id).filter(|_| in_place) {
            let before = Listed::of(stored);
            // Otherwise the row would be shared, and `make_mut` would copy it.
            drop(row);
            change(Arc::make_mut(stored));
            let row = Arc::clone(stored);
            self.relist(&before, &row);
            return Ok(row);
        }
        change(Arc::make_mut(&mut row));
        self.set(RowKey::Job(id), Some(Row::Job(Arc::clone(&row))))?;
        Ok(row)
    }

    /// Changes the stored row in place if that is possible; see [`update_job`](Self::update_job). Keys, closed chains and
    /// chains with inner jobs are in other indexes too.
    fn update_chain(
        &mut self,
        mut row: Arc<ChainRow>,
        change: impl FnOnce(&mut ChainRow),
    ) -> Result<Arc<ChainRow>> {
        let id = row.id;
        let in_place = !self.is_logging && row.key.is_none() && row.closed.is_none() && row.latest_index <= 1;
        if let Some(stored) = self.chains.get_mut(&id).filter(|_| in_place) {
            // As in `update_job`.
            drop(row);
            change(Arc::make_mut(stored));
            let row = Arc::clone(stored);
            self.index_chain(&row, false);
            return Ok(row);
        }
        change(Arc::make_mut(&mut row));
        self.set(RowKey::Chain(id), Some(Row::Chain(Arc::clone(&row))))?;
        Ok(row)
    }

    fn mark(&mut self) -> usize {
        self.start_log();
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
        let mut rows: Vec<_> = jobs.iter().filter_map(|id| self.jobs.get(id)).cloned().collect();
        rows.sort_by_key(|row| (Reverse(row.job.priority), row.job.due_at, row.seq));
        Ok(rows)
    }

    fn due(&mut self, job_type: &TypeName, now: Timestamp, max: usize) -> Result<Vec<Due<JobId>>> {
        let Some(of_type) = self.types.get(job_type) else { return Ok(Vec::new()) };
        let levels = of_type.pending.iter().flat_map(|(Reverse(priority), jobs)| {
            let due = jobs.iter().take_while(|(due_at, ..)| *due_at <= now);
            due.map(|(due_at, seq, row_id)| Due {
                priority: *priority,
                due_at: *due_at,
                seq: *seq,
                row_id: *row_id,
            })
        });
        Ok(levels.take(max).collect())
    }

    fn due_job(&mut self, due: Due<JobId>) -> Result<Option<Arc<JobRow>>> {
        self.job(due.row_id)
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

    fn former(&mut self, job_type: &TypeName) -> Result<EndedJobs> {
        Ok(self.former_of(job_type))
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

    fn schedule(&mut self, name: &ScheduleName) -> Result<Option<Arc<ScheduleRecord>>> {
        Ok(self.schedules.get(name).cloned())
    }

    fn schedule_by_id(&mut self, id: ScheduleId) -> Result<Option<Arc<ScheduleRecord>>> {
        Ok(self.schedules_by_id.get(&id).and_then(|name| self.schedules.get(name)).cloned())
    }

    fn schedules_after(
        &mut self,
        after: Option<&ScheduleName>,
        max: usize,
    ) -> Result<Vec<Arc<ScheduleRecord>>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.schedules.range::<ScheduleName, _>((from, Bound::Unbounded));
        Ok(rows.take(max).map(|(_, row)| Arc::clone(row)).collect())
    }

    fn schedules_by_due(
        &mut self,
        now: Timestamp,
        skip: usize,
        max: usize,
    ) -> Result<Vec<Arc<ScheduleRecord>>> {
        let due = self.schedules_by_due.iter().take_while(|(due_at, _)| *due_at <= now);
        let names = due.skip(skip).take(max);
        Ok(names.filter_map(|(_, name)| self.schedules.get(name)).cloned().collect())
    }

    fn schedule_due_time(&mut self, skip: usize) -> Result<Option<Timestamp>> {
        Ok(self.schedules_by_due.iter().nth(skip).map(|(due_at, _)| *due_at))
    }
}
