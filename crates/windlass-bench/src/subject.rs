//! The stores to measure.

mod file;
mod memory;
mod postgres;
mod redis;
mod sqlite;

use std::time::Duration;

use windlass::client::ClientBuilder;
use windlass::{BoxError, Client, Store};

pub use file::{File, Footprint};
pub use memory::Memory;
pub use postgres::Postgres;
pub(crate) use postgres::bare as bare_postgres;
pub use redis::Redis;
pub use sqlite::Sqlite;
pub(crate) use sqlite::bare as bare_sqlite;

/// A store to measure, and bare work on the same database to compare it with.
#[expect(async_fn_in_trait, reason = "its futures stay on the thread that measures")]
pub trait Subject {
    /// The type of the store.
    type Store: Store;

    /// Returns the builder of a client of an empty store.
    async fn builder(&mut self) -> Result<ClientBuilder<Self::Store>, BoxError>;

    /// Returns a client of an empty store.
    async fn open(&mut self) -> Result<Client<Self::Store>, BoxError> {
        Ok(self.builder().await?.build())
    }

    /// Runs a worker until it has completed `jobs` jobs, each in a transaction of its handler.
    ///
    /// # Errors
    /// If the store has no transactions.
    async fn drain_in_transactions(
        &self,
        client: &Client<Self::Store>,
        jobs: u64,
        slots: u32,
    ) -> Result<(), BoxError> {
        let _ = (client, jobs, slots);
        Err("the store has no transactions".into())
    }

    /// Returns the supported kinds of bare work with their names.
    fn bare(&self) -> Vec<(Bare, &'static str)> {
        Vec::new()
    }

    /// Runs bare work on an empty table and returns the time it took.
    ///
    /// # Errors
    /// If the subject does not support this kind.
    async fn run_bare(&mut self, bare: Bare, jobs: u64) -> Result<Duration, BoxError> {
        let _ = jobs;
        Err(format!("this store does not support {bare:?}").into())
    }

    /// Returns the workloads to compare with bare work.
    fn goals(&self) -> Vec<Goal> {
        Vec::new()
    }

    /// Returns the total resource usage of the database so far.
    async fn usage(&self) -> Result<ResourceUsage, BoxError> {
        Ok(ResourceUsage::default())
    }

    /// Returns how many pages an acquire of `jobs` jobs touches, or `None` if the database does not report it. Leaves
    /// the jobs unchanged.
    async fn buffers_per_acquire(
        &self,
        client: &Client<Self::Store>,
        jobs: u32,
    ) -> Option<Result<f64, BoxError>> {
        let _ = (client, jobs);
        None
    }
}

/// Work that a database could do without any guarantees of Windlass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// Inserts one job per commit.
    InsertOne,
    /// Inserts many jobs per commit.
    InsertMany,
    /// Claims many jobs in one commit and completes them in another.
    ClaimMany,
    /// Claims one job in one commit and completes it in another.
    ClaimOne,
}

/// A workload to compare with bare work.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Name of the workload.
    pub workload: &'static str,
    /// The bare work to compare it with.
    pub bare: Bare,
    /// The required ratio, if there is one.
    pub at_least: Option<f64>,
}

/// Resource usage of a database.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceUsage {
    /// Bytes written to its log.
    pub log_bytes: Option<u64>,
    /// CPU time of its processes.
    pub server_cpu: Option<Duration>,
}
