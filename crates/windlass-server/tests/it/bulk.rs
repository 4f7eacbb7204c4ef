//! Bulk operations.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use windlass_core::command::{Command, CompleteFromOutside, GetJobs, Reply, Step};
use windlass_core::{BoxFuture, Client, Decorator, ErrorText, MemoryStore, RequestId, Result, Store};
use windlass_server::BULK_MAX;

use crate::harness::{Api, until};

/// Starts an operation and returns it when it has ended.
async fn run(api: &Api, body: Value) -> Value {
    let started = api.post("/bulk", body).await;
    assert_eq!(started.status, 202, "{}", started.json);
    let path = format!("/bulk/{}", started.json["id"].as_str().unwrap());
    until("the operation has ended", async || api.get(&path).await.ok()["state"] != "running").await;
    api.get(&path).await.ok()
}

#[tokio::test]
async fn failed_chains_are_retried_once() {
    let api = Api::new();
    for _ in 0..250 {
        api.start_failed("mail").await;
    }
    let other = api.start_failed("other").await;
    let ended = run(&api, json!({"action": "retry", "filter": {"types": ["mail"]}})).await;
    assert_eq!(
        (&ended["state"], &ended["visited"], &ended["changed"]),
        (&json!("completed"), &json!(250), &json!(250))
    );
    assert_eq!((&ended["started_by"], &ended["filter"]["statuses"]), (&json!("admin"), &json!(["failed"])));
    assert_eq!(api.get("/types/mail").await.ok()["pending"], 250);
    assert_eq!(api.get(&format!("/chains/{other}")).await.ok()["status"], "failed");
    let lines = api.audit.lines();
    let (begin, end) = (&lines[lines.len() - 2], &lines[lines.len() - 1]);
    assert_eq!((&begin["action"], &begin["filter"]["types"]), (&json!("bulk-retry"), &json!(["mail"])));
    assert_eq!((&end["outcome"], &end["changed"]), (&json!("completed"), &json!(250)));
}

/// A store on which each retried chain fails again at once, and on which each cancel waits for a permit.
#[derive(Debug)]
struct Staged {
    inner: MemoryStore,
    permits: Arc<Semaphore>,
}

impl Decorator for Staged {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(async move {
            if matches!(command, Command::Cancel(_)) {
                self.permits.acquire().await.unwrap().forget();
            }
            let retried = match &command {
                Command::Retry(retry) => retry.chains.iter().map(|target| target.job).collect(),
                _ => Vec::new(),
            };
            let reply = self.forward(command).await;
            for job in self.inner.get_jobs(GetJobs { jobs: retried }).await?.jobs.into_iter().flatten() {
                let steps = vec![Step::Fail { error: ErrorText::new("again"), retention: None }];
                let (request, version) = (RequestId::new(), job.version);
                let fail = CompleteFromOutside { request, job: job.id, version, steps };
                self.inner.complete_from_outside(fail).await?;
            }
            reply
        })
    }
}

pub(crate) fn staged(permits: usize) -> (Api, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(permits));
    let store = Staged { inner: MemoryStore::new(), permits: Arc::clone(&permits) };
    (Api::on(Client::new(store).into_dyn(), |server| server), permits)
}

#[tokio::test]
async fn a_chain_that_fails_again_is_not_visited_again() {
    let (api, _) = staged(0);
    for _ in 0..120 {
        api.start_failed("mail").await;
    }
    let ended = run(&api, json!({"action": "retry", "filter": {"statuses": ["failed"]}})).await;
    assert_eq!((&ended["state"], &ended["visited"]), (&json!("completed"), &json!(120)));
    let chains = api.get("/chains?limit=1000").await.ok()["chains"].clone();
    let versions: BTreeSet<_> = chains
        .as_array()
        .unwrap()
        .iter()
        .map(|chain| (chain["status"].to_string(), chain["version"].to_string()))
        .collect();
    // Failed once (1), retried (2), and failed again (3).
    assert_eq!(versions, BTreeSet::from([("\"failed\"".to_owned(), "3".to_owned())]));
}

#[tokio::test]
async fn chains_are_cancelled_and_deleted_by_filter() {
    let api = Api::new();
    for _ in 0..3 {
        api.start("mail").await;
    }
    api.acquire("mail").await;
    api.start("mail").await;
    let ended = run(&api, json!({"action": "cancel", "filter": {"types": ["mail"]}, "dry_run": true})).await;
    assert_eq!(
        (&ended["changed"], api.get("/types/mail").await.ok()["cancelled"].clone()),
        (&json!(4), json!(0))
    );
    let ended = run(&api, json!({"action": "cancel", "filter": {"types": ["mail"]}})).await;
    assert_eq!((&ended["changed"], &ended["skipped"]), (&json!(1), &json!(3)));
    assert!(ended["reason"].as_str().unwrap().contains("running"));
    let ended = run(&api, json!({"action": "cancel", "filter": {"types": ["mail"]}, "running": true})).await;
    assert_eq!((&ended["changed"], &ended["skipped"]), (&json!(3), &json!(0)));
    let ended = run(&api, json!({"action": "delete", "filter": {"statuses": ["cancelled"]}})).await;
    assert_eq!((&ended["changed"], &ended["visited"]), (&json!(1), &json!(1)));
    assert_eq!(api.get("/types/mail").await.ok()["running"], 3, "running chains remain");
    assert_eq!(api.get("/bulk").await.ok()["operations"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn an_operation_can_be_aborted() {
    let (api, permits) = staged(5);
    for _ in 0..250 {
        api.start("mail").await;
    }
    let started = api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}})).await.ok();
    let path = format!("/bulk/{}", started["id"].as_str().unwrap());
    until("five chains are cancelled", async || api.get(&path).await.ok()["changed"] == 5).await;
    assert_eq!(api.get(&path).await.ok()["state"], "running");
    let abort = format!("{path}/abort");
    // The abort waits for the chain that is being cancelled. It is in the log a moment before it reaches the operation, so
    // the next chain may begin.
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let aborting = api.post(&abort, json!({}));
    let mut aborting = std::pin::pin!(aborting);
    let aborted = loop {
        tokio::select! {
            aborted = &mut aborting => break aborted.ok(),
            _ = ticks.tick() => {
                if api.audit.lines().last().unwrap()["action"] == "abort-bulk" {
                    permits.add_permits(1);
                }
            }
        }
    };
    assert_eq!(aborted["state"], "aborted");
    assert!((6..250).contains(&aborted["changed"].as_u64().unwrap()), "{aborted}");
    assert_eq!(
        api.get("/types/mail").await.ok()["cancelled"],
        aborted["changed"],
        "nothing changes after the abort"
    );
    let again = api.post(&abort, json!({})).await.ok();
    assert_eq!(again["state"], "aborted");
}

