//! Serves the router on a socket: limits of connections, TLS and a graceful stop.

mod limits;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::CONNECTIONS_MAX;
use crate::auth::network;
use crate::guard::Peer;
use crate::permits::Permits;
use crate::server::Server;
use limits::{Counted, Requests, WriteTimeout};

/// The time that a client has to send the head of a request, and to begin the next one on an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);

/// The time after which a connection without a request ends. HTTP/2 has no timeout for it: a client that answers pings
/// would keep its connection forever.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that a client may take to read anything at all.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum number of connections from one address. It does not apply to a trusted proxy.
const PER_ADDRESS_MAX: usize = CONNECTIONS_MAX / 4;

/// The time that a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that open requests have to end when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The delay after an error of `accept`, such as too many open files.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// The maximum size of the head of a request, in bytes.
const HEAD_MAX_BYTES: usize = 64 * 1024;

/// The maximum number of headers of a request.
const HEADERS_MAX: usize = 100;

/// A certificate and its private key.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

/// Why a server cannot listen.
#[derive(Debug)]
pub struct ListenError(String);

impl Tls {
    /// Reads a chain of certificates and a private key from PEM files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or if the key does not match the certificate.
    pub fn from_files(certificates: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, ListenError> {
        let (certificates, key) = (certificates.as_ref(), key.as_ref());
        let unreadable = |path: &Path, error: &dyn fmt::Display| {
            ListenError(format!("cannot read `{}`: {error}", path.display()))
        };
        let chain = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unreadable(certificates, &error))?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |error: rustls::Error| {
            ListenError(format!("the certificate in `{}` cannot be used: {error}", certificates.display()))
        };
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(unusable)?.with_no_client_auth();
        let mut config = config.with_single_cert(chain, private).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

impl Server {
    /// Serves the router on a listener, until the token given to [`stop_token`](Self::stop_token) is cancelled. Open
    /// requests then have 10 s to end.
    ///
    /// # Errors
    ///
    /// If the listener accepts connections from other machines and the server has no authentication.
    pub async fn listen(self, listener: TcpListener, tls: Option<Tls>) -> Result<(), ListenError> {
        let address = listener.local_addr().map_err(|error| ListenError(error.to_string()))?;
        check_address(address, self.access.is_authenticated())?;
        if tls.is_none() && self.access.is_authenticated() && !address.ip().to_canonical().is_loopback() {
            tracing::warn!(
                "tokens and sessions on {address} are not encrypted: use TLS, or a proxy on this machine that does"
            );
        }
        let stop = self.stop.clone();
        let per_address = if self.trusts_proxy { CONNECTIONS_MAX } else { PER_ADDRESS_MAX };
        let connections = Connections {
            router: self.router(),
            tls: tls.map(|Tls(config)| TlsAcceptor::from(config)),
            http1: http().http1_only(),
            http2: http().http2_only(),
            addresses: Permits::new("connections", CONNECTIONS_MAX, per_address),
            stop: stop.clone(),
        };
        connections.accept_until(&listener, &stop).await;
        Ok(())
    }
}

/// Refuses an address that other machines can reach, unless callers must prove who they are.
fn check_address(address: SocketAddr, is_authenticated: bool) -> Result<(), ListenError> {
    if is_authenticated || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(ListenError(format!(
        "refusing to listen on {address} without authentication: other machines could change jobs. Create a token, or \
         listen on 127.0.0.1"
    )))
}

/// Returns the address or network whose limit a connection counts against.
fn origin(address: SocketAddr) -> String {
    network(address.ip()).to_string()
}

fn http() -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX_BYTES)
        .max_headers(HEADERS_MAX);
    http.http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(HEAD_MAX_BYTES).unwrap_or(u32::MAX))
        .max_concurrent_streams(100)
        .keep_alive_interval(HEAD_TIMEOUT);
    http
}

struct Connections {
    router: Router,
    tls: Option<TlsAcceptor>,
    // The version is decided before the first byte: by ALPN, and without TLS it is always 1. A builder that reads the
    // version from the first bytes would wait for them without a timeout.
    http1: Builder<TokioExecutor>,
    http2: Builder<TokioExecutor>,
    addresses: Arc<Permits>,
    stop: CancellationToken,
}

