//! Hidden and redacted payloads.

use axum::http::Method;
use serde_json::{Value, json};
use windlass_core::command::{NewChain, NewJob, NewKey};
use windlass_core::{ChainId, Codec, Key, Payload, TypeName};
use windlass_server::{RedactionPath, Role};

use crate::harness::Api;

const SECRET: &str = "4111-1111";

/// Every query that shows a chain, a job or an error.
fn queries(chain: &str) -> Vec<String> {
    let paths = [
        "/jobs",
        "/jobs/ID",
        "/chains",
        "/chains/ID",
        "/chains/ID/graph",
        "/chains/ID/wait?timeout_ms=1",
        "/types/pay/keys/k",
        "/queues/pay/jobs/k",
        "/schedules",
        "/schedules/s",
        "/bulk",
        "/overview",
    ];
    paths.iter().map(|path| path.replace("ID", chain)).collect()
}

/// Stores a failed chain, and a schedule, that contain a secret.
async fn store_secret(api: &Api) -> String {
    let input = json!({"card": {"number": SECRET}, "note": "hello"});
    let body = json!({"type": "pay", "key": "k", "input": input, "hold": "any"});
    let chain = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    let put = api.call(Method::PUT, "/schedules/s").role(Role::Admin);
    put.json(&json!({"every_ms": 60_000, "job": {"type": "pay", "input": input}})).send().await.ok();
    api.acquire("pay").await;
    let fail = json!({"fail": format!("card {SECRET} was declined")});
    api.post(&format!("/chains/{chain}/complete"), fail).await.ok();
    chain
}

#[tokio::test]
async fn a_role_without_rights_sees_no_payload_and_no_error() {
    let api = Api::with(|server| server.payloads_from(Role::Operate));
    let chain = store_secret(&api).await;
    for path in queries(&chain) {
        let shown = api.call(Method::GET, &path).role(Role::Produce).send().await.ok().to_string();
        assert!(
            !shown.contains(SECRET) && !shown.contains("hello") && !shown.contains("declined"),
            "{path}: {shown}"
        );
    }
    let job = api.call(Method::GET, &format!("/jobs/{chain}")).role(Role::Produce).send().await.ok();
    assert_eq!(
        (&job["input"]["hidden"], &job["error_hidden"], &job["error"]),
        (&json!("role"), &json!(true), &Value::Null)
    );
    let seen = api.call(Method::GET, &format!("/jobs/{chain}")).role(Role::Operate).send().await.ok();
    assert!(seen.to_string().contains(SECRET));
    let who = api.call(Method::GET, "/session").role(Role::Produce).send().await.ok();
    assert_eq!(who["sees_payloads"], false);
    // Answers of changes are no way around it.
    let body = json!({"id": "k2", "payload": SECRET, "wait_ms": 1});
    let shown = api.call(Method::POST, "/queues/pay/jobs").role(Role::Produce).json(&body).send().await.ok();
    assert!(!shown.to_string().contains(SECRET), "{shown}");
}

#[tokio::test]
async fn redacted_values_appear_nowhere() {
    let api = Api::with(|server| server.redact([RedactionPath::new("card.number").unwrap()]));
    let chain = store_secret(&api).await;
    for path in queries(&chain) {
        let shown = api.get(&path).await.ok().to_string();
        assert!(!shown.contains(SECRET), "{path}: {shown}");
    }
    let job = api.get(&format!("/jobs/{chain}")).await.ok();
    assert_eq!(job["input"]["json"], json!({"card": {"number": "[redacted]"}, "note": "hello"}));
    assert_eq!(job["error"], "card [redacted] was declined");
    assert_eq!(job["input"]["redacted"], true);
}

async fn start_encoded(api: &Api, codec: &str, bytes: Vec<u8>) -> String {
    let payload = Payload::new(Codec::new(codec).unwrap(), bytes).unwrap();
    let job = NewJob::new(TypeName::new("pay").unwrap(), payload);
    let key = Some(NewKey::new(Key::new(codec).unwrap()));
    let new = NewChain { key, ..NewChain::new(ChainId::new(), job) };
    let id = new.id.to_string();
    api.client.create(vec![new]).await.unwrap();
    id
}

#[tokio::test]
async fn every_encoding_is_shown_redacted_or_hidden() {
    let value = json!({"card": SECRET, "n": 1});
    let messagepack = rmp_serde::to_vec_named(&value).unwrap();
    let mut cbor = Vec::new();
    ciborium::into_writer(&value, &mut cbor).unwrap();
    let own = value.to_string().into_bytes();
    let encoded =
        [("messagepack", messagepack), ("cbor", cbor), ("own", own.clone()), ("json", own[1..].to_vec())];
    let plain = Api::new();
    let redacting = Api::with(|server| server.redact([RedactionPath::new("card").unwrap()]));
    for (codec, bytes) in encoded {
        let chain = start_encoded(&plain, codec, bytes.clone()).await;
        let input = plain.get(&format!("/jobs/{chain}")).await.ok()["input"].clone();
        let is_known = matches!(codec, "messagepack" | "cbor");
        assert_eq!(
            (input["codec"].as_str(), input.get("hex").is_some()),
            (Some(codec), !is_known),
            "{input}"
        );
        let chain = start_encoded(&redacting, codec, bytes).await;
        let shown = redacting.get(&format!("/jobs/{chain}")).await.ok();
        assert!(!shown.to_string().contains(SECRET), "{shown}");
        match is_known {
            true => assert_eq!(shown["input"]["json"], json!({"card": "[redacted]", "n": 1})),
            false => assert_eq!(shown["input"]["hidden"], "undecodable"),
        }
    }
}

