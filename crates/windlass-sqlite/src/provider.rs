//! The driver interface of the store.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use windlass_core::{BoxFuture, Result};

pub use crate::error::{from_code, write_timed_out};

/// A SQLite driver and its connections, as the application uses them.
///
/// The store needs two things of a driver: transactions that hold the write lock from their start, and parameterized
/// statements that return rows. To support another driver, implement these methods and convert its errors with
/// [`from_code`]. The conformance suite verifies the implementation.
pub trait Provider: Send + Sync + fmt::Debug + 'static {
    /// The driver's transaction, in which the application writes its own rows. Dropping it rolls it back.
    type Tx: Send + 'static;

    /// Runs a read-only statement outside any transaction, on a connection that no writer uses.
    fn run<'a>(&'a self, statement: &'a Statement, values: Vec<Value>) -> BoxFuture<'a, Result<Vec<Row>>>;

    /// Runs a statement in a transaction.
    fn run_in<'a>(
        &'a self,
        tx: &'a mut Self::Tx,
        statement: &'a Statement,
        values: Vec<Value>,
    ) -> BoxFuture<'a, Result<Vec<Row>>>;

    /// Runs statements that have no parameters and return no rows, outside any transaction, on a connection that may
    /// write.
    fn script<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Runs statements that have no parameters and return no rows in a transaction.
    fn script_in<'a>(&'a self, tx: &'a mut Self::Tx, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Begins a transaction with `begin immediate`.
    ///
    /// A deferred transaction would read first and take the write lock later. If another connection commits in between,
    /// SQLite fails it with `SQLITE_BUSY_SNAPSHOT`, which waiting does not fix.
    ///
    /// Dropping the future leaves no connection in a transaction.
    ///
    /// # Errors
    ///
    /// [`write_timed_out`] if the write lock was not acquired within `write_timeout`.
    fn begin(&self, write_timeout: Duration) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Whether the transaction is still open. It is not if SQLite or a statement of the application has ended it.
    fn is_open<'a>(&'a self, tx: &'a mut Self::Tx) -> BoxFuture<'a, Result<bool>>;

    /// Commits the transaction.
    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Rolls the transaction back.
    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Closes the connections if the store owns them.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A statement of the store. Drivers may prepare it once for each connection.
#[derive(Clone, Debug)]
pub struct Statement {
    text: Arc<str>,
}

impl Statement {
    pub(crate) fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into() }
    }

    /// The SQL text, with the parameters as `?1`, `?2` and so on.
    #[must_use]
    pub const fn text(&self) -> &Arc<str> {
        &self.text
    }
}

/// A statement parameter or a column value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `null`.
    Null,
    /// An `integer`.
    Integer(i64),
    /// A `text`.
    Text(String),
    /// A `blob`.
    Blob(Bytes),
}

/// A row: values with their column names.
#[derive(Clone, Debug)]
pub struct Row {
    columns: Arc<[String]>,
    values: Vec<Value>,
    /// Index after the last column read. Callers read columns in the order of the statement, so the search for the next
    /// one starts here.
    next: Cell<usize>,
}

impl Row {
    /// Creates a row. The rows of one result share their column names.
    #[must_use]
    pub const fn new(columns: Arc<[String]>, values: Vec<Value>) -> Self {
        Self { columns, values, next: Cell::new(0) }
    }

    /// Returns the value of a column, or `None` if the row has no such column.
    #[must_use]
    pub fn value(&self, column: &str) -> Option<&Value> {
        let next = self.next.get().min(self.columns.len());
        let (before, behind) = self.columns.split_at(next);
        let is_meant = |name: &String| name == column;
        let place = match behind.iter().position(is_meant) {
            Some(place) => next + place,
            None => before.iter().position(is_meant)?,
        };
        self.next.set(place + 1);
        self.values.get(place)
    }
}
