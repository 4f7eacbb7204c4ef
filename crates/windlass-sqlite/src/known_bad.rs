//! Stores that break the contract on purpose. The conformance suite must catch each of them.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;
use windlass_core::command::{Command, Create, Reply, Ripple, Settle, SettleReply};
use windlass_core::model::{Due, Rows};
use windlass_core::{ChainId, Fence, JobId, Key, Result, TypeName};

use crate::error::from_sqlite;
use crate::provider::Provider;
use crate::rows::{Slot, SqliteRows};
use crate::session::Base;
use crate::statement::fill;
use crate::store::SqliteStore;

/// The way in which a store is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBad {
    /// Settlements and renewals ignore the fence.
    FenceIgnored,
    /// The store checks whether a key is free before the write transaction begins, and no unique index guards it.
    KeyNotUnique,
    /// Rows of jobs and chains are read before the write transaction begins.
    RowsReadEarly,
    /// The due jobs are read before the write transaction begins.
    TakenTwice,
    /// A refused settlement leaves behind the chains that it had created.
    SettleHalfApplied,
    /// The settlements of a batch are committed one by one.
    BatchHalfApplied,
}

/// The rows that a broken store has read before its write transaction, and its defects.
#[derive(Debug, Default)]
pub(crate) struct Spoiled {
    slots: foldhash::HashMap<JobId, Slot>,
    pub(crate) keys: HashMap<(TypeName, Key), Option<ChainId>>,
    pub(crate) due: Option<Vec<Due<i64>>>,
    /// Whether a refused settlement leaves behind what it created.
    pub(crate) keeps_refused: bool,
}

impl KnownBad {
    /// Breaks the indexes.
    pub(crate) fn spoil(self, connection: &Connection, prefix: &str) -> Result<()> {
        let text = match self {
            Self::KeyNotUnique => "drop index if exists {prefix}job_key",
            _ => "",
        };
        connection.execute_batch(&fill(text, prefix)).map_err(|error| from_sqlite(&error))
    }

    /// Reads what this broken store reads too early.
    fn read_early(self, rows: &mut SqliteRows<'_>, base: &Base, command: &Command) -> Result<Spoiled> {
        let mut spoiled = Spoiled { keeps_refused: self == Self::SettleHalfApplied, ..Spoiled::default() };
        match (self, command) {
            (Self::KeyNotUnique, Command::Create(Create { chains })) => {
                for new in chains {
                    if let Some(key) = &new.key {
                        let holder = rows.keyed(&new.job.job_type, &key.key)?;
                        spoiled.keys.insert((new.job.job_type.clone(), key.key.clone()), holder);
                    }
                }
            }
            (Self::RowsReadEarly, Command::Create(Create { chains })) => {
                for blocker in chains.iter().flat_map(|new| &new.job.blockers) {
                    rows.chain(blocker.chain)?;
                }
            }
            (Self::RowsReadEarly, Command::Settle(request)) => {
                for settlement in &request.settlements {
                    let Some(row) = rows.job(settlement.job)? else { continue };
                    rows.chain(row.job.chain)?;
                    for dependent in rows.open_dependents(row.job.chain, usize::MAX)? {
                        rows.job(dependent)?;
                    }
                }
            }
            (Self::TakenTwice, Command::Acquire(request)) => {
                let mut due = Vec::new();
                for quota in &request.types {
                    due.extend(rows.due(&quota.job_type, base.now(), request.max as usize)?);
                }
                for due in &due {
                    rows.due_job(*due)?;
                }
                spoiled.due = Some(due);
            }
            _ => {}
        }
        spoiled.slots = std::mem::take(&mut rows.slots);
        Ok(spoiled)
    }
}

