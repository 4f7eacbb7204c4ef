//! The server on a socket.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use windlass_core::{Client, MemoryStore};
use windlass_server::{Access, AuditLog, Server, Tls};

use crate::harness::LIMIT;

pub(crate) fn server(stop: &CancellationToken) -> Server {
    let client = Client::new(MemoryStore::new()).into_dyn();
    let server =
        Server::new(client, Access::without_authentication()).audit(AuditLog::writer(std::io::sink()));
    server.stop_token(stop.clone())
}

/// Sends a request and returns everything until the server closes the connection.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    // A reset after the answer is as good as an end.
    let _ = timeout(LIMIT, reading).await.expect("the connection ends");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn the_server_answers_and_stops_gracefully() {
    let stop = CancellationToken::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let running = tokio::spawn(server(&stop).listen(listener, None));
    let get = "GET /api/v1/types HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let answer = exchange(address, get).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let rebound = exchange(address, &get.replace("localhost", "evil.example.com")).await;
    assert!(rebound.starts_with("HTTP/1.1 421"), "{rebound}");
    // A header that tries to smuggle another one, two lengths, a bad version, and too many headers.
    let smuggled =
        exchange(address, "GET /api/v1/types HTTP/1.1\r\nhost: localhost\r\nx: a\rb: c\r\n\r\n").await;
    assert!(smuggled.starts_with("HTTP/1.1 400"), "{smuggled}");
    let lengths =
        "POST /api/v1/chains HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}";
    assert!(exchange(address, lengths).await.starts_with("HTTP/1.1 400"));
    let headers = "x: y\r\n".repeat(200);
    let many = format!("GET /api/v1/types HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    assert!(exchange(address, &many).await.starts_with("HTTP/1.1 431"));
    let long = format!("GET /api/v1/types?type={} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(100_000));
    let long = exchange(address, &long).await;
    assert!(long.starts_with("HTTP/1.1 414") || long.starts_with("HTTP/1.1 431"), "{long}");
    // An open stream ends when the server stops.
    let events = "GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut streaming = TcpStream::connect(address).await.unwrap();
    streaming.write_all(events.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    streaming.read_exact(&mut head).await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /api/v1/types HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    stop.cancel();
    timeout(Duration::from_secs(9), running).await.expect("it stops in time").unwrap().unwrap();
    let mut streamed = String::new();
    streaming.read_to_string(&mut streamed).await.unwrap();
    assert!(streamed.contains("event: end"), "{streamed}");
    assert!(TcpStream::connect(address).await.is_err());
}

/// Connects, sends some bytes, and returns how long the server keeps the connection, in seconds.
async fn kept_for(bytes: &[u8]) -> u64 {
    let stop = CancellationToken::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let running = tokio::spawn(server(&stop).listen(listener, None));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let began_at = tokio::time::Instant::now();
    let mut answer = Vec::new();
    // The time is paused: it jumps to the next timer as long as nothing else happens.
    let _ = timeout(Duration::from_secs(600), stream.read_to_end(&mut answer)).await;
    let kept = began_at.elapsed().as_secs();
    stop.cancel();
    running.await.unwrap().unwrap();
    kept
}

#[tokio::test(start_paused = true)]
async fn silent_and_slow_connections_end() {
    for bytes in [&b""[..], b"GET ", b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"PRI * HTTP/2.0\r\n"] {
        let kept = kept_for(bytes).await;
        assert!(kept <= 30, "{:?} keeps a connection for {kept} s", String::from_utf8_lossy(bytes));
    }
    // Also after a request.
    let kept = kept_for(b"GET /api/v1/types HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(kept <= 60, "an idle connection is kept for {kept} s");
    // HTTP/2 needs TLS. Without it, the preface and settings of a client do not keep a connection.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let kept = kept_for(preface).await;
    assert!(kept <= 60, "an idle connection of HTTP/2 is kept for {kept} s");
}

#[tokio::test]
async fn the_server_refuses_to_listen_beyond_loopback_without_authentication() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let listening = server(&CancellationToken::new()).listen(listener, None);
    let refused = timeout(LIMIT, listening).await.expect("it does not listen").unwrap_err();
    assert!(refused.to_string().contains("without authentication"), "{refused}");
}

#[tokio::test]
async fn tls_is_served_with_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    assert!(Tls::from_files(&key, &certificate).is_err());
    assert!(Tls::from_files(folder.path().join("none"), &key).is_err());
    let tls = Tls::from_files(&certificate, &key).unwrap();
    let stop = CancellationToken::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let running = tokio::spawn(server(&stop).listen(listener, Some(tls)));
    let mut stream = connect(address, made.cert.der(), b"http/1.1").await;
    stream
        .write_all(b"GET /api/v1/session HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    let plain = exchange(address, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(!plain.contains("200 OK"), "{plain}");
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// Connects with TLS.
async fn connect(
    address: SocketAddr,
    certificate: &rustls::pki_types::CertificateDer<'static>,
    protocol: &[u8],
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    connector.connect("localhost".try_into().unwrap(), stream).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_of_http_2_ends_although_it_answers_pings() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Tls::from_files(&certificate, &key).unwrap();
    let stop = CancellationToken::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let running = tokio::spawn(server(&stop).listen(listener, Some(tls)));
    let mut stream = connect(address, made.cert.der(), b"h2").await;
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&settings).await.unwrap();
    let (began_at, mut pings) = (tokio::time::Instant::now(), 0);
    let answering = async {
        let mut head = [0; 9];
        // A frame has a head of nine bytes: length, type, flags and stream.
        while stream.read_exact(&mut head).await.is_ok() {
            let mut content = vec![0; usize::from(head[1]) * 256 + usize::from(head[2])];
            stream.read_exact(&mut content).await.unwrap();
            const PING: u8 = 6;
            if head[3] == PING && head[4] == 0 {
                pings += 1;
                head[4] = 1;
                stream.write_all(&[&head[..], &content].concat()).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
    };
    timeout(Duration::from_secs(600), answering).await.expect("the connection ends");
    assert!(pings > 0, "the server checks the connection");
    assert!(began_at.elapsed() <= Duration::from_secs(90), "it ended after {:?}", began_at.elapsed());
    stop.cancel();
    running.await.unwrap().unwrap();
}
