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
use windlass_core::{Hint, Result, Topic};

use super::Shared;
use crate::connection::CONNECT_TIMEOUT;
use crate::error::from_driver;
use crate::hint;

/// The times between two attempts to connect: the first, and the longest, to which they double.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How often the server is asked whether it is still there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(5);

/// The connection that listens.
///
/// In a cluster all channels of a namespace belong to the shard that has its keys, so that one connection is enough. A
/// server that is not that shard names it, and is left for it.
pub(super) struct Listener {
    client: Client,
    shared: Arc<Shared>,
}

/// What one connection listens to, by channel.
type Channels = HashMap<Vec<u8>, Topic>;

impl Listener {
    pub(super) fn new(client: &Client, shared: Arc<Shared>) -> Result<Self> {
        let info = client.get_connection_info().clone();
        // Only this protocol brings messages and answers on one connection.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings)).map_err(from_driver)?;
        Ok(Self { client, shared })
    }

    /// Listens, and connects again whenever the connection is lost.
    pub(super) async fn keep_listening(mut self) {
        let (first, longest) = RECONNECT;
        let mut wait = first;
        let mut missed = false;
        loop {
            let error = self.listen(&mut missed, &mut wait).await;
            tracing::debug!(?error, "the listening connection was lost");
            if let Some((node, _)) = error.as_ref().and_then(RedisError::redirect_node)
                && let Some(client) = self.client_of(node)
            {
                self.client = client;
            }
            sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    }

    /// Listens until the connection is lost. `missed` says whether something may have happened unheard since the last.
    async fn listen(&self, missed: &mut bool, wait: &mut Duration) -> Option<RedisError> {
        let (pushes, mut pushed) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_push_sender(pushes)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER));
        let mut connection = match self.client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => connection,
            Err(error) => return Some(error),
        };
        let mut channels = Channels::new();
        if let Err(error) = self.catch_up(&mut connection, &mut channels).await {
            return Some(error);
        }
        *wait = RECONNECT.0;
        if std::mem::replace(missed, true) {
            self.shared.gap();
        }
        self.hear(&mut connection, &mut channels, &mut pushed).await.err()
    }

    /// Hears, and follows changes of the topics, until the connection is lost.
    async fn hear(
        &self,
        connection: &mut MultiplexedConnection,
        channels: &mut Channels,
        pushed: &mut UnboundedReceiver<PushInfo>,
    ) -> RedisResult<()> {
        let mut ping = interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // What was heard comes before what is asked for by now: it may be about channels of the same name.
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

    /// Subscribes to what is asked for by now, and no longer to what is not.
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
        self.shared.live.send_replace(version);
        Ok(())
    }

    /// Hands on what was pushed. Whether the connection still hears what it should.
    fn take(&self, push: &PushInfo, channels: &Channels) -> bool {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Disconnection, _) => return false,
            // The server does so when another one has got the shard.
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                return !channels.contains_key(channel);
            }
            (PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(message)]) => {
                if let Some(topic) = channels.get(channel)
                    && let Some(hint) = Hint::from_message(topic, message)
                {
                    self.shared.deliver(topic, &hint);
                }
            }
            _ => {}
        }
        true
    }

    /// The same client for another server, `host:port`.
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
