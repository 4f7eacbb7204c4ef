use axum::http::Method;
use serde_json::json;
use windlass_server::Role;

use crate::harness::Api;
use crate::pages::page;

#[tokio::test]
async fn schedules_are_created_listed_paused_run_and_deleted() {
    let api = Api::new();
    let put = |name: &str, body| {
        api.call(Method::PUT, &format!("/schedules/{name}")).role(Role::Admin).json(&body).send()
    };
    let job = json!({"type": "report", "input": {"of": "sales"}});
    let nightly = json!({"cron": "0 3 * * *", "zone": "Europe/Berlin", "overlap": "wait", "missed": "skip", "job": job});
    let stored = put("nightly", nightly).await.ok();
    assert_eq!((&stored["state"], &stored["type"]), (&json!("active"), &json!("report")));
    assert_eq!(stored["input"]["json"], json!({"of": "sales"}));
    assert_eq!(stored["next"].as_array().unwrap().len(), 5);
    put("poll", json!({"every_ms": 90_000, "job": {"type": "check"}})).await.ok();
    assert_eq!(api.get("/schedules").await.ok()["schedules"].as_array().unwrap().len(), 2);
    assert_eq!(api.post("/schedules/nightly/pause", json!({})).await.ok()["state"], "paused");
    assert_eq!(api.post("/schedules/nightly/resume", json!({})).await.ok()["state"], "active");
    let run = api.post("/schedules/nightly/run", json!({})).await.ok();
    let chain = api.get(&format!("/chains/{}", run["chain"].as_str().unwrap())).await.ok();
    assert_eq!(chain["schedule"], "nightly");
    assert_eq!(api.get("/schedules/nightly").await.ok()["runs"][0]["manual"], true);
    api.post("/schedules/nightly/accept", json!({})).await.ok();
    assert_eq!(api.delete("/schedules/nightly").await.ok(), json!({"deleted": "nightly"}));
    api.delete("/schedules/nightly").await.refused(404);
    api.get("/schedules/nightly").await.refused(404);
    api.post("/schedules/nightly/pause", json!({})).await.refused(404);
}

#[tokio::test]
async fn lists_leave_out_large_inputs() {
    let api = Api::new();
    let body = json!({"every_ms": 90_000, "job": {"type": "check", "input": "x".repeat(20_000)}});
    api.call(Method::PUT, "/schedules/large").role(Role::Admin).json(&body).send().await.ok();
    let listed = api.get("/schedules").await.ok()["schedules"][0]["input"].clone();
    assert_eq!((&listed["hidden"], &listed["json"]), (&json!("size"), &json!(null)));
    let shown = api.get("/schedules/large").await.ok()["input"].clone();
    assert_eq!(shown["json"].as_str().unwrap().len(), 20_000);
}

#[tokio::test]
async fn invalid_schedules_are_refused() {
    let api = Api::new();
    let job = json!({"type": "report"});
    for body in [
        json!({"job": job}),
        json!({"cron": "0 3 * * *", "every_ms": 5, "job": job}),
        json!({"cron": "not cron", "job": job}),
        json!({"cron": "0 3 * * *", "zone": "Nowhere/Land", "job": job}),
        json!({"every_ms": 0, "job": job}),
        json!({"every_ms": 1_000, "zone": "UTC", "job": job}),
        json!({"once": "yesterday", "job": job}),
        json!({"every_ms": 1_000, "job": {"type": "a", "delay_ms": 5}}),
        json!({"every_ms": 1_000}),
        json!({"cron": "0 0 30 2 *", "job": job}),
    ] {
        let answer = api.call(Method::PUT, "/schedules/n").role(Role::Admin).json(&body).send().await;
        assert!(matches!(answer.status.as_u16(), 400 | 422), "{body}: {}", answer.status);
    }
    let long = format!("/schedules/{}", "x".repeat(201));
    let body = json!({"every_ms": 1_000, "job": job});
    let answer = api.call(Method::PUT, &long).role(Role::Admin).json(&body).send().await;
    assert!(matches!(answer.status.as_u16(), 400 | 422), "{}", answer.status);
    assert_eq!(api.get("/schedules").await.ok(), json!({"schedules": [], "next": null}));
}

#[tokio::test]
async fn schedules_are_listed_page_by_page() {
    let api = Api::new();
    let body = json!({"every_ms": 90_000, "job": {"type": "check"}});
    let names: Vec<_> = (0..60).map(|number| format!("s {number:02}/&")).collect();
    for name in &names {
        let path: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let put = api.call(Method::PUT, &format!("/schedules/{path}")).role(Role::Admin);
        put.json(&body).send().await.ok();
    }
    assert_eq!(api.get("/schedules").await.ok()["schedules"].as_array().unwrap().len(), 50);
    let (mut after, mut seen, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let page = api.get(&format!("/schedules?limit=20{after}")).await.ok();
        let shown = page["schedules"].as_array().unwrap();
        assert!(shown.len() <= 20);
        seen.extend(shown.iter().map(|schedule| schedule["name"].as_str().unwrap().to_owned()));
        pages += 1;
        let Some(next) = page["next"].as_str() else { break };
        let next: String = next.bytes().map(|byte| format!("%{byte:02X}")).collect();
        after = format!("&after={next}");
    }
    assert_eq!((seen, pages), (names, 4));
    for query in ["limit=0", "limit=101", "after=", "order=newest"] {
        let answer = api.get(&format!("/schedules?{query}")).await;
        assert!(matches!(answer.status.as_u16(), 400 | 422), "{query}: {}", answer.status);
    }
    // The page of the dashboard continues in the same way.
    let first = page(&api, Role::Read, "/schedules").await;
    assert!(first.contains("s 49/&amp;") && !first.contains("s 50/&amp;"), "{first}");
    let next = first.split("rel=\"next\" href=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let second = page(&api, Role::Read, &next).await;
    assert!(second.contains("s 50/&amp;") && second.contains("First page"), "{second}");
}
