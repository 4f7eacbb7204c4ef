//! State shared by all commands of a store, and the execution of one command on a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use windlass_core::command::{Command, Durability, Reap, Reply};
use windlass_core::{Clock, Counters, Result, Timestamp, model};

use crate::query::query;
use crate::rows::SqliteRows;
use crate::stall::Stalls;
use crate::statement::Texts;

/// State shared by all commands of a store.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) texts: Texts,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) durability: Durability,
    pub(crate) stalls: Stalls,
    pub(crate) counted: Counted,
}

impl Base {
    /// Returns the store's time. Commands that write read it while they hold the write lock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Executes a command on rows. The caller writes the changes.
    ///
    /// # Errors
    ///
    /// An error of kind `Invalid` means that the command changed nothing, and the transaction may continue. After any
    /// other error the caller must roll the transaction back.
    pub(crate) fn execute(&self, rows: &mut SqliteRows<'_>, command: &Command) -> Result<Reply> {
        let now = self.now();
        if command.is_query() {
            return query(rows, now, command);
        }
        let mut reply = match command {
            Command::Reap(reap) if self.stalls.forbid_reaping(now, reap.renewal_interval) => {
                // Requeue nothing, but still resolve deferred waits.
                model::execute(rows, now, &Command::Reap(Reap { max: 0, ..reap.clone() }))
            }
            command => model::execute(rows, now, command),
        }?;
        if let Reply::Create(reply) = &mut reply {
            reply.durability = self.durability;
        }
        rows.keep_changes();
        Ok(reply)
    }

    /// Executes one command on a connection and writes its changes.
    pub(crate) fn execute_on(&self, connection: &Connection, command: &Command) -> Result<Reply> {
        let mut rows = SqliteRows::new(connection, &self.texts);
        let reply = self.execute(&mut rows, command)?;
        rows.flush()?;
        Ok(reply)
    }
}

/// Counts round trips and commits.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    round_trips: AtomicU64,
    commits: AtomicU64,
}

impl Counted {
    pub(crate) fn round_trip(&self) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn commit(&self) {
        self.round_trip();
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            round_trips: self.round_trips.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
        }
    }
}
