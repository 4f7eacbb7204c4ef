use std::collections::HashSet;
use std::sync::Arc;

use super::create::{Aliases, JobPosition};
use super::row::{ChainRow, JobRow};
use super::rows::Stop;
use super::{Execution, Rows};
use crate::command::{
    Applied, Created, DueTime, NewChain, NextJob, Outcome, Ripple, Settle, SettleReply, Settled, Settlement,
};
use crate::error::Result;
use crate::id::{ChainId, WorkerId};
use crate::limit::{CYCLE_SEARCH_MAX, HISTORY_MAX};
use crate::name::ErrorText;
use crate::payload::Payload;
use crate::record::{AttemptEnd, AttemptRecord, Blocker, ClosedAs, Status};
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// The values to close a job with.
pub(super) struct Closing {
    pub(super) closed_as: ClosedAs,
    pub(super) output: Option<Payload>,
    pub(super) error: Option<ErrorText>,
    pub(super) by: Option<WorkerId>,
    pub(super) end: Option<AttemptEnd>,
}

impl<R: Rows> Execution<'_, R> {
    pub(super) fn settle(&mut self, request: &Settle) -> Result<SettleReply> {
        request.check()?;
        let mut ripple = Ripple::default();
        ripple.closed.reserve(request.settlements.len());
        // Collecting into a `Result` would not reserve the space.
        let mut settled = Vec::with_capacity(request.settlements.len());
        for item in &request.settlements {
            settled.push(self.settle_one(item, &mut ripple)?);
        }
        self.ripple(&mut ripple)?;
        Ok(SettleReply { settled, ripple })
    }

    fn settle_one(&mut self, item: &Settlement, ripple: &mut Ripple) -> Result<Settled> {
        let row = match self.held(item.job, item.fence)? {
            Ok(row) => row,
            Err(lost) => {
                // The attempt no longer holds the job. If it ended the way this outcome ends one, this is a
                // repeat of a settlement whose reply was lost.
                let repeats = |row: &Arc<JobRow>| {
                    row.end_of(item.fence).is_some_and(|end| may_end_as(&item.outcome, end))
                };
                let repeated = self.rows.job(item.job)?.filter(repeats).map(|row| row.summary());
                return Ok(repeated.map_or(Settled::Lost(lost), Settled::AlreadyApplied));
            }
        };
        if let Err(refusal) = item.outcome.check() {
            return Ok(Settled::Refused(refusal));
        }
        // Only an outcome that creates something can be refused after the first change.
        let creates = !item.outcome.carried().is_empty() || matches!(item.outcome, Outcome::Continue { .. });
        let mark = creates.then(|| self.rows.mark());
        match self.apply_outcome(row, &item.outcome, ripple) {
            Ok(applied) => Ok(Settled::Applied(applied)),
            Err(Stop::Refused(refusal)) => {
                mark.map_or(Ok(()), |mark| self.rows.undo_to(mark))?;
                Ok(Settled::Refused(refusal))
            }
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn apply_outcome(
        &mut self,
        row: Arc<JobRow>,
        outcome: &Outcome,
        ripple: &mut Ripple,
    ) -> Result<Applied, Stop> {
        let by = row.worker;
        if row.job.cancel_requested && !matches!(outcome, Outcome::Complete { .. } | Outcome::Fail { .. }) {
            let error = match outcome {
                Outcome::Retry { error, .. } => Some(error.clone()),
                Outcome::Reschedule { error, .. } => error.clone(),
                _ => None,
            };
            let error = error.or_else(|| row.job.error.clone());
            let (closed_as, end) = (ClosedAs::Cancelled, Some(AttemptEnd::Cancelled));
            return Ok(self.finish(
                row,
                Closing { closed_as, output: None, error, by, end },
                None,
                ripple,
            )?);
        }
        match outcome {
            Outcome::Complete { output, retention, create } => {
                let stopping = row.job.cancel_requested.then_some(row.job.chain);
                let created = self.create_carried(create, &mut Aliases::new(), stopping)?;
                let (closed_as, end) = (ClosedAs::Completed, Some(AttemptEnd::Completed));
                let closing = Closing { closed_as, output: Some(output.clone()), error: None, by, end };
                Ok(Applied { created, ..self.finish(row, closing, *retention, ripple)? })
            }
            Outcome::Continue { next, create } => {
                self.continue_chain(row, next, create, (by, Some(AttemptEnd::Continued)), ripple)
            }
            Outcome::Retry { schedule, error } => {
                if row.job.max_attempts.is_some_and(|max| row.job.attempt >= max) {
                    return Ok(self.fail(row, error.clone(), AttemptEnd::Exhausted, None, ripple)?);
                }
                let error = Some(error.clone());
                Ok(self.requeue(row, schedule.due(self.now), error, AttemptEnd::Retried)?)
            }
            Outcome::Reschedule { schedule, error } => Ok(self.reschedule(row, *schedule, error.clone())?),
            Outcome::Fail { error, retention } => {
                Ok(self.fail(row, error.clone(), AttemptEnd::Failed, *retention, ripple)?)
            }
            Outcome::Release => {
                let due_at = row.job.due_at;
                Ok(self.requeue(row, due_at, None, AttemptEnd::Released)?)
            }
        }
    }

    fn reschedule(
        &mut self,
        row: Arc<JobRow>,
        schedule: DueTime,
        error: Option<ErrorText>,
    ) -> Result<Applied> {
        self.requeue(row, schedule.due(self.now), error, AttemptEnd::Rescheduled)
    }

    fn fail(
        &mut self,
        row: Arc<JobRow>,
        error: ErrorText,
        end: AttemptEnd,
        retention: Option<Millis>,
        ripple: &mut Ripple,
    ) -> Result<Applied> {
        let (by, closed_as, end) = (row.worker, ClosedAs::Failed, Some(end));
        self.finish(row, Closing { closed_as, output: None, error: Some(error), by, end }, retention, ripple)
    }

    /// Closes the job and its chain.
    fn finish(
        &mut self,
        row: Arc<JobRow>,
        closing: Closing,
        retention: Option<Millis>,
        ripple: &mut Ripple,
    ) -> Result<Applied> {
        let closed_as = closing.closed_as;
        let row = self.close_job(row, closing)?;
        ripple.closed.extend(self.close_chain(row.job.chain, closed_as, retention)?);
        Ok(Applied { job: row.summary(), next: None, created: Vec::new() })
    }

    /// Closes the job but not its chain.
    pub(super) fn close_job(&mut self, row: Arc<JobRow>, closing: Closing) -> Result<Arc<JobRow>> {
        let now = self.now;
        self.rows.update_job(row, |JobRow { job, end, .. }| {
            job.status = closing.closed_as.into();
            job.output = closing.output;
            job.error = closing.error;
            job.closed_at = Some(now);
            job.closed_by = closing.by;
            job.version = job.version.next();
            job.lease = None;
            *end = closing.end;
        })
    }

    /// Requeues the job. Rescheduled and released attempts are not counted.
    pub(super) fn requeue(
        &mut self,
        mut row: Arc<JobRow>,
        due_at: Timestamp,
        error: Option<ErrorText>,
        end: AttemptEnd,
    ) -> Result<Applied> {
        let changed = Arc::make_mut(&mut row);
        record_attempt(changed, end, self.now, error.clone());
        let job = &mut changed.job;
        if matches!(end, AttemptEnd::Rescheduled | AttemptEnd::Released) {
            job.attempt = job.attempt.saturating_sub(1);
        }
        job.status = Status::Pending;
        job.due_at = due_at;
        job.error = error.or(job.error.take());
        job.version = job.version.next();
        job.lease = None;
        Ok(Applied { job: self.put_job(row)?.summary(), next: None, created: Vec::new() })
    }

    /// Completes the job without an output and adds the next job to its chain.
    pub(super) fn continue_chain(
        &mut self,
        row: Arc<JobRow>,
        next: &NextJob,
        create: &[NewChain],
        (by, end): (Option<WorkerId>, Option<AttemptEnd>),
        ripple: &mut Ripple,
    ) -> Result<Applied, Stop> {
        let mut aliases = Aliases::new();
        let created = self.create_carried(create, &mut aliases, None)?;
        if self.rows.job(next.id)?.is_some() {
            return Err(Refusal::IdTaken.into());
        }
        let blockers = self.resolve_blockers(&next.job.blockers, &aliases)?;
        let chain = ChainRow::clone(&*self.chain_of(&row)?);
        let mut seen = HashSet::new();
        for blocker in &blockers {
            if self.reaches(blocker.chain, chain.id, &mut seen)? {
                return Err(Refusal::WaitsForItself(blocker.chain).into());
            }
        }
        let closing = Closing { closed_as: ClosedAs::Completed, output: None, error: None, by, end };
        let index = row.job.index + 1;
        let job = self.close_job(row, closing)?.summary();
        let position =
            JobPosition { id: next.id, chain: chain.id, chain_type: chain.chain_type.clone(), index };
        let next = self.insert_job(position, &next.job, blockers)?;
        let chain_id = chain.id;
        self.put_chain(ChainRow { latest: next.job.id, latest_index: index, ..chain })?;
        if next.job.status == Status::Failed {
            ripple.closed.extend(self.close_chain(chain_id, ClosedAs::Failed, None)?);
        }
        Ok(Applied { job, next: Some(next.summary()), created })
    }

    /// Creates the chains that a settlement carries. If one of them is refused, the whole settlement is
    /// refused.
    ///
    /// The exception is a successor of the `stopping` chain: it is refused alone. Cancellation was requested
    /// for that chain, and nothing would cancel its successor.
    pub(super) fn create_carried(
        &mut self,
        create: &[NewChain],
        aliases: &mut Aliases,
        stopping: Option<ChainId>,
    ) -> Result<Vec<Created>, Stop> {
        let succeeds = |new: &NewChain| new.key.as_ref().and_then(|key| key.replaces);
        create
            .iter()
            .map(|new| {
                if stopping.is_some() && succeeds(new) == stopping {
                    return Ok(Created::Refused(Refusal::CancelRequested));
                }
                match self.create_chain(new, aliases)? {
                    Created::Refused(refusal) => Err(refusal.into()),
                    created => Ok(created),
                }
            })
            .collect()
    }

    /// Whether chain `from` waits for `sought`, directly or through other chains, or would if it were
    /// retried.
    ///
    /// `seen` holds the chains that earlier searches for the same chain have visited. The search gives up
    /// after `CYCLE_SEARCH_MAX` chains.
    fn reaches(&mut self, from: ChainId, sought: ChainId, seen: &mut HashSet<ChainId>) -> Result<bool> {
        let mut queue = vec![from];
        while let Some(chain) = queue.pop() {
            if chain == sought {
                return Ok(true);
            }
            if seen.len() >= CYCLE_SEARCH_MAX || !seen.insert(chain) {
                continue;
            }
            let Some(row) = self.rows.chain(chain)? else { continue };
            let latest = &self.latest(&row)?.job;
            let waits = |blocker: &&Blocker| match latest.status {
                Status::Blocked => !blocker.resolved,
                Status::Failed | Status::Cancelled => true,
                _ => false,
            };
            queue.extend(latest.blockers.iter().filter(waits).map(|blocker| blocker.chain));
        }
        Ok(false)
    }
}

/// Whether this outcome can end an attempt with `end`. A retry after the last attempt fails the job. An
/// outcome that would keep the chain running after a cancel request cancels it.
fn may_end_as(outcome: &Outcome, end: AttemptEnd) -> bool {
    match outcome {
        Outcome::Complete { .. } => end == AttemptEnd::Completed,
        Outcome::Continue { .. } => matches!(end, AttemptEnd::Continued | AttemptEnd::Cancelled),
        Outcome::Retry { .. } => {
            matches!(end, AttemptEnd::Retried | AttemptEnd::Exhausted | AttemptEnd::Cancelled)
        }
        Outcome::Reschedule { .. } => matches!(end, AttemptEnd::Rescheduled | AttemptEnd::Cancelled),
        Outcome::Fail { .. } => end == AttemptEnd::Failed,
        Outcome::Release => matches!(end, AttemptEnd::Released | AttemptEnd::Cancelled),
    }
}

/// Adds the job's running attempt to its history, ended at `now`.
pub(super) fn record_attempt(row: &mut JobRow, end: AttemptEnd, now: Timestamp, error: Option<ErrorText>) {
    let (Some(worker), Some(started_at)) = (row.worker, row.job.started_at) else { return };
    let (attempt, fence) = (row.job.attempt, row.job.fence);
    let (worker_name, ended_at) = (row.worker_name.clone(), Some(now));
    let record = AttemptRecord { attempt, fence, worker, worker_name, started_at, ended_at, end, error };
    push_history(row, record);
}

/// Adds a record to the job's history. Drops the oldest records beyond `HISTORY_MAX`.
pub(super) fn push_history(row: &mut JobRow, record: AttemptRecord) {
    let skipped = (row.history.len() + 1).saturating_sub(HISTORY_MAX);
    row.history = row.history.iter().skip(skipped).cloned().chain([record]).collect();
}
