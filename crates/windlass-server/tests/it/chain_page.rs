//! Pages that query the store: what they cost, and that they are never out of date.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Method;
use futures_util::StreamExt;
use serde_json::json;
use tower::ServiceExt;
use windlass_core::command::{CancelMode, Command, Reply};
use windlass_core::{BoxFuture, ChainId, Client, Decorator, MemoryStore, Result};
use windlass_server::{Role, Server};

use crate::harness::Api;
use crate::pages::page;

/// A store that counts its calls.
#[derive(Debug)]
struct Counting {
    inner: MemoryStore,
    calls: Arc<AtomicU64>,
}

impl Decorator for Counting {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        // The sampler counts all types, whoever asks.
        if !matches!(command, Command::Count(_)) {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        self.forward(command)
    }
}

fn counted() -> (Api, Arc<AtomicU64>) {
    let calls = Arc::<AtomicU64>::default();
    let store = Counting { inner: MemoryStore::new(), calls: Arc::clone(&calls) };
    let configure = |server: Server| server.sample_interval(Duration::from_secs(60));
    (Api::on(Client::new(store).into_dyn(), configure), calls)
}

/// Starts a chain with this many jobs.
async fn long_chain(api: &Api, jobs: usize) -> String {
    let chain = api.start("long").await;
    for _ in 1..jobs {
        api.post(&format!("/chains/{chain}/complete"), json!({"then": {"type": "long"}})).await.ok();
    }
    chain
}

#[tokio::test(start_paused = true)]
async fn a_long_chain_shows_its_first_and_its_newest_jobs() {
    let (api, calls) = counted();
    let chain = long_chain(&api, 300).await;
    let details = api.get(&format!("/chains/{chain}")).await.ok();
    let before = calls.load(Ordering::Relaxed);
    let text = page(&api, Role::Read, &format!("/chains/{chain}")).await;
    let cost = calls.load(Ordering::Relaxed) - before;
    assert!(cost <= 8, "a page costs {cost} calls");
    assert_eq!(text.matches("… 250 jobs between").count(), 2, "in the picture and in the table");
    let jobs = details["chain_jobs"].as_array().unwrap();
    let is_shown =
        |index: usize| text.contains(&format!("href=\"/jobs/{}\"", jobs[index]["id"].as_str().unwrap()));
    for (index, shown) in [(0, true), (19, true), (20, false), (269, false), (270, true), (299, true)] {
        assert_eq!(is_shown(index), shown, "job {index}");
    }
    // Other requests share the answer for a moment.
    for _ in 0..2 {
        page(&api, Role::Read, &format!("/chains/{chain}")).await;
    }
    assert_eq!(calls.load(Ordering::Relaxed), before + cost);
    tokio::time::advance(Duration::from_secs(1)).await;
    page(&api, Role::Read, &format!("/chains/{chain}")).await;
    assert_eq!(calls.load(Ordering::Relaxed), before + 2 * cost);
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_fifty_jobs_is_shown_completely() {
    let (api, _) = counted();
    let chain = long_chain(&api, 50).await;
    let text = page(&api, Role::Read, &format!("/chains/{chain}")).await;
    assert!(!text.contains("jobs between"));
    assert_eq!(text.matches("class=\"node completed own\"").count(), 49);
}

#[tokio::test(start_paused = true)]
async fn a_change_through_the_server_is_shown_at_once() {
    let (api, _) = counted();
    let chain = api.start("mail").await;
    let path = format!("/chains/{chain}");
    assert!(page(&api, Role::Read, &path).await.contains("class=\"node pending own\""));
    api.post(&format!("{path}/cancel"), json!({})).await.ok();
    assert!(page(&api, Role::Read, &path).await.contains("class=\"node cancelled own\""));
}

#[tokio::test]
async fn a_page_that_is_fetched_after_an_event_shows_it() {
    let api = Api::new();
    // The stream keeps the subscription of the server open.
    let call = api.call(Method::GET, "/events?topic=jobs").role(Role::Read);
    let stream = api.router.clone().oneshot(call.request()).await.unwrap();
    let mut stream = stream.into_body().into_data_stream();
    let mut events = async |wanted: &str| loop {
        let chunk = stream.next().await.unwrap().unwrap();
        if std::str::from_utf8(&chunk).unwrap().contains(wanted) {
            return;
        }
    };
    let chain = api.start("mail").await;
    // The first one begins the stream, and the second one says that the subscription is active.
    events("resync").await;
    events("resync").await;
    let path = format!("/chains/{chain}");
    let text = page(&api, Role::Read, &path).await;
    assert!(text.contains("class=\"node pending own\""), "{text}");
    // Past this server.
    api.client.cancel(chain.parse::<ChainId>().unwrap(), CancelMode::UnlessRunning).await.unwrap();
    events(&chain).await;
    let text = page(&api, Role::Read, &path).await;
    assert!(text.contains("class=\"node cancelled own\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn visitors_with_the_same_role_share_a_page_for_a_second() {
    let (api, calls) = counted();
    let chain = api.start("mail").await;
    // The first samples.
    page(&api, Role::Read, "/").await;
    tokio::time::sleep(Duration::from_millis(1)).await; // tidy: the time is paused
    let cost = async |role, path: &str| {
        let before = calls.load(Ordering::Relaxed);
        page(&api, role, path).await;
        calls.load(Ordering::Relaxed) - before
    };
    for path in ["/jobs", "/chains", "/workers", "/schedules", &format!("/jobs/{chain}")] {
        let alone = cost(Role::Read, path).await;
        assert!(alone > 0, "{path}");
        assert_eq!(cost(Role::Read, path).await, 0, "{path} is shared");
        assert_eq!(cost(Role::Admin, path).await, alone, "{path} is not shared by another role");
        // A change that is refused changes nothing.
        api.post(&format!("/chains/{chain}/retry"), json!({})).await.refused(409);
        assert_eq!(cost(Role::Read, path).await, 0, "{path} after a refusal");
        api.post(&format!("/chains/{chain}/trigger"), json!({})).await.ok();
        assert_eq!(cost(Role::Read, path).await, alone, "{path} after a change");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cost(Role::Read, path).await, alone, "{path} after a second");
    }
}
