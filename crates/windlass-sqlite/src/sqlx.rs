//! The sqlx driver: the application's own pool and transactions.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection as Lent;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, Sqlite, Transaction};
use tokio::time::{sleep, timeout};
use windlass_core::{BoxFuture, Error, ErrorKind, Result};

use crate::error::{from_code, from_sqlite, write_timed_out};
use crate::options::Options;
use crate::provider::{Provider, Turn};

/// Delay before a lock that another process holds is retried.
const RETRY: Duration = Duration::from_millis(2);

/// How long closing waits for connections that are still in use.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A pool of sqlx connections to one file, for the application's transactions.
#[derive(Clone, Debug)]
pub struct Sqlx {
    /// One connection, unless the application provides its own pool: SQLite has one writer at a time. Transactions
    /// queue for it in order of arrival. If they competed for SQLite's lock instead, the one with the shortest sleep
    /// would win, and others might starve.
    pool: SqlitePool,
    owned: bool,
}

impl Sqlx {
    /// Opens the file of these options, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the options have no path, or `:memory:`. Any error that SQLite returns for the file.
    pub async fn open(options: &Options) -> Result<Self> {
        options.check_path()?;
        // Connect once outside the pool: a pool retries until its timeout and then does not report the cause.
        let first = options.writing().busy_timeout(options.write_timeout());
        let first = SqliteConnection::connect_with(&first).await;
        let first = first.map_err(|error| while_opening(error, options.path()))?;
        first.close().await.map_err(from_driver)?;
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(options.write_timeout())
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            // If the file disappears later, do not recreate it: it would lack the tables.
            .connect_lazy_with(options.writing().create_if_missing(false));
        Ok(Self { pool, owned: true })
    }

    /// Returns the pool that transactions come from.
    #[must_use]
    pub const fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// Closes a connection whose transaction SQLite has ended without the driver noticing.
    async fn replace_broken(&self) -> sqlx::Result<()> {
        let connection = self.pool.acquire().await?;
        if connection.is_in_transaction() { connection.close().await } else { Ok(()) }
    }

    /// Begins a transaction as soon as no other connection writes. Waits here rather than in SQLite's busy handler,
    /// which sleeps up to 100 ms at a time and blocks the connection's thread, where the wait cannot be cancelled.
    async fn begin_in_time(&self) -> Result<Transaction<'static, Sqlite>> {
        loop {
            match self.pool.begin_with("begin immediate").await {
                Err(sqlx::Error::Database(error)) if code(&*error) == BUSY => sleep(RETRY).await,
                Err(sqlx::Error::PoolTimedOut) => {}
                // SQLite ended a transaction after an error, but the driver believes that the connection is still in
                // it.
                Err(sqlx::Error::InvalidSavePointStatement) => {
                    self.replace_broken().await.map_err(from_driver)?;
                }
                begun => return begun.map_err(from_driver),
            }
        }
    }
}

impl From<SqlitePool> for Sqlx {
    /// Uses the application's pool, which stays open when the store is closed. Its connections need a busy timeout, and
    /// must be connections to a file, because the store opens the same file. The store's own connections use the pool's
    /// `synchronous` setting, but none of its other pragmas.
    fn from(pool: SqlitePool) -> Self {
        Self { pool, owned: false }
    }
}

/// A borrowed connection inside a transaction: that of a [`Transaction`], or one on which a transaction was begun.
#[derive(Debug)]
pub struct ConnectionRef<'t>(&'t mut SqliteConnection);

impl<'t> From<&'t mut Transaction<'_, Sqlite>> for ConnectionRef<'t> {
    fn from(tx: &'t mut Transaction<'_, Sqlite>) -> Self {
        Self(tx)
    }
}

impl<'t> From<&'t mut SqliteConnection> for ConnectionRef<'t> {
    fn from(connection: &'t mut SqliteConnection) -> Self {
        Self(connection)
    }
}

impl<'t> From<&'t mut PoolConnection<Sqlite>> for ConnectionRef<'t> {
    fn from(connection: &'t mut PoolConnection<Sqlite>) -> Self {
        Self(connection)
    }
}

impl Deref for ConnectionRef<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.0
    }
}

impl DerefMut for ConnectionRef<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.0
    }
}

impl Provider for Sqlx {
    type Tx = Transaction<'static, Sqlite>;
    type TxRef<'t> = ConnectionRef<'t>;
    type Connection<'t> = &'t mut SqliteConnection;

