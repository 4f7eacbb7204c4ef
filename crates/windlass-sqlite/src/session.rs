//! State shared by all commands of a store, and the execution of one command on a connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use windlass_core::command::{
    Command, CreateAndAcquire, CreateAndAcquireReply, Durability, Reap, Reply, Settled,
};
use windlass_core::{Clock, Counters, Fence, JobId, Result, Stalls, Timestamp, WorkerId, model};

use crate::query::query;
use crate::rows::SqliteRows;
use crate::statement::Texts;

/// Minimum size of a batch of new chains for which `expect_new_jobs` saves more than it costs.
const BATCH_MIN: usize = 8;

/// State shared by all commands of a store.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) texts: Texts,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) durability: Durability,
    pub(crate) stalls: Stalls,
    pub(crate) counted: Counted,
    pub(crate) held: Held,
}

/// The attempts that workers of this store hold, as far as it knows. The notifier checks whether they are still theirs.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// How many notifiers need the attempts, and remove those that ended unnoticed.
    watchers: AtomicUsize,
    attempts: Mutex<HashMap<Attempt, WorkerId>>,
}

/// A job and the fence of its attempt.
pub(crate) type Attempt = (JobId, Fence);

impl Held {
    /// Returns the attempts with their workers.
    pub(crate) fn attempts(&self) -> HashMap<Attempt, WorkerId> {
        self.lock().clone()
    }

    /// Forgets an attempt.
    pub(crate) fn forget(&self, attempt: &Attempt) {
        self.lock().remove(attempt);
    }

    /// Records what a committed command acquired and settled.
    pub(crate) fn record(&self, command: &Command, reply: &Reply) {
        if self.watchers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let settled = match (command, reply) {
            (Command::Settle(settle), Reply::Settle(reply)) => Some((settle, reply)),
            (Command::Exchange(exchange), Reply::Exchange(reply)) => Some((&exchange.settle, &reply.settle)),
            _ => None,
        };
        let acquired = match (command, reply) {
            (Command::Acquire(acquire), Reply::Acquire(reply)) => Some((acquire, &reply.jobs)),
            (Command::Exchange(exchange), Reply::Exchange(reply)) => {
                Some((&exchange.acquire, &reply.acquire.jobs))
            }
            (Command::CreateAndAcquire(joined), Reply::CreateAndAcquire(reply)) => {
                Some((&joined.acquire, &reply.acquire.jobs))
            }
            _ => None,
        };
        let mut attempts = self.lock();
        if let Some((settle, reply)) = settled {
            for (settlement, settled) in settle.settlements.iter().zip(&reply.settled) {
                // A refused settlement leaves the job with its worker.
                if !matches!(settled, Settled::Refused(_)) {
                    attempts.remove(&(settlement.job, settlement.fence));
                }
            }
        }
        if let Some((acquire, jobs)) = acquired {
            attempts.extend(jobs.iter().map(|held| ((held.job.id, held.job.fence), acquire.worker)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Attempt, WorkerId>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a store recording the attempts that its workers hold. When the last of these is dropped, the store stops and
/// forgets them.
#[derive(Debug)]
pub(crate) struct Recording(Arc<Base>);

impl Recording {
    pub(crate) fn start(base: &Arc<Base>) -> Self {
        base.held.watchers.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(base))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.0.held.watchers.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.held.lock().clear();
        }
    }
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
        if let Command::Create(create) | Command::CreateAndAcquire(CreateAndAcquire { create, .. }) = command
            && create.chains.len() >= BATCH_MIN
        {
            rows.expect_new_jobs()?;
        }
        let mut reply = match command {
            Command::Reap(reap) if self.stalls.forbid_reaping(now, reap.renewal_interval) => {
                // Requeue nothing, but still resolve deferred waits.
                model::execute(rows, now, &Command::Reap(Reap { max: 0, ..reap.clone() }))
            }
            command => model::execute(rows, now, command),
        }?;
        if let Reply::Create(create) | Reply::CreateAndAcquire(CreateAndAcquireReply { create, .. }) =
            &mut reply
        {
            create.durability = self.durability;
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
