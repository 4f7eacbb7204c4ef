pub(crate) mod bare;

use std::time::Duration;

use tempfile::TempDir;
use windlass::client::ClientBuilder;
use windlass::sqlite::{Options, SqliteStore, Synchronous};
use windlass::{BoxError, Client};

use super::{Bare, Goal, ResourceUsage, Subject};
use crate::{meter, workload};

/// SQLite files in a temporary directory.
#[derive(Debug)]
pub struct Sqlite {
    synchronous: Synchronous,
    directory: TempDir,
    files: u32,
}

impl Sqlite {
    /// Creates the directory. `synchronous` decides when SQLite waits for the disk.
    pub fn new(synchronous: Synchronous) -> Result<Self, BoxError> {
        Ok(Self { synchronous, directory: TempDir::with_prefix("windlass-bench-")?, files: 0 })
    }
}

impl Subject for Sqlite {
    type Store = SqliteStore;

    async fn builder(&mut self) -> Result<ClientBuilder<SqliteStore>, BoxError> {
        self.files += 1;
        let path = self.directory.path().join(format!("{}.db", self.files));
        let options = Options::new(path).synchronous(self.synchronous);
        Ok(Client::builder(SqliteStore::open(options).await?))
    }

    async fn drain_in_transactions(
        &self,
        client: &Client<SqliteStore>,
        jobs: u64,
        slots: u32,
    ) -> Result<(), BoxError> {
        workload::drain_in_transactions(client, jobs, slots).await
    }

    fn bare(&self) -> Vec<(Bare, &'static str)> {
        vec![
            (Bare::InsertOne, "bare: insert one"),
            (Bare::InsertMany, "bare: insert 1,000"),
            (Bare::ClaimMany, "bare: claim and complete 100"),
            (Bare::ClaimOne, "bare: claim and complete one"),
        ]
    }

    async fn run_bare(&mut self, bare: Bare, jobs: u64) -> Result<Duration, BoxError> {
        self.files += 1;
        let path = self.directory.path().join(format!("{}.db", self.files));
        bare::run(&path, self.synchronous, bare, jobs).await
    }

    fn goals(&self) -> Vec<Goal> {
        let full = (self.synchronous == Synchronous::Full).then_some(0.3);
        vec![
            Goal { workload: "start, 16 producers", bare: Bare::InsertOne, at_least: None },
            Goal { workload: "start, batches of 1000", bare: Bare::InsertMany, at_least: None },
            Goal { workload: "drain, 100 slots", bare: Bare::ClaimMany, at_least: full },
            Goal { workload: "drain in transactions, 100 slots", bare: Bare::ClaimOne, at_least: None },
        ]
    }

    async fn usage(&self) -> Result<ResourceUsage, BoxError> {
        // This process writes hardly anything but the WAL and what checkpoints copy from it.
        Ok(ResourceUsage { log_bytes: meter::written_bytes(), server_cpu: None })
    }
}
