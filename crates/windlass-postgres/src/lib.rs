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
//!   moment for it: 20 ms in what many callers share. No lock order can make a deadlock surface.
//! - **The clock** is the database's at the statement, not at the transaction's start.
//! - **Jobs for later cost nothing**: an acquire goes through an index of pending jobs by type, priority and due time,
//!   and reads only what it takes. Closed jobs are in none of the indexes that workers use.
//! - **Any isolation level.** Commands of the store run at read committed, whatever the default of the database or the
//!   role is. Transactions of the application keep their level; see [`Transactional`](windlass_core::Transactional).
//!
//! # Drivers
//!
//! The store talks to the database through a [`Provider`]: [`Sqlx`] (the feature `sqlx`, on by default), or
//! `TokioPostgres` with deadpool (the feature `tokio-postgres`), or one's own. Its transaction is the one that handlers get.
//!
//! A transaction that the application began with its driver takes commands too, whatever the driver's type for it is: of
//! sqlx a `Transaction` or a connection in one, of tokio-postgres or deadpool a `Transaction` or a client in one.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")]
//! # mod example {
//! # use windlass_core::{Client, Entry, Job};
//! # use windlass_postgres::{PostgresStore, TokioPostgres};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Greet { name: String }
//! # impl Job for Greet { const NAME: &'static str = "greet"; type Output = (); type Next = (); type Blockers = (); }
//! # impl Entry for Greet {}
//! # type Failure = Box<dyn std::error::Error>;
//! async fn sign_up(
//!     database: &mut tokio_postgres::Client,
//!     client: &Client<PostgresStore<TokioPostgres>>,
//!     name: String,
//! ) -> Result<(), Failure> {
//!     let mut tx = database.transaction().await?;
//!     tx.execute("insert into account (name) values ($1)", &[&name]).await?;
//!     let mut inside = client.in_tx(&mut tx);
//!     inside.start(Greet { name }).await?;
//!     inside.announcements().announce_after(tx.commit()).await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! # Encryption
//!
//! The feature `tls` lets [`Sqlx`] connect with TLS (rustls), as `sslmode` and `sslrootcert` in the address say. For
//! tokio-postgres give `TokioPostgres::new` a pool that does, and `TokioPostgres::listening` the same connector.
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
mod session;
mod statement;
mod word;

#[cfg(feature = "sqlx")]
mod sqlx;

#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(feature = "sqlx")]
pub use crate::sqlx::{LentConnection, Sqlx};
#[cfg(feature = "tokio-postgres")]
pub use crate::tokio_postgres::{LentClient, PooledTx, TokioPostgres};
pub use notifier::PostgresNotifier;
pub use provider::{
    BEGIN_READ_COMMITTED, Listener, Parameter, Provider, Row, Statement, from_sqlstate, no_connection,
    pooled, unreachable,
};
pub use store::{NAME_MAX_BYTES, Options, PostgresStore};
