//! Tests of behavior that is specific to SQLite.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod again;
mod atomic;
mod crash;
mod differential;
mod events;
mod expire;
mod fixture;
mod health;
mod lock;
mod open;
mod process;
mod race;
mod schema;
mod stop;
mod transaction;
mod trouble;
mod views;

#[cfg(feature = "known-bad")]
mod known_bad;

use std::path::PathBuf;
use std::sync::Arc;

use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use windlass_core::command::{Acquire, Acquired, Create, Created, NewChain, NewJob, Quota};
use windlass_core::{ChainId, ManualClock, Millis, Payload, RequestId, Store, TypeName, WorkerId};
use windlass_sqlite::{Options, SqliteStore};

/// A database file in its own directory, with a manual clock.
struct File {
    directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl File {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), clock: Arc::new(ManualClock::default()) }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("jobs.db")
    }

    fn options(&self) -> Options {
        Options::new(self.path()).clock(self.clock.clone())
    }

    async fn open(&self) -> SqliteStore {
        SqliteStore::open(self.options()).await.unwrap()
    }

    /// Opens a connection that is independent of the store.
    async fn connect(&self) -> SqliteConnection {
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(self.path())).await.unwrap()
    }
}

fn new_chain() -> NewChain {
    NewChain::new(ChainId::new(), NewJob::new(TypeName::new("t").unwrap(), Payload::json("1").unwrap()))
}

async fn start(store: &dyn Store, chains: Vec<NewChain>) -> Vec<Created> {
    store.create(Create { chains }).await.unwrap().chains
}

fn acquire(max: u32) -> Acquire {
    let quota = Quota { job_type: TypeName::new("t").unwrap(), max, lease: Millis::from_secs(60) };
    Acquire { request: RequestId::new(), worker: WorkerId::new(), worker_name: None, types: vec![quota], max }
}

async fn take(store: &dyn Store, max: u32) -> Vec<Acquired> {
    store.acquire(acquire(max)).await.unwrap().jobs
}
