//! Resolves the waits for closed chains.

use std::collections::HashMap;

use windlass_core::command::{ClosedChain, Ripple, Unblocked};
use windlass_core::limit::REPEAT_WINDOW_MS;
use windlass_core::{
    BLOCKER_FAILED, ChainId, Closed, ClosedAs, ErrorText, JobId, Millis, OnBlockerFailure, Result, Status,
    Timestamp, TraceContext,
};

use crate::row::{ChainRow, JobRow};
use crate::session::Session;
use crate::statement::set;
use crate::unit_of_work::{UnitOfWork, ripple_place};

impl UnitOfWork {
    /// Closes a chain whose latest job has just been closed. [`ripple`](Self::ripple) then resolves the jobs that wait
    /// for it.
    pub(crate) fn close_chain(
        &mut self,
        chain: ChainId,
        closed_as: ClosedAs,
        retention: Option<Millis>,
    ) -> Option<ClosedChain> {
        let mut row = ChainRow::clone(self.chain(chain)?);
        let stays = retention.unwrap_or_else(|| row.retention.of(closed_as));
        row.closed = Some(Closed { at: self.now, closed_as, retain_until: self.now + stays });
        row.rippling =
            !self.has_all_waiting(&row, closed_as) || self.next_waiting(chain, closed_as).is_some();
        if row.rippling {
            self.rippling.extend(ripple_place(&row));
        }
        let latest = self.job(row.latest)?;
        let closed = ClosedChain {
            chain,
            chain_type: row.chain_type.clone(),
            job: latest.id,
            job_type: latest.job_type.clone(),
            closed_as,
            error: latest.error.clone(),
            created_at: row.created_at,
            trace: row.trace.clone(),
        };
        self.put_chain(row);
        Some(closed)
    }

    /// Resolves waits for closed chains, up to the limit of one command. Chains with unresolved dependents stay marked,
    /// so that a later command continues with them.
    pub(crate) fn ripple(&mut self, ripple: &mut Ripple) {
        while let Some(place) = self.rippling.first().copied() {
            let (.., chain) = place;
            let Some(closed) = self.chain(chain).and_then(|row| row.closed) else { return };
            while let Some(job) = self.next_waiting(chain, closed.closed_as) {
                if self.ripple_left == 0 {
                    return;
                }
                self.ripple_left -= 1;
                self.resolve(job, chain, closed.closed_as, ripple);
            }
            let Some(row) = self.chain(chain).cloned() else { return };
            if !self.has_all_waiting(&row, closed.closed_as) {
                // The chain may have dependents that were not loaded, so it stays marked.
                return;
            }
            self.rippling.remove(&place);
            self.put_chain(ChainRow { rippling: false, ..row });
        }
    }

    /// Returns the oldest job that waits for the chain and is affected by its end.
    fn next_waiting(&self, chain: ChainId, closed_as: ClosedAs) -> Option<JobId> {
        let concerned = |job: &&JobId| {
            self.job(**job).is_some_and(|row| {
                let patient = row.on_blocker_failure == OnBlockerFailure::Wait;
                row.status == Status::Blocked && (closed_as == ClosedAs::Completed || !patient)
            })
        };
        self.waiting.get(&chain)?.values().find(concerned).copied()
    }

    /// Resolves a job's wait for a closed chain.
    fn resolve(&mut self, job: JobId, chain: ChainId, closed_as: ClosedAs, ripple: &mut Ripple) {
        let Some(row) = self.job(job) else { return };
        let mut row = JobRow::clone(row);
        self.forget_wait(row.seq, chain);
        if closed_as != ClosedAs::Completed && row.on_blocker_failure == OnBlockerFailure::Fail {
            row.status = Status::Failed;
            row.error = Some(blocker_failed(chain));
            row.closed_at = Some(self.now);
            row.version = row.version.next();
            if !Self::is_unwritten(row.seq) {
                self.ended_waits.push(row.seq);
            }
            let chain = row.chain;
            self.put_job(row);
            ripple.closed.extend(self.close_chain(chain, ClosedAs::Failed, None));
            return;
        }
        self.mark_resolved(row.seq, chain);
        row.waits = row.waits.saturating_sub(1);
        if row.waits == 0 {
            row.status = Status::Pending;
            row.due_at = row.due_at.max(self.now);
            row.version = row.version.next();
            ripple.unblocked.push(Unblocked {
                job: row.summary(),
                job_type: row.job_type.clone(),
                chain_type: row.chain_type.clone(),
                traces: Vec::new(),
            });
        }
        self.put_job(row);
    }

    fn forget_wait(&mut self, seq: i64, chain: ChainId) {
        if let Some(jobs) = self.waiting.get_mut(&chain) {
            jobs.remove(&seq);
        }
    }

    fn mark_resolved(&mut self, seq: i64, chain: ChainId) {
        match self.created_at_mut(seq) {
            Some(created) => {
                let same = created.blockers.iter_mut().filter(|blocker| blocker.chain == chain);
                same.for_each(|blocker| blocker.resolved = true);
            }
            None => self.resolved.push((seq, chain)),
        }
    }

    /// Fills in the trace contexts of the resolved waits.
    pub(crate) async fn load_traces(&mut self, session: &mut Session<'_>, ripple: &mut Ripple) -> Result<()> {
        let places: Vec<_> = ripple
            .unblocked
            .iter()
            .map(|unblocked| self.job(unblocked.job.job).map_or(0, |row| row.seq))
            .collect();
        let stored: Vec<_> = places.iter().copied().filter(|seq| !Self::is_unwritten(*seq)).collect();
        let mut traces: HashMap<i64, Vec<Option<TraceContext>>> = HashMap::new();
        if !stored.is_empty() {
            for row in session.rows(&session.statements.load_wait_traces, vec![set(&stored)?]).await? {
                traces.entry(row.number("job")?).or_default().push(row.maybe_trace("trace")?);
            }
        }
        for (unblocked, seq) in ripple.unblocked.iter_mut().zip(places) {
            unblocked.traces = match self.created_at_mut(seq) {
                Some(created) => created.blockers.iter().map(|blocker| blocker.trace.clone()).collect(),
                None => traces.remove(&seq).unwrap_or_default(),
            };
        }
        Ok(())
    }
}

impl ChainRow {
    /// Returns when the closed chain may be removed.
    pub(crate) fn leaves_at(&self) -> Option<Timestamp> {
        self.closed.map(|closed| closed.retain_until.max(closed.at + repeat_window()))
    }
}

/// Returns how long a closed chain or job is kept at least, so that a repeated command is recognized.
pub(crate) fn repeat_window() -> Millis {
    Millis::new(REPEAT_WINDOW_MS).unwrap_or_default()
}

/// Returns the error of a job that fails because a blocker failed.
pub(crate) fn blocker_failed(chain: ChainId) -> ErrorText {
    ErrorText::new(format!("{BLOCKER_FAILED}{chain}"))
}
