//! The [`Provider`] trait, through which the store uses a database driver.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;
use windlass_core::{BoxFuture, Result};

use crate::error::pooled;

/// A PostgreSQL driver with its connection pool.
///
/// Implement this trait to use the store with another driver. Every command is one statement that returns rows of one
/// shape, so there is little to implement. Convert errors of the server with
/// [`from_sqlstate`](crate::driver::from_sqlstate), and run the conformance suite to check the implementation.
pub trait Provider: Send + Sync + fmt::Debug + 'static {
    /// The driver's transaction type, with which the application writes its own rows. Dropping it rolls it back.
    type Tx: Send + 'static;

    /// A borrowed transaction, in which statements run. If the driver has other transaction types, implement `From` on
    /// this type for a mutable reference to each of them, so that the application can pass its own transactions too.
    type TxRef<'t>: Send + From<Self::Connection<'t>>;

    /// The connection of a transaction, on which the application runs its own statements.
    type Connection<'t>: Send;

    /// Borrows a transaction that this provider began.
    fn tx_ref(tx: &mut Self::Tx) -> Self::TxRef<'_>;

    /// Returns the connection of a borrowed transaction.
    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t>;

    /// Reborrows a borrowed transaction.
    fn reborrow<'t>(tx: &'t mut Self::TxRef<'_>) -> Self::TxRef<'t>;

    /// Runs a statement on a pooled connection, outside a transaction. It commits if it succeeds.
    fn run<'a>(
        &'a self,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>>;

    /// Runs a statement in a transaction.
    fn run_in<'a>(
        &'a self,
        tx: Self::TxRef<'a>,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>>;

    /// Runs statements that have no parameters and return no rows on a pooled connection, each on its own.
    fn script<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Runs statements that have no parameters and return no rows in a transaction.
    fn script_in<'a>(&'a self, tx: Self::TxRef<'a>, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Runs statements without parameters in a transaction, in one round trip. Returns the last row's first column, as
    /// text.
    fn ask_in<'a>(&'a self, tx: Self::TxRef<'a>, text: &'a str) -> BoxFuture<'a, Result<Option<String>>>;

    /// Begins a transaction.
    ///
    /// Cancel-safe: if the future is dropped early, no connection returns to the pool inside a transaction.
    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Begins a transaction with [`BEGIN_READ_COMMITTED`] instead of `begin`. Otherwise the same as
    /// [`begin`](Self::begin).
    fn begin_read_committed(&self) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Commits a transaction.
    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Rolls a transaction back.
    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Whether statements may stay prepared on the pool's connections. Returns true only if it is proven that each
    /// connection keeps one server process, without a pooler in between. A store calls this once, when it is opened,
    /// unless [`Options::cached_statements`](crate::Options::cached_statements) is set.
    ///
    /// The default is false, which is right for every driver: statements that are not cached also work behind a pooler.
    fn may_cache_statements(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }

    /// Opens a dedicated connection, outside the limits of the pool, that listens to a channel.
    ///
    /// # Errors
    ///
    /// [`pooled`](crate::driver::pooled()) if a pooler shares the server connection with other clients. It must not listen
    /// then: the other clients would receive notifications that they did not subscribe to.
    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>>>;

    /// Closes the pool, if it belongs to the store.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A connection that listens.
pub trait Listener: Send {
    /// Returns the payload of the next notification. An error means that the connection is lost.
    ///
    /// Cancel-safe: a dropped call consumes no notification.
    fn next(&mut self) -> BoxFuture<'_, Result<String>>;
}

/// An SQL statement of the store. Drivers may prepare it once per connection; see [`is_cached`](Self::is_cached).
#[derive(Clone, Debug)]
pub struct Statement {
    text: Arc<str>,
    cached: bool,
}

impl Statement {
    pub(crate) fn new(text: String, cached: bool) -> Self {
        Self { text: text.into(), cached }
    }

    /// Returns the SQL text, with `$1`, `$2`, … for the parameters.
    #[must_use]
    pub const fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// Whether the driver may keep the statement prepared under a name. If false, the driver must parse and execute it
    /// in one transaction: a pooler may assign another server connection to the next one.
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

/// A result row: `(text, integer, uuid[], text[], bigint[], bytea[])`. A null array is an empty vector here. A row of a
/// statement that returns jobs has the columns of [`JobColumns`] after these.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Which part of the reply the row belongs to.
    pub part: String,
    /// Number of the command's item that the row belongs to, starting at 1.
    pub item: Option<i32>,
    /// Ids.
    pub ids: Vec<Option<Uuid>>,
    /// Texts.
    pub texts: Vec<Option<String>>,
    /// Numbers.
    pub numbers: Vec<Option<i64>>,
    /// Payloads.
    pub bytes: Vec<Option<Bytes>>,
    /// The job, if the row has one.
    pub job: Option<Box<JobColumns>>,
}

