//! The SQLite store of Windlass: durable job chains in one file.
//!
//! ```no_run
//! # async fn example() -> windlass::Result<()> {
//! use windlass::sqlite::{self, Options, SqliteStore};
//!
//! let store = sqlite::open("jobs.db").await?;
//!
//! // With options.
//! let store = SqliteStore::open(Options::new("jobs.db").prefix("shop_")).await?;
//! # let _ = store; Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - **Durable.** The store acknowledges a command after SQLite has synced its commit to disk. With
//!   [`Synchronous::Normal`] a power failure may lose the latest commits, but a crash of the process cannot. The reply
//!   to a creation states which of the two applies.
//! - **Transactions** belong to the driver. `client.begin()` returns an sqlx transaction, started with
//!   `begin immediate`, in which the application writes its own rows next to its jobs. `client.in_tx` takes any sqlx
//!   transaction, or a connection on which a transaction was begun ([`ConnectionRef`]). A deferred transaction takes
//!   the write lock at its first command. If the transaction has already read, and another connection has written
//!   since, that command fails with an error of kind `Conflict`. [`SqliteStore::over`] uses the application's own pool,
//!   and [`provider`] defines the trait to implement for another driver.
//! - **One writer.** Commands of one process that are waiting for the write lock run in one transaction and share its
//!   commit, renewals first. A transaction that the application holds open is a writer too. Other writes wait for it
//!   for up to [`busy_timeout`](Options::busy_timeout), then fail with an error of kind `Busy` and write nothing.
//!   SQLite has no row locks, so no reply is ever `Busy` for a single item.
//! - **Queries do not wait** for writers, nor writers for queries: the journal is a write-ahead log, and queries use
//!   separate connections. Each query sees one committed state.
//! - **Many processes** on one machine may open the file and wake each other ([`SqliteNotifier`]). Do not put the
//!   file on a network file system: SQLite's locks do not work there.
//! - **The clock** is this machine's. Commands that write read it while they hold the write lock.
//! - **The rules are those of the model** ([`windlass_core::model`]), which runs on the rows of this store. A command
//!   reads rows by id, or in the order of an index; its cost does not depend on how many other jobs are stored. Only
//!   reaps, counts and the query for the next due time read all running jobs.
//! - **Scheduled jobs cost nothing**: an acquire scans an index of pending jobs by type, priority and due time, and
//!   reads only the jobs that it returns.
//! - **No reaping right after a stall.** If writes were blocked for at least half a renewal interval, reaps requeue no
//!   job until one full renewal interval has passed, because the owners could not renew their leases either. Only
//!   stalls that this store observed count.
//!
//! # Threads
//!
//! The store's own commands run on tokio's blocking threads, on separate connections. A command inside a transaction of
//! the application runs on the application's connection, on the thread that polls it: it first waits for the write
//! lock, without blocking, and then runs its statements, which takes a few hundred microseconds.
//!
//! # Cancel safety
//!
//! If the future of a command is dropped before the command's group starts, the command is not executed. After that
//! point it is executed in full.
//!
//! If the future of a command inside a transaction is dropped before it completes, the command was executed either in
//! full or not at all.
//!
//! # Limits
//!
//! The limits of [`windlass_core::limit`] apply, and a table prefix has at most [`PREFIX_MAX_BYTES`] bytes. The prefix
//! is the namespace: stores with different prefixes can share a file without seeing each other.
//!
//! # Layout
//!
//! `migrations/` has the steps that create the tables, `schema.sql` the resulting schema, and `sql/` one file per
//! statement.

pub mod provider;

mod notifier;
mod open;
mod options;
mod store;

mod connection;
mod session;
mod sqlx;
mod writer;

mod flush;
mod query;
mod registry;
mod rows;
mod statement;
mod table;

#[cfg(test)]
mod plan_tests;

mod error;
mod health;
mod migrate;
mod views;

#[cfg(feature = "known-bad")]
#[doc(hidden)]
pub mod known_bad;

pub use crate::notifier::SqliteNotifier;
pub use crate::open::{Attempt, Client, Done, ItemAttempt, ItemDone, open};
pub use crate::options::{Options, PREFIX_MAX_BYTES, Synchronous};
pub use crate::sqlx::{ConnectionRef, Sqlx};
pub use crate::store::SqliteStore;
