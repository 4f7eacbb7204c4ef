//! Connections to a server or cluster.

use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{Client, Cmd, FromRedisValue, Pipeline, RedisFuture, RedisResult, Value};
use windlass_core::Result;

use crate::error::from_driver;

/// How many times the cluster client resends a command after a lost connection or while its slot moves between shards.
const RETRIES: u32 = 8;

/// Timeout of one connection attempt. The driver's default of one second is too short on a loaded machine.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a Redis server or cluster, used to call scripts.
///
/// All variants are cheap to clone, and clones share the underlying connections. A [`ConnectionManager`] and a
/// [`ClusterConnection`] reconnect automatically. A [`MultiplexedConnection`] does not: reconnecting is up to the
/// caller that supplied it.
#[derive(Clone)]
#[non_exhaustive]
pub enum Connection {
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
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response_timeout))
            .set_number_of_retries(2);
        let manager = ConnectionManager::new_with_config(client.clone(), config);
        let mut manager = manager.await.map_err(from_driver)?;
        // If the user may not run `INFO`, assume a standalone server.
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("cluster").query_async(&mut manager).await.unwrap_or_default();
        if !info.lines().any(|line| line == "cluster_enabled:1") {
            return Ok(Self::Manager(manager));
        }
        let nodes = [client.get_connection_info().clone()];
        let cluster = ClusterClient::builder(nodes)
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(response_timeout)
            .retries(RETRIES);
        let cluster = cluster.build().map_err(from_driver)?;
        Ok(Self::Cluster(cluster.get_async_connection().await.map_err(from_driver)?))
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

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
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
            Self::Manager(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Multiplexed(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Manager(connection) => connection.get_db(),
            Self::Multiplexed(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
