//! [`Recent`]: the connections that commands used last.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Error, Postgres};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

use super::was_lost_since;
use crate::provider::Statement;

/// How often the sweep returns unused connections to the pool. A connection is unused if no command has used it for this
/// long.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// How long commands may reuse a connection before it returns to the pool. The pool can then close old connections.
const HELD_MAX: Duration = Duration::from_secs(1);

/// Connections of a pool that commands have used in the last milliseconds.
///
/// When a connection returns to a pool of sqlx, the pool tests it with a round trip. The pool also lends the connection
/// that has been idle for the longest time. So the commands of a worker would use all connections in turn, and by the time a
/// server process runs again, its plans are no longer in the processor's caches. Therefore, a connection is kept for the
/// next command for a moment, unless the application may need it.
///
/// About half of the pool's connections run commands at the same time. The others are left for the application's
/// transactions. A server with few cores also completes more commands per second if fewer run at the same time.
///
/// A command takes only connections that were kept on its own runtime. A connection of a runtime that is not driven would
/// not respond.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    pool: PgPool,
    /// Limits how many commands run at the same time.
    commands: Arc<Semaphore>,
    kept: Arc<Mutex<Kept>>,
    /// Whether a spare connection is being opened.
    is_opening: Arc<AtomicBool>,
}

/// The kept connections of each runtime, in the order of their last use. While a runtime has an entry, a [`Sweep`] runs on
/// it.
type Kept = HashMap<Id, Vec<Held>>;

#[derive(Debug)]
struct Held {
    connection: PoolConnection<Postgres>,
    /// When the pool lent it.
    since: Instant,
    /// The last command, and when it began and ended.
    statement: Arc<str>,
    began_at: Instant,
    ended_at: Instant,
}

impl Recent {
    pub(super) fn new(pool: PgPool) -> Self {
        let commands = pool.options().get_max_connections().div_ceil(2);
        let commands = Arc::new(Semaphore::new(commands as usize));
        Self { pool, commands, kept: Arc::default(), is_opening: Arc::default() }
    }

    /// Returns the connection that last ran the same statement, else the one that was used last, else one from the pool.
    ///
    /// Waits while half of the pool's connections run commands. Fails after the acquire timeout of the pool.
    pub(super) async fn get(&self, statement: &Statement) -> Result<Lent<'_>, Error> {
        let got = timeout(self.pool.options().get_acquire_timeout(), self.wait(statement)).await;
        got.map_err(|_| Error::PoolTimedOut)?
    }

    async fn wait(&self, statement: &Statement) -> Result<Lent<'_>, Error> {
        let permit = self.pool.close_event().do_until(self.commands.acquire()).await?;
        // The semaphore is never closed.
        let permit = permit.map_err(|_| Error::PoolClosed)?;
        while let Some(mut held) = self.take(statement.text()) {
            // A connection that may be lost is dropped: the pool tests it.
            if !self.pool.is_closed() && !was_lost_since(held.began_at) {
                held.began_at = Instant::now();
                return Ok(Lent { held, recent: self, _permit: permit });
            }
        }
        let connection = self.pool.acquire().await?;
        let (statement, now) = (Arc::clone(statement.text()), Instant::now());
        let held = Held { connection, since: now, statement, began_at: now, ended_at: now };
        Ok(Lent { held, recent: self, _permit: permit })
    }

    fn take(&self, statement: &Arc<str>) -> Option<Held> {
        let runtime = Handle::current().id();
        let mut kept = lock(&self.kept);
        let own = kept.get_mut(&runtime)?;
        let last = own.len().checked_sub(1)?;
        let at = own.iter().rposition(|held| Arc::ptr_eq(&held.statement, statement)).unwrap_or(last);
        let mut held = own.remove(at);
        held.statement = Arc::clone(statement);
        Some(held)
    }

    /// Opens another connection, within the limit of the pool, so that one stays idle while commands use the others.
    fn open_spare(&self) {
        let may_open = self.pool.size() < self.pool.options().get_max_connections();
        if may_open && !self.is_opening.swap(true, Ordering::AcqRel) {
            let (pool, opening) = (self.pool.clone(), Opening(Arc::clone(&self.is_opening)));
            tokio::spawn(async move {
                // If a connection has become idle in the meantime, this is that one. A later command then tries again.
                drop(pool.acquire().await);
                drop(opening);
            });
        }
    }

    /// Returns the kept connections of this runtime to the pool. The sweeps of other runtimes return theirs.
    ///
    /// If the pool is being closed, closes those of all runtimes: another runtime may not be driven.
    pub(super) fn clear(&self, closes: bool) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut cleared = Vec::new();
        for (id, own) in &mut *lock(&self.kept) {
            if closes || *id == runtime.id() {
                cleared.append(own);
            }
        }
        if closes {
            cleared.iter_mut().for_each(|held| held.connection.close_on_drop());
        }
        drop(cleared);
    }
}

