//! The SQLite store of Windlass: durable job chains in one file.
//!
//! ```no_run
//! # async fn example() -> windlass_core::Result<()> {
//! use windlass_sqlite::{Options, SqliteStore};
//!
//! let store = SqliteStore::open(Options::new("jobs.db")).await?;
//! # let _ = store; Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! - **Durable.** A command is acknowledged when SQLite has synced its commit to the disk; with
//!   [`Synchronous::Normal`] the latest commits may be lost with the machine's power, though never with the process, and
//!   the reply to a creation says so.
//! - **Transactions** are the driver's own: `client.begin()` gives one of sqlx, begun with `begin immediate`, for the
//!   application's rows and its jobs together. [`SqliteStore::over`] takes the application's own pool, and
//!   [`provider`] has what it takes to bring another driver.
//! - **One writer.** Commands of one process that wait for the writer are carried out in one transaction and share its
//!   commit, renewals first. An open transaction is a writer too: other writes wait for its end, for up to
//!   [`busy_timeout`](Options::busy_timeout), and then fail with an error of kind `Busy` and nothing written. No row is
//!   ever locked alone, so that no reply is `Busy` for one item.
//! - **Look-ups do not wait** for writers, nor writers for them: the journal is a write-ahead log, and look-ups have connections of
//!   their own. Each sees one committed state.
//! - **Many processes** on one machine may have the file open, and wake each other by [`SqliteNotifier`]. A network file
//!   system is no place for it: SQLite's locks do not hold there.
//! - **The clock** is this machine's, read under the write lock.
//! - **A fixed number of statements** for each command, whatever the size of its batch. Whole sets go in as one JSON
//!   parameter, payloads beside them as one blob.
//! - **Jobs for later cost nothing**: an acquire goes through an index of pending jobs by type, priority and due
//!   time, and reads only what it takes.
//! - **A reap after a long wait** for the writer leaves owners one renewal interval: whoever held it kept them from
//!   renewing too. A wait counts if it took half of that interval, and this store met it.
//!
//! # Cancel safety
//!
//! A command that is dropped before its turn is not carried out; later it is, whole. One that is dropped half-way in a
//! transaction is taken back by the next call of the store with that transaction, its commit among them: commit by the
//! client, not by the driver, after that.
//!
//! # Limits
//!
//! Those of [`windlass_core::limit`], and a table prefix of at most [`PREFIX_MAX_BYTES`]. The prefix is the namespace: stores
//! with different prefixes share a file without seeing each other.
//!
//! The statements need SQLite 3.45 or later; the one that is built in is newer.
//!
//! # Layout
//!
//! `migrations/` has the steps that make the tables, `schema.sql` what they come to, and `sql/` one file for each
//! statement.

pub mod provider;

mod notifier;
mod options;
mod store;

mod acquire;
mod create;
mod delete;
mod expire;
mod get;
mod health;
mod list;
mod manage;
mod outside;
mod registry;
mod retry;
mod settle;

mod ripple;
mod working;
mod write;

mod array;
mod migrate;
mod row;
mod session;
mod sqlx;
mod stall;
mod statement;
mod writer;

#[cfg(feature = "known-bad")]
#[doc(hidden)]
pub mod known_bad;

#[cfg(test)]
mod plan_tests;

pub use crate::notifier::SqliteNotifier;
pub use crate::options::{Options, PREFIX_MAX_BYTES, Synchronous};
pub use crate::sqlx::Sqlx;
pub use crate::store::SqliteStore;
