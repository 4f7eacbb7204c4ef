//! Starts and changes of chains, queues and types.

use std::time::Duration;

use serde_json::json;
use windlass_core::ChainId;
use windlass_server::WAITS_MAX;

use crate::harness::Api;

#[tokio::test]
async fn a_start_with_the_same_id_starts_one_chain() {
    let api = Api::new();
    let id = ChainId::new().to_string();
    let body = json!({"id": id, "type": "mail", "input": {"to": "ada"}});
    let first = api.post("/chains", body.clone()).await;
    assert_eq!(first.status, 201);
    let again = api.post("/chains", body).await;
    assert_eq!((again.status.as_u16(), &again.json["new"]), (200, &json!(false)));
    assert_eq!((first.json["chain"].clone(), again.json["chain"].clone()), (json!(id), json!(id)));
    assert_eq!(api.get("/types/mail").await.ok()["pending"], 1);
}

#[tokio::test]
async fn a_key_returns_the_chain_that_holds_it() {
    let api = Api::new();
    let body =
        json!({"type": "mail", "key": "order-7", "hold": "completed", "priority": 5, "max_attempts": 2});
    let first = api.post("/chains", body.clone()).await.ok();
    let second = api.post("/chains", body).await;
    assert_eq!((second.status.as_u16(), &second.json["chain"]), (200, &first["chain"]));
    let job = api.get(&format!("/jobs/{}", first["chain"].as_str().unwrap())).await.ok();
    assert_eq!((&job["priority"], &job["max_attempts"]), (&json!(5), &json!(2)));
}

#[tokio::test]
async fn starts_can_be_delayed_and_waited_for() {
    let api = Api::new();
    let delayed = api.post("/chains", json!({"type": "mail", "delay_ms": 60_000})).await.ok();
    let chain = delayed["chain"].as_str().unwrap().to_owned();
    assert_eq!(api.get(&format!("/chains/{chain}")).await.ok()["state"], "scheduled");
    let triggered = api.post(&format!("/chains/{chain}/trigger"), json!({})).await.ok();
    assert_eq!(triggered["state"], "pending");
    api.post(&format!("/jobs/{chain}/trigger"), json!({})).await.ok();
    let waited = api.post("/chains", json!({"type": "mail", "wait_ms": 1})).await.ok();
    assert_eq!(waited["ended"]["closed"], false);
    api.post("/chains", json!({"type": "mail", "at": "2026-11-15T06:00:00Z", "delay_ms": 1}))
        .await
        .refused(400);
}

#[tokio::test]
async fn a_batch_starts_many_chains() {
    let api = Api::new();
    let missing = ChainId::new().to_string();
    let chains = json!([{"type": "a"}, {"type": "b", "blocked_by": [missing]}, {"type": "a", "input": [1]}]);
    let results = api.post("/chains/batch", json!({"chains": chains})).await.ok()["results"].clone();
    assert_eq!(results[0]["started"]["new"], true);
    assert_eq!(results[1]["refused"]["status"], 422);
    assert_eq!(results[2]["started"]["status"], "pending");
    let invalid = json!({"chains": [{"type": "a"}, {"type": ""}]});
    let detail = api.post("/chains/batch", invalid).await.refused(400)["detail"].clone();
    assert!(detail.as_str().unwrap().starts_with("chain 1"), "{detail}");
    let many = json!({"chains": vec![json!({"type": "a"}); 1_001]});
    api.post("/chains/batch", many).await.refused(400);
    assert_eq!(api.get("/types/a").await.ok()["pending"], 2, "nothing of a refused batch is started");
}

#[tokio::test]
async fn a_job_is_completed_continued_or_failed_from_outside() {
    let api = Api::new();
    let chain = api.start("approve").await;
    let complete = format!("/chains/{chain}/complete");
    api.post(&complete, json!({"output": 1, "fail": "no"})).await.refused(400);
    api.post(&complete, json!({"version": 9})).await.refused(409);
    let next = api
        .post(&complete, json!({"then": {"type": "ship", "input": {"order": 7}}, "version": 0}))
        .await
        .ok();
    assert_eq!((&next["status"], &next["job_type"]), (&json!("pending"), &json!("ship")));
    let done = api.post(&complete, json!({"output": "by hand"})).await.ok();
    assert_eq!((&done["status"], &done["output"]["json"]), (&json!("completed"), &json!("by hand")));
    api.post(&complete, json!({})).await.refused(409);
    let failed = api.start_failed("approve").await;
    assert_eq!(api.get(&format!("/chains/{failed}")).await.ok()["error"], "it broke");
}

#[tokio::test]
async fn chains_are_cancelled_and_retried() {
    let api = Api::new();
    let chain = api.start("mail").await;
    let (cancel, retry) = (format!("/chains/{chain}/cancel"), format!("/chains/{chain}/retry"));
    api.post(&retry, json!({})).await.refused(409);
    assert_eq!(api.post(&cancel, json!({})).await.ok()["status"], "cancelled");
    api.post(&cancel, json!({})).await.refused(409);
    api.post(&retry, json!({"version": 77})).await.refused(409);
    assert_eq!(api.post(&retry, json!({})).await.ok()["status"], "pending");
    api.acquire("mail").await;
    api.post(&cancel, json!({})).await.refused(409);
    let asked = api.post(&cancel, json!({"running": true})).await.ok();
    assert_eq!((&asked["status"], &asked["state"]), (&json!("running"), &json!("stopping")));
    api.post(&format!("/chains/{chain}/trigger"), json!({})).await.refused(409);
}

