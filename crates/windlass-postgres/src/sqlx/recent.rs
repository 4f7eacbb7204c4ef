//! [`Recent`]: the connections that commands used last.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Error, Postgres};
use tokio::runtime::{Handle, Id};
use tokio::time::sleep;

use super::was_lost_since;
use crate::provider::Statement;

/// How often unused connections return to the pool. A connection is unused if no command has used it for as long.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// How long commands may use a connection before it returns to the pool, which closes old connections.
const HELD_MAX: Duration = Duration::from_secs(1);

/// Connections of a pool that commands have used in the last milliseconds.
///
/// When a pool of sqlx gets a connection back, it tests it with a round trip. And it lends the connection that has been
/// idle for the longest time, so the commands of a worker would use all connections in turn: whenever a server process has
/// its turn, its plans are no longer in the processor's caches. So a connection that has run a command is kept for the next
/// one for a moment, if the application has other connections left to use.
///
/// Each runtime has its own, because a connection only works while its runtime is driven.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    pool: PgPool,
    kept: Arc<Mutex<Kept>>,
}

/// The connections of each runtime. The one that was used last comes last. While a runtime has an entry, a [`Sweep`] runs
/// on it.
type Kept = HashMap<Id, Vec<Held>>;

#[derive(Debug)]
struct Held {
    connection: PoolConnection<Postgres>,
    /// The statement that ran last.
    statement: Arc<str>,
    since: Instant,
    used_at: Instant,
}

impl Recent {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool, kept: Arc::default() }
    }

    /// Returns the connection that ran the same statement last, or the one that was used last, or one from the pool.
    pub(super) async fn get(&self, statement: &Statement) -> Result<Lent<'_>, Error> {
        while let Some(held) = self.take(statement.text()) {
            // The pool tests a connection that may be lost.
            if !self.pool.is_closed() && !was_lost_since(held.used_at) {
                return Ok(Lent { held, recent: self });
            }
        }
        let connection = self.pool.acquire().await?;
        let (statement, now) = (Arc::clone(statement.text()), Instant::now());
        Ok(Lent { held: Held { connection, statement, since: now, used_at: now }, recent: self })
    }

    fn take(&self, statement: &Arc<str>) -> Option<Held> {
        let mut kept = lock(&self.kept);
        let own = kept.get_mut(&Handle::current().id())?;
        let last = own.len().checked_sub(1)?;
        let at = own.iter().rposition(|held| Arc::ptr_eq(&held.statement, statement)).unwrap_or(last);
        let mut held = own.remove(at);
        held.statement = Arc::clone(statement);
        Some(held)
    }

    /// Returns all connections to the pool.
    pub(super) fn clear(&self) {
        let all: Vec<Held> = lock(&self.kept).values_mut().flat_map(mem::take).collect();
        drop(all);
    }

    /// Whether the pool can lend another connection, so that nobody is waiting for one.
    fn pool_has_others(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }
}

/// A connection for one command. If it is dropped, it returns to the pool.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    held: Held,
    recent: &'a Recent,
}

