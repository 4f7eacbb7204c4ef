//! Filters of the pages with lists.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windlass_server::Role;

use crate::harness::{Api, until};
use crate::pages::page;

/// Returns the chains or jobs on a page.
fn rows(text: &str, path: &str) -> BTreeSet<String> {
    let link = format!("<td><a class=\"id\" href=\"/{path}/");
    text.split(&link).skip(1).map(|rest| rest[..36].to_owned()).collect()
}

#[tokio::test]
async fn filters_without_a_field_are_shown_and_kept() {
    let api = Api::new();
    let path = "/chains?status=failed&status=cancelled&type=a&type=b&top_level=true&closed_from=2026-01-01T00:00:00Z&limit=5";
    let text = page(&api, Role::Read, path).await;
    let hidden = |name: &str, value: &str| {
        text.contains(&format!("<input type=\"hidden\" name=\"{name}\" value=\"{value}\">"))
    };
    for (name, value) in [
        ("status", "failed"),
        ("status", "cancelled"),
        ("type", "a"),
        ("type", "b"),
        ("top_level", "true"),
        ("closed_from", "2026-01-01T00:00:00Z"),
        ("limit", "5"),
    ] {
        assert!(hidden(name, value), "{name}={value}: {text}");
    }
    assert!(!text.contains("selected"), "a field shows no single value of several");
    // Each link removes one filter.
    let without = "/chains?status=cancelled&amp;type=a&amp;type=b&amp;top_level=true\
                   &amp;closed_from=2026-01-01T00%3A00%3A00Z&amp;limit=5";
    assert!(text.contains(&format!("href=\"{without}\"")), "{text}");
    // A single value is in its field, and not hidden as well.
    let text = page(&api, Role::Read, "/chains?status=failed&type=a").await;
    assert!(
        text.contains("<option value=\"failed\" selected>") && !text.contains("type=\"hidden\""),
        "{text}"
    );
    let text = page(&api, Role::Read, "/jobs?chain_type=mail&closed_to=2026-01-01T00:00:00Z").await;
    assert!(text.contains("name=\"chain_type\"") && text.contains("name=\"closed_to\""), "{text}");
}

#[tokio::test]
async fn specific_states_are_filtered() {
    let api = Api::new();
    let pending = api.start("mail").await;
    let scheduled = api.post("/chains", json!({"type": "mail", "delay_ms": 3_600_000})).await.ok();
    let scheduled = scheduled["chain"].as_str().unwrap().to_owned();
    let stopping = api.start("stop").await;
    api.acquire("stop").await;
    api.post(&format!("/chains/{stopping}/cancel"), json!({"running": true})).await.ok();
    let running = api.start("run").await;
    api.acquire("run").await;
    let failed = api.start_failed("mail").await;
    for (query, expected) in [
        ("status=scheduled", vec![&scheduled]),
        ("status=pending", vec![&pending, &scheduled]),
        ("status=stopping", vec![&stopping]),
        ("status=running", vec![&running, &stopping]),
        ("status=scheduled&status=failed", vec![&scheduled, &failed]),
        ("status=stopping&status=scheduled&type=mail", vec![&scheduled]),
        ("status=failing", vec![]),
    ] {
        let expected: BTreeSet<_> = expected.into_iter().cloned().collect();
        for list in ["chains", "jobs"] {
            let text = page(&api, Role::Read, &format!("/{list}?{query}")).await;
            assert_eq!(rows(&text, list), expected, "/{list}?{query}");
        }
    }
}

#[tokio::test]
async fn a_bulk_operation_changes_what_the_list_shows() {
    let api = Api::new();
    for number in 0..8 {
        let job_type = ["mail", "ship"][number % 2];
        let key = format!("k-{}", number % 3);
        let body = json!({"type": job_type, "key": key, "delay_ms": (number as u64 % 4) * 3_600_000});
        let chain = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
        if number >= 6 {
            api.post("/chains", json!({"type": "waits", "blocked_by": [chain]})).await.ok();
        }
    }
    for query in [
        "type=mail",
        "type=mail&type=waits",
        "status=scheduled",
        "status=scheduled&status=blocked",
        "key=k-1",
        "top_level=true",
        "within=1h&type=ship",
        "created_to=2020-01-01T00:00:00Z",
    ] {
        let text = page(&api, Role::Operate, &format!("/chains?{query}")).await;
        let listed = rows(&text, "chains");
        // The button has the filter that the API is called with.
        let body = text.split("data-path=\"/bulk\" data-body=\"").nth(1).unwrap().split('"').next().unwrap();
        let mut body: Value = serde_json::from_str(&body.replace("&quot;", "\"")).unwrap();
        body["action"] = json!("cancel");
        body["dry_run"] = json!(true);
        let started = api.post("/bulk", body).await.ok();
        let path = format!("/bulk/{}", started["id"].as_str().unwrap());
        until("the operation has ended", async || api.get(&path).await.ok()["state"] != "running").await;
        let ended = api.get(&path).await.ok();
        assert_eq!(ended["visited"], listed.len(), "{query}: {ended}");
    }
}
