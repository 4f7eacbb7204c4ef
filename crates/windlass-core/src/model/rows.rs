//! Access to the rows of a store.

use std::cmp::{Ordering, Reverse};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::row::{ChainRow, JobRow, LockRow, Row, RowKey};
use crate::command::{EndedJobs, ScheduleRecord, Types, WorkerInfo};
use crate::error::{Error, Result};
use crate::id::{ChainId, Fence, JobId, RequestId, ScheduleId, WorkerId};
use crate::name::{Key, LockName, ScheduleName, TypeName};
use crate::record::ClosedAs;
use crate::refusal::Refusal;
use crate::time::Timestamp;

/// The rows of a store, as the rules read and change them.
///
/// An implementation only finds and stores rows; it contains no rules. Every read, including a read of several rows,
/// sees the changes that were [`set`](Self::set) before it. If a row cannot be read, that is an error, never `None`.
///
/// From the first read to the commit, no other caller may write. Otherwise a decision could be based on a row that has
/// changed since.
pub trait Rows {
    /// Identifies the row of a due job.
    type RowId: Copy;

    /// Returns a job.
    fn job(&mut self, id: JobId) -> Result<Option<Arc<JobRow>>>;

    /// Returns a chain.
    fn chain(&mut self, id: ChainId) -> Result<Option<Arc<ChainRow>>>;

    /// Returns the chain that a key points at: the one whose [`ChainKey::held`](crate::ChainKey::held) is true.
    fn keyed(&mut self, chain_type: &TypeName, key: &Key) -> Result<Option<ChainId>>;

    /// Returns the next creation number. A number is never used twice, even if its job was deleted.
    fn next_seq(&mut self) -> Result<u64>;

    /// Returns the largest fence passed to [`note_deleted_fence`](Self::note_deleted_fence), or 0.
    fn deleted_fence(&mut self) -> Result<Fence>;

    /// Remembers the fence of a job that is deleted. The fences of a job that is created with the same id are larger.
    fn note_deleted_fence(&mut self, fence: Fence) -> Result<()>;

    /// Inserts, replaces or deletes a row.
    fn set(&mut self, key: RowKey, after: Option<Row>) -> Result<()>;

    /// Changes a job that was read before. Returns the changed row.
    fn update_job(&mut self, mut row: Arc<JobRow>, change: impl FnOnce(&mut JobRow)) -> Result<Arc<JobRow>> {
        change(Arc::make_mut(&mut row));
        self.set(RowKey::Job(row.job.id), Some(Row::Job(Arc::clone(&row))))?;
        Ok(row)
    }

    /// Changes a chain that was read before. Returns the changed row.
    fn update_chain(
        &mut self,
        mut row: Arc<ChainRow>,
        change: impl FnOnce(&mut ChainRow),
    ) -> Result<Arc<ChainRow>> {
        change(Arc::make_mut(&mut row));
        self.set(RowKey::Chain(row.id), Some(Row::Chain(Arc::clone(&row))))?;
        Ok(row)
    }

    /// Returns the current number of changes, for [`undo_to`](Self::undo_to). Changes from here on can be reverted.
    fn mark(&mut self) -> usize;

    /// Reverts all changes since a mark.
    fn undo_to(&mut self, mark: usize) -> Result<()>;

    /// Returns the running jobs that this request leased, by priority (highest first), due time and creation.
    fn leased(&mut self, request: RequestId) -> Result<Vec<Arc<JobRow>>>;

    /// Returns the first pending jobs of a type that are due, by priority (highest first), due time and creation.
    fn due(&mut self, job_type: &TypeName, now: Timestamp, max: usize) -> Result<Vec<Due<Self::RowId>>>;

    /// Returns the job of a [`Due`].
    fn due_job(&mut self, due: Due<Self::RowId>) -> Result<Option<Arc<JobRow>>>;

    /// Returns the first running jobs of these types whose lease has expired, by expiry and creation, without the
    /// exceptions.
    fn expired_leases(
        &mut self,
        types: &Types,
        except: &[JobId],
        now: Timestamp,
        max: usize,
    ) -> Result<Vec<JobId>>;

    /// Whether a job type is paused.
    fn is_paused(&mut self, job_type: &TypeName) -> Result<bool>;