/// The columns of a job in a result row, in this order, after those of [`Row`]. All are null in a row without a job. The row
/// of an acquired job also contains null for what the request or the id determines, and for usual values.
#[derive(Clone, Debug)]
pub struct JobColumns {
    /// `uuid`.
    pub id: Uuid,
    /// `uuid`.
    pub chain: Option<Uuid>,
    /// `uuid`.
    pub worker: Option<Uuid>,
    /// `uuid`.
    pub request: Option<Uuid>,
    /// `uuid`.
    pub closed_by: Option<Uuid>,
    /// `text`.
    pub job_type: String,
    /// `text`.
    pub chain_type: Option<String>,
    /// `text`.
    pub status: Option<String>,
    /// `text`.
    pub input_codec: Option<String>,
    /// `text`.
    pub output_codec: Option<String>,
    /// `text`.
    pub error: Option<String>,
    /// `text`.
    pub on_blocker_failure: Option<String>,
    /// `text`.
    pub trace: Option<String>,
    /// `text`.
    pub worker_name: Option<String>,
    /// `integer`.
    pub position: i32,
    /// `smallint`.
    pub priority: i16,
    /// `bigint`.
    pub due_at: i64,
    /// `bigint`.
    pub attempt: i64,
    /// `bigint`.
    pub max_attempts: Option<i64>,
    /// `bigint`.
    pub fence: i64,
    /// `bigint`.
    pub version: i64,
    /// `bigint`.
    pub lease_until: Option<i64>,
    /// `boolean`.
    pub cancel_requested: bool,
    /// `bigint`.
    pub created_at: i64,
    /// `bigint`.
    pub started_at: Option<i64>,
    /// `bigint`.
    pub closed_at: Option<i64>,
    /// `bytea`.
    pub input: Vec<u8>,
    /// `bytea`.
    pub output: Option<Vec<u8>>,
    /// `uuid[]`.
    pub blockers: Option<Vec<Uuid>>,
    /// `text[]`.
    pub blocker_traces: Option<Vec<Option<String>>>,
    /// `boolean[]`.
    pub blockers_resolved: Option<Vec<bool>>,
    /// `text`.
    pub key: Option<String>,
    /// `text`.
    pub chain_trace: Option<String>,
    /// `bigint`.
    pub chain_created_at: Option<i64>,
    /// `bigint`.
    pub keep_completed: i64,
    /// `bigint`.
    pub keep_failed: i64,
    /// `bigint`.
    pub keep_cancelled: i64,
    /// `bigint`: the order of creation.
    pub seq: i64,
}

/// Reads the columns of a job from a driver's row, with its method `try_get`.
macro_rules! job_columns {
    ($row:expr) => {
        $crate::provider::JobColumns {
            id: $row.try_get(6)?,
            chain: $row.try_get(7)?,
            worker: $row.try_get(8)?,
            request: $row.try_get(9)?,
            closed_by: $row.try_get(10)?,
            job_type: $row.try_get(11)?,
            chain_type: $row.try_get(12)?,
            status: $row.try_get(13)?,
            input_codec: $row.try_get(14)?,
            output_codec: $row.try_get(15)?,
            error: $row.try_get(16)?,
            on_blocker_failure: $row.try_get(17)?,
            trace: $row.try_get(18)?,
            worker_name: $row.try_get(19)?,
            position: $row.try_get(20)?,
            priority: $row.try_get(21)?,
            due_at: $row.try_get(22)?,
            attempt: $row.try_get(23)?,
            max_attempts: $row.try_get(24)?,
            fence: $row.try_get(25)?,
            version: $row.try_get(26)?,
            lease_until: $row.try_get(27)?,
            cancel_requested: $row.try_get(28)?,
            created_at: $row.try_get(29)?,
            started_at: $row.try_get(30)?,
            closed_at: $row.try_get(31)?,
            input: $row.try_get(32)?,
            output: $row.try_get(33)?,
            blockers: $row.try_get(34)?,
            blocker_traces: $row.try_get(35)?,
            blockers_resolved: $row.try_get(36)?,
            key: $row.try_get(37)?,
            chain_trace: $row.try_get(38)?,
            chain_created_at: $row.try_get(39)?,
            keep_completed: $row.try_get(40)?,
            keep_failed: $row.try_get(41)?,
            keep_cancelled: $row.try_get(42)?,
            seq: $row.try_get(43)?,
        }
    };
}
pub(crate) use job_columns;

