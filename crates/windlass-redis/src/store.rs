//! [`RedisStore`]. Each command is implemented in the module of its family.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use redis::{Client, Cmd, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Capability, Clock, Counters, Error, ErrorKind, Finding, InProcessNotifier,
    LazyNotifier, Notifier, Result, Store, for_each_command,
};

use crate::connection::Connection;
use crate::error::from_driver;
use crate::health::Server;
use crate::notifier::RedisNotifier;
use crate::options::{Options, tag};
use crate::permission;
use crate::script::{Answer, Call, Scripts, Text, send};
use crate::wire::Payloads;

/// Capabilities of a [`RedisStore`]: all except transactions and [`Store::create_and_acquire`].
pub const CAPABILITIES: Capabilities = UNORDERED.ordered();

/// Capabilities of a store whose creations wait for replicas, on a connection of their own.
const UNORDERED: Capabilities = Capabilities::CORE
    .with(Capability::Exchange)
    .with(Capability::NextDue)
    .with(Capability::Outside)
    .with(Capability::Cancel)
    .with(Capability::Trigger)
    .with(Capability::Retry)
    .with(Capability::Delete)
    .with(Capability::SetRetention)
    .with(Capability::Pause)
    .with(Capability::Lists)
    .with(Capability::Attempts)
    .with(Capability::Count)
    .with(Capability::Workers)
    .with(Capability::LeaderLock)
    .with(Capability::Schedules)
    // The server runs one script while the worker prepares the next: 12 to 16 % more jobs per second with 100 slots.
    .exchanges_in_flight(2);

/// About how many keys one step of [`erase`](Store::erase) scans.
const ERASE_STEP: usize = 1_000;

/// A store on a Redis or Valkey server. See the [crate documentation](crate).
pub struct RedisStore {
    /// `None` once the store is closed.
    connections: RwLock<Option<Connections>>,
    /// For the notifier's own connections. `None` if the caller supplied a connection.
    client: Option<Client>,
    options: Options,
    /// `WAIT` or `WAITAOF` command to send after each creation.
    wait: Option<Cmd>,
    scripts: Scripts,
    /// Prefix of all keys: the hash tag of the namespace.
    tag: String,
    clock: Option<Arc<dyn Clock>>,
    durability: Durability,
    round_trips: AtomicU64,
    commits: AtomicU64,
}

#[derive(Clone)]
struct Connections {
    connection: Connection,
    /// For creations that wait for replicas. The same as `connection` if there is no separate one.
    durable: Connection,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("tag", &self.tag)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects to a server, or to the cluster it is part of. The URL is `redis://user:password@host:port/database`, or
    /// `rediss://` for TLS. The connection is restored automatically after a failure.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        Self::with_client(&Client::open(url).map_err(from_driver)?, options).await
    }

    /// Connects with the caller's client.
    pub async fn with_client(client: &Client, options: Options) -> Result<Self> {
        let connection = Connection::open(client, options.response_timeout).await?;
        let mut durable = None;
        if options.replicas.is_some() {
            durable = Some(Connection::open(client, options.response_timeout).await?);
        }
        let store = Self::with_connections(connection, durable, options).await?;
        Ok(Self { client: Some(client.clone()), ..store })
    }

    /// Uses the caller's connection. Clients of this store notify only inside their process, unless they are given a
    /// [`RedisNotifier`]: it needs its own connections.
    pub async fn with_connection(connection: impl Into<Connection>, options: Options) -> Result<Self> {
        Self::with_connections(connection.into(), None, options).await
    }

    async fn with_connections(
        mut connection: Connection,
        durable: Option<Connection>,
        options: Options,
    ) -> Result<Self> {
        let tag = tag(&options.namespace)?;
        let server = Server::ask(&mut connection, &tag).await?;
        server.check_version()?;
        if !options.accept_eviction {
            server.check_eviction()?;
        }
        let waits_with = options.replicas.map(|_| server.waits_with());
        permission::check_store(&mut connection, &tag, waits_with).await?;
        check_layout(&mut connection, &tag).await?;
        Ok(Self {
            wait: options.replicas.map(|(replicas, timeout)| server.wait(replicas, timeout)),
            connections: RwLock::new(Some(Connections {
                durable: durable.unwrap_or(connection.clone()),
                connection,
            })),
            scripts: Scripts::new(|_, text| Call::new(text)),
            tag,
            client: None,
            clock: options.clock.clone(),
            options,
            durability: server.durability(),
            round_trips: AtomicU64::new(4),
            commits: AtomicU64::new(0),
        })
    }

    /// Replaces the scripts.
    #[cfg_attr(
        not(feature = "known-bad"),
        expect(dead_code, reason = "correct stores use the scripts unchanged")
    )]
    pub(crate) fn with_scripts(self, scripts: Scripts) -> Self {
        Self { scripts, ..self }
    }

    pub(crate) const fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    /// Time to send to a script, or `None` to use the server's clock.
    pub(crate) fn time(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.now().as_millis())
    }

    /// Calls a script that writes, and counts a commit.
    pub(crate) async fn write<A: Serialize, R: DeserializeOwned>(
        &self,
        call: &Call,
        request: &A,
        payloads: Payloads,
    ) -> Result<R> {
        let reply = self.read(call, request, payloads).await?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(reply)
    }

    /// Calls a script that writes, with flat arguments, and counts a commit.
    pub(crate) async fn write_flat<R: DeserializeOwned>(
        &self,
        call: &Call,
        arguments: Vec<Vec<u8>>,
    ) -> Result<Answer<R>> {
        let answer = self.read_flat(call, arguments).await?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(answer)
    }

    /// Calls a script with flat arguments, and counts a round trip.
    pub(crate) async fn read_flat<R: DeserializeOwned>(
        &self,
        call: &Call,
        arguments: Vec<Vec<u8>>,
    ) -> Result<Answer<R>> {
        let mut connection = self.connections()?.connection;
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        call.run_flat(&mut connection, &self.tag, arguments).await
    }

    /// Calls a script that writes, with these arguments, waits for replicas if configured, and returns the durability
    /// reached.
    pub(crate) async fn write_durably<R: DeserializeOwned>(
        &self,
        call: &Call,
        arguments: Vec<Vec<u8>>,
    ) -> Result<(Answer<R>, Durability)> {
        let Some(wait) = &self.wait else {
            return Ok((self.write_flat(call, arguments).await?, self.durability));
        };
        let mut connection = self.connections()?.durable;
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let (reply, reached) = call.run_with(&mut connection, &self.tag, &arguments, wait).await?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        let durability = match replicas(&reached) {
            0 => self.durability,
            replicas => Durability::Replicated(replicas),
        };
        Ok((reply, durability))
    }

    /// Calls a script and counts a round trip.
    pub(crate) async fn read<A: Serialize, R: DeserializeOwned>(
        &self,
        call: &Call,
        request: &A,
        payloads: Payloads,
    ) -> Result<R> {
        let mut connection = self.connections()?.connection;
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        call.run(&mut connection, &self.tag, request, payloads).await
    }

    fn connections(&self) -> Result<Connections> {
        let connections = self.connections.read().unwrap_or_else(PoisonError::into_inner);
        connections.clone().ok_or_else(|| Error::new(ErrorKind::Closed, "the store is closed: open it again"))
    }

    async fn erase_all(&self) -> Result<()> {
        let mut cursor = "0".to_owned();
        loop {
            let out = EraseOut { cursor, step: ERASE_STEP };
            let reply: EraseIn = self.write(&self.scripts.erase, &out, Payloads::default()).await?;
            if reply.cursor == "0" {
                return Ok(());
            }
            cursor = reply.cursor;
        }
    }
}

