//! The statements, and the one place that hands them to the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Sqlite, Transaction};
use windlass_core::{Counters, Error, ErrorKind, Result};

use crate::error::from_driver;
use crate::row::Row;

macro_rules! statements {
    ($($name:ident,)*) => {
        /// The statements with the table prefix filled in, each named after its file in `sql/`.
        #[derive(Clone, Debug)]
        pub(crate) struct Statements { $(pub(crate) $name: Arc<str>,)* }

        impl Statements {
            pub(crate) fn new(prefix: &str) -> Self {
                Self { $($name: fill(include_str!(concat!("../sql/", stringify!($name), ".sql")), prefix).into(),)* }
            }

            /// All of them with their names.
            #[cfg(test)]
            pub(crate) fn all(&self) -> Vec<(&'static str, Arc<str>)> {
                vec![$((stringify!($name), Arc::clone(&self.$name)),)*]
            }
        }
    };
}

statements! {
    load_jobs,
    load_chains,
    load_waits,
    load_dependents,
    load_wait_traces,
    insert_jobs,
    insert_blockers,
    need_chains,
    release_chains,
    update_jobs,
    update_chains,
    resolve_blockers,
    end_waits,
    insert_attempts,
    forget_attempts,
    take_jobs,
    taken_jobs,
    blocker_outputs,
    renew_leases,
    expired_leases,
    get_jobs,
    get_chains,
    next_due,
    leaving_chains,
    inner_jobs,
    trimmed_jobs,
    set_trim_at,
    release_failed,
    delete_chains,
    delete_jobs,
    more_to_expire,
    erase_jobs,
    make_migration,
    latest_migration,
    insert_migration,
}

/// A statement with the table prefix filled in. The prefix was checked when the store was opened.
pub(crate) fn fill(text: &str, prefix: &str) -> String {
    text.replace("{prefix}", prefix)
}

/// A parameter of a statement.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    Text(String),
    Blob(Vec<u8>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Blob(value)
    }
}

/// A set of things as one parameter, which the statement takes apart with `json_each`.
pub(crate) fn set(items: &(impl Serialize + ?Sized)) -> Result<Value> {
    serde_json::to_string(items).map(Value::Text).map_err(|error| {
        Error::new(ErrorKind::Invalid, "a parameter cannot be written as JSON").with_source(error)
    })
}

/// A connection with the statements.
pub(crate) struct Session<'c> {
    connection: &'c mut SqliteConnection,
    pub(crate) statements: &'c Statements,
    counted: &'c Counted,
    failed: &'c mut bool,
}

impl<'c> Session<'c> {
    /// `failed` is set when the driver reports an error.
    pub(crate) const fn new(
        connection: &'c mut SqliteConnection,
        statements: &'c Statements,
        counted: &'c Counted,
        failed: &'c mut bool,
    ) -> Self {
        Self { connection, statements, counted, failed }
    }

    /// Runs a statement and gives its rows.
    pub(crate) async fn rows(&mut self, statement: &Arc<str>, values: Vec<Value>) -> Result<Vec<Row>> {
        let query = bind(sqlx::query(AssertSqlSafe(Arc::clone(statement))), values);
        let rows = query.fetch_all(&mut *self.connection).await;
        let rows: Vec<SqliteRow> = self.checked(rows)?;
        self.counted.round_trips.fetch_add(1, Ordering::Relaxed);
        Ok(rows.into_iter().map(Row::new).collect())
    }

    /// Runs a statement for what it does.
    pub(crate) async fn run(&mut self, statement: &Arc<str>, values: Vec<Value>) -> Result<()> {
        let query = bind(sqlx::query(AssertSqlSafe(Arc::clone(statement))), values);
        let done = query.execute(&mut *self.connection).await;
        self.checked(done)?;
        self.counted.round_trips.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Runs many statements of one text, which have no parameters.
    pub(crate) async fn run_all(&mut self, statements: String) -> Result<()> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements));
        let done = statements.execute(&mut *self.connection).await;
        self.checked(done)?;
        Ok(())
    }

    fn checked<T>(&mut self, answer: sqlx::Result<T>) -> Result<T> {
        *self.failed |= answer.is_err();
        answer.map_err(from_driver)
    }
}

/// A write transaction. It is rolled back when it is dropped.
pub(crate) struct Write<'c> {
    transaction: Transaction<'c, Sqlite>,
    statements: &'c Statements,
    counted: &'c Counted,
    failed: &'c mut bool,
}

impl<'c> Write<'c> {
    /// Takes SQLite's write lock at once: a transaction that reads first and then finds another writer could not be
    /// cured by waiting. `failed` is set if the connection is not to be used again: after an error inside the
    /// transaction SQLite may have ended it, and the driver would not know.
    pub(crate) async fn begin(
        connection: &'c mut SqliteConnection,
        statements: &'c Statements,
        counted: &'c Counted,
        failed: &'c mut bool,
    ) -> Result<Self> {
        use sqlx::Connection;
        let transaction = connection.begin_with("begin immediate").await.map_err(from_driver);
        let transaction = transaction.inspect_err(|error| *failed |= error.kind() != ErrorKind::Busy)?;
        counted.round_trips.fetch_add(1, Ordering::Relaxed);
        Ok(Self { transaction, statements, counted, failed })
    }

    pub(crate) fn session(&mut self) -> Session<'_> {
        Session::new(&mut self.transaction, self.statements, self.counted, self.failed)
    }

    pub(crate) async fn commit(self) -> Result<()> {
        let done = self.transaction.commit().await;
        *self.failed |= done.is_err();
        done.map_err(from_driver)?;
        self.counted.round_trips.fetch_add(1, Ordering::Relaxed);
        self.counted.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Round trips and commits so far.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    round_trips: AtomicU64,
    commits: AtomicU64,
}

impl Counted {
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            round_trips: self.round_trips.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
        }
    }
}

type Query<'q> = sqlx::query::Query<'q, Sqlite, sqlx::sqlite::SqliteArguments>;

fn bind(query: Query<'_>, values: Vec<Value>) -> Query<'_> {
    values.into_iter().fold(query, |query, value| match value {
        Value::Null => query.bind(None::<i64>),
        Value::Integer(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Blob(value) => query.bind(value),
    })
}