#[tokio::test]
async fn problems_do_not_repeat_the_body() {
    let api = Api::new();
    let body = json!({"type": "pay", "priority": SECRET.repeat(100), "input": SECRET}).to_string();
    let problem = api.call(Method::POST, "/chains").role(Role::Admin).body(body).send().await.refused(400);
    assert!(!problem.to_string().contains(SECRET), "{problem}");
    // Neither values nor names: a client may put a token anywhere.
    for body in [
        format!("\"{SECRET}\""),
        format!("{{\"token\": [\"{SECRET}\"]}}"),
        format!("{{\"{SECRET}\": 1}}"),
        format!("{{\"token\": {SECRET}}}"),
        format!("{{\"token\": \"x\", \"{SECRET}\": \"{SECRET}\"}}"),
    ] {
        let problem = api.call(Method::POST, "/session").body(body).send().await.refused(400);
        assert!(!problem.to_string().contains(SECRET), "{problem}");
    }
}

#[tokio::test]
async fn large_payloads_are_left_out_of_lists() {
    let api = Api::new();
    let large = "x".repeat(3 * 1024 * 1024);
    for _ in 0..30 {
        api.post("/chains", json!({"type": "pay", "input": large})).await.ok();
    }
    for path in ["/jobs?limit=1000", "/chains?limit=1000"] {
        let page = api.get(path).await.ok();
        let text = page.to_string();
        assert!(text.len() < 100_000, "{path} has {} bytes", text.len());
        assert!(text.contains("\"hidden\":\"size\""), "{path}");
        assert!(page["next"].is_string(), "{path} ends early");
    }
    // No row is lost between two pages.
    let (mut after, mut seen) = (String::new(), std::collections::BTreeSet::new());
    loop {
        let page = api.get(&format!("/jobs?limit=1000{after}")).await.ok();
        seen.extend(page["jobs"].as_array().unwrap().iter().map(|job| job["id"].to_string()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen.len(), 30);
    let chain = seen.first().unwrap().trim_matches('"').to_owned();
    let job = api.get(&format!("/jobs/{chain}")).await.ok();
    assert_eq!(job["input"]["json"], json!(large), "a single job shows it");
    let graph = api.get(&format!("/chains/{chain}/graph")).await.ok();
    assert_eq!(graph["jobs"][0]["input"]["hidden"], "size");
}

#[tokio::test]
async fn the_error_of_a_later_job_does_not_show_the_input_of_the_first_one() {
    let api = Api::with(|server| server.redact([RedactionPath::new("card").unwrap()]));
    let body = json!({"type": "pay", "key": "k", "input": {"card": SECRET}});
    let chain = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    let complete = format!("/chains/{chain}/complete");
    let continued = api.post(&complete, json!({"then": {"type": "mail", "input": {}}})).await.ok();
    let last = continued["job"].as_str().unwrap();
    let failed = api.post(&complete, json!({"fail": format!("card {SECRET} was declined")})).await.ok();
    assert_eq!(failed["error"], "card [redacted] was declined");
    for path in ["/jobs", "/chains", "/chains/ID", "/chains/ID/graph", "/jobs/LAST", "/types/pay/keys/k"] {
        let shown = api.get(&path.replace("ID", &chain).replace("LAST", last)).await.ok().to_string();
        assert!(!shown.contains(SECRET), "{path}: {shown}");
    }
    assert_eq!(api.get(&format!("/jobs/{last}")).await.ok()["error"], "card [redacted] was declined");
}

#[tokio::test]
async fn the_error_of_a_job_does_not_show_what_its_blockers_returned() {
    let api = Api::with(|server| server.redact([RedactionPath::new("card").unwrap()]));
    let blocker = api.start("lookup").await;
    let body = json!({"type": "pay", "key": "k", "input": {}, "blocked_by": [blocker]});
    let chain = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    let output = json!({"output": {"card": SECRET}});
    api.post(&format!("/chains/{blocker}/complete"), output).await.ok();
    let fail = json!({"fail": format!("card {SECRET} was declined")});
    let failed = api.post(&format!("/chains/{chain}/complete"), fail).await.ok().to_string();
    assert!(!failed.contains(SECRET), "{failed}");
    for path in queries(&chain).into_iter().filter(|path| !path.starts_with("/schedules/")) {
        let shown = api.get(&path).await.ok().to_string();
        assert!(!shown.contains(SECRET), "{path}: {shown}");
    }
    assert_eq!(api.get(&format!("/jobs/{chain}")).await.ok()["error_hidden"], true);
}
