//! The driver below the store: what it must do, in the fewest words.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;
use windlass_core::{BoxFuture, Error, ErrorKind, Result};

/// A PostgreSQL driver with its pool, as an application has it.
///
/// The store needs little of it: every command is one statement that gives rows of one shape. Whoever brings another
/// driver writes these methods, and gives its errors through [`from_sqlstate`]; the conformance suite tells whether they
/// are right.
pub trait Provider: Send + Sync + fmt::Debug + 'static {
    /// The transaction of the driver: what the application writes its own rows with. Dropped, it is rolled back.
    type Tx: Send + 'static;

    /// What statements in a transaction need of it. The application's own transactions become one of these too, where the
    /// driver's type for them is another: give it `From` of a mutable reference to each that it has.
    type Lent<'t>: Send;

    /// Lends a transaction that was begun here.
    fn lend(tx: &mut Self::Tx) -> Self::Lent<'_>;

    /// Lends on what was lent.
    fn lend_on<'t>(tx: &'t mut Self::Lent<'_>) -> Self::Lent<'t>;

    /// Runs a statement by itself on a pooled connection. It commits when it succeeds.
    fn run<'a>(
        &'a self,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>>;

    /// Runs a statement in a transaction.
    fn run_in<'a>(
        &'a self,
        tx: Self::Lent<'a>,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>>;

    /// Runs statements without parameters and rows on a pooled connection, each by itself.
    fn script<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Runs statements without parameters and rows in a transaction.
    fn script_in<'a>(&'a self, tx: Self::Lent<'a>, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Begins a transaction. A call that is dropped half-way leaves no connection in a transaction.
    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Begins a transaction with [`BEGIN_READ_COMMITTED`] in place of `begin`; otherwise like [`begin`](Self::begin).
    fn begin_read_committed(&self) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Commits.
    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Rolls back.
    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Opens a connection of its own, outside the pool's bounds, that listens to a channel. Where a pooler lends its server
    /// connection to others, it does not listen: they would be sent what they never asked for. The error is [`pooled`] then.
    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>>>;

    /// Closes the pool, if it belongs to the store.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A connection that listens.
pub trait Listener: Send {
    /// The payload of the next notification. An error means that the connection is lost.
    ///
    /// Cancel-safe: a dropped call takes nothing.
    fn next(&mut self) -> BoxFuture<'_, Result<String>>;
}

/// A statement of the store. Drivers may prepare it once for each connection.
#[derive(Clone, Debug)]
pub struct Statement {
    text: Arc<str>,
    cached: bool,
}

impl Statement {
    pub(crate) fn new(text: String, cached: bool) -> Self {
        Self { text: text.into(), cached }
    }

    /// Its text, with `$1` and so on where the parameters go.
    #[must_use]
    pub const fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// Whether it may be kept prepared under a name. Behind a pooler that gives each transaction another server
    /// connection it may not, unless the pooler knows of prepared statements.
    #[must_use]
    pub const fn is_cached(&self) -> bool {
        self.cached
    }
}

/// A parameter of a statement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Parameter {
    /// A `boolean`.
    Flag(bool),
    /// A `bigint`.
    Number(Option<i64>),
    /// A `text`.
    Text(Option<String>),
    /// A `uuid`.
    Id(Option<Uuid>),
    /// A `bigint[]`.
    Numbers(Vec<Option<i64>>),
    /// A `text[]`.
    Texts(Option<Vec<Option<String>>>),
    /// A `uuid[]`.
    Ids(Vec<Option<Uuid>>),
    /// A `bytea[]`.
    Bytes(Vec<Option<Bytes>>),
}

/// A row: `(text, integer, uuid[], text[], bigint[], bytea[])`. Arrays that are null are empty here.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Which part of the reply it is.
    pub part: String,
    /// The item of the command that it answers, from 1.
    pub item: Option<i32>,
    /// Its ids.
    pub ids: Vec<Option<Uuid>>,
    /// Its texts.
    pub words: Vec<Option<String>>,
    /// Its numbers.
    pub numbers: Vec<Option<i64>>,
    /// Its payloads.
    pub bytes: Vec<Option<Bytes>>,
}

