//! Settles attempts.

use std::collections::{HashMap, HashSet};

use windlass_core::command::{
    AcquireReply, Applied, Created, Exchange, ExchangeReply, Lost, NewBlocker, NewChain, NextJob, Outcome,
    Ripple, Settle, SettleReply, Settled, Settlement,
};
use windlass_core::limit::CYCLE_SEARCH_MAX;
use windlass_core::{
    AttemptEnd, AttemptRecord, ChainId, ClosedAs, ErrorText, Millis, OnBlockerFailure, Payload, Refusal,
    Result, Status, Timestamp, WorkerId,
};

use crate::acquire::{acquire, take_due};
use crate::create::{Aliases, JobPosition};
use crate::ripple::repeat_window;
use crate::row::{ChainRow, JobRow, hex};
use crate::session::{Execute, Session};
use crate::statement::set;
use crate::unit_of_work::{Needs, UnitOfWork, read_waits};

/// The stored state of an attempt before the command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttemptState {
    /// Whether the attempt held its job.
    held: bool,
    /// How the attempt ended, if that is still recorded.
    ended: Option<AttemptEnd>,
}

impl Execute for Settle {
    async fn execute(&self, session: &mut Session<'_>) -> Result<SettleReply> {
        self.check()?;
        let mut working = UnitOfWork::new(session.now());
        settle(&mut working, session, self).await
    }
}

impl Execute for Exchange {
    async fn execute(&self, session: &mut Session<'_>) -> Result<ExchangeReply> {
        self.settle.check()?;
        self.acquire.check()?;
        let mut working = UnitOfWork::new(session.now());
        let settle = settle(&mut working, session, &self.settle).await?;
        let acquire = match working.has_rippled() {
            true => AcquireReply {
                jobs: take_due(session, &self.acquire, working.now).await?,
                ripple: Ripple::default(),
                now: working.now,
            },
            false => acquire(&mut working.next_part(), session, &self.acquire).await?,
        };
        Ok(ExchangeReply { settle, acquire })
    }
}

async fn settle(
    working: &mut UnitOfWork,
    session: &mut Session<'_>,
    request: &Settle,
) -> Result<SettleReply> {
    if request.settlements.is_empty() {
        return Ok(SettleReply { settled: Vec::new(), ripple: Ripple::default() });
    }
    let known = working.load_settlements(session, request).await?;
    #[cfg(feature = "known-bad")]
    let known = {
        working.spoil(&mut session.spoiled);
        session.spoiled.known.take().unwrap_or(known)
    };
    working.settle(session, request, &known).await
}

/// How a job is closed.
pub(crate) struct Closing {
    pub(crate) closed_as: ClosedAs,
    pub(crate) output: Option<Payload>,
    pub(crate) error: Option<ErrorText>,
    pub(crate) by: Option<WorkerId>,
    pub(crate) end: Option<AttemptEnd>,
}

impl UnitOfWork {
    /// Settles the loaded attempts and writes the result.
    async fn settle(
        &mut self,
        session: &mut Session<'_>,
        request: &Settle,
        known: &HashMap<usize, AttemptState>,
    ) -> Result<SettleReply> {
        let mut ripple = Ripple::default();
        let settle = |(item, settlement)| {
            let known = known.get(&item).copied().unwrap_or_default();
            self.settle_one(settlement, known, &mut ripple)
        };
        let settled = request.settlements.iter().enumerate().map(settle).collect();
        self.ripple(&mut ripple);
        self.load_traces(session, &mut ripple).await?;
        self.flush(session).await?;
        Ok(SettleReply { settled, ripple })
    }

    /// Loads every row that the settlements may touch. Returns the state of each attempt, by its index in the request.
    pub(crate) async fn load_settlements(
        &mut self,
        session: &mut Session<'_>,
        request: &Settle,
    ) -> Result<HashMap<usize, AttemptState>> {
        let known = self.load_attempts(session, &request.settlements).await?;
        let held = |item: &usize| known.get(item).is_some_and(|known| known.held);
        let live = request.settlements.iter().enumerate().filter(|(item, _)| held(item));
        let live: Vec<_> = live.map(|(_, live)| live).collect();
        self.load_touched(session, &live).await?;
        Ok(known)
    }

