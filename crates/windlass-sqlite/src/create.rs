//! Creates chains and their first jobs.

use std::collections::{BTreeSet, HashMap};

use windlass_core::command::{Create, CreateReply, Created, Existing, NewBlocker, NewChain, NewJob};
use windlass_core::{
    Blocker, ChainId, ChainKey, ClosedAs, Fence, JobId, Key, OnBlockerFailure, Refusal, Result, Status,
    TypeName, Version,
};

use crate::ripple::blocker_failed;
use crate::row::{ChainRow, JobRow};
use crate::session::{Execute, Session};
use crate::unit_of_work::{CreatedJob, Needs, UnitOfWork};

/// Maps chains of the command to the stored chains that already hold their keys.
pub(crate) type Aliases = HashMap<ChainId, ChainId>;

/// The position of a new job: its chain, and its index in it.
pub(crate) struct JobPosition {
    pub(crate) id: JobId,
    pub(crate) chain: ChainId,
    pub(crate) chain_type: TypeName,
    pub(crate) index: u32,
}

impl Execute for Create {
    async fn execute(&self, session: &mut Session<'_>) -> Result<CreateReply> {
        self.check()?;
        let mut working = UnitOfWork::new(session.now());
        working.load_chains(session, &Needs::of(&self.chains)).await?;
        #[cfg(feature = "known-bad")]
        working.believe_chains(session.spoiled.early.take());
        let mut aliases = Aliases::new();
        let chains = self.chains.iter().map(|new| working.create_chain(new, &mut aliases)).collect();
        working.flush(session).await?;
        Ok(CreateReply { chains, durability: session.base.durability, deferred: false })
    }
}

impl Needs {
    /// Returns the rows needed to create these chains.
    pub(crate) fn of(chains: &[NewChain]) -> Self {
        let mut needs = Self::default();
        chains.iter().for_each(|new| needs.new_chain(new));
        needs
    }

    /// Adds the rows needed to create a chain.
    pub(crate) fn new_chain(&mut self, new: &NewChain) {
        self.chain(new.id);
        self.blockers(&new.job.blockers);
        if let Some(key) = &new.key {
            self.key(&new.job.job_type, &key.key);
        }
    }

    pub(crate) fn blockers(&mut self, blockers: &[NewBlocker]) {
        blockers.iter().for_each(|blocker| self.chain(blocker.chain));
    }
}

impl UnitOfWork {
    pub(crate) fn create_chain(&mut self, new: &NewChain, aliases: &mut Aliases) -> Created {
        if let Err(refusal) = new.check() {
            return Created::Refused(refusal);
        }
        if let Some(stored) = self.chain(new.id) {
            return match self.latest(stored).filter(|_| stored.chain_type == new.job.job_type) {
                Some(latest) => Created::New { job: latest.summary(), repeated: true },
                None => Created::Refused(Refusal::IdTaken),
            };
        }
        if self.is_taken(new.id.first_job()) {
            return Created::Refused(Refusal::IdTaken);
        }
        if let Some(existing) = self.existing(new) {
            aliases.insert(new.id, existing.chain);
            return Created::Existing(existing);
        }
        match self.stored_blockers(&new.job.blockers, aliases) {
            Ok(blockers) => self.insert_chain(new, blockers),
            Err(refusal) => Created::Refused(refusal),
        }
    }

    /// Returns the chain that holds the new chain's key, unless the new chain replaces it.
    fn existing(&self, new: &NewChain) -> Option<Existing> {
        let key = new.key.as_ref()?;
        let holder = self.pointed_at(&new.job.job_type, &key.key)?;
        if !holder.holds_key(self.now) || key.replaces == Some(holder.id) {
            return None;
        }
        let latest = self.latest(holder)?;
        Some(Existing {
            chain: holder.id,
            status: latest.status,
            job_type: latest.job_type.clone(),
            output: latest.output.clone(),
            error: latest.error.clone(),
            trace: holder.trace.clone(),
        })
    }

    /// Replaces aliases in the blockers by the stored chains. Refuses blockers that are not stored.
    pub(crate) fn stored_blockers(
        &self,
        blockers: &[NewBlocker],
        aliases: &Aliases,
    ) -> Result<Vec<NewBlocker>, Refusal> {
        let stored = |blocker: &NewBlocker| {
            let chain = aliases.get(&blocker.chain).copied().unwrap_or(blocker.chain);
            match self.chain(chain) {
                Some(_) => Ok(NewBlocker { chain, trace: blocker.trace.clone() }),
                None => Err(Refusal::BlockerNotFound(blocker.chain)),
            }
        };
        blockers.iter().map(stored).collect()
    }

