//! Notifications over core NATS.

use std::error::Error as _;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{fmt, io};

use async_nats::connection::State;
use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, ServerAddr, Subscriber, ToServerAddrs,
};
use futures_util::StreamExt;
use futures_util::stream::{SelectAll, select_all};
use percent_encoding::percent_decode_str;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use windlass_core::{
    BoxFuture, Error, ErrorKind, Hint, Notifier, Publisher, Reach, Result, Subscription, Topic, TypeName,
};

use crate::budget::Budgets;
use crate::hint;

/// Maximum length of a namespace, in bytes.
pub const NAMESPACE_MAX_BYTES: usize = 64;

/// How long a subscription waits for the server to confirm it.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// How long closing waits for queued hints to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often to check whether the client has reconnected. The check only reads a counter.
const RECONNECT_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Options for opening a [`NatsNotifier`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a notifier is opened with them"]
pub struct Options {
    namespace: String,
    bucket: Option<String>,
}

impl Default for Options {
    /// The namespace `default`, and no wake budget.
    fn default() -> Self {
        Self { namespace: "default".to_owned(), bucket: None }
    }
}

impl Options {
    /// Namespace of the notifications: 1 to 64 characters of `a-z`, `0-9`, `_` and `-`. All subjects begin with
    /// `windlass.<namespace>.`. Default: `default`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Stores wake budgets in this bucket of JetStream's key-value store. Opening creates the bucket if it is missing,
    /// in memory and with a time to live of one minute. If you create it yourself, set a time to live too. Default: no
    /// bucket.
    pub fn bucket(mut self, bucket: impl Into<String>) -> Self {
        self.bucket = Some(bucket.into());
        self
    }
}

/// A notifier between processes that use the same NATS server or cluster. See the [crate docs](crate).
pub struct NatsNotifier {
    client: Client,
    prefix: String,
    budgets: Option<Budgets>,
    /// How often the client has connected, or `None` once the notifier is closed.
    connects: watch::Sender<Option<u64>>,
    watcher: JoinHandle<()>,
}

impl NatsNotifier {
    /// Connects to a server: `nats://user:password@host:port`, `nats://token@host:port`, or `tls://` for TLS. Separate
    /// several servers of a cluster by commas; the credentials of the first one apply.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the URL or the namespace is invalid. [`ErrorKind::AccessDenied`] if the server
    /// refuses the login. [`ErrorKind::Unavailable`] if no server can be reached or the bucket cannot be opened.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        let servers: Vec<_> = url.split(',').map(str::trim).collect();
        let addresses: Vec<_> = servers.to_server_addrs().map_err(|_| unreadable())?.collect();
        let first = addresses.first().ok_or_else(unreadable)?;
        let (login, user) = (login(first), user(first));
        let client = login.connect(addresses).await.map_err(|error| no_connection(error, user))?;
        Self::with_client(client, options).await
    }

    /// Uses an existing client.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the namespace is invalid. [`ErrorKind::Unavailable`] if the bucket cannot be opened.
    pub async fn with_client(client: Client, options: Options) -> Result<Self> {
        check_namespace(&options.namespace)?;
        let budgets = match &options.bucket {
            Some(bucket) => Some(Budgets::open(client.clone(), bucket, options.namespace.clone()).await?),
            None => None,
        };
        let connects = watch::Sender::new(Some(count_connects(&client)));
        let watcher = tokio::spawn(watch_connects(client.clone(), connects.clone()));
        let prefix = format!("windlass.{}.", options.namespace);
        Ok(Self { client, prefix, budgets, connects, watcher })
    }

    fn check_open(&self) -> Result<()> {
        match *self.connects.borrow() {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::Closed, "the notifier is closed: create a new one")),
        }
    }

    fn subject(&self, topic: &Topic) -> String {
        format!("{}{}", self.prefix, hint::subject(topic))
    }

    /// Waits until the server has processed all earlier requests of this connection. It processes them in order, so an
    /// echo to its own inbox arrives after them.
    async fn catch_up(&self) -> Result<()> {
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(unavailable)?;
        self.client.publish(inbox, "".into()).await.map_err(unavailable)?;
        match timeout(CONFIRM_TIMEOUT, answers.next()).await {
            Ok(Some(_)) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                format!("NATS did not answer within {CONFIRM_TIMEOUT:?}: check that the server runs"),
            )),
        }
    }
}

impl Drop for NatsNotifier {
    fn drop(&mut self) {
        self.watcher.abort();
        self.connects.send_replace(None);
    }
}

impl fmt::Debug for NatsNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsNotifier")
            .field("prefix", &self.prefix)
            .field("budgets", &self.budgets.is_some())
            .finish_non_exhaustive()
    }
}