impl<P: Provider> SqliteStore<P> {
    /// Executes a command in its own transaction, as a broken store would.
    pub(crate) async fn execute_badly(&self, known_bad: KnownBad, command: Command) -> Result<Reply> {
        match command {
            Command::Settle(request)
                if known_bad == KnownBad::BatchHalfApplied && request.settlements.len() > 1 =>
            {
                self.settle_piecemeal(request).await.map(Reply::Settle)
            }
            command => self.execute_alone_badly(known_bad, command).await,
        }
    }

    /// Executes a command in a transaction of the application, which ignores the fence if the store does.
    pub(crate) async fn execute_badly_in(
        &self,
        tx: P::TxRef<'_>,
        known_bad: KnownBad,
        first: &str,
        mut command: Command,
    ) -> Result<Reply> {
        let execute = |connection: &Connection| {
            let mut rows = SqliteRows::new(connection, &self.base().texts);
            self.base().execute_spoiled(&mut rows, known_bad, None, &mut command)
        };
        self.lend(tx, first, execute).await
    }

    async fn execute_alone_badly(&self, known_bad: KnownBad, mut command: Command) -> Result<Reply> {
        let (base, early) = (Arc::clone(self.base()), command.clone());
        let read = move |connection: &Connection| {
            let mut rows = SqliteRows::new(connection, &base.texts);
            known_bad.read_early(&mut rows, &base, &early)
        };
        let spoiled = self.read(read).await?;
        let mut tx = windlass_core::Transactional::begin(self).await?;
        let mut spoiled = Some(spoiled);
        let execute = |connection: &Connection| {
            let mut rows = SqliteRows::new(connection, &self.base().texts);
            self.base().execute_spoiled(&mut rows, known_bad, spoiled.take(), &mut command)
        };
        let reply = self.lend(P::tx_ref(&mut tx), "select 1", execute).await;
        match &reply {
            Ok(_) => windlass_core::Transactional::commit(self, tx).await?,
            Err(_) => drop(windlass_core::Transactional::rollback(self, tx).await),
        }
        reply
    }

    /// Settles a batch with one transaction per item.
    async fn settle_piecemeal(&self, request: Settle) -> Result<SettleReply> {
        let mut all = SettleReply { settled: Vec::new(), ripple: Ripple::default() };
        for settlement in request.settlements {
            let one = Settle { settlements: vec![settlement] };
            let reply = self.execute_alone_badly(KnownBad::BatchHalfApplied, one.into()).await?;
            let reply: SettleReply = reply.try_into()?;
            all.settled.extend(reply.settled);
            all.ripple.unblocked.extend(reply.ripple.unblocked);
            all.ripple.closed.extend(reply.ripple.closed);
        }
        Ok(all)
    }
}

impl Base {
    fn execute_spoiled(
        &self,
        rows: &mut SqliteRows<'_>,
        known_bad: KnownBad,
        spoiled: Option<Spoiled>,
        command: &mut Command,
    ) -> Result<Reply> {
        rows.spoiled = spoiled.unwrap_or_default();
        rows.slots = std::mem::take(&mut rows.spoiled.slots);
        if known_bad == KnownBad::FenceIgnored {
            ignore_fences(rows, command)?;
        }
        let reply = self.execute(rows, command)?;
        rows.flush()?;
        Ok(reply)
    }
}

/// Replaces all fences with those of the stored jobs.
fn ignore_fences(rows: &mut SqliteRows<'_>, command: &mut Command) -> Result<()> {
    let mut held = |job, fence: &mut Fence| -> Result<()> {
        *fence = rows.job(job)?.map_or(*fence, |row| row.job.fence);
        Ok(())
    };
    match command {
        Command::Settle(request) => {
            request.settlements.iter_mut().try_for_each(|item| held(item.job, &mut item.fence))
        }
        Command::Exchange(request) => {
            request.settle.settlements.iter_mut().try_for_each(|item| held(item.job, &mut item.fence))
        }
        Command::Renew(request) => {
            request.leases.iter_mut().try_for_each(|lease| held(lease.job, &mut lease.fence))
        }
        _ => Ok(()),
    }
}