impl Connections {
    async fn accept_until(self, listener: &TcpListener, stop: &CancellationToken) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let connections = Arc::new(self);
        while let Some((stream, address, permit)) = stop.run_until_cancelled(next(listener, &permits)).await {
            let network = origin(address);
            let of_address = match connections.addresses.take(&network) {
                Ok(permit) => permit,
                // Once, until all of them are closed: anyone can open more connections than there is room for in a log.
                Err(refused) if refused.is_first => {
                    tracing::warn!(%network, "too many connections from one address or network: more are closed");
                    continue;
                }
                Err(_) => {
                    tracing::debug!(%address, "the address has too many connections");
                    continue;
                }
            };
            let connections = Arc::clone(&connections);
            tokio::spawn(async move {
                connections.handle(stream, address).await;
                drop((of_address, permit));
            });
        }
        // Every connection has a permit until it has ended.
        let all = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX);
        if timeout(STOP_TIMEOUT, permits.acquire_many(all)).await.is_err() {
            tracing::warn!("some requests had not ended after {STOP_TIMEOUT:?}");
        }
    }

    async fn handle(&self, stream: TcpStream, address: SocketAddr) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return self.serve(stream, Peer { address, is_tls: false }, &self.http1).await;
        };
        match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let http = if is_http2 { &self.http2 } else { &self.http1 };
                self.serve(stream, Peer { address, is_tls: true }, http).await;
            }
            Ok(Err(error)) => tracing::debug!(%address, "the TLS handshake failed: {error}"),
            Err(_) => tracing::debug!(%address, "the TLS handshake timed out"),
        }
    }

    async fn serve<S>(&self, stream: S, peer: Peer, http: &Builder<TokioExecutor>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (router, requests) = (self.router.clone(), Requests::new());
        let counted = requests.clone();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let (router, open) = (TowerToHyperService::new(router.clone()), counted.open());
            async move {
                let response = hyper::service::Service::call(&router, request).await?;
                Ok::<_, Infallible>(response.map(|body| Counted { body, _open: open }))
            }
        });
        let stream = TokioIo::new(WriteTimeout::new(stream, requests.clone(), WRITE_TIMEOUT));
        let mut connection = pin!(http.serve_connection(stream, service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = requests.idle(IDLE_TIMEOUT) => None,
            () = self.stop.cancelled() => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                match timeout(STOP_TIMEOUT, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return tracing::debug!(address = %peer.address, "the connection was closed"),
                }
            }
        };
        if let Err(error) = ended {
            // A head that cannot be read, is too large or arrives too slowly is a request that was refused. An idle
            // connection times out as well, and that is not.
            let error_of_http = error.downcast_ref::<hyper::Error>();
            let is_slow = |error: &hyper::Error| error.is_timeout() && requests.has_part();
            if error_of_http.is_some_and(|error| error.is_parse() || is_slow(error)) {
                tracing::warn!(remote = %peer.address.ip(), "request refused: {error}");
            } else {
                tracing::debug!(address = %peer.address, "the connection failed: {error}");
            }
        }
    }
}

/// Waits for a free permit and a connection.
async fn next(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, Option<OwnedSemaphorePermit>) {
    let permit = Arc::clone(permits).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, address)) => return (stream, address, permit),
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::error!("cannot accept connections: {error}");
                sleep(ACCEPT_DELAY).await;
            }
        }
    }
}

/// Whether an error of `accept` concerns only the connection that failed.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ListenError {}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use windlass_testkit::logs::Warnings;

    use super::*;

    #[test]
    fn connections_of_one_network_count_together() {
        let of = |address: &str| origin(address.parse().unwrap());
        assert_eq!(of("[2001:db8::1]:80"), of("[2001:db8::ffff:1]:81"));
        assert_ne!(of("[2001:db8::1]:80"), of("[2001:db8:0:1::1]:80"));
        assert_eq!(of("[::ffff:192.0.2.1]:80"), of("192.0.2.1:81"));
        assert_ne!(of("192.0.2.1:80"), of("192.0.2.2:80"));
    }

    #[tokio::test]
    async fn a_network_that_reaches_its_limit_has_one_warning() {
        let (warnings, stop) = (Warnings::capture("windlass_server"), CancellationToken::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Connections {
            router: Router::new(),
            tls: None,
            http1: http().http1_only(),
            http2: http().http2_only(),
            addresses: Permits::new("connections", 10, 2),
            stop: stop.clone(),
        };
        let token = stop.clone();
        let running = tokio::spawn(async move { connections.accept_until(&listener, &token).await });
        let connect = || TcpStream::connect(address);
        let _open = (connect().await.unwrap(), connect().await.unwrap());
        for _ in 0..3 {
            let mut refused = connect().await.unwrap();
            assert_eq!(refused.read(&mut [0]).await.unwrap_or_default(), 0, "it is closed at once");
        }
        let lines = warnings.take();
        assert!(lines.len() == 1 && lines[0].contains("network=127.0.0.1"), "{lines:?}");
        stop.cancel();
        running.await.unwrap();
    }

    #[test]
    fn only_loopback_is_allowed_without_authentication() {
        for address in ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert!(check_address(address.parse().unwrap(), false).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80"] {
            assert!(check_address(address.parse().unwrap(), false).is_err(), "{address}");
            assert!(check_address(address.parse().unwrap(), true).is_ok(), "{address}");
        }
    }
}