impl Notifier for NatsNotifier {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_open()?;
            if let (Hint::Scheduled { job_type, count, .. }, Some(budgets)) = (&hint, &self.budgets) {
                budgets.grow(job_type, *count).await?;
            }
            let subject = self.subject(&hint.topic());
            self.client.publish(subject, hint.to_message()).await.map_err(unavailable)
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            self.check_open()?;
            if topics.is_empty() {
                let text = "a subscription needs at least one topic, got none";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let mut streams = Vec::with_capacity(topics.len());
            for topic in topics {
                let messages = self.client.subscribe(self.subject(&topic)).await.map_err(unavailable)?;
                streams.push(Messages { topic, messages }.into_hints());
            }
            // The client only queues the subscriptions. They are live once the server has processed them.
            self.catch_up().await?;
            let (end, ended) = oneshot::channel::<()>();
            let (publisher, subscription) = Subscription::new(move || drop(end));
            tokio::spawn(forward(select_all(streams), publisher, ended, self.connects.subscribe()));
            Ok(subscription)
        })
    }

    /// Without budgets, all workers wake.
    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            self.check_open()?;
            match &self.budgets {
                Some(budgets) => budgets.claim(&job_type).await,
                None => Ok(true),
            }
        })
    }

    fn reach(&self) -> Reach {
        match self.client.connection_state() {
            State::Connected => Reach::Everywhere,
            // Only a client of the caller that connects in the background is in this state. It does not expose its
            // errors, so the first attempt cannot be distinguished from those after a failure.
            State::Pending => lost("NATS is not connected yet: check that a server is reachable"),
            State::Disconnected => {
                lost("the connection to NATS was lost: it is opened again as soon as a server answers")
            }
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            self.watcher.abort();
            self.connects.send_replace(None);
            // The client only queues what it publishes. A process may close its notifier right after it has scheduled a
            // job.
            let _ = timeout(CLOSE_TIMEOUT, self.client.flush()).await;
            Ok(())
        })
    }
}

/// The messages of one topic.
struct Messages {
    topic: Topic,
    messages: Subscriber,
}

type Hints = std::pin::Pin<Box<dyn futures_util::Stream<Item = Hint> + Send>>;

impl Messages {
    fn into_hints(self) -> Hints {
        let Self { topic, messages } = self;
        Box::pin(messages.filter_map(move |message| {
            let hint = Hint::from_message(&topic, &message.payload);
            async move { hint }
        }))
    }
}

/// Forwards hints until the subscription ends or the notifier is closed. Signals a gap whenever the client has
/// reconnected, because hints may have been lost in between.
async fn forward(
    mut hints: SelectAll<Hints>,
    publisher: Publisher,
    mut ended: oneshot::Receiver<()>,
    mut connects: watch::Receiver<Option<u64>>,
) {
    loop {
        tokio::select! {
            _ = &mut ended => return,
            changed = connects.changed() => {
                if changed.is_err() || connects.borrow_and_update().is_none() {
                    return;
                }
                publisher.gap();
            }
            hint = hints.next() => match hint {
                Some(hint) => publisher.send(hint),
                None => return,
            },
        }
    }
}

/// Publishes reconnects of the client. Polls the counter, because a client that the caller supplies has no other way to
/// report them.
async fn watch_connects(client: Client, connects: watch::Sender<Option<u64>>) {
    let mut ticks = interval(RECONNECT_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let count = count_connects(&client);
        connects.send_if_modified(|known| match known {
            Some(known) if *known != count => {
                *known = count;
                true
            }
            _ => false,
        });
    }
}

fn count_connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

fn check_namespace(namespace: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    if namespace.is_empty() || namespace.len() > NAMESPACE_MAX_BYTES || !namespace.bytes().all(plain) {
        let text = format!(
            "the namespace {namespace:?} is invalid: use 1 to {NAMESPACE_MAX_BYTES} characters of a-z, 0-9, `_` and `-`"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Returns options with the credentials of an address. The client itself ignores those.
fn login(address: &ServerAddr) -> ConnectOptions {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    match (address.username().map(decoded), address.password().map(decoded)) {
        (Some(user), Some(password)) => ConnectOptions::with_user_and_password(user, password),
        (Some(token), None) => ConnectOptions::with_token(token),
        (None, _) => ConnectOptions::new(),
    }
}

/// Returns the error of an invalid address. The text omits the address, which may contain a password.
fn unreadable() -> Error {
    let text = "the address of the NATS server is invalid: use `nats://user:password@host:port`";
    Error::new(ErrorKind::Invalid, text)
}

/// Whether TLS failed. The client has no error kind for a failed handshake.
fn is_tls(error: &ConnectError) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    error.kind() == ConnectErrorKind::Tls || io.is_some_and(|io| io.kind() == io::ErrorKind::InvalidData)
}

/// Returns the user name of an address, for messages. An address without a password has a token instead, which is
/// secret.
fn user(address: &ServerAddr) -> Option<String> {
    address.password().and(address.username()).map(str::to_owned)
}

/// Returns the error of a failed connect, with a remedy.
fn no_connection(error: ConnectError, user: Option<String>) -> Error {
    let (kind, remedy) = match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            let remedy = match user {
                Some(user) => format!("check the password of user `{user}` in the URL"),
                None => "check the user name and password, or the token, in the URL".to_owned(),
            };
            (ErrorKind::AccessDenied, remedy)
        }
        _ if is_tls(&error) => {
            let remedy = "add the server's certificate to the system's, or pass a client that trusts it";
            (ErrorKind::Unavailable, remedy.to_owned())
        }
        _ => return unavailable(error),
    };
    Error::new(kind, format!("NATS: {error}: {remedy}")).with_inner(error)
}

fn lost(text: &str) -> Reach {
    Reach::Lost(Error::new(ErrorKind::Unavailable, text))
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("NATS: {error}: check that the server is reachable, and try again"),
    )
    .with_inner(error)
}