    fn tx_ref(tx: &mut Self::Tx) -> ConnectionRef<'_> {
        tx.into()
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        tx.0
    }

    fn reborrow<'t>(tx: &'t mut ConnectionRef<'_>) -> ConnectionRef<'t> {
        ConnectionRef(tx.0)
    }

    fn path(&self) -> PathBuf {
        self.pool.connect_options().get_filename().to_owned()
    }

    fn synchronous(&self) -> BoxFuture<'_, Result<i64>> {
        Box::pin(async {
            sqlx::query_scalar("pragma synchronous").fetch_one(&self.pool).await.map_err(from_driver)
        })
    }

    fn turn(&self) -> BoxFuture<'_, Result<Turn>> {
        Box::pin(async {
            if !self.owned {
                return Ok(Turn::shared());
            }
            loop {
                match self.pool.acquire().await {
                    Ok(connection) => return Ok(Turn::new(connection)),
                    Err(sqlx::Error::PoolTimedOut) => {}
                    Err(error) => return Err(from_driver(error)),
                }
            }
        })
    }

    fn begin(&self, write_timeout: Duration) -> BoxFuture<'_, Result<Self::Tx>> {
        Box::pin(async move {
            timeout(write_timeout, self.begin_in_time())
                .await
                .unwrap_or_else(|_| Err(write_timed_out(write_timeout)))
        })
    }

    fn run_in<'a>(&'a self, tx: ConnectionRef<'a>, text: &'a str) -> BoxFuture<'a, Result<()>> {
        let script = sqlx::raw_sql(AssertSqlSafe(text));
        Box::pin(async move { tx.0.execute(script).await.map(drop).map_err(from_driver) })
    }

    fn with_connection<'a>(
        &'a self,
        tx: ConnectionRef<'a>,
        work: &'a mut (dyn FnMut(&Lent) + Send),
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // Each `lock_handle` leaves a message in the connection's queue, which only an ordinary statement is sure to
            // drain. After 50 in a row, sqlx 0.9.0 waits forever. `run_in` precedes every one of these.
            let mut handle = tx.0.lock_handle().await.map_err(from_driver)?;
            let raw = handle.as_raw_handle().as_ptr();
            // SAFETY: the handle is open, and the guard keeps sqlx' thread from using it until it is dropped. `lent` was
            // declared after the guard, so it is dropped before. Dropping it finalizes its cached statements, and leaves
            // the handle open, since it does not own it. `work` gets a shared reference, so it cannot keep `lent`.
            #[expect(
                unsafe_code,
                reason = "the only way to run several statements without a change of threads"
            )]
            let lent = unsafe { Lent::from_handle(raw.cast()) }.map_err(|error| from_sqlite(&error))?;
            work(&lent);
            Ok(())
        })
    }

    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { tx.commit().await.map_err(from_driver) })
    }

    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { tx.rollback().await.map_err(from_driver) })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.owned {
                // A caller may hold a transaction forever, hence the timeout.
                let _ = timeout(CLOSE_TIMEOUT, self.pool.close()).await;
            }
        })
    }
}

/// SQLite's result code for a lock that another connection holds.
const BUSY: i32 = 5;

fn code(error: &dyn sqlx::error::DatabaseError) -> i32 {
    error.code().and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// Converts the error of the first connection, and adds the path, which SQLite's message does not contain. If the file
/// cannot be opened (`SQLITE_CANTOPEN`), the directory is missing or not accessible.
fn while_opening(error: sqlx::Error, path: &Path) -> Error {
    let Some(database) = error.as_database_error() else { return from_driver(error) };
    let (code, message) = (code(database), format!("`{}`: {}", path.display(), database.message()));
    let converted = match code & 0xff {
        14 => {
            let remedy = "check that the directory exists, and that this user may write to it";
            Error::new(ErrorKind::AccessDenied, format!("SQLite: {message} ({code}): {remedy}"))
        }
        _ => from_code(code, &message),
    };
    converted.with_inner(error)
}

fn from_driver(error: sqlx::Error) -> Error {
    let converted = match &error {
        sqlx::Error::Database(database) => from_code(code(&**database), database.message()),
        sqlx::Error::PoolTimedOut => Error::new(
            ErrorKind::Busy,
            "timed out while waiting for a connection of the pool: allow more connections, or keep transactions shorter",
        ),
        sqlx::Error::PoolClosed => Error::new(ErrorKind::Closed, "the store is closed: open it again"),
        _ => Error::new(ErrorKind::Unavailable, format!("the database did not answer: {error}: try again")),
    };
    converted.with_inner(error)
}
