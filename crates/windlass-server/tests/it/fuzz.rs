//! Random requests: every answer is documented, and no request fails inside the server.

use axum::http::{HeaderName, HeaderValue, Method, Request};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use windlass_server::Role;

use crate::harness::{Api, V1, document, send};

/// The number of random requests per test.
const CASES: u32 = 600;

fn runner() -> TestRunner {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,20}",
        Just("019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11".to_owned()),
        Just("../../etc/passwd".to_owned()),
        Just("a\r\nset-cookie: x=y".to_owned()),
        Just("<script>alert(1)</script>".to_owned()),
        Just("'; drop table job; --".to_owned()),
        Just("x".repeat(5_000)),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 20, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((name(), inner), 0..5).prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

/// Names of fields and parameters, so that some requests come close to valid ones.
fn name() -> impl Strategy<Value = String> {
    let known = [
        "type",
        "input",
        "id",
        "key",
        "hold",
        "delay_ms",
        "at",
        "blocked_by",
        "priority",
        "max_attempts",
        "output",
        "then",
        "fail",
        "version",
        "running",
        "action",
        "filter",
        "statuses",
        "types",
        "cron",
        "every_ms",
        "job",
        "payload",
        "wait_ms",
        "limit",
        "after",
        "order",
        "status",
        "chain",
        "topic",
        "timeout_ms",
        "cascade",
        "token",
    ];
    prop_oneof![proptest::sample::select(known.to_vec()).prop_map(str::to_owned), ".{0,10}"]
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn operations() -> Vec<(Method, String)> {
    let mut operations = Vec::new();
    for (path, item) in document()["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            operations.push((method.to_ascii_uppercase().parse().unwrap(), path.clone()));
        }
    }
    operations
}

/// Sends a request, and checks that the answer is documented and not an error of the server.
fn check(runtime: &tokio::runtime::Runtime, api: &Api, request: Request<axum::body::Body>) {
    let shown = format!("{} {}", request.method(), request.uri());
    // A valid wait or stream would take its time.
    let answer = runtime.block_on(async {
        let sending = send(api.router.clone(), request);
        tokio::time::timeout(std::time::Duration::from_millis(2_000), sending).await
    });
    if let Ok(answer) = answer {
        assert!(!answer.status.is_server_error(), "{shown}: {} {}", answer.status, answer.json);
        for (name, value) in &answer.headers {
            assert!(
                name != "set-cookie" || value.to_str().unwrap().starts_with("windlass_session_8080="),
                "{shown}"
            );
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn random_requests_to_known_routes_are_answered() {
    let (runtime, operations) = (runtime(), operations());
    let api = runtime.block_on(async { Api::new() });
    let pick = (0..operations.len(), text(), vec((name(), text()), 0..4), value());
    runner()
        .run(&pick, |(index, part, query, mut body)| {
            let (method, path) = &operations[index];
            if path == "/events" || path.ends_with("/wait") {
                return Ok(());
            }
            if let Some(fields) = body.as_object_mut() {
                fields.remove("wait_ms");
            }
            let filled: Vec<_> = path
                .split('/')
                .map(|segment| match segment.starts_with('{') {
                    true => encoded(&part),
                    false => segment.to_owned(),
                })
                .collect();
            let query: Vec<_> =
                query.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
            let path = format!("{}?{}", filled.join("/"), query.join("&"));
            let request = api.call(method.clone(), &path).role(Role::Admin).json(&body).request();
            check(&runtime, &api, request);
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_paths_and_headers_are_answered() {
    let runtime = runtime();
    let api = runtime.block_on(async { Api::new() });
    let name = "[a-z][a-z-]{0,12}";
    let header = (
        prop_oneof![
            name.prop_map(|name| name),
            proptest::sample::select(vec![
                "origin",
                "cookie",
                "host",
                "sec-fetch-site",
                "content-type",
                "authorization",
                "x-forwarded-for"
            ])
            .prop_map(str::to_owned),
        ],
        vec(any::<u8>(), 0..40),
    );
    let pick = (
        proptest::sample::select(vec!["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"]),
        "[ -~]{0,40}",
        vec(header, 0..4),
        vec(any::<u8>(), 0..100),
    );
    runner()
        .run(&pick, |(method, path, headers, body)| {
            let Ok(uri) = format!("{V1}/{}", path.replace(' ', "")).parse::<axum::http::Uri>() else {
                return Ok(());
            };
            let call = api.call(method.parse().unwrap(), "").role(Role::Admin).body(body);
            let mut request = call.request();
            *request.uri_mut() = uri;
            for (name, value) in headers {
                let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(&value))
                else {
                    continue;
                };
                request.headers_mut().append(name, value);
            }
            check(&runtime, &api, request);
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_payloads_are_shown_as_they_are_and_redacted_safely() {
    let runtime = runtime();
    let path = windlass_server::RedactionPath::new("**.secret").unwrap();
    let (plain, redacting) =
        runtime.block_on(async { (Api::new(), Api::with(|server| server.redact([path]))) });
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&value(), |value| {
            runtime.block_on(async {
                let input = json!({"shown": value, "secret": "s3cr3t-value", "list": [{"secret": value}]});
                for api in [&plain, &redacting] {
                    let started = api.post("/chains", json!({"type": "a", "input": input})).await.ok();
                    let job = api.get(&format!("/jobs/{}", started["chain"].as_str().unwrap())).await.ok();
                    let shown = &job["input"]["json"];
                    if std::ptr::eq(api, &plain) {
                        assert_eq!(*shown, input);
                    } else {
                        assert!(!shown.to_string().contains("s3cr3t-value"));
                        assert_eq!(
                            (&shown["secret"], &shown["list"][0]["secret"]),
                            (&json!("[redacted]"), &json!("[redacted]"))
                        );
                    }
                }
            });
            Ok(())
        })
        .unwrap();
}
