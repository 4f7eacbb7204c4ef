//! Requests that are refused: documented status codes, and nothing changed.

use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use axum::http::header::{CONTENT_TYPE, HOST};
use serde_json::json;
use windlass_core::{Client, MemoryStore, Store};
use windlass_server::{Access, BODY_MAX_BYTES, Identity, Peer, Role, Server};

use crate::harness::{Api, Call, send};

fn memory() -> Client<dyn Store> {
    Client::new(MemoryStore::new()).into_dyn()
}

fn open() -> Api {
    Api::with_access(memory(), Access::without_authentication(), |server| server)
}

/// An application with its own identities.
fn embedded() -> Api {
    let access = Access::identity(|request| {
        let name = request.headers.get("x-user")?.to_str().ok()?.to_owned();
        Some(Identity { role: if name == "boss" { Role::Admin } else { Role::Read }, name })
    });
    Api::with_access(memory(), access, |server| server)
}

#[tokio::test]
async fn without_authentication_only_loopback_names_are_accepted() {
    let api = open();
    let get = |host: &str| api.call(Method::GET, "/types").header(HOST, host).send();
    for host in ["localhost", "127.0.0.1:8080", "[::1]:8080"] {
        get(host).await.ok();
    }
    for host in
        ["evil.example.com", "evil.example.com:8080", "192.168.0.1:8080", "localhost.evil.example.com"]
    {
        get(host).await.refused(421);
    }
    for host in ["user@localhost", "", "a b"] {
        get(host).await.refused(400);
    }
    api.call(Method::GET, "/types").without(HOST).send().await.refused(400);
    api.call(Method::GET, "/types").also_header(HOST, "evil.example.com").send().await.refused(400);
    // With authentication, the name does not matter.
    let api = Api::new();
    api.call(Method::GET, "/types").role(Role::Read).header(HOST, "jobs.example.com").send().await.ok();
}

#[tokio::test]
async fn forwarded_requests_need_authentication_and_trust() {
    let (without, with) = (open(), Api::new());
    for (name, value) in [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-host", "jobs.example.com"),
        ("x-forwarded-proto", "https"),
        ("forwarded", "for=192.0.2.1"),
        ("x-real-ip", "192.0.2.1"),
        ("x-forwarded-server", "jobs.example.com"),
        ("via", "1.1 proxy"),
        ("cf-connecting-ip", "192.0.2.1"),
        ("true-client-ip", "192.0.2.1"),
    ] {
        without.call(Method::GET, "/types").header(name, value).send().await.refused(400);
        with.call(Method::GET, "/types").role(Role::Read).header(name, value).send().await.ok();
    }
    // What an untrusted proxy says about the host does not make another site this one.
    let start = |api: &Api| {
        let call = api.call(Method::POST, "/chains").role(Role::Admin).json(&json!({"type": "a"}));
        call.header("x-forwarded-host", "jobs.example.com")
            .header("origin", "https://jobs.example.com")
            .request()
    };
    crate::harness::send(with.router.clone(), start(&with)).await.refused(403);
    let trusting = Api::with(Server::trust_proxy);
    crate::harness::send(trusting.router.clone(), start(&trusting)).await.ok();
    for (name, value) in [("x-forwarded-for", "nobody"), ("x-forwarded-host", "a b")] {
        trusting.call(Method::GET, "/types").role(Role::Read).header(name, value).send().await.refused(400);
    }
    let with_port = trusting.call(Method::GET, "/types").role(Role::Read);
    with_port.header("x-forwarded-for", "192.0.2.1:4711").send().await.ok();
    let call = trusting.call(Method::POST, "/chains").role(Role::Admin).json(&json!({"type": "a"}));
    call.header("x-forwarded-for", "203.0.113.9, 192.0.2.1").send().await.ok();
    let lines = trusting.audit.lines();
    assert_eq!(lines[lines.len() - 2]["remote"], "192.0.2.1", "the nearest proxy counts");
}

