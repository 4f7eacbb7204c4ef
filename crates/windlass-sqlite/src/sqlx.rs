//! sqlx as the driver: the application's own pool, and its own transactions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, Column, Connection, Executor, Row as _, Sqlite, Transaction, TypeInfo, ValueRef};
use tokio::time::{sleep, timeout};
use windlass_core::{BoxFuture, Error, ErrorKind, Result};

use crate::options::Options;
use crate::provider::{Provider, Row, Statement, Value, from_code, no_turn};

/// How soon a lock that another process has is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// How long closing waits for connections that somebody still has.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Pools of sqlx connections to one file.
#[derive(Clone, Debug)]
pub struct Sqlx {
    /// One connection: SQLite has one writer at a time. Transactions queue for it, first come first served, instead of in
    /// SQLite's lock, where whoever sleeps shortest wins.
    writer: SqlitePool,
    readers: SqlitePool,
    owned: bool,
}

impl Sqlx {
    /// Opens the file of these options. It is made if it is missing.
    pub async fn open(options: &Options) -> Result<Self> {
        options.check_path()?;
        // A pool tries for long before it gives up, and does not tell why.
        let first = options.writing().busy_timeout(options.patience());
        let first = SqliteConnection::connect_with(&first).await.map_err(from_driver)?;
        first.close().await.map_err(from_driver)?;
        let pool = |connections| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(options.patience())
                .test_before_acquire(false)
                .idle_timeout(None)
                .max_lifetime(None)
        };
        // A file that has gone meanwhile is not made anew, since it would lack the tables.
        let writing = options.writing().create_if_missing(false);
        Ok(Self {
            writer: pool(1).connect_lazy_with(writing),
            readers: pool(options.reading_connections()).connect_lazy_with(options.reading()),
            owned: true,
        })
    }

    /// The pool that transactions come from.
    #[must_use]
    pub const fn pool(&self) -> &SqlitePool {
        &self.writer
    }

    /// Closes a connection that SQLite has taken out of its transaction without the driver's knowledge.
    async fn replace_broken(&self) -> sqlx::Result<()> {
        let connection = self.writer.acquire().await?;
        if connection.is_in_transaction() { connection.close().await } else { Ok(()) }
    }

    /// Begins as soon as nobody else writes. SQLite's own way to wait sleeps for up to 100 ms at a time, and on a thread
    /// that nothing calls back.
    async fn begin_in_time(&self) -> Result<Transaction<'static, Sqlite>> {
        loop {
            match self.writer.begin_with("begin immediate").await {
                Err(sqlx::Error::Database(error)) if code(&*error) == BUSY => sleep(RETRY).await,
                Err(sqlx::Error::PoolTimedOut) => {}
                // The driver takes the connection to be in a transaction, which SQLite had ended by an error.
                Err(sqlx::Error::InvalidSavePointStatement) => {
                    self.replace_broken().await.map_err(from_driver)?;
                }
                begun => return begun.map_err(from_driver),
            }
        }
    }
}

impl From<SqlitePool> for Sqlx {
    /// The application's pool, which stays open when the store is closed. It needs foreign keys, which sqlx turns on
    /// unless told otherwise, a busy timeout, and two connections at least: look-ups take one while a transaction is open.
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

    fn begin(&self, patience: Duration) -> BoxFuture<'_, Result<Self::Tx>> {
        Box::pin(async move {
            timeout(patience, self.begin_in_time()).await.unwrap_or_else(|_| Err(no_turn(patience)))
        })
    }

    fn is_open<'a>(&'a self, tx: &'a mut Self::Tx) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            // SQLite refuses to begin inside a transaction, at no cost; the driver has no way to ask.
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
                // Somebody may hold a transaction for ever. The writer is the last to leave, since whoever is the last
                // brings what is in the log into the file, and readers cannot.
                let _ = timeout(CLOSE_PATIENCE, self.readers.close()).await;
                let _ = timeout(CLOSE_PATIENCE, self.writer.close()).await;
            }
        })
    }
}

/// SQLite's result code of a lock that somebody else has.
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

fn from_driver(error: sqlx::Error) -> Error {
    let told = match &error {
        sqlx::Error::Database(database) => from_code(code(&**database), database.message()),
        sqlx::Error::PoolTimedOut => Error::new(
            ErrorKind::Busy,
            "all connections are taken: allow more of them, or hold transactions for a shorter time",
        ),
        sqlx::Error::PoolClosed => Error::new(ErrorKind::Closed, "the store was closed: open it again"),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) | sqlx::Error::Decode(_) => {
            Error::new(
                ErrorKind::Corrupt,
                format!("a row cannot be read: {error}; restore the file from a backup"),
            )
        }
        _ => Error::new(ErrorKind::Unavailable, format!("the database did not answer: {error}; try again")),
    };
    told.with_source(error)
}
