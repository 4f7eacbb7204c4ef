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
mod former;
mod manage;
mod outside;
mod query;
mod reap;
mod registry;
mod ripple;
mod row;
mod rows;
mod scan;
mod schedule;
mod settle;
mod sorted;
mod table;

pub use query::PageScan;
pub use row::{ChainRow, Effect, JobRow, LockRow, Row, RowKey, repeat_window};
pub use rows::{Due, Rows};

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::command::{Command, CreateAndAcquireReply, EndedJobs, ExchangeReply, Reply, Target};
use crate::error::{Error, ErrorKind, Result};
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
        self.tables.start_log();
        let reply = self.run(now, command, false);
        let effects = self.tables.take_log();
        Ok((reply?, effects))
    }

    /// Like [`apply`](Self::apply), for a transaction that reads from a snapshot.
    ///
    /// Such a transaction cannot see every job that waits for a chain. When it closes a chain, it therefore
    /// only marks the chain row, and a later command resolves the dependents.
    pub fn apply_in_snapshot(&mut self, now: Timestamp, command: &Command) -> Result<(Reply, Vec<Effect>)> {
        self.tables.start_log();
        let reply = self.run(now, command, true);
        let effects = self.tables.take_log();
        Ok((reply?, effects))
    }

    /// Like [`apply`](Self::apply), but without effects, which is cheaper: rows are changed in place.
    pub(crate) fn reply(&mut self, now: Timestamp, command: &Command) -> Result<Reply> {
        let reply = self.run(now, command, false);
        self.tables.clear_log();
        reply
    }

    /// Applies the effects of an earlier [`apply`](Self::apply) without running its command.
    pub fn replay(&mut self, effects: &[Effect]) {
        for effect in effects {
            self.tables.apply_effect(&effect.key, effect.after.clone());
        }
    }

    /// Reverts the effects of the most recent commands, last effect first.
    pub fn undo(&mut self, effects: &[Effect]) {
        for effect in effects.iter().rev() {
            self.tables.install(&effect.key, effect.before.clone());
        }
    }

    fn run(&mut self, now: Timestamp, command: &Command, defers: bool) -> Result<Reply> {
        let mut execution = Execution { defers, ..Execution::new(&mut self.tables, now) };
        if command.is_query() { execution.query(command) } else { execution.run(command) }
    }

    /// Returns the number of stored jobs.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.tables.jobs_by_seq.len()
    }
}

/// Executes a command at time `now` on the rows of a store. The command must be one that writes, or one that returns
/// jobs, chains or attempts by id.
///
/// # Errors
/// Returns an error of kind [`Invalid`](ErrorKind::Invalid) if the command as a whole exceeds a limit, or if it is a
/// query that each store implements itself. Nothing has changed in that case. Also returns any error of the rows; after
/// such an error, the caller must discard the changes.
pub fn execute<R: Rows>(rows: &mut R, now: Timestamp, command: &Command) -> Result<Reply> {
    Execution::new(rows, now).run(command)
}

/// The execution of one command at one point in time.
struct Execution<'a, R> {
    rows: &'a mut R,
    now: Timestamp,
    /// How many more dependents this command may resolve.
    ripple_left: usize,
    /// Whether dependents of a closed chain are left to a later command.
    defers: bool,
    /// The jobs that no longer have the outcome with which they ended, because this command removes or retries them.
    former: BTreeMap<TypeName, EndedJobs>,
}

impl Execution<'_, Tables> {
    fn query(&mut self, query: &Command) -> Result<Reply> {
        Ok(match query {
            Command::NextDue(request) => Reply::NextDue(self.next_due(request)?),
            Command::ListChains(request) => Reply::ListChains(self.list_chains(request)?),
            Command::ListJobs(request) => Reply::ListJobs(self.list_jobs(request)?),
            Command::ListDependents(request) => Reply::ListDependents(self.list_dependents(request)?),
            Command::Count(request) => Reply::Count(self.count(request)?),
            Command::ListWorkers(_) => Reply::ListWorkers(self.list_workers()),
            _ => return self.run(query),
        })
    }
}

