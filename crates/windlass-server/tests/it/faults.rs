//! Stores that fail or are busy at the wrong moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::Method;
use serde_json::json;
use windlass_core::command::{
    CancelReply, Cancelled, Command, CompleteFromOutside, Reply, Retried, Retry, RetryReply, RetryTarget,
    Ripple, Step,
};
use windlass_core::{
    BoxFuture, ChainId, Client, Decorator, Error, ErrorKind, ErrorText, MemoryStore, RequestId, Result, Store,
};

use windlass_server::{REQUEST_TIMEOUT, Role};

use crate::harness::{Api, acquire, until};
use crate::pages::{get, page};

/// A store on which some chains are locked by another transaction, and which can stop to answer queries after a change.
#[derive(Debug)]
struct Faulty {
    inner: MemoryStore,
    faults: Arc<Faults>,
    is_failing: AtomicBool,
}

#[derive(Debug, Default)]
struct Faults {
    /// The ids of the chains that are locked.
    locked: Mutex<Vec<String>>,
    fails_after_changes: AtomicBool,
}

impl Decorator for Faulty {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(async move {
            let is_change = matches!(
                command,
                Command::Cancel(_)
                    | Command::Retry(_)
                    | Command::Create(_)
                    | Command::CompleteFromOutside(_)
                    | Command::Trigger(_)
                    | Command::ChangeSchedules(_)
            );
            if self.is_failing.load(Ordering::SeqCst) && !is_change {
                return Err(Error::new(ErrorKind::Unavailable, "the store is away"));
            }
            if is_change && self.faults.fails_after_changes.load(Ordering::SeqCst) {
                self.is_failing.store(true, Ordering::SeqCst);
            }
            let text = format!("{command:?}");
            let is_locked = self.faults.locked.lock().unwrap().iter().any(|id| text.contains(id));
            match command {
                Command::Cancel(_) if is_locked => {
                    let (chains, ripple) = (vec![Cancelled::Busy], Ripple::default());
                    Ok(Reply::Cancel(CancelReply { chains, ripple }))
                }
                Command::Retry(_) if is_locked => {
                    Ok(Reply::Retry(RetryReply { chains: vec![Retried::Busy], deferred: false }))
                }
                command => self.forward(command).await,
            }
        })
    }
}

fn faulty() -> (Api, Arc<Faults>) {
    let (faults, is_failing) = (Arc::<Faults>::default(), AtomicBool::new(false));
    let store = Faulty { inner: MemoryStore::new(), faults: Arc::clone(&faults), is_failing };
    (Api::on(Client::new(store).into_dyn(), |server| server), faults)
}

#[tokio::test]
async fn a_locked_chain_does_not_end_a_bulk_operation() {
    let (api, faults) = faulty();
    for action in ["cancel", "retry"] {
        let mut chains = Vec::new();
        for _ in 0..3 {
            let chain = api.start(action).await;
            if action == "retry" {
                api.post(&format!("/chains/{chain}/cancel"), json!({})).await.ok();
            }
            chains.push(chain);
        }
        faults.locked.lock().unwrap().push(chains[1].clone());
        let statuses = if action == "retry" { json!(["cancelled"]) } else { json!(["pending"]) };
        let body = json!({"action": action, "filter": {"types": [action], "statuses": statuses}});
        let started = api.post("/bulk", body).await.ok();
        let path = format!("/bulk/{}", started["id"].as_str().unwrap());
        until("the operation has ended", async || api.get(&path).await.ok()["state"] != "running").await;
        let ended = api.get(&path).await.ok();
        assert_eq!(ended["state"], "completed", "{ended}");
        assert_eq!((&ended["changed"], &ended["skipped"]), (&json!(2), &json!(1)), "{ended}");
        assert!(ended["reason"].as_str().unwrap().contains("locked"), "{ended}");
    }
}

