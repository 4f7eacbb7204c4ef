//! The rules of Windlass, once: a deterministic state machine without I/O, clock or randomness.
//!
//! [`Model::apply`] takes the time and a command and gives the reply and the effects: the rows that were put
//! and deleted, with what they were before. The memory store is this machine behind a lock; it undoes a
//! transaction by its effects. A journal of effects replayed by [`Model::replay`] gives the same state, also
//! after the rules have changed. For every other store the model is the oracle.
//!
//! A command costs about as much as the number of jobs that it touches: every look-up goes through an index,
//! and nothing walks over what is merely stored.

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
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Carries a command out at a time. An error means that the command as a whole breaks a limit; nothing
    /// has changed then.
    pub fn apply(&mut self, now: Timestamp, command: &Command) -> Result<(Reply, Vec<Effect>)> {
        let reply = self.turn(now).run(command);
        let effects = self.tables.take_log();
        Ok((reply?, effects))
    }

    /// [`apply`](Self::apply) for a command in a transaction that reads from a snapshot. It cannot see every
    /// job that waits for a chain, so a chain that closes only gets its mark, and a later command resolves the
    /// waits.
    pub fn apply_in_snapshot(&mut self, now: Timestamp, command: &Command) -> Result<(Reply, Vec<Effect>)> {
        let reply = Turn { defers: true, ..self.turn(now) }.run(command);
        let effects = self.tables.take_log();
        Ok((reply?, effects))
    }

    /// The same for somebody who has no use for the effects.
    pub(crate) fn reply(&mut self, now: Timestamp, command: &Command) -> Result<Reply> {
        let reply = self.turn(now).run(command);
        self.tables.clear_log();
        reply
    }

    /// Puts and deletes rows as an earlier [`apply`](Self::apply) did.
    pub fn replay(&mut self, effects: &[Effect]) {
        for effect in effects {
            self.tables.install(&effect.key, effect.after.clone());
        }
    }

    /// Takes the effects of the latest commands back.
    pub fn undo(&mut self, effects: &[Effect]) {
        for effect in effects.iter().rev() {
            self.tables.install(&effect.key, effect.before.clone());
        }
    }

    const fn turn(&mut self, now: Timestamp) -> Turn<'_> {
        Turn { tables: &mut self.tables, now, ripple_left: RIPPLE_MAX, defers: false }
    }

    /// How many jobs are stored.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.tables.jobs_by_seq.len()
    }
}

/// One command at one time.
struct Turn<'a> {
    tables: &'a mut Tables,
    now: Timestamp,
    /// How many more dependents this command may resolve.
    ripple_left: usize,
    /// Whether waits are left to a later command.
    defers: bool,
}

impl Turn<'_> {
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

    /// The chain that a key points at.
    fn pointed_at(&self, chain_type: &TypeName, key: &Key) -> Option<&Arc<ChainRow>> {
        let chain = self.tables.keys.get(&(chain_type.clone(), key.clone()))?;
        self.tables.chain(*chain).filter(|row| row.closed.is_none_or(|closed| self.now < closed.retain_until))
    }

    /// The chain that holds a key, so that no other may be created with it.
    fn holder(&self, chain_type: &TypeName, key: &Key) -> Option<ChainId> {
        self.pointed_at(chain_type, key).filter(|row| row.holds_key(self.now)).map(|row| row.id)
    }

    /// The chain that a target means.
    fn find(&self, target: &Target) -> Option<ChainId> {
        match target {
            Target::Chain(id) => self.tables.chain(*id).map(|row| row.id),
            Target::Job(id) => self.tables.job(*id).map(|row| row.job.chain),
            Target::Key(chain_type, key) => self.pointed_at(chain_type, key).map(|row| row.id),
        }
    }

    /// A stored chain as readers see it.
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
