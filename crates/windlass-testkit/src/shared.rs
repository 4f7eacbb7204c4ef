//! One server for all tests of a process.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::OnceCell;

use crate::{PostgresServer, RedisServer};

/// A private namespace on the Redis server that the tests of this process share.
#[derive(Debug)]
pub struct SharedRedis {
    server: &'static RedisServer,
    namespace: String,
}

impl SharedRedis {
    /// Returns the URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Returns a name that is unique in this process.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the server. It cannot be stopped, because other tests use it.
    #[must_use]
    pub fn server(&self) -> &'static RedisServer {
        self.server
    }
}

/// Returns a new namespace on the Redis server of this process. The first call starts the server, which ends with the
/// process.
///
/// # Panics
///
/// Panics if the server cannot be started, as [`RedisServer::start`] does.
pub async fn shared_redis() -> SharedRedis {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    static NAMESPACES: AtomicU64 = AtomicU64::new(1);

    let server = SERVER.get_or_init(RedisServer::start).await;
    let namespace = format!("test-{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
    SharedRedis { server, namespace }
}

/// A private namespace on the PostgreSQL server that the tests of this process share.
#[derive(Debug)]
pub struct SharedPostgres {
    server: &'static PostgresServer,
    namespace: String,
}

impl SharedPostgres {
    /// Returns the URL for clients. All namespaces share one database.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Returns a name that is unique in this process, valid for a schema or database.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the server. It cannot be stopped, because other tests use it.
    #[must_use]
    pub fn server(&self) -> &'static PostgresServer {
        self.server
    }

    /// Creates an empty private database. Returns the URL for clients.
    ///
    /// # Panics
    ///
    /// Panics if it was created before.
    #[must_use]
    pub fn fresh_database(&self) -> String {
        let Self { server, namespace } = self;
        server.query(&format!("CREATE DATABASE {namespace}"));
        server.url_of(namespace)
    }
}

/// Returns a new name on the PostgreSQL server of this process. The first call starts the server, which ends with the
/// process.
///
/// # Panics
///
/// Panics if the server cannot be started, as [`PostgresServer::start`] does.
pub async fn shared_postgres() -> SharedPostgres {
    static SERVER: OnceCell<PostgresServer> = OnceCell::const_new();
    static NAMESPACES: AtomicU64 = AtomicU64::new(1);

    let server = SERVER.get_or_init(PostgresServer::start).await;
    let namespace = format!("test_{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
    SharedPostgres { server, namespace }
}
