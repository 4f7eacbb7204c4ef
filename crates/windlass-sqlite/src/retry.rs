//! Reopens chains that failed or were cancelled.

use std::collections::{HashMap, HashSet};

use windlass_core::command::{Retried, Retry, RetryReply, RetryTarget};
use windlass_core::{
    AttemptRecord, ChainId, ClosedAs, JobId, OnBlockerFailure, Refusal, Result, Status, Timestamp,
};

use crate::expire::set_trim_at;
use crate::manage::check_items;
use crate::row::{ChainRow, JobRow, hex};
use crate::session::{Execute, Session};
use crate::statement::set;
use crate::unit_of_work::{Needs, UnitOfWork};

/// The blockers of the jobs to retry, by the `seq` of the job. Each chain comes with whether the wait for it is
/// resolved.
type Edges = HashMap<i64, Vec<(ChainId, bool)>>;

impl Execute for Retry {
    async fn execute(&self, session: &mut Session<'_>) -> Result<RetryReply> {
        check_items("chains", self.chains.len())?;
        if self.chains.is_empty() {
            return Ok(RetryReply { chains: Vec::new(), deferred: false });
        }
        let mut working = UnitOfWork::new(session.now());
        let edges = working.load_retried(session, &self.chains).await?;
        let chains: Vec<_> = self.chains.iter().map(|target| working.retry(*target, &edges)).collect();
        working.flush(session).await?;
        let reopened = chains.iter().filter_map(|retried| match retried {
            Retried::Retried { job, .. } => Some(job.chain),
            _ => None,
        });
        set_trim_at(session, reopened.collect::<Vec<_>>()).await?;
        Ok(RetryReply { chains, deferred: false })
    }
}

impl UnitOfWork {
    /// Loads the jobs, their chains, the holders of their keys, and their blockers.
    async fn load_retried(&mut self, session: &mut Session<'_>, targets: &[RetryTarget]) -> Result<Edges> {
        let asked: Vec<_> = targets.iter().map(|target| (hex(target.job.as_uuid()), 0)).collect();
        let (mut needs, mut blocked) = (Needs::default(), HashSet::new());
        for row in session.rows(&session.statements.load_jobs, vec![set(&asked)?]).await? {
            let mut job = JobRow::read(&row)?;
            job.ended = row.maybe_enum("ended")?;
            job.closed_at = row.maybe_time("closed_at")?;
            needs.job(job.id);
            if job.blockers > 0 {
                blocked.insert(job.seq);
            }
            self.learn_job(job);
        }
        let mut edges = Edges::new();
        if !blocked.is_empty() {
            for row in session.rows(&session.statements.load_blockers, vec![set(&blocked)?]).await? {
                let chain = ChainId::from_uuid(row.uuid("chain")?);
                needs.chain(chain);
                edges.entry(row.number("job")?).or_default().push((chain, row.flag("resolved")?));
            }
        }
        self.load_chains(session, &needs).await?;
        let mut keys = Needs::default();
        for target in targets {
            let chain = self.job(target.job).and_then(|job| self.chain(job.chain));
            if let Some((chain, key)) = chain.and_then(|chain| Some((chain, chain.key.as_ref()?))) {
                keys.key(&chain.chain_type, &key.key);
            }
        }
        self.load_chains(session, &keys).await?;
        Ok(edges)
    }

    fn retry(&mut self, target: RetryTarget, edges: &Edges) -> Retried {
        let Some(row) = self.job(target.job) else { return Retried::NotFound };
        if row.version > target.version {
            return Retried::AlreadyRetried;
        }
        let retriable = matches!(row.status, Status::Failed | Status::Cancelled);
        if !retriable || row.version != target.version {
            return Retried::NotRetriable(row.status);
        }
        let (row, none) = (row.clone(), Vec::new());
        let Some(chain) = self.chain(row.chain).cloned() else { return Retried::NotFound };
        let edges = edges.get(&row.seq).unwrap_or(&none);
        if let Some(refusal) = self.retry_refusal(&row, &chain, edges) {
            return Retried::Refused(refusal);
        }
        let job = self.reopen(row, edges);
        self.reopen_chain(chain);
        let Some(row) = self.job(job) else { return Retried::NotFound };
        let (job_type, chain_type) = (row.job_type.clone(), row.chain_type.clone());
        Retried::Retried { job: row.summary(), job_type, chain_type }
    }

    fn retry_refusal(&self, row: &JobRow, chain: &ChainRow, edges: &[(ChainId, bool)]) -> Option<Refusal> {
        let pointed_at = chain.key.as_ref().and_then(|key| self.pointed_at(&chain.chain_type, &key.key));
        let holder = pointed_at.filter(|holder| holder.holds_key(self.now) && holder.id != chain.id);
        if let Some(holder) = holder {
            return Some(Refusal::KeyTaken(holder.id));
        }
        edges.iter().find_map(|(blocker, _)| match self.chain(*blocker) {
            None => Some(Refusal::BlockerNotFound(*blocker)),
            Some(chain) => {
                let failed = chain.closed.is_some_and(|closed| closed.closed_as != ClosedAs::Completed);
                let fails = failed && row.on_blocker_failure == OnBlockerFailure::Fail;
                fails.then_some(Refusal::BlockerFailed(*blocker))
            }
        })
    }

    fn reopen(&mut self, mut row: JobRow, edges: &[(ChainId, bool)]) -> JobId {
        self.attempts.extend(row.latest_attempt(row.closed_at).map(|record| (row.seq, record)));
        let receives = row.on_blocker_failure == OnBlockerFailure::Receive;
        let mut waits = HashSet::new();
        for (chain, resolved) in edges {
            let closed = self.chain(*chain).and_then(|row| row.closed);
            let over = closed.is_some_and(|closed| receives || closed.closed_as == ClosedAs::Completed);
            match (resolved, over) {
                (true, _) => {}
                (false, true) => self.resolved.push((row.seq, *chain)),
                (false, false) => {
                    waits.insert(*chain);
                }
            }
        }
        if row.status == Status::Cancelled && row.blockers > 0 {
            self.needing.push(row.seq);
        }
        row.status = if waits.is_empty() { Status::Pending } else { Status::Blocked };
        if row.status == Status::Blocked {
            self.waiting_again.push(row.seq);
        }
        row.waits = u32::try_from(waits.len()).unwrap_or(u32::MAX);
        row.due_at = self.now;
        row.attempt = 0;
        row.version = row.version.next();
        row.closed_at = None;
        row.closed_by = None;
        row.cancel_requested = false;
        row.ended = None;
        let job = row.id;
        self.put_job(row);
        job
    }

    fn reopen_chain(&mut self, mut chain: ChainRow) {
        chain.closed = None;
        chain.rippling = false;
        if let Some(mut key) = chain.key.take() {
            self.free_key(&chain.chain_type, &key.key);
            self.point(chain.chain_type.clone(), key.key.clone(), chain.id);
            key.held = true;
            chain.key = Some(key);
        }
        self.put_chain(chain);
    }
}

impl JobRow {
    /// Returns the record of the attempt that closed the job, if an attempt did.
    fn latest_attempt(&self, ended_at: Option<Timestamp>) -> Option<AttemptRecord> {
        let failed = matches!(self.status, Status::Failed | Status::Cancelled);
        Some(AttemptRecord {
            attempt: self.attempt,
            fence: self.fence,
            worker: self.worker?,
            started_at: self.started_at?,
            ended_at,
            end: self.ended?,
            error: self.error.clone().filter(|_| failed),
        })
    }
}
