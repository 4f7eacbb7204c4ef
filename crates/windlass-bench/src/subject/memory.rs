use windlass::client::ClientBuilder;
use windlass::{BoxError, Client, MemoryStore};

use super::Subject;
use crate::workload;

/// The memory store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory;

impl Subject for Memory {
    type Store = MemoryStore;

    async fn builder(&mut self) -> Result<ClientBuilder<MemoryStore>, BoxError> {
        Ok(Client::builder(MemoryStore::new()))
    }

    async fn drain_in_transactions(
        &self,
        client: &Client<MemoryStore>,
        jobs: u64,
        slots: u32,
    ) -> Result<(), BoxError> {
        workload::drain_in_transactions(client, jobs, slots).await
    }
}
