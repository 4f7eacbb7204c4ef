//! Lists, single items and counts.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::Api;

fn ids(page: &Value, of: &str) -> Vec<String> {
    page[of].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn jobs_are_listed_by_filter_and_page() {
    let api = Api::new();
    let mut mails = Vec::new();
    for _ in 0..5 {
        mails.push(api.start("mail").await);
    }
    let failed = api.start_failed("report").await;
    let (mut seen, mut path, mut pages) = (Vec::new(), "/jobs?type=mail&limit=2&order=oldest".to_owned(), 0);
    loop {
        let page = api.get(&path).await.ok();
        seen.extend(ids(&page, "jobs"));
        pages += 1;
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/jobs?type=mail&limit=2&order=oldest&after={}", encoded(next));
    }
    assert_eq!(seen, mails);
    assert!(pages >= 3, "{pages}");
    let by_chain = format!("/jobs?chain={failed}");
    for path in ["/jobs?status=failed", "/jobs?status=failed&status=cancelled&type=report", &by_chain] {
        assert_eq!(ids(&api.get(path).await.ok(), "jobs"), [&*failed], "{path}");
    }
    assert!(ids(&api.get("/jobs?created_to=2001-01-01T00:00:00Z").await.ok(), "jobs").is_empty());
    assert!(ids(&api.get("/jobs?status=scheduled").await.ok(), "jobs").is_empty());
    assert_eq!(ids(&api.get("/jobs?status=pending").await.ok(), "jobs").len(), 5);
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn a_job_is_shown_with_its_attempts_and_blockers() {
    let api = Api::new();
    let fetch = api.start("fetch").await;
    let body = json!({"type": "report", "blocked_by": [fetch], "input": {"a": 12345678901234567890_u64}});
    let report = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    let job = api.get(&format!("/jobs/{report}")).await.ok();
    assert_eq!(
        (&job["status"], &job["type"], &job["attempt"]),
        (&json!("blocked"), &json!("report"), &json!(0))
    );
    assert_eq!(job["input"]["json"]["a"], json!(12345678901234567890_u64), "digits are kept");
    assert_eq!(job["blockers"], json!([{"chain": fetch, "resolved": false}]));
    assert_eq!(job["blocker_chains"][0]["id"], json!(fetch));
    assert!(job["why"][0].as_str().unwrap().contains(&fetch));
    api.acquire("fetch").await;
    let fetching = api.get(&format!("/jobs/{fetch}")).await.ok();
    assert_eq!(fetching["attempts"][0]["end"], "running");
    assert_eq!(fetching["status"], "running");
    let waiting = api.start("later").await;
    let why = api.get(&format!("/jobs/{waiting}")).await.ok()["why"].clone();
    assert!(why[0].as_str().unwrap().contains("no live worker"), "{why}");
}

#[tokio::test]
async fn a_chain_is_found_by_id_job_and_key() {
    let api = Api::new();
    let body = json!({"type": "mail", "key": "a/b ü%", "input": null});
    let chain = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    api.post(&format!("/chains/{chain}/complete"), json!({"then": {"type": "next", "input": 7}})).await.ok();
    let by_id = api.get(&format!("/chains/{chain}")).await.ok();
    assert_eq!(by_id["chain_jobs"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&by_id["jobs"], &by_id["job_type"], &by_id["key"]),
        (&json!(2), &json!("next"), &json!("a/b ü%"))
    );
    let job = by_id["job"].as_str().unwrap();
    assert_eq!(api.get(&format!("/chains/{job}")).await.ok()["id"], json!(chain));
    let by_key = api.get(&format!("/types/mail/keys/{}", encoded("a/b ü%"))).await.ok();
    assert_eq!(by_key["id"], json!(chain));
    assert_eq!(ids(&api.get(&format!("/chains?key={}", encoded("a/b ü%"))).await.ok(), "chains"), [chain]);
    api.get("/types/mail/keys/other").await.refused(404);
    assert!(ids(&api.get("/chains?status=failed&top_level=true").await.ok(), "chains").is_empty());
}

#[tokio::test]
async fn the_graph_of_a_chain_has_its_neighbors() {
    let api = Api::new();
    let blocker = api.start("fetch").await;
    let middle = api.post("/chains", json!({"type": "middle", "blocked_by": [blocker]})).await.ok();
    let middle = middle["chain"].as_str().unwrap();
    let last = api.post("/chains", json!({"type": "last", "blocked_by": [middle]})).await.ok();
    let graph = api.get(&format!("/chains/{middle}/graph")).await.ok();
    assert_eq!(graph["blockers"][0]["id"], json!(blocker));
    assert_eq!(graph["dependents"][0]["id"], last["chain"]);
    assert_eq!(graph["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(graph["truncated"], false);
}

#[tokio::test]
async fn counts_workers_and_the_overview() {
    let api = Api::new();
    api.start("mail").await;
    api.start_failed("mail").await;
    let counts = api.get("/types").await.ok();
    assert_eq!((&counts["types"][0]["pending"], &counts["types"][0]["failed"]), (&json!(1), &json!(1)));
    assert_eq!(api.get("/types?type=mail&type=other").await.ok()["types"].as_array().unwrap().len(), 1);
    assert_eq!(api.get("/types/mail").await.ok()["pending"], 1);
    api.get("/types/other").await.refused(404);
    assert_eq!(api.get("/workers").await.ok(), json!({"workers": []}));
    let overview = api.get("/overview").await.ok();
    assert_eq!(overview["sample"]["sums"]["failed"], 1);
    assert_eq!(overview["sample"]["types"][0]["type"], "mail");
    assert!(overview["sampler"]["calls_per_second"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn many_overviews_cost_as_much_as_one() {
    // A long interval, so that no further sample is due.
    let api = Api::with(|server| server.sample_interval(std::time::Duration::from_secs(3_600)));
    api.start("mail").await;
    api.get("/overview").await.ok();
    let calls: BTreeSet<u64> = {
        let mut calls = BTreeSet::new();
        for _ in 0..50 {
            calls.insert(api.get("/overview").await.ok()["sampler"]["calls"].as_u64().unwrap());
        }
        calls
    };
    assert!(calls.iter().all(|calls| *calls <= 4), "{calls:?}");
}

#[tokio::test]
async fn a_wait_returns_when_the_chain_closes_or_the_time_is_over() {
    let api = Api::new();
    let chain = api.start("mail").await;
    let open = api.get(&format!("/chains/{chain}/wait?timeout_ms=1")).await.ok();
    assert_eq!(open["closed"], false);
    let wait = format!("/chains/{chain}/wait?timeout_ms=30000");
    let complete = format!("/chains/{chain}/complete");
    let (ended, _) = tokio::join!(api.get(&wait), api.post(&complete, json!({"output": [1]})));
    let ended = ended.ok();
    assert_eq!((&ended["closed"], &ended["chain"]["output"]["json"]), (&json!(true), &json!([1])));
}

#[tokio::test(start_paused = true)]
async fn the_history_does_not_reach_over_a_long_pause() {
    let interval = std::time::Duration::from_secs(1);
    let api = Api::with(|server| server.sample_interval(interval));
    api.get("/overview").await.ok();
    tokio::time::sleep(interval * 3_600).await; // tidy: the time is paused
    let history = api.get("/overview").await.ok()["history"].as_array().unwrap().len();
    assert!(history <= 2, "{history} samples, though nobody watched for an hour");
}