    /// Loads every row that may be touched when these jobs end.
    pub(crate) async fn load_touched(
        &mut self,
        session: &mut Session<'_>,
        live: &[&Settlement],
    ) -> Result<()> {
        let mut needs = Needs::default();
        for settlement in live {
            if !self.has_chain_of(settlement.job) {
                needs.job(settlement.job);
            }
            settlement.outcome.carried().iter().for_each(|new| needs.new_chain(new));
            if let Outcome::Continue { next, .. } = &settlement.outcome {
                needs.job(next.id);
                needs.blockers(&next.job.blockers);
            }
        }
        self.load_chains(session, &needs).await?;
        self.load_cycles(session, live).await?;
        let closing: Vec<_> = live.iter().filter_map(|settlement| self.may_close(settlement)).collect();
        self.load_dependents(session, &closing).await
    }

    async fn load_attempts(
        &mut self,
        session: &mut Session<'_>,
        settlements: &[Settlement],
    ) -> Result<HashMap<usize, AttemptState>> {
        let asked: Vec<_> = settlements.iter().map(|item| (hex(item.job.as_uuid()), item.fence.0)).collect();
        let mut known = HashMap::new();
        for row in session.rows(&session.statements.load_jobs, vec![set(&asked)?]).await? {
            let ended = row.maybe_enum("ended_as")?;
            known.insert(row.number("item")?, AttemptState { held: row.flag("held")?, ended });
            self.learn(&row)?;
        }
        Ok(known)
    }

    /// Loads which chains wait for which, if a continuation with blockers could close a cycle.
    async fn load_cycles(&mut self, session: &mut Session<'_>, live: &[&Settlement]) -> Result<()> {
        let mut searches = 0;
        let mut roots = HashSet::new();
        for settlement in live {
            if let Outcome::Continue { next, .. } = &settlement.outcome {
                searches += usize::from(!next.job.blockers.is_empty());
                roots.extend(next.job.blockers.iter().map(|blocker| blocker.chain));
            }
            // The search may visit a chain that this settlement creates, or the stored chain that takes its place.
            for new in settlement.outcome.carried() {
                roots.extend(new.job.blockers.iter().map(|blocker| blocker.chain));
                let key = new.key.as_ref();
                roots.extend(
                    key.and_then(|key| self.pointed_at(&new.job.job_type, &key.key)).map(|row| row.id),
                );
            }
        }
        if searches > 0 {
            let limit = roots.len() + searches * CYCLE_SEARCH_MAX;
            let roots: Vec<_> = roots.iter().map(|chain| hex(chain.as_uuid())).collect();
            let settled: Vec<_> = live.iter().map(|settlement| hex(settlement.job.as_uuid())).collect();
            let values = vec![set(&roots)?, limit.into(), set(&settled)?];
            self.waits = read_waits(&session.rows(&session.statements.load_waits, values).await?)?;
        }
        Ok(())
    }

    /// Returns the chain that a settlement may close, and whether it would complete it. A continuation may close its
    /// chain too: it fails if one of its blockers has failed and its policy is `Fail`.
    fn may_close(&self, settlement: &Settlement) -> Option<(ChainId, bool)> {
        let row = self.job(settlement.job)?;
        let last = row.max_attempts.is_some_and(|max| row.attempt >= max);
        match &settlement.outcome {
            Outcome::Complete { .. } => Some((row.chain, true)),
            Outcome::Fail { .. } => Some((row.chain, false)),
            _ if row.cancel_requested => Some((row.chain, false)),
            Outcome::Retry { .. } if last => Some((row.chain, false)),
            Outcome::Continue { next, .. } if next.job.on_blocker_failure == OnBlockerFailure::Fail => {
                Some((row.chain, false))
            }
            _ => None,
        }
    }

