//! Pages that are open while the server or the store is restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use windlass_core::command::{Command, Reply};
use windlass_core::{BoxFuture, Client, Decorator, Error, ErrorKind, MemoryStore, Result};
use windlass_server::Role;
use windlass_testkit::{PostgresServer, wait_until};

use crate::site::Site;

const IS_LIVE: &str = "document.getElementById('live').dataset.live === 'live'";

#[tokio::test(flavor = "multi_thread")]
async fn pages_recover_when_the_server_is_restarted() {
    let mut site = Site::new().await;
    site.fill().await;
    let browser = site.visit(Role::Read, "/types").await;
    browser.until(IS_LIVE).await;
    browser.eval("(window.untouched = true, 0)").await;
    site.stop().await;
    browser.until("document.getElementById('live').dataset.live === 'wait'").await;
    site.chain(json!({"type": "while-it-was-down"})).await;
    site.start().await;
    browser.until(IS_LIVE).await;
    browser.until_text("while-it-was-down").await;
    assert_eq!(browser.eval("window.untouched").await, true, "the session survives, and so does the page");
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_lead_to_the_login_when_their_session_ends() {
    let site = Site::new().await;
    let browser = site.visit(Role::Read, "/types").await;
    browser.until(IS_LIVE).await;
    let tokens = site.api.folder.path().join("tokens.toml");
    assert!(windlass_server::TokenFile::revoke(&tokens, Role::Read.as_str()).unwrap());
    browser.until("document.getElementById('token')").await;
    browser.until("location.search === '?next=%2Ftypes'").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_recover_when_the_store_is_restarted() {
    let mut postgres = PostgresServer::start().await;
    let store = windlass_postgres::connect(&postgres.url()).await.unwrap();
    let site = Site::with(Client::new(store).into_dyn(), |server| server).await;
    site.chain(json!({"type": "placed-first"})).await;
    let browser = site.visit(Role::Read, "/chains").await;
    browser.until_text("placed-first").await;
    browser.until(IS_LIVE).await;
    browser.eval("(window.untouched = true, 0)").await;
    postgres.crash().await;
    postgres.restart().await;
    wait_until("the store answers again", Duration::from_secs(60), async || {
        site.api.post("/chains", json!({"type": "placed-later"})).await.status.is_success()
    })
    .await;
    browser.until_text("placed-later").await;
    assert_eq!(browser.eval("window.untouched").await, true, "the page was not loaded again");
    browser.close().await;
}

/// A store that can be away.
#[derive(Debug)]
struct Fragile {
    inner: MemoryStore,
    is_away: Arc<AtomicBool>,
}

impl Decorator for Fragile {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        if self.is_away.load(Ordering::SeqCst) {
            return Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "the store is away")) });
        }
        self.forward(command)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_was_opened_during_an_outage_recovers() {
    let is_away = Arc::<AtomicBool>::default();
    let store = Fragile { inner: MemoryStore::new(), is_away: Arc::clone(&is_away) };
    let site = Site::with(Client::new(store).into_dyn(), |server| server).await;
    site.chain(json!({"type": "placed-first"})).await;
    is_away.store(true, Ordering::SeqCst);
    let browser = site.visit(Role::Read, "/chains?type=placed-first").await;
    browser.until("'problem' in document.body.dataset").await;
    is_away.store(false, Ordering::SeqCst);
    browser.until("document.getElementById('filter') && document.body.dataset.refresh === 'list'").await;
    browser.until_text("placed-first").await;
    browser.close().await;
}