#[tokio::test]
async fn only_a_few_operations_run_at_a_time() {
    let (api, _) = staged(0);
    api.start("mail").await;
    let body = json!({"action": "cancel", "filter": {"types": ["mail"]}});
    for _ in 0..BULK_MAX {
        api.post("/bulk", body.clone()).await.ok();
    }
    api.post("/bulk", body).await.refused(409);
}

#[tokio::test]
async fn unclear_operations_are_refused() {
    let api = Api::new();
    for body in [
        json!({"action": "retry", "filter": {}}),
        json!({"action": "retry", "filter": {"statuses": ["pending"]}}),
        json!({"action": "cancel", "filter": {"statuses": ["failed"]}}),
        json!({"action": "delete", "filter": {"statuses": ["running"]}}),
        json!({"action": "retry", "filter": {"types": ["a"]}, "running": true}),
        json!({"action": "explode", "filter": {"types": ["a"]}}),
        json!({"action": "retry", "filter": {"types": ["a"], "odd": 1}}),
        json!({"action": "retry"}),
    ] {
        api.post("/bulk", body).await.refused(400);
    }
    assert!(api.audit.lines().is_empty());
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("type-{number:03}")).collect()
}

#[tokio::test]
async fn a_filter_is_remembered_without_what_it_repeats() {
    let api = Api::new();
    let types: Vec<_> = names(100).into_iter().rev().cycle().take(10_000).collect();
    let digits = "0".repeat(100_000);
    let filter = json!({
        "types": types,
        "statuses": vec!["failed"; 1_000],
        "created_from": format!("2026-11-15T06:00:00.{digits}Z"),
    });
    let ended = run(&api, json!({"action": "retry", "filter": filter})).await;
    let expected = json!({
        "types": names(100),
        "statuses": ["failed"],
        "top_level": false,
        "created_from": "2026-11-15T06:00:00.000Z",
    });
    assert_eq!(ended["filter"], expected);
    let begin = api.audit.lines().remove(0);
    assert_eq!(begin["filter"], expected);
    let too_many = json!({"action": "retry", "filter": {"types": names(101)}});
    let problem = api.post("/bulk", too_many).await.refused(400);
    assert!(problem["detail"].as_str().unwrap().contains("at most 100 types, got 101"), "{problem}");
}

/// A store that does not answer lists, or panics when a chain is cancelled. It remembers the largest page.
#[derive(Debug)]
struct Odd {
    inner: MemoryStore,
    is_silent: bool,
    page_max: Arc<AtomicU32>,
}

impl Decorator for Odd {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        match command {
            Command::ListChains(_) if self.is_silent => Box::pin(std::future::pending()),
            Command::Cancel(_) => Box::pin(async { panic!("the store has a bug") }),
            Command::ListChains(list) => {
                self.page_max.fetch_max(list.page.max, Ordering::SeqCst);
                self.forward(Command::ListChains(list))
            }
            command => self.forward(command),
        }
    }
}

fn odd(is_silent: bool) -> (Api, Arc<AtomicU32>) {
    let page_max = Arc::<AtomicU32>::default();
    let store = Odd { inner: MemoryStore::new(), is_silent, page_max: Arc::clone(&page_max) };
    (Api::on(Client::new(store).into_dyn(), |server| server), page_max)
}

/// A server on a store that does not answer lists.
pub(crate) fn silent() -> (Api, Arc<AtomicU32>) {
    odd(true)
}

#[tokio::test(start_paused = true)]
async fn an_operation_can_be_aborted_while_nothing_matches() {
    let (api, _) = silent();
    let started = api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}})).await.ok();
    let path = format!("/bulk/{}", started["id"].as_str().unwrap());
    assert_eq!(api.post(&format!("{path}/abort"), json!({})).await.ok()["state"], "aborted");
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_panics_has_ended() {
    let (api, _) = odd(false);
    api.start("mail").await;
    for _ in 0..=BULK_MAX {
        let ended = run(&api, json!({"action": "cancel", "filter": {"types": ["mail"]}})).await;
        assert_eq!(ended["state"], "failed", "{ended}");
        let abort = format!("/bulk/{}/abort", ended["id"].as_str().unwrap());
        assert_eq!(api.post(&abort, json!({})).await.ok()["state"], "failed");
    }
    assert_eq!(api.audit.lines().last().unwrap()["outcome"], "unknown");
}

#[tokio::test]
async fn an_operation_keeps_few_chains_in_memory() {
    let (api, page_max) = odd(false);
    api.start("mail").await;
    run(&api, json!({"action": "cancel", "filter": {"types": ["mail"]}, "dry_run": true})).await;
    assert_eq!(page_max.load(Ordering::SeqCst), 25);
}
