use windlass::client::ClientBuilder;
use windlass::redis::{Options, RedisNotifier, RedisStore};
use windlass::{BoxError, Client, Store};
use windlass_testkit::RedisServer;

use super::{ResourceUsage, Subject};
use crate::meter;

/// A private Redis server.
#[derive(Debug)]
pub struct Redis {
    server: RedisServer,
    last: Option<RedisStore>,
    namespaces: u32,
}

impl Redis {
    /// Starts a server that syncs each write to disk before it answers. It does not rewrite its log: that would count as
    /// processor time of the jobs that happen to run meanwhile.
    pub async fn start() -> Self {
        let server = RedisServer::builder()
            .arg("--appendonly", "yes")
            .arg("--appendfsync", "always")
            .arg("--auto-aof-rewrite-percentage", "0");
        Self { server: server.start().await, last: None, namespaces: 0 }
    }

    /// Starts a server that keeps everything in memory only.
    pub async fn start_volatile() -> Self {
        let server = RedisServer::builder().arg("--appendonly", "no").arg("--save", "");
        Self { server: server.start().await, last: None, namespaces: 0 }
    }
}

impl Subject for Redis {
    type Store = RedisStore;

    async fn builder(&mut self) -> Result<ClientBuilder<RedisStore>, BoxError> {
        if let Some(last) = self.last.take() {
            last.erase().await?;
        }
        self.namespaces += 1;
        let options = Options::default().namespace(format!("bench-{}", self.namespaces));
        let notifier = RedisNotifier::open(&self.server.url(), &options).await?;
        self.last = Some(RedisStore::open(&self.server.url(), options.clone()).await?);
        let store = RedisStore::open(&self.server.url(), options).await?;
        Ok(Client::builder(store).notifier(notifier))
    }

    async fn usage(&self) -> Result<ResourceUsage, BoxError> {
        let server_cpu = self.server.pid().map(meter::cpu_time_of_family);
        Ok(ResourceUsage { log_bytes: None, server_cpu })
    }
}
