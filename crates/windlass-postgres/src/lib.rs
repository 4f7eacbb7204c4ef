//! The PostgreSQL store of Windlass: job chains that commit with your own transaction.
//!
//! ```no_run
//! # #[cfg(feature = "sqlx")]
//! # async fn example(pool: sqlx::PgPool) -> windlass_core::Result<()> {
//! use windlass_postgres::{Options, PostgresStore, Sqlx};
//!
//! let store = PostgresStore::open(Sqlx::from(pool), Options::default()).await?;
//! # let _ = store; Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! - **One round trip** for each command, whatever the size of its batch: a function in the database does the work, and
//!   the same function works by itself and in a transaction of the application.
//! - **Nobody waits long.** A row that somebody's open transaction has is *busy*: workers skip it, and others wait a
//!   moment for it, at most a second where creators of one key meet. No lock order can make a deadlock surface.
//! - **The clock** is the database's at the statement, not at the transaction's start.
//! - **Jobs for later cost nothing**: an acquire goes through an index of pending jobs by type, priority and due time,
//!   and reads only what it takes. Closed jobs are in none of the indexes that workers use.
//! - **Read committed**, PostgreSQL's default, is the isolation that transactions should have.
//!
//! # Drivers
//!
//! The store talks to the database through a [`Provider`]: [`Sqlx`] (the feature `sqlx`, on by default), or
//! `TokioPostgres` with deadpool (the feature `tokio-postgres`), or one's own. Its transaction is the one that handlers get.
//!
//! # Behind a pooler
//!
//! A pooler that gives each transaction another connection, like PgBouncer in transaction mode, needs
//! [`Options::cached_statements`] turned off, unless it knows of prepared statements. A command through sqlx then takes
//! three round trips in place of one, and the application's own statements in a transaction must not be prepared either
//! (`sqlx::query(…).persistent(false)`). Notifications do not pass: [`PostgresNotifier`] says so once, and workers poll,
//! unless it is given a direct connection.
//!
//! # Limits
//!
//! Those of [`windlass_core::limit`]; a schema name and a table prefix of at most [`NAME_MAX_BYTES`] each. Together they
//! are the namespace. PostgreSQL 13 or later.
//!
//! # Layout
//!
//! `migrations/` has the tables, `functions/` the functions that carry commands out, and `sql/` one statement for each
//! command, which calls its function. `schema.sql` shows what they come to.

mod store;

mod acquire;
mod create;
mod expire;
mod get;
mod health;
mod manage;
mod outside;
mod reap;
mod registry;
mod settle;

mod notifier;

mod hint;
mod migrate;
mod provider;
mod reply;
mod request;
mod statement;
mod word;

#[cfg(feature = "sqlx")]
mod sqlx;

#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(feature = "sqlx")]
pub use crate::sqlx::Sqlx;
#[cfg(feature = "tokio-postgres")]
pub use crate::tokio_postgres::{PooledTx, TokioPostgres};
pub use notifier::PostgresNotifier;
pub use provider::{
    Listener, Parameter, Provider, Row, Statement, from_sqlstate, no_connection, pooled, unreachable,
};
pub use store::{NAME_MAX_BYTES, Options, PostgresStore};
