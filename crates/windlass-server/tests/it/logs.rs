//! Every request that is refused has one line in the log.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use axum::http::Method;
use axum::http::header::{AUTHORIZATION, COOKIE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use windlass_server::ListenError;
use windlass_testkit::logs::Warnings;

use crate::harness::Api;
use crate::listen::server;

/// The time within which bytes reach a server on the same machine.
const DELIVERY: Duration = Duration::from_millis(100);

/// A server that listens on a socket of its own.
struct Listening {
    warnings: Warnings,
    address: SocketAddr,
    stop: CancellationToken,
    running: JoinHandle<Result<(), ListenError>>,
}

impl Listening {
    async fn start() -> Self {
        let (warnings, stop) = (Warnings::capture("windlass_server"), CancellationToken::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let running = tokio::spawn(server(&stop).listen(listener, None));
        Self { warnings, address, stop, running }
    }

    /// Sends bytes. Returns the answer, and the lines in the log when the connection has ended.
    async fn send(&self, request: &str) -> (String, Vec<String>) {
        // While a blocking task runs, paused time does not jump. It must not jump before the server has read the bytes:
        // the head would time out.
        let (sent, is_sent) = mpsc::channel::<()>();
        let delivered = spawn_blocking(move || {
            let _ = is_sent.recv();
            std::thread::sleep(DELIVERY); // tidy: time for the kernel to deliver the bytes
        });
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server may answer and close the connection before it has read everything.
        let _ = stream.write_all(request.as_bytes()).await;
        drop(sent);
        delivered.await.unwrap();
        let mut answer = Vec::new();
        let reading = timeout(Duration::from_secs(300), stream.read_to_end(&mut answer)).await;
        assert!(reading.is_ok(), "the connection ends");
        (String::from_utf8_lossy(&answer).into_owned(), self.warnings.take())
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn every_refused_request_has_one_line() {
    let server = Listening::start().await;
    let host = "host: localhost\r\nconnection: close\r\n";
    let long = |length| "x".repeat(length);
    for (request, status, has_problem) in [
        (format!("GET /{} HTTP/1.1\r\n{host}\r\n", long(70_000)), "414", false),
        (format!("GET / HTTP/1.1\r\n{host}{}\r\n", "x: y\r\n".repeat(200)), "431", false),
        (format!("GET / HTTP/1.1\r\n{host}x: {}\r\n\r\n", long(300_000)), "431", false),
        ("GET / HTTP/1.1\r\nhost: localhost\r\nx: a\rb\r\n\r\n".to_owned(), "400", false),
        ("NONSENSE\r\n\r\n".to_owned(), "400", false),
        (format!("GET /assets/%FF/x HTTP/1.1\r\n{host}\r\n"), "400", true),
        (format!("GET /none HTTP/1.1\r\n{host}\r\n"), "404", true),
        (format!("GET /api/v1/jobs/%FF HTTP/1.1\r\n{host}\r\n"), "400", true),
        (format!("POST /api/v1/chains HTTP/1.1\r\n{host}content-length: 0\r\n\r\n"), "415", true),
        ("GET / HTTP/1.1\r\nhost: example.com\r\nconnection: close\r\n\r\n".to_owned(), "421", true),
        (format!("POST /api/v1/chains HTTP/1.1\r\n{host}origin: http://example.com\r\n\r\n"), "403", true),
    ] {
        let shown = &request[..request.len().min(100)];
        let (answer, lines) = server.send(&request).await;
        assert_eq!(answer.get(9..12), Some(status), "{shown}: {answer}");
        assert_eq!(answer.contains("application/problem+json"), has_problem, "{answer}");
        assert!(lines.len() == 1 && lines[0].contains("request refused"), "{shown}: {lines:?}");
        assert!(lines[0].contains(" remote=127.0.0.1"), "{shown}: {lines:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_page_with_a_token_or_session_that_is_not_valid_has_a_line() {
    let api = Api::new();
    let warnings = Warnings::capture("windlass_server");
    for (header, value, lines) in [
        (COOKIE, "windlass_session_8080=forged", 1),
        (COOKIE, "windlass_session_8080=a; windlass_session_8080=b", 1),
        (AUTHORIZATION, "Bearer forged", 1),
        (COOKIE, "other=cookie", 0),
    ] {
        let mut request = api.call(Method::GET, "").header(header, value).request();
        *request.uri_mut() = "/chains".parse().unwrap();
        let response = api.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 303, "{value}");
        let written = warnings.take();
        assert_eq!(written.len(), lines, "{value}: {written:?}");
        assert!(
            written.iter().all(|line| line.contains("status=401") && !line.contains("forged")),
            "{written:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_has_a_line_and_an_idle_connection_has_none() {
    let server = Listening::start().await;
    let (_, lines) = server.send("GET / HTTP/1.1\r\nhost").await;
    assert!(lines.len() == 1 && lines[0].contains("request refused"), "{lines:?}");
    // At once, and after a request.
    for request in ["", "GET /api/v1/types HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let (_, lines) = server.send(request).await;
        assert_eq!(lines, Vec::<String>::new(), "{request}");
    }
    server.stop().await;
}
