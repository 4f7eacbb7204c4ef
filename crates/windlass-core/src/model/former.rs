//! Counts ended jobs that were removed or retried, so that the totals of ended jobs are exact.
//!
//! The total of an outcome is the number of stored jobs that have it, plus the number of jobs that ended with it and were
//! removed or retried later (the *former outcomes*). Only the second number is stored, so ending a job costs nothing.

use super::row::{JobRow, Row, RowKey};
use super::{Execution, Rows};
use crate::error::Result;
use crate::record::Status;

impl<R: Rows> Execution<'_, R> {
    /// Notes that a job is about to be removed or retried. The command must end with
    /// [`write_former`](Self::write_former).
    pub(super) fn leave_outcome(&mut self, row: &JobRow) {
        if row.job.status.is_open() {
            return;
        }
        let former = self.former.entry(row.job.job_type.clone()).or_default();
        match row.job.status {
            Status::Completed => former.completed += 1,
            Status::Failed => former.failed += 1,
            Status::Cancelled => former.cancelled += 1,
            Status::Blocked | Status::Pending | Status::Running => {}
        }
    }

    /// Adds the noted jobs to the stored numbers: one write per type, however many jobs there are.
    pub(super) fn write_former(&mut self) -> Result<()> {
        for (job_type, more) in std::mem::take(&mut self.former) {
            let former = self.rows.former(&job_type)?.and(more);
            self.rows.set(RowKey::Former(job_type), Some(Row::Former(former)))?;
        }
        Ok(())
    }
}