#[tokio::test]
async fn a_change_that_was_made_is_not_reported_as_an_error() {
    type Change = fn(&str) -> (String, serde_json::Value);
    let changes: [(Change, &str); 5] = [
        (|chain| (format!("/chains/{chain}/complete"), json!({"output": 1})), "completed"),
        (|chain| (format!("/chains/{chain}/trigger"), json!({})), "pending"),
        (|_| ("/chains".to_owned(), json!({"type": "mail", "wait_ms": 1})), "pending"),
        (|_| ("/queues/mail/jobs".to_owned(), json!({"id": "a"})), "pending"),
        (|_| ("/queues/mail/jobs".to_owned(), json!({"id": "a", "wait_ms": 1})), "pending"),
    ];
    for (change, status) in changes {
        let (api, faults) = faulty();
        let chain = api.start("mail").await;
        faults.fails_after_changes.store(true, Ordering::SeqCst);
        let (path, body) = change(&chain);
        let answer = api.post(&path, body).await.ok();
        let shown = answer.get("status").or(answer.get("state")).unwrap();
        assert_eq!(shown, status, "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_schedule_that_was_stored_is_not_reported_as_an_error() {
    let (api, faults) = faulty();
    faults.fails_after_changes.store(true, Ordering::SeqCst);
    let body = json!({"every_ms": 90_000, "job": {"type": "check"}});
    let put = api.call(Method::PUT, "/schedules/poll").role(Role::Admin).json(&body).send().await.ok();
    assert_eq!((&put["name"], &put["type"]), (&json!("poll"), &json!("check")));
    assert!(put["error"].as_str().unwrap().contains("was stored"), "{put}");
    assert_eq!(api.audit.lines().last().unwrap()["outcome"], "stored");
}

/// A store that does not answer queries of chains.
#[derive(Debug)]
struct Silent(MemoryStore);

impl Decorator for Silent {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        match command {
            Command::GetChains(_) => Box::pin(std::future::pending()),
            command => self.forward(command),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_a_silent_store_are_answered() {
    let api = Api::on(Client::new(Silent(MemoryStore::new())).into_dyn(), |server| server);
    let id = ChainId::new();
    for path in [format!("/find?q={id}"), format!("/chains/{id}")] {
        let answer = tokio::time::timeout(REQUEST_TIMEOUT * 2, get(&api, Some(Role::Read), &path)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{path} has no timeout"));
        assert_eq!(answer.status, 504, "{}", answer.text);
    }
}

#[tokio::test(start_paused = true)]
async fn queries_of_a_silent_store_are_answered_in_time() {
    let api = Api::on(Client::new(Silent(MemoryStore::new())).into_dyn(), |server| server);
    let began_at = tokio::time::Instant::now();
    api.get(&format!("/chains/{}", ChainId::new())).await.refused(504);
    assert_eq!(began_at.elapsed().as_secs(), REQUEST_TIMEOUT.as_secs());
}

#[tokio::test]
async fn a_bulk_operation_with_the_same_id_starts_once() {
    let api = Api::new();
    let chain = api.start("mail").await;
    let id = ChainId::new().to_string();
    let body = json!({"id": id, "action": "cancel", "filter": {"types": ["mail"]}});
    for _ in 0..3 {
        let started = api.post("/bulk", body.clone()).await;
        assert_eq!((started.status.as_u16(), &started.json["id"]), (202, &json!(id)));
    }
    let path = format!("/bulk/{id}");
    until("the operation has ended", async || api.get(&path).await.ok()["state"] != "running").await;
    assert_eq!(api.get("/bulk").await.ok()["operations"].as_array().unwrap().len(), 1);
    assert_eq!(api.get(&format!("/chains/{chain}")).await.ok()["status"], "cancelled");
    let begun: Vec<_> =
        api.audit.lines().into_iter().filter(|line| line["action"] == "bulk-cancel").collect();
    assert_eq!(begun.len(), 1, "{begun:?}");
    assert_eq!((&begun[0]["targets"][0]["operation"], begun[0]["cutoff"].is_string()), (&json!(id), true));
    let other = json!({"id": id, "action": "cancel", "filter": {"types": ["other"]}});
    api.post("/bulk", other).await.refused(409);
    // An operation that has ended cannot be aborted.
    let lines = api.audit.lines().len();
    assert_eq!(api.post(&format!("{path}/abort"), json!({})).await.ok()["state"], "completed");
    assert_eq!(api.audit.lines().len(), lines);
}

/// A store on which a rival retries a failed chain, which fails again, right after the chain was queried.
#[derive(Debug)]
struct Rival {
    inner: MemoryStore,
    is_armed: Arc<AtomicBool>,
}

impl Decorator for Rival {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(async move {
            let reply = self.forward(command).await?;
            if let Reply::GetChains(found) = &reply
                && self.is_armed.swap(false, Ordering::SeqCst)
            {
                let job = &found.chains[0].as_ref().unwrap().latest;
                let chains = vec![RetryTarget { job: job.id, version: job.version }];
                self.inner.retry(Retry { chains }).await?;
                let steps = vec![Step::Fail { error: ErrorText::new("again"), retention: None }];
                let (request, version) = (RequestId::new(), job.version.next());
                let fail = CompleteFromOutside { request, job: job.id, version, steps };
                self.inner.complete_from_outside(fail).await?;
            }
            Ok(reply)
        })
    }
}

#[tokio::test]
async fn a_retry_concerns_only_the_failure_that_was_seen() {
    let is_armed = Arc::<AtomicBool>::default();
    let store = Rival { inner: MemoryStore::new(), is_armed: Arc::clone(&is_armed) };
    let api = Api::on(Client::new(store).into_dyn(), |server| server);
    let chain = api.start_failed("mail").await;
    is_armed.store(true, Ordering::SeqCst);
    let shown = api.post(&format!("/chains/{chain}/retry"), json!({"version": 1})).await.ok();
    // Failed (1), retried by the rival (2), and failed again (3).
    assert_eq!((&shown["status"], &shown["version"]), (&json!("failed"), &json!(3)));
    assert_eq!(api.audit.lines().last().unwrap()["outcome"], "already retried");
}

/// A store on which a worker acquires all due jobs of the type `fetch` right before a delete.
#[derive(Debug)]
struct Quick(MemoryStore);

impl Decorator for Quick {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(async move {
            if matches!(command, Command::Delete(_)) {
                self.0.acquire(acquire("fetch")).await?;
            }
            self.forward(command).await
        })
    }
}

#[tokio::test]
async fn a_chain_that_begins_to_run_before_the_delete_is_kept() {
    for query in ["", "?cascade=true"] {
        let api = Api::on(Client::new(Quick(MemoryStore::new())).into_dyn(), |server| server);
        let fetch = api.start("fetch").await;
        let problem = api.delete(&format!("/chains/{fetch}{query}")).await.refused(409);
        assert!(problem["detail"].as_str().unwrap().contains("nothing was deleted"), "{problem}");
        assert_eq!(api.get(&format!("/chains/{fetch}")).await.ok()["status"], "running");
    }
    let api = Api::on(Client::new(Quick(MemoryStore::new())).into_dyn(), |server| server);
    let fetch = api.start("fetch").await;
    let body = json!({"type": "report", "blocked_by": [fetch]});
    let report = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    api.delete(&format!("/chains/{report}?cascade=true")).await.refused(409);
    assert_eq!(api.get(&format!("/chains/{report}")).await.ok()["status"], "blocked");
    api.delete(&format!("/chains/{report}?cascade=true&running=true")).await.ok();
}

/// A store that panics after a cancel, and on which queries of chains fail slowly. It counts these queries.
#[derive(Debug)]
struct Broken {
    inner: MemoryStore,
    fails: Arc<AtomicBool>,
    queries: Arc<AtomicU64>,
}

impl Decorator for Broken {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(async move {
            match command {
                Command::Cancel(_) => {
                    self.forward(command).await?;
                    panic!("the store has a bug");
                }
                Command::GetChains(_) if self.fails.load(Ordering::SeqCst) => {
                    self.queries.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(100)).await; // tidy: the time is paused
                    Err(Error::new(ErrorKind::Unavailable, "the store is away"))
                }
                command => self.forward(command).await,
            }
        })
    }
}

fn broken() -> (Api, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (fails, queries) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let inner = MemoryStore::new();
    let store = Broken { inner, fails: Arc::clone(&fails), queries: Arc::clone(&queries) };
    (Api::on(Client::new(store).into_dyn(), |server| server), fails, queries)
}

#[tokio::test(start_paused = true)]
async fn a_page_shows_a_change_whose_handler_panicked() {
    let (api, ..) = broken();
    let chain = api.start("mail").await;
    let path = format!("/chains/{chain}");
    assert!(page(&api, Role::Read, &path).await.contains("class=\"state pending\""));
    api.post(&format!("{path}/cancel"), json!({})).await.refused(500);
    assert!(page(&api, Role::Read, &path).await.contains("class=\"state cancelled\""));
}

#[tokio::test(start_paused = true)]
async fn equal_requests_share_a_failure() {
    let (api, fails, queries) = broken();
    let path = format!("/chains/{}", api.start("mail").await);
    fails.store(true, Ordering::SeqCst);
    assert_eq!(get(&api, Some(Role::Read), &path).await.status, 503);
    let of_one = queries.swap(0, Ordering::SeqCst);
    // Later requests query again, together.
    let visits = (0..5).map(|_| get(&api, Some(Role::Read), &path));
    for answer in futures_util::future::join_all(visits).await {
        assert_eq!(answer.status, 503);
    }
    assert_eq!(queries.load(Ordering::SeqCst), of_one);
    fails.store(false, Ordering::SeqCst);
    page(&api, Role::Read, &path).await;
}