#[tokio::test]
async fn other_sites_change_nothing() {
    type Configure = for<'a> fn(Call<'a>) -> Call<'a>;
    let cases: [(Api, Configure); 3] = [
        (Api::new(), |call| call.role(Role::Admin)),
        (open(), |call| call),
        (embedded(), |call| call.header("x-user", "boss")),
    ];
    for (api, configure) in &cases {
        let start = || configure(api.call(Method::POST, "/chains").json(&json!({"type": "a"})));
        for (name, value) in [
            ("origin", "https://evil.example.com"),
            ("origin", "http://localhost:3000"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", ""),
        ] {
            start().header(name, value).send().await.refused(403);
        }
        for content_type in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "application/jsonx",
            "",
        ] {
            start().header(CONTENT_TYPE, content_type).send().await.refused(415);
        }
        start().without(CONTENT_TYPE).send().await.refused(415);
        let own = start().header("origin", "http://localhost:8080").header("sec-fetch-site", "same-origin");
        own.header(CONTENT_TYPE, "application/json; charset=utf-8").send().await.ok();
        let counted = configure(api.call(Method::GET, "/types")).send().await.ok();
        assert_eq!(counted["types"][0]["pending"], 1, "only the last request has started a chain");
    }
}

#[tokio::test]
async fn the_identities_of_an_application_have_roles() {
    let api = embedded();
    api.call(Method::GET, "/types").send().await.refused(401);
    api.call(Method::GET, "/types").header("x-user", "ada").send().await.ok();
    let start = |user: &str| {
        api.call(Method::POST, "/chains").json(&json!({"type": "a"})).header("x-user", user).send()
    };
    start("ada").await.refused(403);
    start("boss").await.ok();
    assert_eq!(api.audit.lines()[0]["name"], "boss");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let api = Api::new();
    for path in ["/nothing", "/chains/", "/../chains", "//chains", "/chains/%2e%2e", "/%00", "/chains/%ff"] {
        let answer = api.get(path).await;
        assert!(matches!(answer.status.as_u16(), 400 | 404), "{path}: {}", answer.status);
        answer.json["detail"].as_str().unwrap();
    }
    for (method, path) in [
        ("PATCH", "/chains"),
        ("DELETE", "/jobs"),
        ("POST", "/types"),
        ("OPTIONS", "/chains"),
        ("TRACE", "/chains"),
        ("BREW", "/chains"),
    ] {
        let method: Method = method.parse().unwrap();
        let answer = api.call(method, path).role(Role::Admin).send().await;
        assert!(answer.headers.contains_key("allow"), "{path}");
        answer.refused(405);
    }
}

#[tokio::test]
async fn invalid_parameters_are_refused() {
    let api = Api::new();
    for path in [
        "/jobs/not-an-id",
        "/jobs?limit=0",
        "/jobs?limit=1001",
        "/jobs?limit=-1",
        "/jobs?limit=9999999999999999999",
        "/jobs?order=sideways",
        "/jobs?status=odd",
        "/jobs?nothing=1",
        "/jobs?created_from=yesterday",
        "/jobs?chain=5",
        "/chains?top_level=maybe",
        "/events?topic=odd",
        "/events?chain=5",
    ] {
        api.get(path).await.refused(400);
    }
    for path in ["/jobs?type=", "/chains?key=", "/types/%01"] {
        api.get(path).await.refused(422);
    }
    let long = "x".repeat(201);
    api.get(&format!("/types/{long}")).await.refused(422);
    for body in [
        "",
        "{",
        "[]",
        "null",
        "5",
        "{\"type\":5}",
        "{\"type\":\"a\",\"odd\":1}",
        "{\"type\":\"a\",\"input\":}",
        "{\"type\":\"a\",\"priority\":999}",
        "{\"type\":\"a\",\"id\":\"5\"}",
        "{\"type\":\"a\"}{}",
        "\u{feff}{\"type\":\"a\"}",
        "{\"type\":\"a\",\"delay_ms\":-1}",
        "{\"type\":\"a\",\"hold\":\"any\"}",
        "{\"type\":\"a\",\"type\":\"b\"}",
    ] {
        let call = api.call(Method::POST, "/chains").role(Role::Admin);
        call.body(body.to_owned()).send().await.refused(400);
    }
    let refused = [
        json!({"type": ""}),
        json!({"type": "a", "key": ""}),
        json!({"type": "a", "max_attempts": 0}),
        json!({"type": "a", "delay_ms": u64::MAX}),
    ];
    for body in refused {
        api.post("/chains", body).await.refused(422);
    }
    assert_eq!(api.get("/types").await.ok()["types"], json!([]), "nothing has changed");
    assert!(api.audit.lines().is_empty());
}