    /// Returns the closed chain with [`rippling`](ChainRow::rippling) that closed first.
    fn first_rippling(&mut self) -> Result<Option<ChainId>>;

    /// Returns the oldest blocked job that waits for a chain and no longer waits if the chain ends this way: any job if
    /// the chain completed, otherwise only those whose policy is not
    /// [`OnBlockerFailure::Wait`](crate::OnBlockerFailure::Wait).
    fn next_waiting(&mut self, chain: ChainId, closed_as: ClosedAs) -> Result<Option<JobId>>;

    /// Returns the open jobs that wait or waited for a chain, oldest first, up to `max`.
    fn open_dependents(&mut self, chain: ChainId, max: usize) -> Result<Vec<JobId>>;

    /// Returns the jobs of a chain whose index is in the range, in order, up to `max`.
    fn chain_jobs(&mut self, chain: ChainId, indexes: RangeInclusive<u32>, max: usize) -> Result<Vec<JobId>>;

    /// Returns the closed chain with the earliest [`ChainRow::removable_at`], if that time has passed. Skips chains
    /// that a job [needs](JobRow::needs_blockers).
    fn first_removable(&mut self, now: Timestamp) -> Result<Option<ChainId>>;

    /// Returns the open chain whose oldest inner job may be deleted first, if it may be deleted now. An inner job may
    /// be deleted after the retention of completed chains, but no earlier than [`repeat_window`](super::repeat_window)
    /// after it closed. Inner jobs are all but the first and the latest.
    fn first_trimmable(&mut self, now: Timestamp) -> Result<Option<ChainId>>;

    /// Returns how many jobs of a type no longer have the outcome with which they ended. Zero if none was stored.
    fn former(&mut self, job_type: &TypeName) -> Result<EndedJobs>;

    /// Returns a registered worker.
    fn worker(&mut self, id: WorkerId) -> Result<Option<Arc<WorkerInfo>>>;

    /// Returns workers whose registration has expired, up to `max`.
    fn expired_workers(&mut self, now: Timestamp, max: usize) -> Result<Vec<WorkerId>>;

    /// Returns a leader lock.
    fn lock(&mut self, name: &LockName) -> Result<Option<LockRow>>;

    /// Returns leader locks that have expired, up to `max`.
    fn expired_locks(&mut self, now: Timestamp, max: usize) -> Result<Vec<LockName>>;

    /// Returns a schedule by name.
    fn schedule(&mut self, name: &ScheduleName) -> Result<Option<Arc<ScheduleRecord>>>;

    /// Returns a schedule by id.
    fn schedule_by_id(&mut self, id: ScheduleId) -> Result<Option<Arc<ScheduleRecord>>>;

    /// Returns the schedules whose name comes after `after`, sorted by name, up to `max`.
    fn schedules_after(
        &mut self,
        after: Option<&ScheduleName>,
        max: usize,
    ) -> Result<Vec<Arc<ScheduleRecord>>>;

    /// Returns the schedules that are due at `now`, by due time and name, without the first `skip`, up to `max`.
    fn schedules_by_due(
        &mut self,
        now: Timestamp,
        skip: usize,
        max: usize,
    ) -> Result<Vec<Arc<ScheduleRecord>>>;

    /// Returns the due time of the schedule that follows the first `skip` ones in this order, due or not.
    fn schedule_due_time(&mut self, skip: usize) -> Result<Option<Timestamp>>;
}

/// A pending job that is due, and the id of its row.
#[derive(Clone, Copy, Debug)]
pub struct Due<P> {
    /// The job's priority.
    pub priority: i8,
    /// When the job was due.
    pub due_at: Timestamp,
    /// The job's creation number.
    pub seq: u64,
    /// The id of the job's row.
    pub row_id: P,
}

impl<P> Due<P> {
    /// Compares jobs by the order in which they should run.
    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        let key = |due: &Self| (Reverse(due.priority), due.due_at, due.seq);
        key(self).cmp(&key(other))
    }
}

/// Why an item of a command was not applied.
pub(super) enum Stop {
    /// The item was refused. The command continues with the next one.
    Refused(Refusal),
    /// The rows could not be read or changed. The command fails.
    Failed(Error),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
