//! A server on a socket, with jobs in all states.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass_core::{Client, MemoryStore, Store};
use windlass_server::{Access, AuditLog, Role, Server, TokenFile};
use windlass_testkit::Port;

use crate::browser::Browser;
use crate::harness::Api;

/// A server that a browser can visit. Tests change the store through their own router.
pub(crate) struct Site {
    pub(crate) api: Api,
    port: Port,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    configure: fn(Server) -> Server,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::with(Client::new(MemoryStore::new()).into_dyn(), |server| server).await
    }

    pub(crate) async fn with(client: Client<dyn Store>, configure: fn(Server) -> Server) -> Self {
        let api = Api::on(client, |server| server);
        // Reserved, because the server may be restarted on it.
        let (stop, port) = (CancellationToken::new(), Port::free());
        let listener = TcpListener::bind(("127.0.0.1", port.number())).await.unwrap();
        let serving = serve(&api, configure, listener, stop.clone());
        Self { api, port, stop, serving, configure }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port.number())
    }

    /// Stops the server.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        (&mut self.serving).await.unwrap();
    }

    /// Starts the server again, on the same port.
    pub(crate) async fn start(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port.number())).await.unwrap();
        self.stop = CancellationToken::new();
        self.serving = serve(&self.api, self.configure, listener, self.stop.clone());
    }

    /// Opens a browser and logs in.
    pub(crate) async fn visit(&self, role: Role, path: &str) -> Browser {
        let browser = Browser::open().await;
        browser.goto(&self.url(path)).await;
        self.log_in(&browser, role).await;
        browser.until("document.getElementById('live')").await;
        browser
    }

    pub(crate) async fn log_in(&self, browser: &Browser, role: Role) {
        browser.until("document.getElementById('token')").await;
        browser.enter("#token", &self.api.tokens[&role]).await;
        browser.until("!document.getElementById('token')").await;
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        self.api.post(path, body).await.ok()
    }

    /// Starts a chain, and returns its id.
    pub(crate) async fn chain(&self, body: Value) -> String {
        self.post("/chains", body).await["chain"].as_str().unwrap().to_owned()
    }

    /// Fills the store with a small shop: chains in all states, blockers, a schedule and a bulk operation.
    pub(crate) async fn fill(&self) -> Sample {
        let pack =
            self.chain(json!({"type": "pack", "input": {"order": 41, "boxes": ["small", "large"]}})).await;
        let label = self.chain(json!({"type": "print-label", "input": {"order": 41}})).await;
        self.post(&format!("/chains/{label}/complete"), json!({"output": "W-000041"})).await;
        let order = json!({"type": "take-order", "key": "order-41", "input": {"order": 41, "euros": 817, "express": true}});
        let order = self.chain(order).await;
        let then = json!({"then": {"type": "await-approval", "input": {"order": 41}}});
        self.post(&format!("/chains/{order}/complete"), then).await;
        let blocked = json!({"type": "ship", "blocked_by": [pack, label, order], "input": {"order": 41}});
        let blocked = self.chain(blocked).await;
        for number in 1..=12 {
            let chain = json!({"type": "refund", "key": format!("return-{number}"), "input": {"order": number, "euros": number * 7}});
            let chain = self.chain(chain).await;
            let end = match number % 3 {
                0 => {
                    json!({"fail": "the card has expired: ask the customer for another one\n  at bank.rs:41"})
                }
                _ => json!({"output": {"paid": true, "reference": 12_345_678_901_234_567_u64}}),
            };
            self.post(&format!("/chains/{chain}/complete"), end).await;
        }
        let failed = self.api.start_failed("refund").await;
        self.chain(json!({"type": "ask-for-review", "delay_ms": 3_600_000, "input": null})).await;
        let cancelled = self.chain(json!({"type": "pack", "input": {"order": 42}})).await;
        self.post(&format!("/chains/{cancelled}/cancel"), json!({})).await;
        for number in 0..8 {
            self.chain(json!({"type": "resize", "input": {"file": format!("photo-{number}.jpg")}})).await;
        }
        self.api.acquire("resize").await;
        self.chain(json!({"type": "resize", "input": {"file": "late.jpg"}})).await;
        let schedule = json!({"cron": "0 3 * * *", "job": {"type": "report", "input": {"of": "sales"}}});
        self.api.call(Method::PUT, "/schedules/nightly").role(Role::Admin).json(&schedule).send().await.ok();
        self.post("/schedules/nightly/run", json!({})).await;
        let often = json!({"every_ms": 90_000, "job": {"type": "check-mail"}});
        self.api.call(Method::PUT, "/schedules/poll").role(Role::Admin).json(&often).send().await.ok();
        self.post("/schedules/poll/pause", json!({})).await;
        Sample { order, blocked, failed }
    }
}

/// Chains of the shop.
pub(crate) struct Sample {
    /// Two jobs; the latest one waits for a person.
    pub(crate) order: String,
    /// Waits for three chains.
    pub(crate) blocked: String,
    pub(crate) failed: String,
}

fn serve(
    api: &Api,
    configure: fn(Server) -> Server,
    listener: TcpListener,
    stop: CancellationToken,
) -> JoinHandle<()> {
    let tokens = TokenFile::open(api.folder.path().join("tokens.toml")).unwrap();
    let server = Server::new(api.client.clone(), Access::tokens(tokens))
        .audit(AuditLog::writer(std::io::sink()))
        .sample_interval(Duration::from_millis(250))
        .stop_token(stop);
    let server = configure(server);
    tokio::spawn(async move { server.listen(listener, None).await.unwrap() })
}
