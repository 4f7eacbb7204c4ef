//! One server for all tests of a process.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::OnceCell;

use crate::{PostgresServer, RedisServer};

/// A place of one's own on the Redis server that the tests of this process share.
#[derive(Debug)]
pub struct SharedRedis {
    server: &'static RedisServer,
    namespace: String,
}

impl SharedRedis {
    /// Where clients connect.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// A name that no other caller in this process got.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The server itself. It cannot be stopped, because others use it.
    #[must_use]
    pub fn server(&self) -> &'static RedisServer {
        self.server
    }
}

/// Gives the caller a namespace of its own on the one server of this process, which the first call
/// starts. The server ends with the process.
///
/// # Panics
///
/// Panics when the server cannot be started, as [`RedisServer::start`] does.
pub async fn shared_redis() -> SharedRedis {
    static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
    static NAMESPACES: AtomicU64 = AtomicU64::new(1);

    let server = SERVER.get_or_init(RedisServer::start).await;
    let namespace = format!("test-{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
    SharedRedis { server, namespace }
}

/// A place of one's own on the PostgreSQL server that the tests of this process share.
#[derive(Debug)]
pub struct SharedPostgres {
    server: &'static PostgresServer,
    namespace: String,
}

impl SharedPostgres {
    /// Where clients connect: one database for all.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// A name that no other caller in this process got, fit for a schema or database.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The server itself. It cannot be stopped, because others use it.
    #[must_use]
    pub fn server(&self) -> &'static PostgresServer {
        self.server
    }

    /// Makes an empty database that is the caller's alone, and returns where clients connect to it.
    ///
    /// # Panics
    ///
    /// Panics when it was made before.
    #[must_use]
    pub fn fresh_database(&self) -> String {
        let Self { server, namespace } = self;
        server.query(&format!("CREATE DATABASE {namespace}"));
        server.url_of(namespace)
    }
}

/// Gives the caller a name of its own on the one PostgreSQL server of this process, which the first call starts. The
/// server ends with the process.
///
/// # Panics
///
/// Panics when the server cannot be started, as [`PostgresServer::start`] does.
pub async fn shared_postgres() -> SharedPostgres {
    static SERVER: OnceCell<PostgresServer> = OnceCell::const_new();
    static NAMESPACES: AtomicU64 = AtomicU64::new(1);

    let server = SERVER.get_or_init(PostgresServer::start).await;
    let namespace = format!("test_{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
    SharedPostgres { server, namespace }
}
