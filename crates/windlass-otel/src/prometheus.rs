use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::prometheus::{Registry, TextEncoder};
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// The maximum number of open connections. Further ones wait.
const CONNECTIONS_MAX: usize = 64;

/// How long a connection may take for a request and its answer, including the time since the answer before.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);

/// Exports metrics in the text format of Prometheus, without a collector.
///
/// ```
/// use windlass::otel::{Prometheus, Telemetry};
/// use windlass::{Client, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let prometheus = Prometheus::new()?;
/// let telemetry = Telemetry::new().metrics(prometheus.meter_provider());
/// let client = Client::builder(MemoryStore::new()).observer(telemetry).build();
///
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// tokio::spawn(prometheus.clone().serve(listener, std::future::pending()));
/// # drop(client);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Prometheus {
    registry: Registry,
    provider: SdkMeterProvider,
}

impl Prometheus {
    /// Creates a registry and a meter provider that fills it.
    ///
    /// # Errors
    ///
    /// An error of the SDK.
    pub fn new() -> Result<Self, OTelSdkError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        let exporter = exporter.scope_info_enabled(false).without_target_info().build()?;
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        Ok(Self { registry, provider })
    }

    /// Returns the meter provider, for [`Telemetry::metrics`](crate::Telemetry::metrics) and for the application's own
    /// instruments.
    #[must_use]
    pub const fn meter_provider(&self) -> &SdkMeterProvider {
        &self.provider
    }

    /// Returns all metrics as text, for your own endpoint.
    ///
    /// # Errors
    ///
    /// An error of the encoder.
    pub fn text(&self) -> Result<String, ::prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    /// Serves the metrics at `/metrics` until `shutdown` completes. Keeps at most 64 connections open, and closes a
    /// connection that sends no request for 90 s.
    ///
    /// # Errors
    ///
    /// An error of the listener.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let respond = move || {
            let this = self.clone();
            async move { this.respond() }
        };
        let router = Router::new().route("/metrics", get(respond));
        axum::serve(Bounded::new(listener), router).with_graceful_shutdown(shutdown).await
    }

    /// Binds an address and serves the metrics there in a separate task. Returns the bound address.
    ///
    /// # Errors
    ///
    /// An error of the listener, for example if the address is in use.
    pub async fn listen(
        self,
        address: SocketAddr,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        tokio::spawn(self.serve(listener, shutdown));
        Ok(address)
    }

    fn respond(&self) -> Response {
        match self.text() {
            Ok(text) => ([(CONTENT_TYPE, ::prometheus::TEXT_FORMAT)], text).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}

/// A listener with a bounded number of connections.
struct Bounded {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

impl Bounded {
    fn new(listener: TcpListener) -> Self {
        Self { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let connection = Connection { stream, expires: Box::pin(sleep(CONNECTION_TIMEOUT)), _permit: permit };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails if its client is too slow.
struct Connection {
    stream: TcpStream,
    expires: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Fails if the time is up while the connection waits.
    fn or_expired<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_pending() && self.expires.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        poll
    }
}

impl AsyncRead for Connection {
    /// Does not extend the time: a client that sends a byte a minute must not hold the connection.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.or_expired(context, poll)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        if poll.is_ready() {
            self.expires.as_mut().reset(Instant::now() + CONNECTION_TIMEOUT);
        }
        self.or_expired(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl fmt::Debug for Prometheus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prometheus").finish_non_exhaustive()
    }
}