    fn settle_one(&mut self, item: &Settlement, known: AttemptState, ripple: &mut Ripple) -> Settled {
        let Some(row) = self.job(item.job).cloned() else { return Settled::Lost(Lost::NotFound) };
        if !(known.held && row.status == Status::Running) {
            let end = self.end_of(&row, item.fence).or(known.ended);
            let repeated = end.is_some_and(|end| may_end_as(&item.outcome, end));
            return if repeated {
                Settled::AlreadyApplied(row.summary())
            } else {
                Settled::Lost(lost(row.status))
            };
        }
        if let Err(refusal) = item.outcome.check() {
            return Settled::Refused(refusal);
        }
        let mark = self.mark();
        match self.apply(row, &item.outcome, ripple) {
            Ok(applied) => Settled::Applied(applied),
            Err(refusal) => {
                self.undo_to(mark);
                Settled::Refused(refusal)
            }
        }
    }

    fn apply(&mut self, row: JobRow, outcome: &Outcome, ripple: &mut Ripple) -> Result<Applied, Refusal> {
        let by = row.worker;
        if row.cancel_requested && !matches!(outcome, Outcome::Complete { .. } | Outcome::Fail { .. }) {
            return Ok(self.cancel(row, outcome, ripple));
        }
        match outcome {
            Outcome::Complete { output, retention, create } => {
                let stopping = row.cancel_requested.then_some(row.chain);
                let created = self.create_carried(create, &mut Aliases::new(), stopping)?;
                let (closed_as, end) = (ClosedAs::Completed, Some(AttemptEnd::Completed));
                let closing = Closing { closed_as, output: Some(output.clone()), error: None, by, end };
                Ok(Applied { created, ..self.end(row, closing, *retention, ripple) })
            }
            Outcome::Continue { next, create } => {
                self.continue_chain(row, next, create, (by, Some(AttemptEnd::Continued)), ripple)
            }
            Outcome::Retry { error, .. } if row.max_attempts.is_some_and(|max| row.attempt >= max) => {
                Ok(self.fail(row, error, AttemptEnd::Exhausted, None, ripple))
            }
            Outcome::Retry { schedule, error } => {
                Ok(self.put_back(row, schedule.due(self.now), Some(error.clone()), AttemptEnd::Retried))
            }
            Outcome::Reschedule { schedule, error } => {
                Ok(self.put_back(row, schedule.due(self.now), error.clone(), AttemptEnd::Rescheduled))
            }
            Outcome::Fail { error, retention } => {
                Ok(self.fail(row, error, AttemptEnd::Failed, *retention, ripple))
            }
            Outcome::Release => {
                let due_at = row.due_at;
                Ok(self.put_back(row, due_at, None, AttemptEnd::Released))
            }
        }
    }

    /// Cancels a job that was asked to stop and whose outcome would continue, retry or requeue it.
    fn cancel(&mut self, row: JobRow, outcome: &Outcome, ripple: &mut Ripple) -> Applied {
        let error = match outcome {
            Outcome::Retry { error, .. } => Some(error.clone()),
            Outcome::Reschedule { error, .. } => error.clone(),
            _ => None,
        };
        let error = error.or_else(|| row.error.clone());
        let (by, closed_as, end) = (row.worker, ClosedAs::Cancelled, Some(AttemptEnd::Cancelled));
        self.end(row, Closing { closed_as, output: None, error, by, end }, None, ripple)
    }

    fn fail(
        &mut self,
        row: JobRow,
        error: &ErrorText,
        end: AttemptEnd,
        retention: Option<Millis>,
        ripple: &mut Ripple,
    ) -> Applied {
        let (by, closed_as, error, end) = (row.worker, ClosedAs::Failed, Some(error.clone()), Some(end));
        self.end(row, Closing { closed_as, output: None, error, by, end }, retention, ripple)
    }

    /// Closes a job with an expired lease, and its chain.
    pub(crate) fn end_reaped(
        &mut self,
        row: JobRow,
        closed_as: ClosedAs,
        error: ErrorText,
        ripple: &mut Ripple,
    ) -> Applied {
        let closing =
            Closing { closed_as, output: None, error: Some(error), by: None, end: Some(AttemptEnd::Reaped) };
        self.end(row, closing, None, ripple)
    }

