use std::collections::HashSet;
use std::sync::Arc;

use super::row::{ChainRow, JobRow, Row, RowKey};
use super::settle::{Closing, push_history};
use super::{Execution, Rows};
use crate::command::{
    Cancel, CancelMode, CancelReply, Cancelled, Pause, PauseReply, RetentionSet, Retried, Retry, RetryReply,
    RetryTarget, Ripple, SetRetention, SetRetentionReply, Target, Trigger, TriggerReply, Triggered,
    Untriggerable, check_items,
};
use crate::error::Result;
use crate::id::JobId;
use crate::record::{Blocker, ClosedAs, OnBlockerFailure, Status};
use crate::refusal::Refusal;
use crate::time::Millis;

impl<R: Rows> Execution<'_, R> {
    pub(super) fn cancel(&mut self, request: &Cancel) -> Result<CancelReply> {
        check_items("chains", request.chains.len())?;
        let mut ripple = Ripple::default();
        let cancel = |target| self.cancel_one(target, request.mode, &mut ripple);
        let chains = request.chains.iter().map(cancel).collect::<Result<_>>()?;
        self.ripple(&mut ripple)?;
        Ok(CancelReply { chains, ripple })
    }

    fn cancel_one(&mut self, target: &Target, mode: CancelMode, ripple: &mut Ripple) -> Result<Cancelled> {
        let Some(row) = self.find(target)? else { return Ok(Cancelled::NotFound) };
        let chain = row.id;
        if let Some(closed) = row.closed {
            return Ok(Cancelled::Closed { chain, closed_as: closed.closed_as });
        }
        let mut latest = self.latest(&row)?;
        let job = latest.job.id;
        let holder = latest.job.lease.as_ref().map(|lease| lease.worker);
        Ok(match (holder, mode) {
            (None, _) => {
                let error = latest.job.error.clone();
                let closing =
                    Closing { closed_as: ClosedAs::Cancelled, output: None, error, by: None, end: None };
                self.close_job(latest, closing)?;
                ripple.closed.extend(self.close_chain(chain, ClosedAs::Cancelled, None)?);
                Cancelled::Cancelled { chain, job }
            }
            (Some(_), CancelMode::UnlessRunning) => Cancelled::Running { chain },
            (Some(worker), CancelMode::Ask) => {
                if !latest.job.cancel_requested {
                    let job = &mut Arc::make_mut(&mut latest).job;
                    job.cancel_requested = true;
                    job.version = job.version.next();
                    self.put_job(latest)?;
                }
                Cancelled::Asked { chain, job, worker }
            }
        })
    }

    pub(super) fn trigger(&mut self, request: &Trigger) -> Result<TriggerReply> {
        check_items("jobs", request.jobs.len())?;
        let found = request.jobs.iter().map(|target| self.triggerable(target)).collect::<Result<Vec<_>>>()?;
        if found.iter().any(Result::is_err) {
            return Ok(TriggerReply::Refused(found.into_iter().map(Result::err).collect()));
        }
        let mut seen = HashSet::new();
        let mut triggered = Vec::with_capacity(found.len());
        for job in found.into_iter().flatten() {
            let Some(mut row) = self.rows.job(job)? else { continue };
            if seen.insert(job) {
                let job = &mut Arc::make_mut(&mut row).job;
                job.due_at = self.now;
                job.version = job.version.next();
                self.put_job(Arc::clone(&row))?;
            }
            triggered.push(Triggered {
                job: row.summary(),
                job_type: row.job.job_type.clone(),
                chain_type: row.job.chain_type.clone(),
            });
        }
        Ok(TriggerReply::Triggered(triggered))
    }

    /// Returns the pending job that a target refers to.
    fn triggerable(&mut self, target: &Target) -> Result<Result<JobId, Untriggerable>> {
        let row = match target {
            Target::Job(job) => self.rows.job(*job)?,
            _ => self.find(target)?.map(|row| self.latest(&row)).transpose()?,
        };
        Ok(match row {
            None => Err(Untriggerable::NotFound),
            Some(row) if row.job.status == Status::Pending => Ok(row.job.id),
            Some(row) => Err(Untriggerable::NotPending(row.job.status)),
        })
    }

    pub(super) fn retry(&mut self, request: &Retry) -> Result<RetryReply> {
        check_items("chains", request.chains.len())?;
        let chains = request.chains.iter().map(|target| self.retry_one(*target)).collect::<Result<_>>()?;
        self.write_former()?;
        Ok(RetryReply { chains, deferred: false })
    }

    fn retry_one(&mut self, target: RetryTarget) -> Result<Retried> {
        let Some(row) = self.rows.job(target.job)? else { return Ok(Retried::NotFound) };
        if row.job.version > target.version {
            return Ok(Retried::AlreadyRetried);
        }
        let retriable = matches!(row.job.status, Status::Failed | Status::Cancelled);
        if !retriable || row.job.version != target.version {
            return Ok(Retried::NotRetriable(row.job.status));
        }
        let chain = self.chain_of(&row)?;
        if let Some(refusal) = self.retry_refusal(&row, &chain)? {
            return Ok(Retried::Refused(refusal));
        }
        let job = self.reopen(JobRow::clone(&row), ChainRow::clone(&chain))?;
        let (job_type, chain_type) = (job.job.job_type.clone(), job.job.chain_type.clone());
        Ok(Retried::Retried { job: job.summary(), job_type, chain_type })
    }

    fn retry_refusal(&mut self, row: &JobRow, chain: &ChainRow) -> Result<Option<Refusal>> {
        if let Some(key) = &chain.key
            && let Some(holder) = self.holder(&chain.chain_type, &key.key)?
            && holder.id != chain.id
        {
            return Ok(Some(Refusal::KeyTaken(holder.id)));
        }
        for blocker in row.job.blockers.iter() {
            let Some(chain) = self.rows.chain(blocker.chain)? else {
                return Ok(Some(Refusal::BlockerNotFound(blocker.chain)));
            };
            let failed = chain.closed.is_some_and(|closed| closed.closed_as != ClosedAs::Completed);
            if failed && row.job.on_blocker_failure == OnBlockerFailure::Fail {
                return Ok(Some(Refusal::BlockerFailed(blocker.chain)));
            }
        }
        Ok(None)
    }

    fn reopen(&mut self, mut row: JobRow, mut chain: ChainRow) -> Result<Arc<JobRow>> {
        self.leave_outcome(&row);
        if let Some(record) = row.latest_attempt() {
            push_history(&mut row, record);
        }
        let receives = row.job.on_blocker_failure == OnBlockerFailure::Receive;
        let mut blockers = Vec::with_capacity(row.job.blockers.len());
        for blocker in row.job.blockers.iter() {
            let closed = self.rows.chain(blocker.chain)?.and_then(|chain| chain.closed);
            let now_resolved =
                closed.is_some_and(|closed| receives || closed.closed_as == ClosedAs::Completed);
            blockers.push(Blocker { resolved: blocker.resolved || now_resolved, ..blocker.clone() });
        }
        row.job.blockers = blockers.into();
        let waits = row.job.blockers.iter().any(|blocker| !blocker.resolved);
        row.job.status = if waits { Status::Blocked } else { Status::Pending };
        row.job.due_at = self.now;
        row.job.attempt = 0;
        row.job.version = row.job.version.next();
        row.job.closed_at = None;
        row.job.closed_by = None;
        row.job.cancel_requested = false;
        row.end = None;
        chain.closed = None;
        chain.rippling = false;
        if let Some(key) = &mut chain.key {
            self.free_key(&chain.chain_type, &key.key)?;
            key.held = true;
        }
        self.put_chain(chain)?;
        self.put_job(row)
    }

    pub(super) fn set_retention(&mut self, request: &SetRetention) -> Result<SetRetentionReply> {
        check_items("chains", request.chains.len())?;
        let retain = |target| self.retain(target, request.retention);
        let chains = request.chains.iter().map(retain).collect::<Result<_>>()?;
        Ok(SetRetentionReply { chains })
    }

    fn retain(&mut self, target: &Target, retention: Millis) -> Result<RetentionSet> {
        let Some(row) = self.find(target)? else { return Ok(RetentionSet::NotFound) };
        let mut row = ChainRow::clone(&row);
        let Some(closed) = &mut row.closed else { return Ok(RetentionSet::NotClosed) };
        closed.retain_until = self.now + retention;
        let until = closed.retain_until;
        self.put_chain(row)?;
        Ok(RetentionSet::Until(until))
    }

    pub(super) fn pause(&mut self, request: &Pause) -> Result<PauseReply> {
        check_items("types", request.types.len())?;
        let mut were_paused = Vec::with_capacity(request.types.len());
        for job_type in &request.types {
            let was_paused = self.rows.is_paused(job_type)?;
            if was_paused != request.paused {
                self.rows.set(RowKey::Paused(job_type.clone()), request.paused.then_some(Row::Paused))?;
            }
            were_paused.push(was_paused);
        }
        Ok(PauseReply { were_paused })
    }
}