impl<'a, R: Rows> Execution<'a, R> {
    const fn new(rows: &'a mut R, now: Timestamp) -> Self {
        Self { rows, now, ripple_left: RIPPLE_MAX, defers: false, former: BTreeMap::new() }
    }

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
            Command::CreateAndAcquire(request) => {
                request.create.check()?;
                request.acquire.check()?;
                let create = self.create(&request.create)?;
                let acquire = self.acquire(&request.acquire)?;
                Reply::CreateAndAcquire(CreateAndAcquireReply { create, acquire })
            }
            Command::Reap(request) => Reply::Reap(self.reap(request)?),
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
            Command::ListAttempts(request) => Reply::ListAttempts(self.list_attempts(*request)?),
            Command::Beat(request) => Reply::Beat(self.beat(request)?),
            Command::Retire(request) => Reply::Retire(self.retire(*request)?),
            Command::LeaderLock(request) => Reply::LeaderLock(self.leader_lock(request)?),
            Command::ChangeSchedules(request) => Reply::ChangeSchedules(self.change_schedules(request)?),
            Command::GetSchedules(request) => Reply::GetSchedules(self.get_schedules(request)?),
            Command::ListSchedules(request) => Reply::ListSchedules(self.list_schedules(request)?),
            Command::DueSchedules(request) => Reply::DueSchedules(self.due_schedules(*request)?),
            Command::NextDue(_)
            | Command::ListChains(_)
            | Command::ListJobs(_)
            | Command::ListDependents(_)
            | Command::Count(_)
            | Command::ListWorkers(_) => {
                let text = format!("the rules do not answer `{}`: each store does", command.name());
                return Err(Error::new(ErrorKind::Invalid, text));
            }
        })
    }

    fn put_job(&mut self, row: impl Into<Arc<JobRow>>) -> Result<Arc<JobRow>> {
        let row = row.into();
        self.rows.set(RowKey::Job(row.job.id), Some(Row::Job(Arc::clone(&row))))?;
        Ok(row)
    }

    fn put_chain(&mut self, row: impl Into<Arc<ChainRow>>) -> Result<()> {
        let row = row.into();
        self.rows.set(RowKey::Chain(row.id), Some(Row::Chain(row)))
    }

    /// Returns the chain's latest job. A chain is never stored without it.
    fn latest(&mut self, chain: &ChainRow) -> Result<Arc<JobRow>> {
        self.rows.job(chain.latest)?.ok_or_else(|| missing("latest job of chain", chain.id))
    }

    /// Returns the job's chain. A job is never stored without it.
    fn chain_of(&mut self, job: &JobRow) -> Result<Arc<ChainRow>> {
        self.rows.chain(job.job.chain)?.ok_or_else(|| missing("chain", job.job.chain))
    }

    /// Returns the chain that a key points at, unless its retention has passed.
    fn pointed_at(&mut self, chain_type: &TypeName, key: &Key) -> Result<Option<Arc<ChainRow>>> {
        let Some(chain) = self.rows.keyed(chain_type, key)? else { return Ok(None) };
        let is_retained =
            |row: &Arc<ChainRow>| row.closed.is_none_or(|closed| self.now < closed.retain_until);
        Ok(self.rows.chain(chain)?.filter(is_retained))
    }

    /// Returns the chain that holds a key. While it does, no other chain can be created with that key.
    fn holder(&mut self, chain_type: &TypeName, key: &Key) -> Result<Option<Arc<ChainRow>>> {
        let now = self.now;
        Ok(self.pointed_at(chain_type, key)?.filter(|row| row.holds_key(now)))
    }

    /// Returns the chain that a target refers to.
    fn find(&mut self, target: &Target) -> Result<Option<Arc<ChainRow>>> {
        match target {
            Target::Chain(id) => self.rows.chain(*id),
            Target::Job(id) => match self.rows.job(*id)? {
                Some(row) => self.chain_of(&row).map(Some),
                None => Ok(None),
            },
            Target::Key(chain_type, key) => self.pointed_at(chain_type, key),
        }
    }

    /// Returns a stored chain in the form that readers see.
    fn view(&mut self, row: &ChainRow) -> Result<ChainRecord> {
        let latest = self.latest(row)?;
        let first = self.rows.job(row.id.first_job())?;
        Ok(row.view(first.as_deref().unwrap_or(&latest), &latest))
    }
}

fn missing(what: &str, id: ChainId) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the {what} {id} is missing: restore the store from a backup"))
}
