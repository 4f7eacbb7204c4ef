//! The stores that are measured.

mod memory;
mod postgres;
mod redis;
mod sqlite;

use std::time::Duration;

use windlass::{BoxError, Client, Store};

pub use memory::Memory;
pub use postgres::Postgres;
pub use redis::Redis;
pub use sqlite::Sqlite;

/// A store that is measured, and beside it the least that the same database could do the work with.
#[expect(async_fn_in_trait, reason = "its futures stay on the thread that measures")]
pub trait Subject {
    /// The store.
    type Store: Store;

    /// A client of an empty store.
    async fn open(&mut self) -> Result<Client<Self::Store>, BoxError>;

    /// Runs a worker until it has completed so many jobs, each in a transaction of its handler.
    async fn work_off_in_transactions(
        &self,
        client: &Client<Self::Store>,
        jobs: u64,
        slots: u32,
    ) -> Result<(), BoxError> {
        let _ = (client, jobs, slots);
        Err("the store has no transactions".into())
    }

    /// The bare work, each with its name.
    fn bare(&self) -> Vec<(Bare, &'static str)> {
        Vec::new()
    }

    /// Does bare work on an empty table, and says how long it took.
    async fn run_bare(&mut self, bare: Bare, jobs: u64) -> Result<Duration, BoxError> {
        let _ = jobs;
        Err(format!("{bare:?} is not known here").into())
    }

    /// The workloads that are compared with bare work.
    fn goals(&self) -> Vec<Goal> {
        Vec::new()
    }

    /// What the database has taken so far.
    async fn taken(&self) -> Result<Taken, BoxError> {
        Ok(Taken::default())
    }

    /// How many pages one acquire of so many jobs touches; none where that is not told. The jobs stay as they are.
    async fn buffers_per_acquire(
        &self,
        client: &Client<Self::Store>,
        jobs: u32,
    ) -> Option<Result<f64, BoxError>> {
        let _ = (client, jobs);
        None
    }
}

/// Work without any of what Windlass promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// Each job is a commit.
    InsertOne,
    /// Many jobs are a commit.
    InsertMany,
    /// Many jobs are claimed by a commit, and completed by another.
    ClaimMany,
    /// Each job is claimed by a commit, and completed by another.
    ClaimOne,
}

/// A workload that is compared with bare work.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The workload's name.
    pub workload: &'static str,
    /// What it is compared with.
    pub bare: Bare,
    /// The ratio to reach, if one is said.
    pub at_least: Option<f64>,
}

/// What a database has taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// The bytes in its log.
    pub log_bytes: Option<u64>,
    /// The processor time of its processes.
    pub server_cpu: Option<Duration>,
}
