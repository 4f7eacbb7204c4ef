//! The rules of Windlass as a deterministic state machine, without I/O, clock or randomness.
//!
//! [`Model::apply`] takes the current time and a command. It returns the reply and the effects: every row
//! that was inserted, updated or deleted, with its previous value. The memory store is this state machine
//! behind a lock; it rolls a transaction back by undoing its effects. Replaying a journal of effects with
//! [`Model::replay`] restores the same state, even if the rules have changed since. For every other store,
//! the model is the test oracle.
//!
//! The cost of a command is proportional to the number of jobs it touches. Every lookup uses an index. Only
//! the list commands scan stored rows, up to a fixed limit.

mod acquire;
mod create;
mod delete;
mod expire;
mod manage;
mod outside;
mod query;
mod reap;
mod registry;
mod ripple;
mod row;
mod settle;
mod table;

pub use row::{ChainRow, Effect, JobRow, LockRow, Row, RowKey};

use std::sync::Arc;

use crate::command::{Command, ExchangeReply, Reply, Target};
use crate::error::Result;
use crate::id::ChainId;
use crate::limit::RIPPLE_MAX;
use crate::name::{Key, TypeName};
use crate::record::ChainRecord;
use crate::time::Timestamp;
use table::Tables;

/// The state machine.
#[derive(Debug, Default)]
pub struct Model {
    tables: Tables,
}

impl Model {
    /// Creates an empty model.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Executes a command at time `now` and returns its reply and effects.
    ///
    /// # Errors
    /// Returns an error if the command as a whole exceeds a limit. Nothing has changed in that case.
    pub fn apply(&mut self, now: Timestamp, command: &Command) -> Result<(Reply, Vec<Effect>)> {
        let reply = self.execution(now).run(command);
        let effects = self.tables.take_log();
        Ok((reply?, effects))
    }

    /// Like [`apply`](Self::apply), for a transaction that reads from a snapshot.
    ///
    /// Such a transaction cannot see every job that waits for a chain. When it closes a chain, it therefore
    /// only marks the chain row, and a later command resolves the dependents.
    pub fn apply_in_snapshot(&mut self, now: Timestamp, command: &Command) -> Result<(Reply, Vec<Effect>)> {
        let reply = Execution { defers: true, ..self.execution(now) }.run(command);
        let effects = self.tables.take_log();
        Ok((reply?, effects))
    }

    /// Like [`apply`](Self::apply), but discards the effects.
    pub(crate) fn reply(&mut self, now: Timestamp, command: &Command) -> Result<Reply> {
        let reply = self.execution(now).run(command);
        self.tables.clear_log();
        reply
    }

    /// Applies the effects of an earlier [`apply`](Self::apply) without running its command.
    pub fn replay(&mut self, effects: &[Effect]) {
        for effect in effects {
            self.tables.install(&effect.key, effect.after.clone());
        }
    }

    /// Reverts the effects of the most recent commands, last effect first.
    pub fn undo(&mut self, effects: &[Effect]) {
        for effect in effects.iter().rev() {
            self.tables.install(&effect.key, effect.before.clone());
        }
    }

    const fn execution(&mut self, now: Timestamp) -> Execution<'_> {
        Execution { tables: &mut self.tables, now, ripple_left: RIPPLE_MAX, defers: false }
    }

    /// Returns the number of stored jobs.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.tables.jobs_by_seq.len()
    }
}

/// The execution of one command at one point in time.
struct Execution<'a> {
    tables: &'a mut Tables,
    now: Timestamp,
    /// How many more dependents this command may resolve.
    ripple_left: usize,
    /// Whether dependents of a closed chain are left to a later command.
    defers: bool,
}

