//! Direct access to the server, without the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use windlass_conformance::Subject;
use windlass_redis::RedisStore;
use windlass_testkit::SharedRedis;

use crate::fixture::{connect, fresh};

/// Returns a store in a fresh namespace and direct access to that namespace.
pub(crate) async fn subject() -> (Subject, Database) {
    let (server, clock, options) = fresh().await;
    let database = Database::open(&server).await;
    let store = Arc::new(RedisStore::open(&server.url(), options).await.unwrap());
    (Subject::new(store.clone(), store, clock).keeping(server), database)
}

/// One namespace on a server.
pub(crate) struct Database {
    pub(crate) connection: MultiplexedConnection,
    namespace: String,
}

impl Database {
    pub(crate) async fn open(server: &SharedRedis) -> Self {
        let connection = connect(server.url()).await;
        Self { connection, namespace: server.namespace().to_owned() }
    }

    /// Returns the full name of a key.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{{windlass:{}}}:{name}", self.namespace)
    }

    /// Returns all stored keys and values, in the server's serialization format.
    pub(crate) async fn dump(&mut self) -> BTreeMap<String, Vec<u8>> {
        let keys: Vec<String> = self.connection.keys(self.key("*")).await.unwrap();
        let mut dump = BTreeMap::new();
        for key in keys {
            let value = redis::cmd("DUMP").arg(&key).query_async(&mut self.connection).await.unwrap();
            dump.insert(key, value);
        }
        dump
    }

    /// Returns the names of all keys.
    pub(crate) async fn names(&mut self) -> Vec<String> {
        self.dump().await.into_keys().collect()
    }
}