/// Begins a transaction for a command of the store, whatever the defaults of the server, the database, the role and the
/// pool are: at read committed, for writes, and with time for its statement.
pub const BEGIN_READ_COMMITTED: &str = "begin isolation level read committed, read write; \
     set local statement_timeout = '1min'; set local idle_in_transaction_session_timeout = '1min'";

/// The error that PostgreSQL gave with this code, in the words of the contract.
#[must_use]
pub fn from_sqlstate(code: &str, message: &str) -> Error {
    let (kind, cure) = match code {
        // A lock that was not granted in time, or a row that another transaction inserts at this moment.
        "55P03" | "23505" => {
            (ErrorKind::Busy, "another transaction holds the rows: try again, or end that transaction")
        }
        // A serialization failure, or a deadlock.
        "40001" | "40P01" => (
            ErrorKind::Conflict,
            "the transaction conflicts with a concurrent one: roll it back and run it again from its first statement",
        ),
        "3F000" | "42P01" | "42883" | "42704" => {
            (ErrorKind::Incompatible, "the schema is missing or another version's: run the migrations")
        }
        // Raised by `own_v1`. The store then begins a transaction for the command.
        "WL002" => (
            ErrorKind::Unsupported,
            "the store runs its commands at read committed, in transactions that write",
        ),
        "25006" => (
            ErrorKind::Unavailable,
            "the transaction is read-only: begin one that writes or, if the server is a standby, connect to the primary",
        ),
        // `begin … read write` on a standby.
        "0A000" => (
            ErrorKind::Unavailable,
            "the server does not support this: if it is a hot standby, connect to the primary",
        ),
        "25P03" => (
            ErrorKind::Unavailable,
            "the transaction was idle for longer than `idle_in_transaction_session_timeout`: keep it shorter, or raise that",
        ),
        "57014" => (
            ErrorKind::Unavailable,
            "the statement was cancelled, by `statement_timeout` or by an operator: raise the timeout, or try again",
        ),
        "25P02" => (ErrorKind::Invalid, "an earlier statement of the transaction failed: roll it back"),
        "25P01" => (ErrorKind::Invalid, "there is no transaction: begin one first"),
        "42501" => (ErrorKind::Unavailable, "the role lacks a privilege: grant it"),
        "53100" => (ErrorKind::Unavailable, "the disk is full: make room"),
        "28P01" | "28000" => {
            (ErrorKind::Unavailable, "the server refused the login: check user and password")
        }
        "3D000" => (ErrorKind::Unavailable, "there is no such database: create it"),
        _ if code.starts_with("XX") => (ErrorKind::Corrupt, "the database may be damaged: look at its log"),
        _ => (ErrorKind::Unavailable, "try again, and look at the server's log"),
    };
    Error::new(kind, format!("PostgreSQL says: {message} ({code}); {cure}"))
}

/// The error of a connection that cannot listen.
#[must_use]
pub fn pooled() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a pooler in transaction mode is in between; give the notifier a direct connection, or turn it off",
    )
}

/// How often a connection that is to listen is compared with others: a pooler may have lent its server connection to
/// somebody else at the moment.
pub(crate) const COMPARISONS: usize = 3;

/// Asks for the process of the server that answers.
pub(crate) const BACKEND: &str = "select pg_backend_pid()::text";

/// The error of a connection that is lost or cannot be made.
#[must_use]
pub fn unreachable(what: impl fmt::Display) -> Error {
    let text = format!("PostgreSQL cannot be reached: {what}; check the address and that the server runs");
    Error::new(ErrorKind::Unavailable, text)
}

/// The error of a pool that gave no connection in time.
#[must_use]
pub fn no_connection() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the pool gave no connection in time: check that the server runs, allow more connections, or hold transactions \
         for a shorter time",
    )
}
