//! Management of chains: cancel, trigger, change the retention, pause.

use std::collections::HashSet;

use windlass_core::command::{
    Cancel, CancelMode, CancelReply, Cancelled, Pause, PauseReply, RetentionSet, Ripple, SetRetention,
    SetRetentionReply, Target, Trigger, TriggerReply, Triggered, Untriggerable,
};
use windlass_core::limit::BATCH_MAX_ITEMS;
use windlass_core::{ClosedAs, Error, ErrorKind, JobId, Millis, Result, Status};

use crate::row::{ChainRow, JobRow, hex};
use crate::session::{Execute, Session};
use crate::settle::Closing;
use crate::statement::set;
use crate::unit_of_work::{Needs, UnitOfWork};

impl Execute for Cancel {
    async fn execute(&self, session: &mut Session<'_>) -> Result<CancelReply> {
        check_items("chains", self.chains.len())?;
        let mut working = UnitOfWork::new(session.now());
        working.load_targets(session, &self.chains).await?;
        let open = self.chains.iter().filter_map(|target| working.find(target));
        let closing: Vec<_> = open.filter(|row| row.closed.is_none()).map(|row| (row.id, false)).collect();
        working.load_dependents(session, &closing).await?;
        let mut ripple = Ripple::default();
        let cancel = |target| working.cancel_one(target, self.mode, &mut ripple);
        let chains = self.chains.iter().map(cancel).collect();
        working.ripple(&mut ripple);
        working.load_traces(session, &mut ripple).await?;
        working.flush(session).await?;
        Ok(CancelReply { chains, ripple })
    }
}

impl Execute for Trigger {
    async fn execute(&self, session: &mut Session<'_>) -> Result<TriggerReply> {
        check_items("jobs", self.jobs.len())?;
        let mut working = UnitOfWork::new(session.now());
        working.load_targets(session, &self.jobs).await?;
        let named = self.jobs.iter().filter_map(|target| match target {
            Target::Job(job) => Some(*job),
            _ => None,
        });
        working.load_named(session, named).await?;
        let found: Vec<_> = self.jobs.iter().map(|target| working.triggerable(target)).collect();
        if found.iter().any(Result::is_err) {
            return Ok(TriggerReply::Refused(found.into_iter().map(Result::err).collect()));
        }
        let mut seen = HashSet::new();
        let jobs = found.into_iter().flatten();
        let triggered = jobs.filter_map(|job| working.trigger(job, seen.insert(job))).collect();
        working.flush(session).await?;
        Ok(TriggerReply::Triggered(triggered))
    }
}

impl Execute for SetRetention {
    async fn execute(&self, session: &mut Session<'_>) -> Result<SetRetentionReply> {
        check_items("chains", self.chains.len())?;
        let mut working = UnitOfWork::new(session.now());
        working.load_targets(session, &self.chains).await?;
        let chains = self.chains.iter().map(|target| working.retain(target, self.retention)).collect();
        working.flush(session).await?;
        Ok(SetRetentionReply { chains })
    }
}

impl Execute for Pause {
    async fn execute(&self, session: &mut Session<'_>) -> Result<PauseReply> {
        check_items("types", self.types.len())?;
        let types = set(&self.types.iter().map(AsRef::<str>::as_ref).collect::<Vec<_>>())?;
        let rows = session.rows(&session.statements.paused_types, vec![types.clone()]).await?;
        let mut paused: HashSet<_> = rows.iter().map(|row| row.type_name("type")).collect::<Result<_>>()?;
        let statements = session.statements;
        let change = if self.paused { &statements.pause_types } else { &statements.resume_types };
        session.run(change, vec![types]).await?;
        let was_paused = |job_type: &windlass_core::TypeName| match self.paused {
            true => !paused.insert(job_type.clone()),
            false => paused.remove(job_type),
        };
        Ok(PauseReply { were_paused: self.types.iter().map(was_paused).collect() })
    }
}

impl UnitOfWork {
    async fn load_targets(&mut self, session: &mut Session<'_>, targets: &[Target]) -> Result<()> {
        let mut needs = Needs::default();
        targets.iter().for_each(|target| needs.target(target));
        self.load_chains(session, &needs).await
    }

    /// Loads exactly these jobs, which need not be the latest of their chains.
    async fn load_named(
        &mut self,
        session: &mut Session<'_>,
        jobs: impl Iterator<Item = JobId>,
    ) -> Result<()> {
        let asked: Vec<_> = jobs.map(|job| (hex(job.as_uuid()), 0)).collect();
        if !asked.is_empty() {
            for row in session.rows(&session.statements.load_jobs, vec![set(&asked)?]).await? {
                self.learn_job(JobRow::read(&row)?);
            }
        }
        Ok(())
    }

    fn cancel_one(&mut self, target: &Target, mode: CancelMode, ripple: &mut Ripple) -> Cancelled {
        let Some(row) = self.find(target) else { return Cancelled::NotFound };
        let chain = row.id;
        if let Some(closed) = row.closed {
            return Cancelled::Closed { chain, closed_as: closed.closed_as };
        }
        let Some(mut latest) = self.latest(row).cloned() else { return Cancelled::NotFound };
        let job = latest.id;
        match (latest.worker.filter(|_| latest.status == Status::Running), mode) {
            (None, _) => {
                let (closed_as, error) = (ClosedAs::Cancelled, latest.error.clone());
                self.close_job(latest, Closing { closed_as, output: None, error, by: None, end: None });
                ripple.closed.extend(self.close_chain(chain, closed_as, None));
                Cancelled::Cancelled { chain, job }
            }
            (Some(_), CancelMode::UnlessRunning) => Cancelled::Running { chain },
            (Some(worker), CancelMode::Ask) => {
                if !latest.cancel_requested {
                    latest.cancel_requested = true;
                    latest.version = latest.version.next();
                    self.put_job(latest);
                }
                Cancelled::Asked { chain, job, worker }
            }
        }
    }

    /// Returns the pending job of a target.
    fn triggerable(&self, target: &Target) -> Result<JobId, Untriggerable> {
        let row = match target {
            Target::Job(job) => self.job(*job),
            _ => self.find(target).and_then(|chain| self.latest(chain)),
        };
        match row {
            None => Err(Untriggerable::NotFound),
            Some(row) if row.status == Status::Pending => Ok(row.id),
            Some(row) => Err(Untriggerable::NotPending(row.status)),
        }
    }

    /// Makes a job due now. If it is listed again (`first` is false), only reports it.
    fn trigger(&mut self, job: JobId, first: bool) -> Option<Triggered> {
        let mut row = self.job(job)?.clone();
        if first {
            row.due_at = self.now;
            row.version = row.version.next();
            self.put_job(row.clone());
        }
        Some(Triggered { job: row.summary(), job_type: row.job_type, chain_type: row.chain_type })
    }

    fn retain(&mut self, target: &Target, retention: Millis) -> RetentionSet {
        let Some(row) = self.find(target) else { return RetentionSet::NotFound };
        let Some(mut closed) = row.closed else { return RetentionSet::NotClosed };
        closed.retain_until = self.now + retention;
        let row = ChainRow { closed: Some(closed), ..row.clone() };
        self.put_chain(row);
        RetentionSet::Until(closed.retain_until)
    }
}

/// Rejects a command with too many items.
pub(crate) fn check_items(what: &str, items: usize) -> Result<()> {
    if items <= BATCH_MAX_ITEMS {
        return Ok(());
    }
    let text = format!("{items} {what} in one command: split it into commands of at most {BATCH_MAX_ITEMS}");
    Err(Error::new(ErrorKind::Invalid, text))
}