    fn insert_chain(&mut self, new: &NewChain, blockers: Vec<NewBlocker>) -> Created {
        let chain_type = new.job.job_type.clone();
        let key = new.key.as_ref().map(|key| ChainKey {
            key: key.key.clone(),
            hold: key.hold,
            window: key.window,
            held: true,
        });
        if let Some(key) = &key {
            self.free_key(&chain_type, &key.key);
            self.point(chain_type.clone(), key.key.clone(), new.id);
        }
        let position =
            JobPosition { id: new.id.first_job(), chain: new.id, chain_type: chain_type.clone(), index: 0 };
        let job = self.insert_job(position, &new.job, blockers);
        self.put_chain(ChainRow {
            seq: job.seq,
            id: new.id,
            chain_type,
            latest: job.id,
            latest_index: 0,
            key,
            retention: new.retention,
            created_at: self.now,
            closed: None,
            trace: new.trace.clone(),
            trim_at: None,
            rippling: false,
        });
        if job.status == Status::Failed {
            self.close_chain(new.id, ClosedAs::Failed, None);
        }
        Created::New { job: job.summary(), repeated: false }
    }

    /// Releases a key from the chain that it points at.
    pub(crate) fn free_key(&mut self, chain_type: &TypeName, key: &Key) {
        let Some(former) = self.pointed_at(chain_type, key) else { return };
        let mut former = former.clone();
        if let Some(key) = &mut former.key {
            key.held = false;
        }
        self.put_chain(former);
    }

    pub(crate) fn insert_job(
        &mut self,
        position: JobPosition,
        new: &NewJob,
        blockers: Vec<NewBlocker>,
    ) -> JobRow {
        let (blockers, failed) = self.attach(blockers, new.on_blocker_failure);
        let open: BTreeSet<_> =
            blockers.iter().filter(|blocker| !blocker.resolved).map(|blocker| blocker.chain).collect();
        let status = match failed {
            Some(_) => Status::Failed,
            None if open.is_empty() => Status::Pending,
            None => Status::Blocked,
        };
        let row = JobRow {
            seq: self.next_seq(),
            id: position.id,
            chain: position.chain,
            index: position.index,
            job_type: new.job_type.clone(),
            chain_type: position.chain_type,
            status,
            due_at: new.schedule.due(self.now),
            attempt: 0,
            max_attempts: new.max_attempts,
            fence: Fence::at_creation(self.now),
            version: Version::default(),
            worker: None,
            lease_until: None,
            cancel_requested: false,
            waits: u32::try_from(open.len()).unwrap_or(u32::MAX),
            blockers: u32::try_from(blockers.len()).unwrap_or(u32::MAX),
            on_blocker_failure: new.on_blocker_failure,
            started_at: None,
            closed_at: failed.map(|_| self.now),
            closed_by: None,
            ended: None,
            outside: None,
            error: failed.map(blocker_failed),
            output: None,
        };
        let created = CreatedJob {
            id: row.id,
            input: new.input.clone(),
            priority: new.priority,
            trace: new.trace.clone(),
            blockers,
        };
        self.create_job(row.clone(), created);
        row
    }

    /// Returns the blockers with their current state, and the first one that fails the job immediately.
    fn attach(&self, blockers: Vec<NewBlocker>, policy: OnBlockerFailure) -> (Vec<Blocker>, Option<ChainId>) {
        let mut failed = None;
        let attach = |NewBlocker { chain, trace }| {
            let closed = self.chain(chain).and_then(|row| row.closed).map(|closed| closed.closed_as);
            let resolved = match (closed, policy) {
                (None, _) | (Some(ClosedAs::Failed | ClosedAs::Cancelled), OnBlockerFailure::Wait) => false,
                (Some(ClosedAs::Completed), _) | (Some(_), OnBlockerFailure::Receive) => true,
                (Some(_), OnBlockerFailure::Fail) => {
                    failed = failed.or(Some(chain));
                    false
                }
            };
            Blocker { chain, resolved, trace }
        };
        (blockers.into_iter().map(attach).collect(), failed)
    }
}
