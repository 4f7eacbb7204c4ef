//! Derives hints from the changes that other processes made.

use std::collections::{BTreeMap, HashSet};

use windlass_core::model::{Row, RowKey};
use windlass_core::{ChainId, Hint, JobId, Status, Timestamp, TypeName, WorkerId};

use crate::codec::Change;

/// Hints for the workers and callers of this process.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// How many jobs of a type were scheduled, and when the first one is due.
    scheduled: BTreeMap<TypeName, (u32, Timestamp)>,
    /// The jobs among them.
    fresh: HashSet<JobId>,
    closed: Vec<ChainId>,
    lost: Vec<(WorkerId, JobId)>,
    schedules_changed: bool,
    /// Whether changes were skipped, so that any hint may be missing.
    pub(crate) has_gap: bool,
    /// Whether there are no subscribers.
    is_ignored: bool,
}

impl Hints {
    /// Creates hints that are discarded, because there are no subscribers.
    pub(crate) fn ignored() -> Self {
        Self { is_ignored: true, ..Self::default() }
    }

    /// Adds the hints for a change.
    pub(crate) fn note(&mut self, change: &Change) {
        if self.is_ignored {
            return;
        }
        match (&change.key, &change.before, &change.after) {
            (RowKey::Job(id), before, after) => self.note_job(*id, before.as_ref(), after.as_ref()),
            (RowKey::Chain(id), before, after) => {
                let is_open =
                    |row: &Option<Row>| matches!(row, Some(Row::Chain(row)) if row.closed.is_none());
                if (is_open(before) || before.is_none()) && !is_open(after) {
                    self.closed.push(*id);
                }
            }
            (RowKey::Schedule(_), ..) => self.schedules_changed = true,
            (RowKey::Paused(name), Some(_), None) => self.schedule(name.clone(), Timestamp::default()),
            _ => {}
        }
    }

    fn note_job(&mut self, id: JobId, before: Option<&Row>, after: Option<&Row>) {
        let job = |row: Option<&Row>| match row {
            Some(Row::Job(row)) => Some(row.clone()),
            _ => None,
        };
        let (before, after) = (job(before), job(after));
        if let Some(after) = after.as_ref().filter(|after| after.job.status == Status::Pending) {
            let is_earlier = before.as_ref().is_none_or(|before| {
                before.job.status != Status::Pending || after.job.due_at < before.job.due_at
            });
            if is_earlier {
                self.schedule(after.job.job_type.clone(), after.job.due_at);
                self.fresh.insert(id);
            }
        } else if self.fresh.remove(&id)
            && let Some(before) = &before
        {
            // Acquired in the meantime, perhaps by the command that created it: nobody needs to be woken.
            self.unschedule(&before.job.job_type);
        }
        let Some(before) = before.filter(|before| before.job.status == Status::Running) else { return };
        let Some(lease) = &before.job.lease else { return };
        let is_held = after.is_some_and(|after| {
            after.job.status == Status::Running
                && after.job.fence == before.job.fence
                && after.job.cancel_requested == before.job.cancel_requested
        });
        if !is_held {
            self.lost.push((lease.worker, id));
        }
    }

    fn schedule(&mut self, job_type: TypeName, due_at: Timestamp) {
        let (count, earliest) = self.scheduled.entry(job_type).or_insert((0, due_at));
        *count = count.saturating_add(1);
        *earliest = due_at.min(*earliest);
    }

    fn unschedule(&mut self, job_type: &TypeName) {
        if let Some((count, _)) = self.scheduled.get_mut(job_type) {
            *count -= 1;
            if *count == 0 {
                self.scheduled.remove(job_type);
            }
        }
    }

    /// Keeps only the losses of these workers.
    pub(crate) fn retain_lost(&mut self, workers: &HashSet<WorkerId>) {
        self.lost.retain(|(worker, _)| workers.contains(worker));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.scheduled.is_empty()
            && self.closed.is_empty()
            && self.lost.is_empty()
            && !self.schedules_changed
            && !self.has_gap
    }

    /// Returns the hints to publish.
    pub(crate) fn list(&self) -> Vec<Hint> {
        let scheduled = self.scheduled.iter().map(|(job_type, (count, due_at))| Hint::Scheduled {
            job_type: job_type.clone(),
            count: *count,
            due_at: *due_at,
        });
        let closed = self.closed.iter().map(|chain| Hint::ChainClosed(*chain));
        let lost = self.lost.iter().map(|(worker, job)| Hint::OwnershipLost { worker: *worker, job: *job });
        let schedules = self.schedules_changed.then_some(Hint::SchedulesChanged);
        scheduled.chain(closed).chain(lost).chain(schedules).collect()
    }
}
