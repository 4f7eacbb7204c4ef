//! The audit log.

use std::pin::pin;
use std::time::Duration;

use axum::http::Method;
use axum::http::header::{COOKIE, SET_COOKIE};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::advance;
use windlass_server::{AuditLog, Role};

use crate::bulk::staged;
use crate::harness::{Api, until};

#[tokio::test]
async fn every_change_has_two_lines_without_payloads() {
    let api = Api::new();
    let body = json!({"type": "mail", "key": "k", "input": {"secret": "hunter2"}});
    let chain = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    api.post(&format!("/chains/{chain}/cancel"), json!({})).await.ok();
    api.post(&format!("/chains/{chain}/cancel"), json!({})).await.refused(409);
    api.post("/types/mail/pause", json!({})).await.ok();
    let lines = api.audit.lines();
    let fields = |line: &Value| (line["phase"].clone(), line["action"].clone(), line["outcome"].clone());
    let expected = [
        (json!("begin"), json!("start"), Value::Null),
        (json!("end"), Value::Null, json!("started")),
        (json!("begin"), json!("cancel"), Value::Null),
        (json!("end"), Value::Null, json!("cancelled")),
        (json!("begin"), json!("cancel"), Value::Null),
        (json!("end"), Value::Null, json!("refused")),
        (json!("begin"), json!("pause"), Value::Null),
        (json!("end"), Value::Null, json!("paused")),
    ];
    assert_eq!(lines.iter().map(fields).collect::<Vec<_>>(), expected);
    assert_eq!(lines[0]["id"], lines[1]["id"]);
    assert_eq!((&lines[2]["name"], &lines[2]["role"]), (&json!("admin"), &json!("admin")));
    let target = &lines[2]["targets"][0];
    assert_eq!(
        (&target["chain"], &target["status"], &target["version"]),
        (&json!(chain), &json!("pending"), &json!(0))
    );
    assert_eq!(lines[5]["code"], 409);
    assert!(!lines.iter().any(|line| line.to_string().contains("hunter2")));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_refuses_every_change() {
    let api = Api::new();
    let chain = api.start("mail").await;
    let failed = api.start_failed("broken").await;
    let schedule = json!({"every_ms": 90_000, "job": {"type": "check"}});
    let put = || api.call(Method::PUT, "/schedules/s").role(Role::Admin).json(&schedule).send();
    put().await.ok();
    let before = api.get("/schedules/s").await.ok();
    api.audit.fail(true);
    for (path, body) in [
        ("/chains", json!({"type": "mail"})),
        ("/chains/batch", json!({"chains": [{"type": "mail"}]})),
        ("/queues/mail/jobs", json!({"id": "a"})),
        (&*format!("/chains/{chain}/cancel"), json!({})),
        (&*format!("/chains/{chain}/complete"), json!({})),
        (&*format!("/chains/{chain}/trigger"), json!({})),
        ("/types/mail/pause", json!({})),
        ("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}})),
        (&*format!("/chains/{failed}/retry"), json!({})),
        ("/types/mail/resume", json!({})),
        ("/schedules/s/run", json!({})),
        ("/schedules/s/pause", json!({})),
        ("/schedules/s/resume", json!({})),
        ("/schedules/s/accept", json!({})),
        ("/session", json!({"token": api.tokens[&Role::Admin]})),
    ] {
        let problem = api.post(path, body).await.refused(503);
        assert!(problem["detail"].as_str().unwrap().contains("audit log"), "{path}: {problem}");
    }
    api.delete(&format!("/chains/{chain}")).await.refused(503);
    api.delete("/schedules/s").await.refused(503);
    put().await.refused(503);
    // Nothing has changed, and reads still work.
    assert_eq!(api.get("/types/mail").await.ok()["pending"], 1);
    assert_eq!(api.get(&format!("/chains/{failed}")).await.ok()["status"], "failed");
    let after = api.get("/schedules/s").await.ok();
    assert_eq!((&after["state"], &after["runs"]), (&before["state"], &before["runs"]));
    api.audit.fail(false);
    api.post(&format!("/chains/{chain}/cancel"), json!({})).await.ok();
}

#[tokio::test]
async fn a_file_can_be_rotated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let api = Api::with(|server| server.audit(AuditLog::file(&path).unwrap()));
    api.start("mail").await;
    std::fs::rename(&path, folder.path().join("audit.1")).unwrap();
    api.start("mail").await;
    for name in ["audit.1", "audit.jsonl"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(text.lines().count(), 2, "{name}");
    }
    std::fs::remove_dir_all(folder.path()).unwrap();
    api.post("/chains", json!({"type": "mail"})).await.refused(503);
}

#[tokio::test]
async fn a_log_that_cannot_be_written_does_not_keep_anyone_from_stopping() {
    let (api, _) = staged(0);
    let token = json!({"token": api.tokens[&Role::Operate]});
    let login = api.call(Method::POST, "/session").json(&token).send().await;
    let cookie = login.headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    api.audit.fail(true);
    let call = |method, path| {
        api.call(method, path).header(COOKIE, &cookie).header("sec-fetch-site", "same-origin").send()
    };
    assert_eq!(call(Method::DELETE, "/session").await.ok(), json!({"ended": true}));
    call(Method::GET, "/session").await.refused(401);
    api.audit.fail(false);
    // The operation searches a store that does not answer.
    let (api, _) = crate::bulk::silent();
    let started = api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}})).await.ok();
    api.audit.fail(true);
    let abort = format!("/bulk/{}/abort", started["id"].as_str().unwrap());
    assert_eq!(api.post(&abort, json!({})).await.ok()["state"], "aborted");
}

