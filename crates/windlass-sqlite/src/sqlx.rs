//! The sqlx driver: the application's own pool and transactions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, Column, Connection, Executor, Row as _, Sqlite, Transaction, TypeInfo, ValueRef};
use tokio::time::{sleep, timeout};
use windlass_core::{BoxFuture, Error, ErrorKind, Result};

use crate::options::Options;
use crate::provider::{Provider, Row, Statement, Value, from_code, write_timed_out};

/// Delay before a lock that another process holds is retried.
const RETRY: Duration = Duration::from_millis(2);

/// How long closing waits for connections that are still in use.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// sqlx connection pools on one file.
#[derive(Clone, Debug)]
pub struct Sqlx {
    /// One connection, unless the application brings its pool: SQLite has one writer at a time. Transactions queue for
    /// it in order of arrival. If they competed for SQLite's lock instead, the one with the shortest sleep would win, and others
    /// might starve.
    writer: SqlitePool,
    readers: SqlitePool,
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
        let first = SqliteConnection::connect_with(&first).await.map_err(while_opening)?;
        first.close().await.map_err(from_driver)?;
        let pool = |connections| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(options.write_timeout())
                .test_before_acquire(false)
                .idle_timeout(None)
                .max_lifetime(None)
        };
        // If the file disappears later, do not recreate it: it would lack the tables.
        let writing = options.writing().create_if_missing(false);
        Ok(Self {
            writer: pool(1).connect_lazy_with(writing),
            readers: pool(options.reading_connections()).connect_lazy_with(options.reading()),
            owned: true,
        })
    }

    /// Returns the pool that transactions come from.
    #[must_use]
    pub const fn pool(&self) -> &SqlitePool {
        &self.writer
    }

    /// Closes a connection whose transaction SQLite has ended without the driver noticing.
    async fn replace_broken(&self) -> sqlx::Result<()> {
        let connection = self.writer.acquire().await?;
        if connection.is_in_transaction() { connection.close().await } else { Ok(()) }
    }

    /// Begins a transaction as soon as no other connection writes. Waits here rather than in SQLite's busy handler,
    /// which sleeps up to 100 ms at a time and blocks the connection's thread, where the wait cannot be cancelled.
    async fn begin_in_time(&self) -> Result<Transaction<'static, Sqlite>> {
        loop {
            match self.writer.begin_with("begin immediate").await {
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
    /// Uses the application's pool, which stays open when the store is closed. The connections need foreign keys (the
    /// default of sqlx) and a busy timeout. The pool needs at least two of them, because queries take one while a
    /// transaction is open.
    fn from(pool: SqlitePool) -> Self {
        Self { writer: pool.clone(), readers: pool, owned: false }
    }
}

impl Provider for Sqlx {
    type Tx = Transaction<'static, Sqlite>;

    fn run<'a>(&'a self, statement: &'a Statement, values: Vec<Value>) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move { rows(bind(statement, values).fetch_all(&self.readers).await) })
    }

    fn run_in<'a>(
        &'a self,
        tx: &'a mut Self::Tx,
        statement: &'a Statement,
        values: Vec<Value>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move {
            let connection: &mut SqliteConnection = tx;
            rows(bind(statement, values).fetch_all(connection).await)
        })
    }

    fn script<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<()>> {
        let script = sqlx::raw_sql(AssertSqlSafe(text));
        Box::pin(async move { self.writer.execute(script).await.map(drop).map_err(from_driver) })
    }

    fn script_in<'a>(&'a self, tx: &'a mut Self::Tx, text: &'a str) -> BoxFuture<'a, Result<()>> {
        let script = sqlx::raw_sql(AssertSqlSafe(text));
        Box::pin(async move { (&mut **tx).execute(script).await.map(drop).map_err(from_driver) })
    }

    fn begin(&self, write_timeout: Duration) -> BoxFuture<'_, Result<Self::Tx>> {
        Box::pin(async move {
            timeout(write_timeout, self.begin_in_time())
                .await
                .unwrap_or_else(|_| Err(write_timed_out(write_timeout)))
        })
    }

    fn is_open<'a>(&'a self, tx: &'a mut Self::Tx) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            // The driver cannot report this, but SQLite rejects a nested `begin` at no cost.
            if (&mut **tx).execute("begin").await.is_err() {
                return Ok(true);
            }
            (&mut **tx).execute("rollback").await.map_err(from_driver)?;
            Ok(false)
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
                // A caller may hold a transaction forever, hence the timeouts. Close the writer last: the last
                // connection to close checkpoints the log into the file, and a read-only one cannot.
                let _ = timeout(CLOSE_TIMEOUT, self.readers.close()).await;
                let _ = timeout(CLOSE_TIMEOUT, self.writer.close()).await;
            }
        })
    }
}