#[tokio::test]
async fn chains_are_deleted() {
    let api = Api::new();
    let fetch = api.start("fetch").await;
    let report = api.post("/chains", json!({"type": "report", "blocked_by": [fetch]})).await.ok();
    let report = report["chain"].as_str().unwrap();
    let needed = api.delete(&format!("/chains/{fetch}")).await.refused(409);
    assert!(needed["detail"].as_str().unwrap().contains("nothing was deleted"));
    api.acquire("fetch").await;
    api.delete(&format!("/chains/{fetch}")).await.refused(409);
    let running = api.delete(&format!("/chains/{report}?cascade=true")).await.refused(409);
    assert!(running["detail"].as_str().unwrap().contains(&format!("chain {fetch} is running")), "{running}");
    assert_eq!(api.get(&format!("/chains/{report}")).await.ok()["status"], "blocked", "nothing was deleted");
    let deleted = api.delete(&format!("/chains/{report}?cascade=true&running=true")).await.ok();
    assert_eq!(deleted["deleted"], json!([report, fetch]));
    api.get(&format!("/chains/{report}")).await.refused(404);
    api.delete(&format!("/chains/{report}")).await.refused(404);
}

#[tokio::test]
async fn jobs_are_enqueued_once_and_their_results_returned() {
    let api = Api::new();
    let body = json!({"id": "a.jpg", "payload": {"file": "a.jpg"}});
    let queued = api.post("/queues/thumbnails/jobs", body.clone()).await;
    assert_eq!((queued.status.as_u16(), &queued.json["outcome"]), (201, &json!("queued")));
    let duplicate = api.post("/queues/thumbnails/jobs", body.clone()).await.ok();
    assert_eq!((&duplicate["outcome"], &duplicate["state"]), (&json!("duplicate"), &json!("pending")));
    let chain = queued.json["chain"].as_str().unwrap();
    api.post(&format!("/chains/{chain}/complete"), json!({"output": "small.jpg"})).await.ok();
    let completed = api.post("/queues/thumbnails/jobs", json!({"id": "a.jpg", "wait_ms": 5_000})).await.ok();
    assert_eq!(
        (&completed["outcome"], &completed["job"]["output"]["json"]),
        (&json!("completed"), &json!("small.jpg"))
    );
    assert_eq!(api.get("/queues/thumbnails/jobs/a.jpg").await.ok()["status"], "completed");
    api.get("/queues/thumbnails/jobs/b.jpg").await.refused(404);
    api.post("/queues/thumbnails/jobs", json!({"id": ""})).await.refused(422);
    api.post("/queues/thumbnails/jobs", json!({"id": "c", "keep_ms": 0})).await.refused(400);
}

#[tokio::test]
async fn types_are_paused_and_resumed() {
    let api = Api::new();
    let pause = || api.post("/types/mail%2Furgent/pause", json!({}));
    assert_eq!(pause().await.ok(), json!({"type": "mail/urgent", "paused": true, "unchanged": false}));
    assert_eq!(pause().await.ok()["unchanged"], true);
    assert_eq!(api.get("/types/mail%2Furgent").await.ok()["paused"], true);
    let resumed = api.post("/types/mail%2Furgent/resume", json!({})).await.ok();
    assert_eq!((&resumed["paused"], &resumed["unchanged"]), (&json!(false), &json!(false)));
}

#[tokio::test]
async fn only_ids_of_version_7_can_be_chosen() {
    let api = Api::new();
    // Version 8 is the id of an occurrence of a schedule.
    for version in [1, 4, 6, 8] {
        let id = format!("019a81b2-5f0e-{version}c55-9d1e-0d3f6a1d7c11");
        api.post("/chains", json!({"id": id, "type": "a"})).await.refused(400);
        api.post("/chains/batch", json!({"chains": [{"id": id, "type": "a"}]})).await.refused(400);
        api.post("/bulk", json!({"id": id, "action": "retry", "filter": {"types": ["a"]}}))
            .await
            .refused(400);
    }
    assert_eq!(api.get("/types").await.ok()["types"], json!([]), "nothing has changed");
    assert!(api.audit.lines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_its_client_disconnects() {
    let api = Api::new();
    let wait = |wait_ms: u64| api.post("/chains", json!({"type": "mail", "wait_ms": wait_ms}));
    // One caller has half of the waits.
    for _ in 0..WAITS_MAX / 2 {
        let cut = tokio::time::timeout(Duration::from_millis(10), wait(60_000)).await;
        assert!(cut.is_err(), "the client disconnects during the wait");
    }
    wait(1).await.ok();
    let started = api.get("/types/mail").await.ok();
    assert_eq!(started["pending"], WAITS_MAX / 2 + 1, "every chain was started");
}