#[tokio::test]
async fn unknown_items_are_not_found() {
    let api = Api::new();
    let id = "019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11";
    for path in [
        "/jobs/ID",
        "/chains/ID",
        "/chains/ID/graph",
        "/chains/ID/wait",
        "/bulk/ID",
        "/schedules/n",
        "/types/t",
        "/queues/q/jobs/i",
    ] {
        api.get(&path.replace("ID", id)).await.refused(404);
    }
    for path in [
        "/chains/ID/cancel",
        "/chains/ID/retry",
        "/chains/ID/complete",
        "/chains/ID/trigger",
        "/jobs/ID/trigger",
        "/bulk/ID/abort",
        "/schedules/n/run",
    ] {
        api.post(&path.replace("ID", id), json!({})).await.refused(404);
    }
    api.post("/chains", json!({"type": "a", "blocked_by": [id]})).await.refused(422);
}

#[tokio::test]
async fn large_bodies_are_refused() {
    let api = Api::new();
    let large = format!("{{\"type\":\"a\",\"input\":\"{}\"}}", "x".repeat(BODY_MAX_BYTES));
    api.call(Method::POST, "/chains").role(Role::Admin).body(large).send().await.refused(413);
    // Within the limit of requests, and above that of payloads.
    let payload = format!("{{\"type\":\"a\",\"input\":\"{}\"}}", "x".repeat(4 * 1024 * 1024));
    api.call(Method::POST, "/chains").role(Role::Admin).body(payload).send().await.refused(422);
    // A body without a length that never ends.
    let endless = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 64 * 1024]));
    api.call(Method::POST, "/chains")
        .role(Role::Admin)
        .body(Body::from_stream(endless))
        .send()
        .await
        .refused(413);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_times_out() {
    let api = Api::new();
    let stuck = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    let call = api.call(Method::POST, "/chains").role(Role::Admin).body(Body::from_stream(stuck));
    tokio::time::timeout(Duration::from_secs(60), call.send()).await.unwrap().refused(408);
    let broken = futures_util::stream::once(async { Err::<Vec<u8>, _>(std::io::Error::other("reset")) });
    api.call(Method::POST, "/chains")
        .role(Role::Admin)
        .body(Body::from_stream(broken))
        .send()
        .await
        .refused(400);
}

#[tokio::test]
async fn a_closed_store_is_unavailable() {
    let api = Api::new();
    api.client.close().await.unwrap();
    let problem = api.get("/types").await.refused(503);
    assert!(!problem["detail"].as_str().unwrap().contains("closed"), "details are only in the log");
    api.post("/chains", json!({"type": "a"})).await.refused(503);
    assert_eq!(api.audit.lines()[1]["outcome"], "failed");
}

#[tokio::test]
async fn without_authentication_other_machines_are_refused() {
    let (without, with) = (open(), Api::new());
    for (address, status) in
        [("127.0.0.1:1", 200), ("[::1]:1", 200), ("192.0.2.1:1", 400), ("[2001:db8::1]:1", 400)]
    {
        let from = |api: &Api, role| {
            let mut request = api.call(Method::GET, "/types").role(role).request();
            request.extensions_mut().insert(Peer { address: address.parse().unwrap(), is_tls: false });
            send(api.router.clone(), request)
        };
        assert_eq!(from(&without, Role::Admin).await.status, status, "{address}");
        assert_eq!(from(&with, Role::Read).await.status, 200, "{address}");
    }
}

#[tokio::test]
async fn anyone_can_send_only_small_bodies() {
    let api = Api::new();
    let large = json!({"token": "x".repeat(10_000)}).to_string();
    api.call(Method::POST, "/session").body(large).send().await.refused(413);
}
