//! The driver interface of the store.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use rusqlite;
use rusqlite::Connection;
use windlass_core::{BoxFuture, Result};

pub use crate::error::{from_code, write_timed_out};

/// A SQLite driver that the application uses for its own transactions.
///
/// The store runs its own commands on its own connections. It needs a driver only for commands inside a transaction of
/// the application: the driver lends its connection for the duration of one command. To support another driver,
/// implement these methods and convert its errors with [`from_code`]. The conformance suite verifies the
/// implementation.
pub trait Provider: Send + Sync + fmt::Debug + 'static {
    /// The driver's transaction, in which the application writes its own rows. Dropping it rolls it back.
    type Tx: Send + 'static;

    /// A borrowed transaction: one that [`begin`](Self::begin) returned, or any other transaction of the driver that
    /// converts into this type.
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

    /// Returns the value of `pragma synchronous` on the driver's connections. The store's own connections use the same
    /// value.
    fn synchronous(&self) -> BoxFuture<'_, Result<i64>>;

    /// Waits until no transaction that [`begin`](Self::begin) returned is open in this process. Until the returned turn
    /// is dropped, no other transaction begins. The store takes a turn for each group of its own commands, so that
    /// these groups and the application's transactions get the write lock in order of arrival.
    fn turn(&self) -> BoxFuture<'_, Result<Turn>>;

    /// Begins a transaction with `begin immediate`.
    ///
    /// A deferred transaction would read first and take the write lock later. If another connection commits in between,
    /// SQLite returns `SQLITE_BUSY_SNAPSHOT`, and waiting does not help.
    ///
    /// Dropping the future leaves no connection in a transaction.
    ///
    /// # Errors
    ///
    /// [`write_timed_out`] if the write lock was not acquired within `write_timeout`.
    fn begin(&self, write_timeout: Duration) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Runs a statement without parameters in a transaction.
    fn run_in<'a>(&'a self, tx: Self::TxRef<'a>, text: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Calls `work` once with the connection of a transaction. When `work` returns, the store has finalized all its
    /// statements.
    ///
    /// The store calls [`run_in`](Self::run_in) immediately before, to take the write lock, so `work` does not wait for
    /// it.
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

/// The exclusive right to write in this process. Dropping it passes the right on to the next waiter.
pub struct Turn(Option<Box<dyn Any + Send>>);

impl Turn {
    /// Creates a turn that lasts as long as `held` is not dropped.
    #[must_use]
    pub fn new(held: impl Any + Send) -> Self {
        Self(Some(Box::new(held)))
    }

    /// Creates a turn that excludes no other writer. The store then competes with the application for SQLite's lock.
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