    /// Closes the job and its chain.
    fn end(
        &mut self,
        row: JobRow,
        closing: Closing,
        retention: Option<Millis>,
        ripple: &mut Ripple,
    ) -> Applied {
        let closed_as = closing.closed_as;
        let row = self.close_job(row, closing);
        ripple.closed.extend(self.close_chain(row.chain, closed_as, retention));
        Applied { job: row.summary(), next: None, created: Vec::new() }
    }

    pub(crate) fn close_job(&mut self, mut row: JobRow, closing: Closing) -> JobRow {
        if row.status == Status::Blocked && !Self::is_unwritten(row.seq) {
            self.ended_waits.push(row.seq);
        }
        row.status = closing.closed_as.into();
        row.output = closing.output;
        row.error = closing.error;
        row.closed_at = Some(self.now);
        row.closed_by = closing.by;
        row.version = row.version.next();
        row.ended = closing.end;
        if row.blockers > 0 && row.status != Status::Failed && !Self::is_unwritten(row.seq) {
            self.released.push(row.seq);
        }
        self.put_job(row.clone());
        row
    }

    /// Requeues a job. Only retries and expired leases count as attempts.
    pub(crate) fn put_back(
        &mut self,
        mut row: JobRow,
        due_at: Timestamp,
        error: Option<ErrorText>,
        end: AttemptEnd,
    ) -> Applied {
        if let (Some(worker), Some(started_at)) = (row.worker, row.started_at) {
            let (attempt, fence, ended_at) = (row.attempt, row.fence, Some(self.now));
            let error = error.clone();
            let record = AttemptRecord { attempt, fence, worker, started_at, ended_at, end, error };
            self.attempts.push((row.seq, record));
        }
        if matches!(end, AttemptEnd::Rescheduled | AttemptEnd::Released) {
            row.attempt = row.attempt.saturating_sub(1);
        }
        row.status = Status::Pending;
        row.due_at = due_at;
        row.error = error.or(row.error);
        row.version = row.version.next();
        let job = row.summary();
        self.put_job(row);
        Applied { job, next: None, created: Vec::new() }
    }

    /// Completes the job without an output and adds the next job to its chain.
    pub(crate) fn continue_chain(
        &mut self,
        row: JobRow,
        next: &NextJob,
        create: &[NewChain],
        (by, end): (Option<WorkerId>, Option<AttemptEnd>),
        ripple: &mut Ripple,
    ) -> Result<Applied, Refusal> {
        let mut aliases = Aliases::new();
        let created = self.create_carried(create, &mut aliases, None)?;
        if self.is_taken(next.id) {
            return Err(Refusal::IdTaken);
        }
        let blockers = self.stored_blockers(&next.job.blockers, &aliases)?;
        let mut seen = HashSet::new();
        let mut reaches = |blocker: &&NewBlocker| self.reaches(blocker.chain, row.chain, &mut seen);
        if let Some(blocker) = blockers.iter().find(|blocker| reaches(blocker)) {
            return Err(Refusal::WaitsForItself(blocker.chain));
        }
        let closing = Closing { closed_as: ClosedAs::Completed, output: None, error: None, by, end };
        let index = row.index + 1;
        let closed = self.close_job(row, closing);
        let position =
            JobPosition { id: next.id, chain: closed.chain, chain_type: closed.chain_type.clone(), index };
        let next = self.insert_job(position, &next.job, blockers);
        if let Some(mut chain) = self.chain(closed.chain).cloned() {
            chain.latest = next.id;
            chain.latest_index = index;
            chain.trim_at = chain.trim_at.or_else(|| inner_leaves_at(&chain, &closed));
            self.put_chain(chain);
        }
        if next.status == Status::Failed {
            ripple.closed.extend(self.close_chain(closed.chain, ClosedAs::Failed, None));
        }
        Ok(Applied { job: closed.summary(), next: Some(next.summary()), created })
    }

