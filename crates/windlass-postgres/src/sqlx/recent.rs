//! [`Recent`]: the connections that commands have just used.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Error, Postgres};
use tokio::time::sleep;

use super::was_lost_since;
use crate::provider::Statement;

/// Time after which an unused connection returns to the pool. It may take up to twice as long.
const UNUSED_MAX: Duration = Duration::from_millis(10);

/// Time after which a connection returns to the pool although it is in use, so that the pool can end old connections.
const HELD_MAX: Duration = Duration::from_secs(1);

/// Connections of a pool that commands have used in the last milliseconds, in order of use.
///
/// The pool tests a connection with a round trip whenever it gets it back, and lends the one that has not been used for the
/// longest time. So the commands of a worker would use all connections in turn, and each server process would have lost
/// its plans from the processor's caches when its turn comes. Most commands therefore use the last connection again
/// without returning it in between.
///
/// Connections are only kept while the pool has others left for the application.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    pool: PgPool,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    connections: Vec<Held>,
    /// Whether a [`Sweep`] is running. One is running while there are connections.
    is_swept: bool,
}

#[derive(Debug)]
struct Held {
    connection: PoolConnection<Postgres>,
    /// The statement that used it last. Its plans are in the caches.
    last: Arc<str>,
    since: Instant,
    used: Instant,
}

impl Recent {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool, kept: Arc::default() }
    }

    /// Returns the connection that last ran the same statement, or the one that was used last, or one from the pool.
    pub(super) async fn get(&self, statement: &Statement) -> Result<Lent<'_>, Error> {
        while let Some(held) = self.take(statement.text()) {
            // A connection that may be dead goes back to the pool, which tests it.
            if !self.pool.is_closed() && !was_lost_since(held.used) {
                return Ok(Lent { held, recent: self });
            }
        }
        let connection = self.pool.acquire().await?;
        let now = Instant::now();
        Ok(Lent { held: Held { connection, last: Arc::clone(statement.text()), since: now, used: now }, recent: self })
    }

    /// Returns all connections to the pool.
    pub(super) fn clear(&self) {
        drop(mem::take(&mut lock(&self.kept).connections));
    }

    fn take(&self, statement: &Arc<str>) -> Option<Held> {
        let mut kept = lock(&self.kept);
        let same = kept.connections.iter().rposition(|held| Arc::ptr_eq(&held.last, statement));
        let at = same.or_else(|| kept.connections.len().checked_sub(1))?;
        let mut held = kept.connections.remove(at);
        held.last = Arc::clone(statement);
        Some(held)
    }

    /// Whether nobody can be waiting for a connection of the pool.
    fn has_others(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }
}

/// A connection that is used for one command. If it is dropped, it returns to the pool, which tests it.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    held: Held,
    recent: &'a Recent,
}

impl Lent<'_> {
    /// Keeps the connection for the next command. Call this after a success, when the connection is known to be ready
    /// for the next command.
    pub(super) fn keep(self) {
        let Self { mut held, recent } = self;
        held.used = Instant::now();
        let is_old = held.used.saturating_duration_since(held.since) >= HELD_MAX;
        if is_old || recent.pool.is_closed() || !recent.has_others() {
            return;
        }
        let mut kept = lock(&recent.kept);
        kept.connections.push(held);
        if !mem::replace(&mut kept.is_swept, true) {
            let sweep = Sweep { kept: Arc::clone(&recent.kept), has_ended: false };
            tokio::spawn(sweep.run());
        }
    }
}

impl Deref for Lent<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.held.connection
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.held.connection
    }
}

/// Returns unused connections to the pool.
struct Sweep {
    kept: Arc<Mutex<Kept>>,
    has_ended: bool,
}

impl Sweep {
    async fn run(mut self) {
        while !self.has_ended {
            sleep(UNUSED_MAX).await;
            drop(self.unused());
        }
    }

    /// Removes the unused connections. Ends the sweep if no connection is left: the next one that is kept starts another.
    fn unused(&mut self) -> Vec<Held> {
        let now = Instant::now();
        let mut kept = lock(&self.kept);
        // The last connections were used last.
        let is_used = |held: &Held| now.saturating_duration_since(held.used) < UNUSED_MAX;
        let unused = kept.connections.iter().position(is_used).unwrap_or(kept.connections.len());
        let unused = kept.connections.drain(..unused).collect();
        kept.is_swept = !kept.connections.is_empty();
        self.has_ended = !kept.is_swept;
        unused
    }
}

impl Drop for Sweep {
    /// Returns all connections if the runtime ends before the sweep does: without a runtime, sqlx could not.
    fn drop(&mut self) {
        if !self.has_ended {
            let kept = mem::take(&mut *lock(&self.kept));
            drop(kept);
        }
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
