//! The driver below the store: what it must do, in the fewest words.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use windlass_core::{BoxFuture, Error, ErrorKind, Result};

/// A SQLite driver with its connections, as an application has it.
///
/// The store needs little of it: transactions that hold the write lock from their beginning, and statements with
/// parameters that give rows. Whoever brings another driver writes these methods, and gives its errors through
/// [`from_code`]; the conformance suite tells whether they are right.
pub trait Provider: Send + Sync + fmt::Debug + 'static {
    /// The transaction of the driver: what the application writes its own rows with. Dropped, it is rolled back.
    type Tx: Send + 'static;

    /// Runs a statement that only looks, by itself, on a connection that no writer has.
    fn run<'a>(&'a self, statement: &'a Statement, values: Vec<Value>) -> BoxFuture<'a, Result<Vec<Row>>>;

    /// Runs a statement in a transaction.
    fn run_in<'a>(
        &'a self,
        tx: &'a mut Self::Tx,
        statement: &'a Statement,
        values: Vec<Value>,
    ) -> BoxFuture<'a, Result<Vec<Row>>>;

    /// Runs statements without parameters and rows, each by itself, on a connection that may write.
    fn script<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Runs statements without parameters and rows in a transaction.
    fn script_in<'a>(&'a self, tx: &'a mut Self::Tx, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Begins a transaction with `begin immediate`: one that reads first and then finds another writer could not be cured
    /// by waiting. Gives up after `patience` with the error of [`no_turn`]. A call that is dropped half-way leaves no
    /// connection in a transaction.
    fn begin(&self, patience: Duration) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Whether the transaction is one: not if SQLite or a statement of the application has ended it.
    fn is_open<'a>(&'a self, tx: &'a mut Self::Tx) -> BoxFuture<'a, Result<bool>>;

    /// Commits.
    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Rolls back.
    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Closes the connections, if they belong to the store.
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

    /// Its text, with `?1` and so on where the parameters go.
    #[must_use]
    pub const fn text(&self) -> &Arc<str> {
        &self.text
    }
}

/// A parameter of a statement, or what stands in a row.
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

/// A row: its values with the names of their columns.
#[derive(Clone, Debug)]
pub struct Row {
    columns: Arc<[String]>,
    values: Vec<Value>,
    /// Where the next column is likely to be: rows are read in the order of their statement.
    next: Cell<usize>,
}

impl Row {
    /// A row of a reply, whose rows share their columns.
    #[must_use]
    pub const fn new(columns: Arc<[String]>, values: Vec<Value>) -> Self {
        Self { columns, values, next: Cell::new(0) }
    }

    /// The value of a column, if there is such a column.
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

/// The error that SQLite gave with this extended result code, in the words of the contract.
#[must_use]
pub fn from_code(code: i32, message: &str) -> Error {
    // The low byte is the primary result code, the rest says more about it.
    let (kind, cure) = match (code, code & 0xff) {
        (517, _) => (
            ErrorKind::Busy,
            "the transaction began by reading and somebody else has written since: roll it back, and begin it with \
             `begin immediate`",
        ),
        (_, 5 | 6) => (
            ErrorKind::Busy,
            "another connection held the database for too long: try again, or end the transaction that holds it",
        ),
        (_, 8) => (
            ErrorKind::Unavailable,
            "the database is read-only: let this user write to the file and its folder",
        ),
        (_, 11 | 26) => (ErrorKind::Corrupt, "the file is damaged or no database: restore it from a backup"),
        (_, 13) => (ErrorKind::Unavailable, "the disk is full or the file at its limit: make room"),
        (_, 14) => (ErrorKind::Unavailable, "make the folder, and let this user write to it"),
        _ => (ErrorKind::Unavailable, "try again, and look at the file and its disk"),
    };
    Error::new(kind, format!("SQLite says: {message} ({code}); {cure}"))
}

/// The error of a write that had no turn in time.
#[must_use]
pub fn no_turn(patience: Duration) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "no turn to write within {patience:?}: a transaction is open and keeps every other write waiting; end it; a task \
             that holds one must give its commands through it, as with `client.in_tx`"
        ),
    )
}