    /// Creates the chains that a settlement carries. If one is refused, the whole settlement is. A chain that was asked
    /// to stop gets no successor: the successor would not know of the request and would run on.
    pub(crate) fn create_carried(
        &mut self,
        create: &[NewChain],
        aliases: &mut Aliases,
        stopping: Option<ChainId>,
    ) -> Result<Vec<Created>, Refusal> {
        let succeeds = |new: &NewChain| new.key.as_ref().and_then(|key| key.replaces);
        let carried = create.iter().map(|new| {
            if stopping.is_some() && succeeds(new) == stopping {
                return Ok(Created::Refused(Refusal::CancelRequested));
            }
            match self.create_chain(new, aliases) {
                Created::Refused(refusal) => Err(refusal),
                created => Ok(created),
            }
        });
        carried.collect()
    }

    /// Whether a chain waits for `sought`, directly or through other chains, or would if it were retried. `seen` holds
    /// the chains that earlier searches for the same chain have visited without success.
    fn reaches(&self, from: ChainId, sought: ChainId, seen: &mut HashSet<ChainId>) -> bool {
        let mut queue = vec![from];
        while let Some(chain) = queue.pop() {
            if chain == sought {
                return true;
            }
            if seen.len() < CYCLE_SEARCH_MAX && seen.insert(chain) {
                queue.extend(self.awaited(chain));
            }
        }
        false
    }

    /// Returns the chains that a chain's latest job waits for, or would wait for if it were retried.
    fn awaited(&self, chain: ChainId) -> Vec<ChainId> {
        let latest = self.chain(chain).and_then(|row| self.latest(row));
        let created = latest.and_then(|latest| self.created_at(latest.seq));
        let (status, blockers) = match (latest, created, self.waits.get(&chain)) {
            (Some(latest), Some(created), _) => {
                let blockers = created.blockers.iter().map(|blocker| (blocker.chain, blocker.resolved));
                (latest.status, blockers.collect())
            }
            // An earlier settlement of the same command may have closed the job after it was loaded.
            (latest, None, Some(loaded)) => {
                (latest.map_or(loaded.status, |latest| latest.status), loaded.chains.clone())
            }
            _ => (Status::Pending, Vec::new()),
        };
        let waits = |(_, resolved): &(ChainId, bool)| match status {
            Status::Blocked => !resolved,
            Status::Failed | Status::Cancelled => true,
            Status::Pending | Status::Running | Status::Completed => false,
        };
        blockers.into_iter().filter(waits).map(|(chain, _)| chain).collect()
    }
}

/// Returns why an attempt that does not hold a job with this status lost it.
pub(crate) fn lost(status: Status) -> Lost {
    match status {
        Status::Running => Lost::TakenOver,
        Status::Pending | Status::Blocked => Lost::Requeued,
        closed => closed.closed_as().map_or(Lost::Requeued, Lost::Closed),
    }
}

/// Returns when a completed job that is not its chain's first may be removed from the open chain.
fn inner_leaves_at(chain: &ChainRow, closed: &JobRow) -> Option<Timestamp> {
    let at = closed.closed_at.filter(|_| closed.index > 0)?;
    Some(at + chain.retention.completed.max(repeat_window()))
}

/// Whether this outcome can have ended an attempt in this way. A retry after the last attempt fails the job. After a
/// request to cancel, an outcome that would keep the job or its chain going cancels it.
fn may_end_as(outcome: &Outcome, end: AttemptEnd) -> bool {
    use AttemptEnd::{Cancelled, Completed, Continued, Exhausted, Failed, Released, Rescheduled, Retried};
    match outcome {
        Outcome::Complete { .. } => end == Completed,
        Outcome::Continue { .. } => matches!(end, Continued | Cancelled),
        Outcome::Retry { .. } => matches!(end, Retried | Exhausted | Cancelled),
        Outcome::Reschedule { .. } => matches!(end, Rescheduled | Cancelled),
        Outcome::Fail { .. } => end == Failed,
        Outcome::Release => matches!(end, Released | Cancelled),
    }
}
