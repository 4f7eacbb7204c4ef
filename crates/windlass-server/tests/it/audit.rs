//! The audit log.

use serde_json::{Value, json};
use windlass_server::AuditLog;

use crate::harness::Api;

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
        ("/schedules/n/run", json!({})),
    ] {
        let problem = api.post(path, body).await.refused(503);
        assert!(problem["detail"].as_str().unwrap().contains("audit log"), "{path}: {problem}");
    }
    api.delete(&format!("/chains/{chain}")).await.refused(503);
    assert_eq!(
        api.get("/types").await.ok()["types"][0]["pending"],
        1,
        "nothing has changed, and reads still work"
    );
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
