use std::collections::HashMap;
use std::sync::Arc;

use super::row::{ChainRow, JobRow};
use super::rows::Stop;
use super::{Execution, Rows};
use crate::BLOCKER_FAILED;
use crate::command::{Create, CreateReply, Created, Durability, Existing, NewBlocker, NewChain, NewJob};
use crate::error::Result;
use crate::id::{ChainId, Fence, JobId, Version};
use crate::name::{ErrorText, Key, TypeName};
use crate::record::{Blocker, ChainKey, ClosedAs, JobRecord, OnBlockerFailure, Status};
use crate::refusal::Refusal;

/// Maps the id of a requested chain to the id of the existing chain that already holds its key. Later jobs of
/// the same command may name the requested id as a blocker.
pub(super) type Aliases = HashMap<ChainId, ChainId>;

/// Identity and position of a new job.
pub(super) struct JobPosition {
    pub(super) id: JobId,
    pub(super) chain: ChainId,
    pub(super) chain_type: TypeName,
    pub(super) index: u32,
}

impl<R: Rows> Execution<'_, R> {
    pub(super) fn create(&mut self, request: &Create) -> Result<CreateReply> {
        request.check()?;
        let mut aliases = Aliases::new();
        // Collecting into a `Result` would not reserve the space.
        let mut chains = Vec::with_capacity(request.chains.len());
        for new in &request.chains {
            chains.push(self.create_chain(new, &mut aliases)?);
        }
        Ok(CreateReply { chains, durability: Durability::Volatile, deferred: false })
    }

    pub(super) fn create_chain(&mut self, new: &NewChain, aliases: &mut Aliases) -> Result<Created> {
        if let Err(refusal) = new.check() {
            return Ok(Created::Refused(refusal));
        }
        if let Some(stored) = self.rows.chain(new.id)? {
            if stored.chain_type != new.job.job_type {
                return Ok(Created::Refused(Refusal::IdTaken));
            }
            return Ok(Created::New { job: self.latest(&stored)?.summary(), repeated: true });
        }
        if self.rows.job(new.id.first_job())?.is_some() {
            return Ok(Created::Refused(Refusal::IdTaken));
        }
        if let Some(existing) = self.existing(new)? {
            aliases.insert(new.id, existing.chain);
            return Ok(Created::Existing(existing));
        }
        match self.resolve_blockers(&new.job.blockers, aliases) {
            Ok(blockers) => self.insert_chain(new, blockers),
            Err(Stop::Refused(refusal)) => Ok(Created::Refused(refusal)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Returns the chain that holds the new chain's key, unless the new chain is to replace it.
    fn existing(&mut self, new: &NewChain) -> Result<Option<Existing>> {
        let Some(key) = new.key.as_ref() else { return Ok(None) };
        let holder = self.holder(&new.job.job_type, &key.key)?;
        let Some(chain) = holder.filter(|holder| key.replaces != Some(holder.id)) else { return Ok(None) };
        let latest = &self.latest(&chain)?.job;
        Ok(Some(Existing {
            chain: chain.id,
            status: latest.status,
            job_type: latest.job_type.clone(),
            output: latest.output.clone(),
            error: latest.error.clone(),
            trace: chain.trace.clone(),
        }))
    }

    /// Returns the blockers with aliases replaced by the stored chains.
    pub(super) fn resolve_blockers(
        &mut self,
        blockers: &[NewBlocker],
        aliases: &Aliases,
    ) -> Result<Vec<NewBlocker>, Stop> {
        if blockers.is_empty() {
            return Ok(Vec::new());
        }
        let resolve = |blocker: &NewBlocker| {
            let chain = aliases.get(&blocker.chain).copied().unwrap_or(blocker.chain);
            match self.rows.chain(chain)? {
                Some(_) => Ok(NewBlocker { chain, trace: blocker.trace.clone() }),
                None => Err(Refusal::BlockerNotFound(blocker.chain).into()),
            }
        };
        blockers.iter().map(resolve).collect()
    }

    fn insert_chain(&mut self, new: &NewChain, blockers: Vec<NewBlocker>) -> Result<Created> {
        let chain_type = new.job.job_type.clone();
        if let Some(key) = &new.key {
            self.free_key(&chain_type, &key.key)?;
        }
        let position =
            JobPosition { id: new.id.first_job(), chain: new.id, chain_type: chain_type.clone(), index: 0 };
        let job = self.insert_job(position, &new.job, blockers)?;
        let chain = ChainRow {
            id: new.id,
            chain_type,
            seq: job.seq,
            key: new.key.as_ref().map(|key| ChainKey {
                key: key.key.clone(),
                hold: key.hold,
                window: key.window,
                held: true,
            }),
            retention: new.retention,
            created_at: self.now,
            closed: None,
            trace: new.trace.clone(),
            latest: job.job.id,
            latest_index: 0,
            rippling: false,
        };
        self.put_chain(chain)?;
        if job.job.status == Status::Failed {
            self.close_chain(new.id, ClosedAs::Failed, None)?;
        }
        Ok(Created::New { job: job.summary(), repeated: false })
    }

    /// Releases a key from the chain that it points at.
    pub(super) fn free_key(&mut self, chain_type: &TypeName, key: &Key) -> Result<()> {
        let Some(former) = self.rows.keyed(chain_type, key)? else { return Ok(()) };
        let Some(mut row) = self.rows.chain(former)? else { return Ok(()) };
        if let Some(key) = &mut Arc::make_mut(&mut row).key {
            key.held = false;
        }
        self.put_chain(row)
    }

    pub(super) fn insert_job(
        &mut self,
        position: JobPosition,
        new: &NewJob,
        blockers: Vec<NewBlocker>,
    ) -> Result<Arc<JobRow>> {
        let (blockers, failed) = self.attach(blockers, new.on_blocker_failure)?;
        let status = match failed {
            Some(_) => Status::Failed,
            None if blockers.iter().any(|blocker| !blocker.resolved) => Status::Blocked,
            None => Status::Pending,
        };
        // A deleted job may have had this id, and may have been created in the same millisecond.
        let (fence, deleted) = (Fence::at_creation(self.now), self.rows.deleted_fence()?);
        let fence = if deleted > fence { deleted.next() } else { fence };
        let job = JobRecord {
            id: position.id,
            chain: position.chain,
            index: position.index,
            job_type: new.job_type.clone(),
            chain_type: position.chain_type,
            status,
            input: new.input.clone(),
            output: None,
            error: failed.map(blocker_failed),
            priority: new.priority,
            due_at: new.schedule.due(self.now),
            attempt: 0,
            max_attempts: new.max_attempts,
            fence,
            version: Version::default(),
            lease: None,
            cancel_requested: false,
            blockers: shared(blockers),
            on_blocker_failure: new.on_blocker_failure,
            created_at: self.now,
            started_at: None,
            closed_at: failed.map(|_| self.now),
            closed_by: None,
            trace: new.trace.clone(),
        };
        let seq = self.rows.next_seq()?;
        self.put_job(JobRow {
            job,
            seq,
            end: None,
            worker: None,
            worker_name: None,
            history: Arc::default(),
            outside: None,
        })
    }

    /// Returns the blockers in their current state, and the first one whose failure makes the job fail
    /// immediately.
    fn attach(
        &mut self,
        blockers: Vec<NewBlocker>,
        policy: OnBlockerFailure,
    ) -> Result<(Vec<Blocker>, Option<ChainId>)> {
        let mut failed = None;
        let mut attached = Vec::with_capacity(blockers.len());
        for NewBlocker { chain, trace } in blockers {
            let closed = self.rows.chain(chain)?.and_then(|row| row.closed).map(|closed| closed.closed_as);
            let resolved = match (closed, policy) {
                (None, _) => false,
                (Some(ClosedAs::Completed), _) | (Some(_), OnBlockerFailure::Receive) => true,
                (Some(_), OnBlockerFailure::Wait) => false,
                (Some(_), OnBlockerFailure::Fail) => {
                    failed = failed.or(Some(chain));
                    false
                }
            };
            attached.push(Blocker { chain, resolved, trace });
        }
        Ok((attached, failed))
    }
}

/// Converts blockers to the form that jobs store. Most jobs have none; the shared empty slice avoids an
/// allocation.
fn shared(blockers: Vec<Blocker>) -> Arc<[Blocker]> {
    if blockers.is_empty() { Arc::default() } else { blockers.into() }
}

/// Returns the error of a job that fails because a blocker failed.
pub(super) fn blocker_failed(chain: ChainId) -> ErrorText {
    ErrorText::new(format!("{BLOCKER_FAILED}{chain}"))
}
