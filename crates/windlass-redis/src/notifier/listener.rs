use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisResult, Value,
};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{MissedTickBehavior, interval, sleep};
use windlass_core::{Connected, Error, ErrorKind, Result, Topic};

use super::{Live, Shared};
use crate::connection::CONNECT_TIMEOUT;
use crate::error::{for_user, from_driver};
use crate::hint;

/// Delay between connection attempts: initial and maximum. It doubles after each failure.
const RECONNECT_DELAY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Interval between pings, which detect a connection that is dead but not closed.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Response timeout on the listening connection, also for pings.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps the listening connection open.
///
/// In a cluster, all channels of a namespace belong to the shard that holds its keys, so one connection is enough. If
/// the listener connects to another shard, that shard replies with the address of the right one, and the listener
/// reconnects there.
pub(super) struct Listener {
    client: Client,
    shared: Arc<Shared>,
}

/// Subscribed topics by channel name.
type Channels = HashMap<Vec<u8>, Topic>;

impl Listener {
    pub(super) fn new(client: &Client, shared: Arc<Shared>) -> Result<Self> {
        let info = client.get_connection_info().clone();
        // Only RESP3 delivers pub/sub messages and command replies on the same connection.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings)).map_err(from_driver)?;
        Ok(Self { client, shared })
    }

    /// Listens forever. Reconnects whenever the connection is lost.
    pub(super) async fn keep_listening(mut self) {
        let (first, longest) = RECONNECT_DELAY;
        let mut wait = first;
        let mut missed = false;
        loop {
            let error = self.listen(&mut missed, &mut wait).await;
            tracing::debug!(?error, "no listening connection");
            let node = error.as_ref().and_then(RedisError::redirect_node);
            match node.and_then(|(node, _)| self.client_of(node)) {
                // Not a failure: the cluster has replied with the address of the right shard.
                Some(client) => self.client = client,
                None => self.note_failure(error),
            }
            sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    }

    /// Notes why there is no connection. Reports it to subscribers if the server denies access, and logs that once until
    /// the connection is live again.
    fn note_failure(&self, error: Option<RedisError>) {
        let user = self.client.get_connection_info().redis_settings().username();
        let error = match error {
            Some(error) => for_user(error, Some(user.unwrap_or("default"))),
            None => Error::new(
                ErrorKind::Unavailable,
                "the listening connection was lost: it is opened again as soon as the server answers",
            ),
        };
        if error.kind() != ErrorKind::AccessDenied {
            self.shared.live.send_modify(|live| live.failed = Some(error));
            return;
        }
        let text = error.to_string();
        let mut is_first = true;
        self.shared.live.send_modify(|live| is_first = live.denied.replace(error).is_none());
        if is_first {
            tracing::warn!("no listening connection, so workers poll: {text}");
        }
    }

    /// Listens until the connection is lost.
    ///
    /// `missed` becomes true with the first live connection. Every later connection signals a gap, since hints may have
    /// been lost in between. `wait` is reset once the connection is live.
    async fn listen(&self, missed: &mut bool, wait: &mut Duration) -> Option<RedisError> {
        let (pushes, mut pushed) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_push_sender(pushes)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let mut connection = match self.client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => connection,
            Err(error) => return Some(error),
        };
        let mut channels = Channels::new();
        if let Err(error) = self.catch_up(&mut connection, &mut channels).await {
            return Some(error);
        }
        *wait = RECONNECT_DELAY.0;
        if std::mem::replace(missed, true) {
            self.shared.gap();
        }
        let _connected = Connected::new(&self.shared.is_connected);
        self.hear(&mut connection, &mut channels, &mut pushed).await.err()
    }

    /// Delivers hints and applies changes of the topics until the connection is lost.
    async fn hear(
        &self,
        connection: &mut MultiplexedConnection,
        channels: &mut Channels,
        pushed: &mut UnboundedReceiver<PushInfo>,
    ) -> RedisResult<()> {
        let mut ping = interval(PING_INTERVAL);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Handle received pushes before changing subscriptions. Otherwise the confirmation of an earlier
                // unsubscribe could be handled after a new subscription to the same channel, and would look like a lost
                // channel.
                biased;
                push = pushed.recv() => match push {
                    Some(push) if self.take(&push, channels) => {}
                    _ => return Ok(()),
                },
                () = self.shared.changed.notified() => self.catch_up(connection, channels).await?,
                _ = ping.tick() => redis::cmd("PING").exec_async(connection).await?,
            }
        }
    }

    /// Subscribes to added topics and unsubscribes from removed ones.
    async fn catch_up(
        &self,
        connection: &mut MultiplexedConnection,
        channels: &mut Channels,
    ) -> RedisResult<()> {
        let (version, wanted) = {
            let state = self.shared.state();
            let channel = |topic: &Topic| format!("{}:hint:{}", self.shared.tag, hint::channel(topic));
            let wanted = state.topics.keys().map(|topic| (channel(topic).into_bytes(), topic.clone()));
            (state.version, wanted.collect::<Channels>())
        };
        let added: Vec<_> = wanted.keys().filter(|channel| !channels.contains_key(*channel)).collect();
        let dropped: Vec<_> = channels.keys().filter(|channel| !wanted.contains_key(*channel)).collect();
        for (command, list) in [("SSUBSCRIBE", added), ("SUNSUBSCRIBE", dropped)] {
            if !list.is_empty() {
                redis::cmd(command).arg(list).exec_async(connection).await?;
            }
        }
        *channels = wanted;
        self.shared.live.send_replace(Live { version, denied: None, failed: None });
        Ok(())
    }

    /// Handles one push message. Returns false if the connection no longer receives all wanted channels.
    fn take(&self, push: &PushInfo, channels: &Channels) -> bool {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Disconnection, _) => return false,
            // The server unsubscribes a channel when its slot moves to another shard.
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                return !channels.contains_key(channel);
            }
            (PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(message)]) => {
                if let Some(topic) = channels.get(channel) {
                    self.shared.receive(topic, message);
                }
            }
            _ => {}
        }
        true
    }

    /// Returns the same client for another server, given as `host:port`.
    fn client_of(&self, node: &str) -> Option<Client> {
        let (host, port) = node.rsplit_once(':')?;
        let (host, port) = (host.to_owned(), port.parse().ok()?);
        let info = self.client.get_connection_info().clone();
        let address = match info.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(info.set_addr(address).into_connection_info().ok()?).ok()
    }
}
