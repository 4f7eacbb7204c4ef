//! The driver interface of the store.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use rusqlite;
use rusqlite::Connection;
use windlass_core::{BoxFuture, Result};

pub use crate::error::{from_code, write_timed_out};

/// A SQLite driver, as the application uses it for its own transactions.
///
/// The store runs its own commands on connections of its own. It needs a driver for commands inside a transaction of the
/// application: the driver lends its connection for the time of one command. To support another driver, implement these
/// methods and convert its errors with [`from_code`]. The conformance suite verifies the implementation.
pub trait Provider: Send + Sync + fmt::Debug + 'static {
    /// The driver's transaction, in which the application writes its own rows. Dropping it rolls it back.
    type Tx: Send + 'static;

    /// A borrowed transaction: one that [`begin`](Self::begin) returned, or any other of the driver that converts into this
    /// type.
    type TxRef<'t>: Send + From<Self::Connection<'t>>;

    /// The connection of a transaction, on which the application runs its own statements.
    type Connection<'t>: Send;

    /// Borrows a transaction.
    fn tx_ref(tx: &mut Self::Tx) -> Self::TxRef<'_>;

    /// Returns the connection of a borrowed transaction.
    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t>;

    /// Reborrows a borrowed transaction.
    fn reborrow<'t>(tx: &'t mut Self::TxRef<'_>) -> Self::TxRef<'t>;

    /// Returns the path of the database file.
    fn path(&self) -> PathBuf;

    /// Returns the value of `pragma synchronous` on the driver's connections. The store's own use the same.
    fn synchronous(&self) -> BoxFuture<'_, Result<i64>>;

    /// Waits until no transaction of this process is open that [`begin`](Self::begin) returned, and keeps others from
    /// beginning while the result lives. The store takes a turn for each group of its own commands, so that they and the
    /// application's transactions get the write lock in order of arrival.
    fn turn(&self) -> BoxFuture<'_, Result<Turn>>;

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

    /// Runs a statement without parameters in a transaction.
    fn run_in<'a>(&'a self, tx: Self::TxRef<'a>, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Lends the connection of a transaction: calls `work` with it once. The store has finalized all its statements when
    /// `work` returns.
    ///
    /// The store calls [`run_in`](Self::run_in) right before, to take the write lock: `work` does not wait for it.
    fn with_connection<'a>(
        &'a self,
        tx: Self::TxRef<'a>,
        work: &'a mut (dyn FnMut(&Connection) + Send),
    ) -> BoxFuture<'a, Result<()>>;

    /// Commits the transaction.
    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Rolls the transaction back.
    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Closes the connections if the store owns them.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// The right to write for this process. Dropping it passes it on.
pub struct Turn(Option<Box<dyn Any + Send>>);

impl Turn {
    /// Creates a turn that lasts as long as `held` is not dropped.
    #[must_use]
    pub fn new(held: impl Any + Send) -> Self {
        Self(Some(Box::new(held)))
    }

    /// Creates a turn that keeps nobody waiting. The store then competes with the application for SQLite's lock.
    #[must_use]
    pub const fn shared() -> Self {
        Self(None)
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("is_exclusive", &self.0.is_some()).finish()
    }
}