/// SQLite's result code for a lock that another connection holds.
const BUSY: i32 = 5;

fn bind(statement: &Statement, values: Vec<Value>) -> Query<'_, Sqlite, SqliteArguments> {
    let query = sqlx::query(AssertSqlSafe(Arc::clone(statement.text())));
    values.into_iter().fold(query, |query, value| match value {
        Value::Null => query.bind(None::<i64>),
        Value::Integer(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Blob(value) => query.bind(Vec::from(value)),
    })
}

fn rows(rows: sqlx::Result<Vec<SqliteRow>>) -> Result<Vec<Row>> {
    let rows = rows.map_err(from_driver)?;
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let columns: Arc<[String]> = first.columns().iter().map(|column| column.name().to_owned()).collect();
    let row = |row: &SqliteRow| {
        let values: sqlx::Result<_> = (0..columns.len()).map(|place| value(row, place)).collect();
        values.map(|values| Row::new(Arc::clone(&columns), values)).map_err(from_driver)
    };
    rows.iter().map(row).collect()
}

fn value(row: &SqliteRow, place: usize) -> sqlx::Result<Value> {
    let raw = row.try_get_raw(place)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let is = |name: &str| raw.type_info().name() == name;
    if is("INTEGER") {
        row.try_get_unchecked(place).map(Value::Integer)
    } else if is("BLOB") {
        row.try_get_unchecked(place).map(|bytes: Vec<u8>| Value::Blob(Bytes::from(bytes)))
    } else {
        row.try_get_unchecked(place).map(Value::Text)
    }
}

fn code(error: &dyn sqlx::error::DatabaseError) -> i32 {
    error.code().and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// Converts the error of the first connection. If the file cannot be opened (`SQLITE_CANTOPEN`), the directory is
/// missing or not accessible.
fn while_opening(error: sqlx::Error) -> Error {
    match error.as_database_error() {
        Some(database) if code(database) & 0xff == 14 => {
            let (message, code) = (database.message(), code(database));
            let remedy = "check that the directory exists, and that this user may write to it";
            Error::new(ErrorKind::AccessDenied, format!("SQLite: {message} ({code}): {remedy}"))
                .with_inner(error)
        }
        _ => from_driver(error),
    }
}

fn from_driver(error: sqlx::Error) -> Error {
    let converted = match &error {
        sqlx::Error::Database(database) => from_code(code(&**database), database.message()),
        sqlx::Error::PoolTimedOut => Error::new(
            ErrorKind::Busy,
            "timed out while waiting for a connection of the pool: allow more connections, or keep transactions shorter",
        ),
        sqlx::Error::PoolClosed => Error::new(ErrorKind::Closed, "the store is closed: open it again"),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) | sqlx::Error::Decode(_) => {
            Error::new(
                ErrorKind::Corrupt,
                format!("a row cannot be decoded: {error}: restore the file from a backup"),
            )
        }
        _ => Error::new(ErrorKind::Unavailable, format!("the database did not answer: {error}: try again")),
    };
    converted.with_inner(error)
}
