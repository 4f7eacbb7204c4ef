//! Connections to a server or cluster.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisError, RedisFuture, RedisResult, Value,
};
use windlass_core::{Error, Result};

use crate::error::{for_user, is_from_replica, is_refused, is_refused_login};

/// How many times the cluster client resends a command after a lost connection or while its slot moves between shards.
const RETRIES: u32 = 8;

/// Timeout of one connection attempt. The driver's default of one second is too short on a loaded machine.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a Redis server or cluster, used to call scripts.
///
/// All variants are cheap to clone, and clones share the underlying connections. A [`ConnectionManager`] and a
/// [`ClusterConnection`] reconnect automatically. A [`MultiplexedConnection`] does not: reconnecting is up to the
/// caller that supplied it. A [`ConnectionManager`] does not reconnect after the server refused its connection once; a
/// connection that the store opens from a URL or a client does.
#[derive(Clone)]
#[non_exhaustive]
pub enum Connection {
    /// A connection that the store has opened. It reconnects automatically, also after the server refused it.
    Client(Box<ClientConnection>),
    /// A connection that reconnects automatically.
    Manager(ConnectionManager),
    /// A connection that does not reconnect.
    Multiplexed(MultiplexedConnection),
    /// Connections to the shards of a cluster.
    Cluster(ClusterConnection),
}

impl Connection {
    /// Connects to a server, or to the whole cluster if the server is part of one.
    pub(crate) async fn open(client: &Client, response_timeout: Duration) -> Result<Self> {
        let denied = |error| for_user(error, Some(user(client)));
        // A connection manager retries every error, even a refused login. Log in once without it.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response_timeout));
        if let Err(error) = client.get_multiplexed_async_connection_with_config(&config).await
            && is_refused_login(&error)
        {
            return Err(denied(error));
        }
        let connection = ClientConnection::open(client, response_timeout).await.map_err(denied)?;
        let mut connection = Self::Client(Box::new(connection));
        // If the user may not run `INFO`, assume a standalone server.
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("cluster").query_async(&mut connection).await.unwrap_or_default();
        if !info.lines().any(|line| line == "cluster_enabled:1") {
            return Ok(connection);
        }
        let nodes = [client.get_connection_info().clone()];
        let cluster = ClusterClient::builder(nodes)
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(response_timeout)
            .retries(RETRIES);
        let cluster = cluster.build().map_err(denied)?;
        Ok(Self::Cluster(cluster.get_async_connection().await.map_err(denied)?))
    }

    /// Converts an error of this connection.
    pub(crate) fn error(&self, error: RedisError) -> Error {
        for_user(error, self.user())
    }

    /// Returns the user name, if it is known.
    pub(crate) fn user(&self) -> Option<&str> {
        match self {
            Self::Client(connection) => Some(user(&connection.client)),
            _ => None,
        }
    }

    /// Sends a command without keys to the server that holds the keys of `tag`.
    pub(crate) async fn ask<T: FromRedisValue>(&mut self, command: &Cmd, tag: &str) -> RedisResult<T> {
        let Self::Cluster(cluster) = self else { return command.query_async(self).await };
        let mut key_slot = redis::cmd("CLUSTER");
        key_slot.arg("KEYSLOT").arg(tag);
        let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let slot = u16::from_redis_value(cluster.route_command(key_slot, anywhere).await?)?;
        let primary = SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master));
        let answer = cluster.route_command(command.clone(), RoutingInfo::SingleNode(primary)).await?;
        Ok(T::from_redis_value(answer)?)
    }
}

/// A connection that the store has opened from a client.
///
/// The driver's connection manager keeps the error of a refused connection for good, unless it is an I/O error: a wrong
/// password, a forbidden `SELECT`, too many clients. This connection then replaces the manager, so that the next command
/// connects again: credentials and limits may change while the store is open.
///
/// It does the same when the server turns out to be a replica. After a failover the address may lead to the new primary,
/// but an open connection stays with the old server.
#[derive(Clone)]
pub struct ClientConnection {
    client: Client,
    config: ConnectionManagerConfig,
    current: Arc<Mutex<Current>>,
}

struct Current {
    manager: ConnectionManager,
    /// Incremented when the manager is replaced.
    generation: u64,
}

impl ClientConnection {
    async fn open(client: &Client, response_timeout: Duration) -> RedisResult<Self> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response_timeout))
            .set_number_of_retries(2);
        let manager = ConnectionManager::new_with_config(client.clone(), config.clone()).await?;
        let current = Arc::new(Mutex::new(Current { manager, generation: 0 }));
        Ok(Self { client: client.clone(), config, current })
    }

    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let (mut manager, generation) = self.current();
        let reply = manager.send_packed_command(command).await;
        let reconnect = match &reply {
            Ok(value) => is_from_replica(value),
            Err(error) => is_refused(error),
        };
        if reconnect {
            self.reconnect(generation)?;
        }
        reply
    }

    async fn send_all(&self, pipeline: &Pipeline, offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let (mut manager, generation) = self.current();
        let replies = manager.send_packed_commands(pipeline, offset, count).await;
        let reconnect = match &replies {
            Ok(values) => values.iter().any(is_from_replica),
            Err(error) => is_refused(error),
        };
        if reconnect {
            self.reconnect(generation)?;
        }
        replies
    }

    fn current(&self) -> (ConnectionManager, u64) {
        let current = self.lock();
        (current.manager.clone(), current.generation)
    }

    /// Replaces the manager, so that the next command uses a new connection. Commands that are waiting for their
    /// replies get them on the old one, which closes after the last of them.
    fn reconnect(&self, generation: u64) -> RedisResult<()> {
        let mut current = self.lock();
        // Another command may have replaced it already.
        if current.generation == generation {
            current.manager =
                ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone())?;
            current.generation += 1;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Safe to ignore poisoning: no code panics in the middle of a change under this lock.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnection").finish_non_exhaustive()
    }
}

/// Returns the user name that a client logs in with.
fn user(client: &Client) -> &str {
    client.get_connection_info().redis_settings().username().unwrap_or("default")
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client(_) => "Connection::Client",
            Self::Manager(_) => "Connection::Manager",
            Self::Multiplexed(_) => "Connection::Multiplexed",
            Self::Cluster(_) => "Connection::Cluster",
        })
    }
}

impl From<ConnectionManager> for Connection {
    fn from(connection: ConnectionManager) -> Self {
        Self::Manager(connection)
    }
}

impl From<MultiplexedConnection> for Connection {
    fn from(connection: MultiplexedConnection) -> Self {
        Self::Multiplexed(connection)
    }
}

impl From<ClusterConnection> for Connection {
    fn from(connection: ClusterConnection) -> Self {
        Self::Cluster(connection)
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Client(connection) => Box::pin(connection.send(command)),
            Self::Manager(connection) => connection.req_packed_command(command),
            Self::Multiplexed(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Client(connection) => Box::pin(connection.send_all(pipeline, offset, count)),
            Self::Manager(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Multiplexed(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Client(connection) => connection.client.get_connection_info().redis_settings().db(),
            Self::Manager(connection) => connection.get_db(),
            Self::Multiplexed(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
