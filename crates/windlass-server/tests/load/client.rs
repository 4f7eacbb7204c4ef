//! A server on a socket, its clients, and work for its store.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use futures_util::StreamExt;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use windlass_core::{BoxError, Client, Ctx, Entry, Job, Store};
use windlass_server::{Access, AuditLog, Server};

/// A job that does nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Nothing;

impl Job for Nothing {
    type Output = ();
    type Next = ();
    type Blockers = ();
    const NAME: &'static str = "nothing";
}

impl Entry for Nothing {}

pub(crate) async fn do_nothing(_: Ctx<Nothing>) -> Result<(), BoxError> {
    Ok(())
}

/// A server that listens, until it is dropped.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
}

impl Listening {
    pub(crate) async fn start(client: Client<dyn Store>, sample_interval: Duration) -> Self {
        let (stop, listener) = (CancellationToken::new(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let server = Server::new(client, Access::without_authentication())
            .audit(AuditLog::writer(std::io::sink()))
            .sample_interval(sample_interval)
            .stop_token(stop.clone());
        tokio::spawn(server.listen(listener, None));
        Self { address, stop }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Keeps its connections open.
#[derive(Clone)]
pub(crate) struct Http(HttpClient<HttpConnector, Body>);

impl Http {
    pub(crate) fn new() -> Self {
        Self(HttpClient::builder(TokioExecutor::new()).build_http())
    }

    /// Returns the body of an answer, or what went wrong.
    pub(crate) async fn get(&self, url: &str) -> Result<String, String> {
        let request = Request::get(url).header("accept", "text/html").body(Body::empty()).unwrap();
        let response = self.0.request(request).await.map_err(|error| format!("{url}: {error:?}"))?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), usize::MAX).await;
        let body = body.map_err(|error| format!("{url}: {error}"))?;
        let body = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() || status.is_redirection() {
            Ok(body)
        } else {
            Err(format!("{url}: {status}: {body}"))
        }
    }

    /// Starts a bulk operation that only counts chains.
    pub(crate) async fn count_chains(&self, url: &str, key: &str) -> Result<(), String> {
        let body = serde_json::json!({"action": "cancel", "filter": {"key": key}, "dry_run": true});
        let request = Request::post(url).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = self.0.request(request).await.map_err(|error| format!("{url}: {error:?}"))?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(format!("{url}: {status}")) }
    }

    /// Reads an event stream until `stop`, and at least until its first sample. Returns the number of samples, or why it
    /// ended before.
    pub(crate) async fn stream(self, url: String, stop: CancellationToken) -> Result<u64, String> {
        let request = Request::get(&url).body(Body::empty()).unwrap();
        let response = self.0.request(request).await.map_err(|error| format!("{url}: {error:?}"))?;
        if !response.status().is_success() {
            return Err(format!("{url}: {}", response.status()));
        }
        let mut body = Body::new(response.into_body()).into_data_stream();
        let mut samples = 0;
        loop {
            tokio::select! {
                () = stop.cancelled(), if samples > 0 => return Ok(samples),
                chunk = body.next() => match chunk {
                    Some(Ok(chunk)) => {
                        let text = String::from_utf8_lossy(&chunk);
                        samples += text.matches("event: sample").count() as u64;
                        if text.contains("event: end") {
                            return Err("the stream has ended".to_owned());
                        }
                    }
                    Some(Err(error)) => return Err(error.to_string()),
                    None => return Err("the stream was closed".to_owned()),
                },
            }
        }
    }
}