/// Begins a transaction for a command of the store: at read committed and read-write, whatever the defaults of the
/// server, the database, the role and the pool are.
///
/// A single statement: if a second one were cancelled, a driver could return a connection to its pool whose transaction
/// has failed.
pub const BEGIN_READ_COMMITTED: &str = "begin isolation level read committed, read write";

/// Raises the timeouts of a transaction.
pub(crate) const SET_TIMEOUTS: &str =
    "set local statement_timeout = '1min'; set local idle_in_transaction_session_timeout = '1min'";

/// Recognizes a pooler that lends the listening connection's server process to other clients.
///
/// Without such a pooler, the connection keeps its server process, and no other client runs anything in it. With one,
/// each transaction of the connection runs in any of the pooler's processes. If the pool is idle, another connection
/// gets the process next. If it is busy, other clients use the process, or the connection gets another one.
pub(crate) struct PoolerCheck {
    /// Marks the connection's own queries.
    marker: Uuid,
    /// The server's time before the connection was opened.
    opened_after: String,
    own: Option<String>,
    rounds: u32,
    /// Whether the server process is older than the connection, which only a pooler can cause. It may be one that lends
    /// processes for whole sessions, which is fine.
    is_older: bool,
}

impl PoolerCheck {
    /// The query for the server's time, to run before the connection is opened.
    pub(crate) const TIME_QUERY: &str = "select extract(epoch from clock_timestamp())::text";
    /// The number of rounds, and the number if there is a pooler. Each of them may miss that it shares the process, if
    /// other clients are slow.
    const ROUNDS: u32 = 8;
    const ROUNDS_IF_OLDER: u32 = 64;
    /// The pause between two rounds. Without it, clients that repeat one transaction may stay in step with the rounds.
    pub(crate) const PAUSE: Duration = Duration::from_millis(1);

    /// Creates a check of a connection that was opened after this reply to [`TIME_QUERY`](Self::TIME_QUERY).
    pub(crate) fn new(opened_after: String) -> Self {
        Self { marker: Uuid::now_v7(), opened_after, own: None, rounds: 0, is_older: false }
    }

    /// Whether another round is needed.
    pub(crate) const fn goes_on(&self) -> bool {
        self.rounds < if self.is_older { Self::ROUNDS_IF_OLDER } else { Self::ROUNDS }
    }

    /// The query for the listening connection's server process, to run on that connection.
    pub(crate) fn own_query(&self) -> String {
        format!(
            "select concat(pid, case when extract(epoch from backend_start) < {} then ' older' end) \
             from pg_stat_activity where pid = pg_backend_pid() /* {} */",
            self.opened_after, self.marker
        )
    }

    /// Returns the server process in the reply to [`own_query`](Self::own_query).
    pub(crate) fn own(&mut self, reply: String) -> String {
        match reply.split_once(' ') {
            Some((pid, _)) => {
                self.is_older = true;
                pid.to_owned()
            }
            None => reply,
        }
    }

    /// The query for the number of signs that another client uses the server process `own`, to run on another
    /// connection.
    pub(crate) fn others_query(&self, own: &str) -> String {
        // The query is empty if the server does not track activities, and has the other text if a role was set that
        // may not read it.
        format!(
            "select count(*)::text from pg_stat_activity where pid = {own} and (pid = pg_backend_pid() \
             or (query not like '%{}%' and query not in ('', '<insufficient privilege>')))",
            self.marker
        )
    }

    /// Evaluates the results of both queries.
    ///
    /// # Errors
    ///
    /// Returns [`pooled`](crate::driver::pooled()) if the server process is shared.
    pub(crate) fn evaluate(&mut self, own: String, signs: &str) -> Result<()> {
        if signs != "0" || self.own.as_ref().is_some_and(|earlier| *earlier != own) {
            return Err(pooled());
        }
        self.own = Some(own);
        self.rounds += 1;
        Ok(())
    }
}