impl Execution<'_> {
    fn run(&mut self, command: &Command) -> Result<Reply> {
        Ok(match command {
            Command::Create(request) => Reply::Create(self.create(request)?),
            Command::Acquire(request) => Reply::Acquire(self.acquire(request)?),
            Command::Renew(request) => Reply::Renew(self.renew(request)?),
            Command::Settle(request) => Reply::Settle(self.settle(request)?),
            Command::Exchange(request) => {
                request.settle.check()?;
                request.acquire.check()?;
                let settle = self.settle(&request.settle)?;
                Reply::Exchange(ExchangeReply { settle, acquire: self.acquire(&request.acquire)? })
            }
            Command::Reap(request) => Reply::Reap(self.reap(request)?),
            Command::NextDue(request) => Reply::NextDue(self.next_due(request)?),
            Command::Expire(request) => Reply::Expire(self.expire(*request)?),
            Command::CompleteFromOutside(request) => {
                Reply::CompleteFromOutside(self.complete_from_outside(request)?)
            }
            Command::Cancel(request) => Reply::Cancel(self.cancel(request)?),
            Command::Trigger(request) => Reply::Trigger(self.trigger(request)?),
            Command::Retry(request) => Reply::Retry(self.retry(request)?),
            Command::Delete(request) => Reply::Delete(self.delete(request)?),
            Command::SetRetention(request) => Reply::SetRetention(self.set_retention(request)?),
            Command::Pause(request) => Reply::Pause(self.pause(request)?),
            Command::GetChains(request) => Reply::GetChains(self.get_chains(request)?),
            Command::GetJobs(request) => Reply::GetJobs(self.get_jobs(request)?),
            Command::ListChains(request) => Reply::ListChains(self.list_chains(request)?),
            Command::ListJobs(request) => Reply::ListJobs(self.list_jobs(request)?),
            Command::ListDependents(request) => Reply::ListDependents(self.list_dependents(request)?),
            Command::ListAttempts(request) => Reply::ListAttempts(self.list_attempts(*request)),
            Command::Count(request) => Reply::Count(self.count(request)?),
            Command::Beat(request) => Reply::Beat(self.beat(request)?),
            Command::Retire(request) => Reply::Retire(self.retire(*request)),
            Command::ListWorkers(_) => Reply::ListWorkers(self.list_workers()),
            Command::LeaderLock(request) => Reply::LeaderLock(self.leader_lock(request)),
        })
    }

    /// Returns the chain that a key points at, unless its retention has passed.
    fn pointed_at(&self, chain_type: &TypeName, key: &Key) -> Option<&Arc<ChainRow>> {
        let chain = self.tables.keys.get(&(chain_type.clone(), key.clone()))?;
        self.tables.chain(*chain).filter(|row| row.closed.is_none_or(|closed| self.now < closed.retain_until))
    }

    /// Returns the chain that holds a key. While it does, no other chain can be created with that key.
    fn holder(&self, chain_type: &TypeName, key: &Key) -> Option<ChainId> {
        self.pointed_at(chain_type, key).filter(|row| row.holds_key(self.now)).map(|row| row.id)
    }

    /// Returns the chain that a target refers to.
    fn find(&self, target: &Target) -> Option<ChainId> {
        match target {
            Target::Chain(id) => self.tables.chain(*id).map(|row| row.id),
            Target::Job(id) => self.tables.job(*id).map(|row| row.job.chain),
            Target::Key(chain_type, key) => self.pointed_at(chain_type, key).map(|row| row.id),
        }
    }

    /// Returns a stored chain in the form that readers see.
    fn view(&self, row: &ChainRow) -> ChainRecord {
        let latest = self.tables.latest(row).job.clone();
        let first = match self.tables.job(row.id.first_job()) {
            Some(first) => first.job.clone(),
            None => latest.clone(),
        };
        ChainRecord {
            id: row.id,
            chain_type: row.chain_type.clone(),
            key: row.key.clone(),
            retention: row.retention,
            created_at: row.created_at,
            closed: row.closed,
            trace: row.trace.clone(),
            first,
            latest,
        }
    }
}