/// Allows the next spare connection to be opened, even if opening this one fails or is aborted.
struct Opening(Arc<AtomicBool>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A connection for one command. When it is dropped, it returns to the pool.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    held: Held,
    recent: &'a Recent,
    _permit: SemaphorePermit<'a>,
}

impl Lent<'_> {
    /// Keeps the connection for the next command. Call it only after a success: otherwise the state of the connection is
    /// unknown, and the pool must test it.
    ///
    /// Returns the connection to the pool instead if no other is idle there, because the application may be waiting for one,
    /// and after [`HELD_MAX`].
    pub(super) fn keep(self) {
        // The permit is dropped last, so that the next command finds the connection.
        let Self { _permit, recent, mut held } = self;
        let Recent { pool, kept, .. } = recent;
        held.ended_at = Instant::now();
        let is_due = held.ended_at.saturating_duration_since(held.since) >= HELD_MAX;
        if is_due || pool.is_closed() {
            return;
        }
        if pool.num_idle() == 0 {
            return recent.open_spare();
        }
        let runtime = Handle::current();
        let mut all = lock(kept);
        let is_first = !all.contains_key(&runtime.id());
        let own = all.entry(runtime.id()).or_default();
        own.push(held);
        // Before the spawn: if the runtime is shutting down, it drops the task at once, which takes the lock.
        drop(all);
        if is_first {
            let sweep = Sweep { kept: Arc::clone(kept), runtime: runtime.id(), has_ended: false };
            runtime.spawn(sweep.run());
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
        let is_used = |held: &Held| now.saturating_duration_since(held.ended_at) < SWEEP_INTERVAL;
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
    /// If the runtime shuts down, drops all its connections, which closes them. Afterwards, that would panic in sqlx.
    fn drop(&mut self) {
        if !self.has_ended {
            let own = lock(&self.kept).remove(&self.runtime);
            drop(own);
        }
    }
}

/// Locks the kept connections. Do not drop a connection under this lock: that runs code of sqlx.
fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // No code panics under this lock.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use tokio::runtime::{Builder, Runtime};
    use windlass_testkit::{shared_postgres, wait_until};

    use super::super::{LAST_LOSS, Sqlx};
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    async fn recent(connections: u32) -> Recent {
        let url = shared_postgres().await.url();
        Recent::new(Sqlx::pool_options().max_connections(connections).connect_lazy(&url).unwrap())
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
        let (recent, [a, b]) = (recent(4).await, ["a", "b"].map(statement));
        fill(&recent).await;
        let (mut first, mut second) = (recent.get(&a).await.unwrap(), recent.get(&b).await.unwrap());
        let (ran_a, ran_b) = (process(&mut first).await, process(&mut second).await);
        assert_ne!(ran_a, ran_b);
        second.keep();
        first.keep();
        // No pause in between, so nothing is swept.
        let mut again = recent.get(&b).await.unwrap();
        assert_eq!(process(&mut again).await, ran_b);
    }

    #[tokio::test]
    async fn the_last_connection_of_a_pool_is_not_kept() {
        let (recent, a) = (recent(2).await, statement("a"));
        fill(&recent).await;
        let of_application = recent.pool.acquire().await.unwrap();
        run(&recent, &a).await;
        assert!(is_empty(&recent), "the application may be waiting for it");
        drop(of_application);
    }

    #[tokio::test]
    async fn unused_connections_return_to_the_pool() {
        let (recent, a) = (recent(2).await, statement("a"));
        fill(&recent).await;
        recent.get(&a).await.unwrap().keep();
        assert!(!is_empty(&recent));
        let has_returned = async || is_empty(&recent) && recent.pool.num_idle() == 2;
        wait_until("the connection has returned", TIMEOUT, has_returned).await;
    }

    #[tokio::test]
    async fn a_connection_returns_to_the_pool_after_a_while() {
        let (recent, a) = (recent(2).await, statement("a"));
        fill(&recent).await;
        let mut lent = recent.get(&a).await.unwrap();
        lent.held.since = lent.held.since.checked_sub(HELD_MAX).unwrap();
        lent.keep();
        assert!(is_empty(&recent));
    }

    #[tokio::test]
    async fn commands_leave_half_of_the_connections_to_the_application() {
        let (recent, a) = (recent(4).await, statement("a"));
        let (first, second) = (recent.get(&a).await.unwrap(), recent.get(&a).await.unwrap());
        let mut third = pin!(recent.get(&a));
        assert!(poll_fn(|context| Poll::Ready(third.as_mut().poll(context).is_pending())).await);
        drop(timeout(TIMEOUT, recent.pool.acquire()).await.unwrap().unwrap());
        first.keep();
        third.await.unwrap();
        drop(second);
    }

    #[tokio::test]
    async fn a_spare_connection_is_opened() {
        let (recent, a) = (recent(3).await, statement("a"));
        let lent = recent.get(&a).await.unwrap();
        assert_eq!(recent.pool.size(), 1);
        lent.keep();
        wait_until("two connections are idle", TIMEOUT, async || recent.pool.num_idle() == 2).await;
        recent.get(&a).await.unwrap().keep();
        assert!(!is_empty(&recent));
    }

    #[tokio::test]
    async fn a_pool_closes_while_a_connection_is_kept() {
        let (recent, a) = (recent(2).await, statement("a"));
        fill(&recent).await;
        recent.get(&a).await.unwrap().keep();
        timeout(TIMEOUT, recent.pool.close()).await.unwrap();
        assert!(matches!(recent.get(&a).await, Err(Error::PoolClosed)));
    }

    #[tokio::test]
    async fn a_connection_from_before_a_loss_is_tested() {
        let (recent, a) = (recent(2).await, statement("a"));
        fill(&recent).await;
        recent.get(&a).await.unwrap().keep();
        assert!(!is_empty(&recent));
        let lost = Instant::now();
        *LAST_LOSS.write().unwrap() = Some(lost);
        let lent = recent.get(&a).await.unwrap();
        assert!(lent.held.since > lost, "the pool has lent it since then");
    }

    #[tokio::test]
    async fn a_connection_is_not_kept_unless_the_command_asks_for_it() {
        let (recent, a) = (recent(2).await, statement("a"));
        fill(&recent).await;
        drop(recent.get(&a).await.unwrap());
        assert!(is_empty(&recent));
    }

    /// Keeps a connection on a runtime that is not driven afterwards. The connection was opened on another runtime, which
    /// is always driven. Returns the id of the server process.
    fn keep_on_idle_runtime() -> (Runtime, Runtime, Recent, i32) {
        let driven = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let idle = Builder::new_current_thread().enable_all().build().unwrap();
        let recent = driven.block_on(async {
            let recent = recent(3).await;
            fill(&recent).await;
            recent
        });
        let process = idle.block_on(run(&recent, &statement("a")));
        assert!(!is_empty(&recent));
        (driven, idle, recent, process)
    }

    #[test]
    fn a_store_closes_its_pool_although_another_runtime_is_not_driven() {
        let (driven, _idle, recent, _) = keep_on_idle_runtime();
        driven.block_on(async {
            let closing = recent.pool.close();
            recent.clear(true);
            timeout(TIMEOUT, closing).await.unwrap();
        });
    }

    #[test]
    fn a_connection_stays_with_its_runtime() {
        let (driven, idle, recent, process) = keep_on_idle_runtime();
        let a = statement("a");
        assert_ne!(driven.block_on(run(&recent, &a)), process);
        drop(idle);
        driven.block_on(async {
            run(&recent, &a).await;
            wait_until("all connections have been returned", TIMEOUT, async || is_empty(&recent)).await;
        });
    }
}