/// Waits for an answer while a write to the log stalls. Paused time does not advance by itself during such a write.
async fn answered<T>(answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    loop {
        // In small steps: the server also needs some real time, for the file of the sessions.
        let step = spawn_blocking(|| std::thread::sleep(Duration::from_millis(50))); // tidy: real time for other threads
        tokio::select! {
            answer = &mut answer => return answer,
            _ = step => advance(Duration::from_millis(250)).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_stalls_does_not_keep_anyone_from_logging_out() {
    let api = Api::new();
    let token = json!({"token": api.tokens[&Role::Operate]});
    let login = api.call(Method::POST, "/session").json(&token).send().await;
    let cookie = login.headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let call = |method, path| {
        api.call(method, path).header(COOKIE, &cookie).header("sec-fetch-site", "same-origin").send()
    };
    let stall = api.audit.stall();
    assert_eq!(answered(call(Method::DELETE, "/session")).await.ok(), json!({"ended": true}));
    call(Method::GET, "/session").await.refused(401);
    drop(stall);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_stalls_does_not_keep_anyone_from_aborting() {
    // The operation searches a store that does not answer.
    let (api, _) = crate::bulk::silent();
    let operation = api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}})).await.ok();
    let stall = api.audit.stall();
    let abort = format!("/bulk/{}/abort", operation["id"].as_str().unwrap());
    assert_eq!(answered(api.post(&abort, json!({}))).await.ok()["state"], "aborted");
    drop(stall);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_waits_for_the_log_can_be_aborted() {
    let (api, permits) = staged(1);
    let path = started(&api).await;
    let stall = api.audit.stall();
    advance(Duration::from_secs(10)).await;
    permits.add_permits(1);
    let aborted = answered(api.post(&format!("{path}/abort"), json!({}))).await.ok();
    assert_eq!((&aborted["state"], &aborted["changed"]), (&json!("aborted"), &json!(2)));
    drop(stall);
}

/// Starts an operation that has changed one chain and waits.
async fn started(api: &Api) -> String {
    for _ in 0..3 {
        api.start("mail").await;
    }
    let started = api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}})).await.ok();
    let path = format!("/bulk/{}", started["id"].as_str().unwrap());
    until("a chain is cancelled", async || api.get(&path).await.ok()["changed"] == 1).await;
    path
}

#[tokio::test]
async fn a_running_operation_ends_when_the_log_cannot_be_written() {
    let (api, permits) = staged(1);
    let path = started(&api).await;
    api.audit.fail(true);
    // The server notices with the next change.
    api.post("/types/mail/pause", json!({})).await.refused(503);
    permits.add_permits(1);
    until("the operation has ended", async || api.get(&path).await.ok()["state"] != "running").await;
    let ended = api.get(&path).await.ok();
    assert_eq!((&ended["state"], &ended["changed"]), (&json!("failed"), &json!(2)), "{ended}");
    assert!(ended["reason"].as_str().unwrap().contains("audit log"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn a_running_operation_writes_to_the_log_from_time_to_time() {
    let (api, permits) = staged(1);
    let path = started(&api).await;
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    permits.add_permits(1);
    until("the next chain is cancelled", async || api.get(&path).await.ok()["changed"] == 2).await;
    let line = api.audit.lines().pop().unwrap();
    assert_eq!((&line["phase"], &line["changed"]), (&json!("progress"), &json!(2)), "{line}");
    api.audit.fail(true);
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    permits.add_permits(1);
    until("the operation has ended", async || api.get(&path).await.ok()["state"] != "running").await;
}

#[tokio::test]
async fn a_line_that_a_crash_has_cut_does_not_swallow_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    std::fs::write(&path, "{\"at\":\"2026").unwrap();
    let api = Api::with(|server| server.audit(AuditLog::file(&path).unwrap()));
    api.start("mail").await;
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().skip(1).map(serde_json::from_str::<Value>).collect();
    assert!(lines.len() == 2 && lines.iter().all(Result::is_ok), "{text}");
}
