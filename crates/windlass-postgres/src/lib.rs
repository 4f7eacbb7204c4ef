//! Windlass store and notifier for PostgreSQL. Job chains commit in your own transaction.
//!
//! ```no_run
//! # #[cfg(feature = "sqlx")]
//! # async fn example(pool: sqlx::PgPool) -> windlass::Result<()> {
//! use windlass::postgres::{self, Options, PostgresStore, Sqlx};
//!
//! let store = postgres::open(pool.clone()).await?; // on the application's own pool
//! let store = postgres::connect("postgres://jobs@localhost/shop").await?;
//!
//! // With options.
//! let store = PostgresStore::open(Sqlx::from(pool), Options::default().schema("jobs")).await?;
//! # let _ = store; Ok(())
//! # }
//! ```
//!
//! # Properties
//!
//! - **One round trip** per command, whatever the size of its batch. A function in the database does the work. The same
//!   function runs alone or in a transaction of the application.
//! - **Short waits.** A row that another open transaction has locked is *busy*. Workers skip it, and other commands
//!   wait for it briefly: 20 ms in commands that many callers share. Callers never see a deadlock, whatever the lock
//!   order.
//! - **Clock.** Time is the database's clock when the statement runs, not when the transaction began.
//! - **Scheduled jobs cost nothing.** An acquire uses an index of pending jobs by type, priority and due time, and
//!   reads only the jobs it takes. Closed jobs are in none of the indexes that workers use.
//! - **Any isolation level.** The store's own commands run at read committed, whatever the default of the database or
//!   the role is. Transactions of the application keep their level; see
//!   [`Transactional`](windlass_core::Transactional).
//!
//! # Drivers
//!
//! The store connects through a [`Provider`]: [`Sqlx`] (feature `sqlx`, on by default), `TokioPostgres` with deadpool
//! (feature `tokio-postgres`), or your own. In a transaction of Windlass, `tx()` returns the connection for your own
//! statements: a `&mut PgConnection` with sqlx, a `ClientRef` with tokio-postgres.
//!
//! tokio-postgres parses and executes a statement in one round trip. By default, the store keeps no statements prepared
//! with it. If [`Options::cached_statements`] is on, the server saves about 60 µs per command.
//!
//! Commands also run in a transaction that the application began with its driver, whatever its type: with sqlx, a
//! `Transaction` or a connection inside one; with tokio-postgres or deadpool, a `Transaction` or a client inside one.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")]
//! # mod example {
//! # use windlass::{Client, Entry, Job};
//! # use windlass::postgres::{PostgresStore, TokioPostgres};
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
//!     client.in_tx(&mut tx).start(Greet { name }).await?;
//!     tx.commit().await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! # Encryption
//!
//! With the feature `tls`, [`Sqlx`] connects with TLS (rustls), configured by `sslmode` and `sslrootcert` in the URL.
//! For tokio-postgres, pass a pool that uses TLS to `TokioPostgres::new`, and the same connector.
//!
//! # Behind a pooler
//!
//! The store also works behind a pooler that assigns a server connection per transaction, such as PgBouncer in
//! transaction mode. When it is opened, it checks whether its connections reach the server directly, and keeps
//! statements prepared only then. Behind a pooler, a command through sqlx takes four round trips instead of one. If the
//! pooler supports prepared statements, turn [`Options::cached_statements`] on.
//!
//! The application's own statements must not be prepared either: run them in a transaction, with
//! `sqlx::query(…).persistent(false)` or tokio-postgres's `query_typed`. Your own pool must not send
//! `extra_float_digits`, which PgBouncer refuses (`PgConnectOptions::extra_float_digits(None)`).
//!
//! Notifications of other processes do not pass through such a pooler. [`PostgresNotifier`] logs this once, and workers
//! poll. To be notified, pass the client a notifier that connects directly to the server.
//!
//! # Limits
//!
//! - The limits in [`windlass_core::limit`].
//! - A schema name and a table prefix have at most [`NAME_MAX_BYTES`] each. Together they are the namespace.
//! - PostgreSQL 13 or later. The tests run on 13, 15 and 18.
//!
//! # Layout
//!
//! `migrations/` defines the tables, and `functions/` the functions that execute commands. `sql/` has one statement per
//! command, which calls its function. `schema.sql` shows the resulting schema. The views in `migrations/002_views.sql` are
//! for people who read the tables.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod options;
mod store;

mod acquire;
mod create;
mod expire;
mod floors;
mod get;
mod health;
mod list;
mod maintenance;
mod manage;
mod outside;
mod reap;
mod registry;
mod schedule;
mod settle;

mod notifier;

mod enum_text;
mod error;
mod hint;
mod migrate;
mod provider;
mod reply;
mod request;
mod settings;
mod statement;

#[cfg(feature = "sqlx")]
mod open;
#[cfg(feature = "sqlx")]
mod sqlx;

#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(feature = "sqlx")]
pub use crate::open::{Attempt, Client, Done, ItemAttempt, ItemDone, connect, open};
#[cfg(feature = "sqlx")]
pub use crate::sqlx::{ConnectionRef, Sqlx};
#[cfg(feature = "tokio-postgres")]
pub use crate::tokio_postgres::{ClientRef, PooledTx, TokioPostgres};
pub use notifier::PostgresNotifier;
pub use options::{NAME_MAX_BYTES, Options};
pub use provider::Provider;
pub use store::PostgresStore;

/// For implementations of [`Provider`] on another driver: its types, and the errors that a store expects.
pub mod driver {
    pub use crate::error::{from_sqlstate, no_connection, pooled, unreachable};
    pub use crate::provider::{BEGIN_READ_COMMITTED, JobColumns, Listener, Parameter, Row, Statement};
}
