//! Tests of PostgreSQL specifics that the conformance suite does not cover.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "../fixture/mod.rs"]
mod fixture;

mod access;
mod borrowed;
mod connection;
mod crash;
mod full_disk;
mod hot;
mod isolation;
mod keys;
mod known_bad;
mod ledger;
mod maintenance;
mod notified;
mod notifier;
mod open;
mod outage;
mod plan;
mod pooler;
mod race;
mod random;
mod roles;
mod schedules;
mod schema;
mod settings;
#[cfg(feature = "tls")]
mod tls;
mod views;
mod worker;

use std::sync::Arc;

use sqlx::PgPool;
use windlass_conformance::{Fixture, Subject};
use windlass_core::{ManualClock, WorkerId};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::SharedPostgres;

/// Returns the fixture of the store through sqlx.
fn postgres() -> impl Fixture {
    fixture::Postgres {
        name: "postgres",
        connect: |url: String| async move { Sqlx::connect(&url).await.unwrap() },
    }
}

/// A fresh schema with a store, and a separate pool for the test.
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

    /// Returns the store with the helpers of the conformance suite.
    fn subject(&self) -> Subject {
        let mut subject = Subject::new(self.store.clone(), self.store.clone(), self.clock.clone());
        subject.worker = WorkerId::new();
        subject
    }

    /// Returns a statement with `{}` replaced by the schema.
    fn sql(&self, text: &str) -> sqlx::AssertSqlSafe<String> {
        sqlx::AssertSqlSafe(text.replace("{}", self.server.namespace()))
    }
}