/// Returns an error if the namespace has data that another version of this crate has written in another layout.
async fn check_layout(connection: &mut Connection, tag: &str) -> Result<()> {
    let text = concat!(include_str!("../lua/lib/layout.lua"), include_str!("../lua/opening/layout.lua"));
    let found: Vec<String> = send(connection, &Text::new(text), tag, &[]).await?;
    found.first().map_or(Ok(()), |layout| {
        let message = format!(
            "the data of {tag} has layout {layout}, which this version of Windlass cannot read: erase it with the version \
             that wrote it, or use another namespace"
        );
        Err(Error::new(ErrorKind::Incompatible, message))
    })
}

/// Number of replicas in a reply to `WAIT` or `WAITAOF`.
fn replicas(answer: &Value) -> u32 {
    match answer {
        Value::Int(replicas) => u32::try_from(*replicas).unwrap_or_default(),
        Value::Array(values) => values.last().map_or(0, replicas),
        _ => 0,
    }
}

#[derive(Debug, Serialize)]
struct EraseOut {
    cursor: String,
    step: usize,
}

#[derive(Debug, Deserialize)]
struct EraseIn {
    cursor: String,
}

/// A command that can be executed on this store.
pub(crate) trait Execute: Request {
    fn execute(self, store: &RedisStore) -> impl Future<Output = Result<Self::Reply>> + Send;
}

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl Store for RedisStore {
            fn capabilities(&self) -> Capabilities {
                if self.wait.is_some() { UNORDERED } else { CAPABILITIES }
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(request.execute(self))
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(self.erase_all())
            }

            fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
                Box::pin(async {
                    let mut connection = self.connections()?.connection;
                    Ok(Server::ask(&mut connection, &self.tag).await?.findings())
                })
            }

            fn counters(&self) -> Counters {
                Counters {
                    round_trips: self.round_trips.load(Ordering::Relaxed),
                    commits: self.commits.load(Ordering::Relaxed),
                }
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                let Some(client) = self.client.clone() else { return Arc::new(InProcessNotifier::new()) };
                let options = self.options.clone();
                Arc::new(LazyNotifier::new(move || {
                    let (client, options) = (client.clone(), options.clone());
                    Box::pin(async move {
                        let notifier = RedisNotifier::with_client(&client, &options).await?;
                        Ok(Arc::new(notifier) as Arc<dyn Notifier>)
                    })
                }))
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.connections.write().unwrap_or_else(PoisonError::into_inner).take();
                    Ok(())
                })
            }
        }
    };
}
for_each_command!(store);