impl Lent<'_> {
    /// Keeps the connection for the next command. Only after a success: the pool tests a connection whose state is not
    /// known.
    pub(super) fn keep(self) {
        let Self { mut held, recent } = self;
        held.used_at = Instant::now();
        let is_due = held.used_at.saturating_duration_since(held.since) >= HELD_MAX;
        if is_due || recent.pool.is_closed() || !recent.pool_has_others() {
            return;
        }
        let runtime = Handle::current();
        match lock(&recent.kept).entry(runtime.id()) {
            Entry::Occupied(mut own) => return own.get_mut().push(held),
            Entry::Vacant(none) => _ = none.insert(vec![held]),
        }
        // Without the lock, which the task takes if the runtime drops it at once.
        let sweep = Sweep { kept: Arc::clone(&recent.kept), runtime: runtime.id(), has_ended: false };
        runtime.spawn(sweep.run());
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

/// Returns the unused connections of a runtime to the pool.
struct Sweep {
    kept: Arc<Mutex<Kept>>,
    runtime: Id,
    has_ended: bool,
}

impl Sweep {
    async fn run(mut self) {
        while !self.has_ended {
            sleep(SWEEP_INTERVAL).await;
            drop(self.unused());
        }
    }

    /// Removes the unused connections. If none are left, the sweep ends.
    fn unused(&mut self) -> Vec<Held> {
        let now = Instant::now();
        let mut kept = lock(&self.kept);
        let own = kept.entry(self.runtime).or_default();
        let is_used = |held: &Held| now.saturating_duration_since(held.used_at) < SWEEP_INTERVAL;
        let unused = own.iter().position(is_used).unwrap_or(own.len());
        let unused = own.drain(..unused).collect();
        self.has_ended = own.is_empty();
        if self.has_ended {
            kept.remove(&self.runtime);
        }
        unused
    }
}

impl Drop for Sweep {
    /// Returns all connections if the runtime shuts down: sqlx could not return them afterwards.
    fn drop(&mut self) {
        if !self.has_ended {
            let own = lock(&self.kept).remove(&self.runtime);
            drop(own);
        }
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // No code panics under this lock.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use sqlx::postgres::PgPoolOptions;
    use tokio::runtime::Builder;
    use tokio::time::timeout;
    use windlass_testkit::{shared_postgres, wait_until};

    use super::super::{LAST_LOSS, Sqlx};
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    async fn recent(connections: u32) -> Recent {
        let url = shared_postgres().await.url();
        let options: PgPoolOptions = Sqlx::pool_options().max_connections(connections);
        Recent::new(options.connect_lazy(&url).unwrap())
    }

    fn statement(text: &str) -> Statement {
        Statement::new(text.to_owned(), true)
    }

    /// Opens all connections of the pool, and returns them to it.
    async fn fill(recent: &Recent) {
        let all = recent.pool.options().get_max_connections();
        let mut open = Vec::new();
        for _ in 0..all {
            open.push(recent.pool.acquire().await.unwrap());
        }
        drop(open);
        let is_full = async || recent.pool.num_idle() == all as usize;
        wait_until("all connections have returned to the pool", TIMEOUT, is_full).await;
    }

    /// Returns the id of the server process.
    async fn process(lent: &mut Lent<'_>) -> i32 {
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut **lent).await.unwrap()
    }

    /// Uses a connection for a statement. Returns the id of the server process.
    async fn run(recent: &Recent, statement: &Statement) -> i32 {
        let mut lent = recent.get(statement).await.unwrap();
        let process = process(&mut lent).await;
        lent.keep();
        process
    }

    fn is_empty(recent: &Recent) -> bool {
        lock(&recent.kept).is_empty()
    }

    #[tokio::test]
    async fn commands_use_the_same_connection_again() {
        let recent = recent(3).await;
        fill(&recent).await;
        // The pool lends its connections in turn, so a pause in this test may change the connection.
        let mut changes = 0;
        let mut last = run(&recent, &statement("a")).await;
        for _ in 0..300 {
            let next = run(&recent, &statement("a")).await;
            changes += u32::from(next != last);
            last = next;
        }
        assert!(changes < 100, "{changes} of 300 commands used another connection than the one before");
    }

    #[tokio::test]
    async fn a_statement_prefers_the_connection_that_ran_it_last() {
        let (recent, [a, b]) = (recent(3).await, ["a", "b"].map(statement));
        fill(&recent).await;
        let (mut first, mut second) = (recent.get(&a).await.unwrap(), recent.get(&b).await.unwrap());
        let (ran_a, ran_b) = (process(&mut first).await, process(&mut second).await);
        assert_ne!(ran_a, ran_b);
        second.keep();
        first.keep();
        // No pause since then, so nothing was swept.
        let mut again = recent.take(b.text()).map(|held| Lent { held, recent: &recent }).unwrap();
        assert_eq!(process(&mut again).await, ran_b);
    }

    #[tokio::test]
    async fn the_last_connection_of_a_pool_is_not_kept() {
        let recent = recent(1).await;
        run(&recent, &statement("a")).await;
        assert!(is_empty(&recent), "the application may be waiting for it");
        drop(recent.pool.acquire().await.unwrap());
    }

    #[tokio::test]
    async fn unused_connections_return_to_the_pool() {
        let recent = recent(2).await;
        run(&recent, &statement("a")).await;
        let has_returned = async || is_empty(&recent) && recent.pool.num_idle() == 1;
        wait_until("the connection has returned", TIMEOUT, has_returned).await;
    }

    #[tokio::test]
    async fn a_connection_in_steady_use_returns_to_the_pool() {
        let (recent, a) = (recent(2).await, statement("a"));
        let began = Instant::now();
        wait_until("a connection is lent by the pool again", TIMEOUT, async || {
            let lent = recent.get(&a).await.unwrap();
            let since = lent.held.since;
            lent.keep();
            since.saturating_duration_since(began) > HELD_MAX
        })
        .await;
    }

    #[tokio::test]
    async fn a_pool_closes_while_a_connection_is_kept() {
        let (recent, a) = (recent(2).await, statement("a"));
        run(&recent, &a).await;
        timeout(TIMEOUT, recent.pool.close()).await.unwrap();
        assert!(matches!(recent.get(&a).await, Err(Error::PoolClosed)));
    }

    #[tokio::test]
    async fn a_connection_from_before_a_loss_is_tested() {
        let (recent, a) = (recent(2).await, statement("a"));
        let lost = run(&recent, &a).await;
        let terminated = sqlx::query("select pg_terminate_backend($1)").bind(lost).execute(&recent.pool).await;
        terminated.unwrap();
        *LAST_LOSS.write().unwrap() = Some(Instant::now());
        assert_ne!(run(&recent, &a).await, lost);
    }

    #[test]
    fn a_connection_stays_with_its_runtime() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (idle, driven) = (runtime(), runtime());
        let a = statement("a");
        let (recent, of_idle) = idle.block_on(async {
            let recent = recent(3).await;
            let process = run(&recent, &a).await;
            (recent, process)
        });
        // `idle` is not driven anymore, so nothing would be read from its connection.
        let run_once = async || timeout(TIMEOUT, run(&recent, &a)).await.unwrap();
        assert_ne!(driven.block_on(run_once()), of_idle);
        drop(idle);
        driven.block_on(async {
            run_once().await;
            wait_until("all connections have been returned", TIMEOUT, async || is_empty(&recent)).await;
        });
    }
}
