//! What the conformance suite cannot know: PostgreSQL's own ways.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "../fixture/mod.rs"]
mod fixture;

mod borrowed;
mod connection;
mod crash;
mod full_disk;
mod isolation;
mod keys;
mod known_bad;
mod ledger;
mod notifier;
mod open;
mod outage;
mod plan;
mod pooler;
mod race;
mod random;
mod schema;
mod settings;
#[cfg(feature = "tls")]
mod tls;
mod warnings;
mod worker;

use std::sync::Arc;

use sqlx::PgPool;
use windlass_conformance::{Fixture, Subject};
use windlass_core::{ManualClock, WorkerId};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::SharedPostgres;

/// The store through sqlx, for the suites.
fn postgres() -> impl Fixture {
    fixture::Postgres {
        name: "postgres",
        connect: |url: String| async move { Sqlx::connect(&url).await.unwrap() },
    }
}

/// A fresh schema with a store on it, and a pool of the test's own.
struct Database {
    server: SharedPostgres,
    options: Options,
    clock: Arc<ManualClock>,
    pool: PgPool,
    store: Arc<PostgresStore<Sqlx>>,
}

impl Database {
    async fn new() -> Self {
        let (server, clock, options) = fixture::fresh().await;
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let store = Arc::new(PostgresStore::open(Sqlx::from(pool.clone()), options.clone()).await.unwrap());
        Self { server, options, clock, pool, store }
    }

    /// The store with the short ways of the suites.
    fn subject(&self) -> Subject {
        let mut subject = Subject::new(self.store.clone(), self.store.clone(), self.clock.clone());
        subject.worker = WorkerId::new();
        subject
    }

    /// A statement of the test's own, with the schema in place of `{}`.
    fn sql(&self, text: &str) -> sqlx::AssertSqlSafe<String> {
        sqlx::AssertSqlSafe(text.replace("{}", self.server.namespace()))
    }
}
