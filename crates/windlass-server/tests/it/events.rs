//! Event streams.

use std::time::{Duration, Instant};

use axum::body::BodyDataStream;
use axum::http::Method;
use axum::http::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use windlass_server::{Access, Identity, RedactionPath, Role, STREAMS_MAX, TokenFile};

use crate::bulk::staged;
use crate::harness::{Api, Call, LIMIT, document, until, validator};
use crate::pages::page;

/// An open event stream.
struct Stream {
    body: BodyDataStream,
    text: String,
}

impl Stream {
    async fn open(api: &Api, call: Call<'_>) -> Self {
        let response = api.router.clone().oneshot(call.request()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        let mut stream = Self { body: response.into_body().into_data_stream(), text: String::new() };
        assert_eq!(stream.next().await.unwrap().0, "resync");
        stream
    }

    /// Returns the next event and its data, or `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (name, data) = event.split_once('\n').unwrap();
                let (name, data) =
                    (name.strip_prefix("event: ").unwrap(), data.strip_prefix("data: ").unwrap());
                let event = (name.to_owned(), serde_json::from_str(data).unwrap());
                self.text = rest.to_owned();
                check(&event.0, &event.1);
                return Some(event);
            }
            let chunk = timeout(LIMIT, self.body.next()).await.expect("an event in time");
            self.text.push_str(std::str::from_utf8(&chunk?.unwrap()).unwrap());
        }
    }

    /// Returns the data of the next event with this name that matches.
    async fn find(&mut self, wanted: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let finding = async {
            loop {
                let (name, data) = self.next().await.expect("the stream goes on");
                if name == wanted && matches(&data) {
                    return data;
                }
            }
        };
        timeout(LIMIT, finding).await.expect("the event arrives in time")
    }
}

/// Checks the data of an event against the document.
fn check(name: &str, data: &Value) {
    let schema =
        &document()["paths"]["/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"];
    if let Some(schema) = schema["x-events"].get(name) {
        let validator = validator(schema);
        assert!(validator.is_valid(data), "{name}: {data}");
    }
}

fn events<'a>(api: &'a Api, query: &str) -> Call<'a> {
    api.call(Method::GET, &format!("/events?{query}")).role(Role::Read)
}

#[tokio::test]
async fn samples_arrive_with_totals_that_only_grow() {
    let api = Api::new();
    let mut stream = Stream::open(&api, events(&api, "")).await;
    stream.find("sample", |sample| sample["sums"]["pending"] == 0).await;
    api.start("mail").await;
    let chain = api.start("mail").await;
    stream.find("sample", |sample| sample["sums"]["pending"] == 2).await;
    api.post(&format!("/chains/{chain}/complete"), json!({})).await.ok();
    stream.find("sample", |sample| sample["sums"]["ended"]["completed"] == 1).await;
    api.delete(&format!("/chains/{chain}")).await.ok();
    let sample = stream.find("sample", |sample| sample["sums"]["completed"] == 0).await;
    assert_eq!(sample["sums"]["ended"]["completed"], 1, "the total does not fall");
}

#[tokio::test]
async fn streams_share_one_sampler() {
    let interval = Duration::from_millis(200);
    let api = Api::with(|server| server.sample_interval(interval));
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(Stream::open(&api, events(&api, "")).await);
    }
    let before = api.get("/overview").await.ok()["sampler"]["calls"].as_u64().unwrap();
    let began_at = Instant::now();
    for _ in 0..5 {
        for stream in &mut streams {
            stream.find("sample", |_| true).await;
        }
    }
    let calls = api.get("/overview").await.ok()["sampler"]["calls"].as_u64().unwrap() - before;
    // One call per sample, and the workers with every fifth one.
    let samples = began_at.elapsed().as_secs_f64() / interval.as_secs_f64() + 1.0;
    assert!(calls as f64 <= samples * 2.0, "100 streams took {calls} calls for {samples:.1} samples");
}

#[tokio::test]
async fn events_of_jobs_arrive_by_filter() {
    let api = Api::new();
    let mut all = Stream::open(&api, events(&api, "topic=jobs")).await;
    let mut mails = Stream::open(&api, events(&api, "topic=jobs&type=mail")).await;
    // The subscription becomes active in the background.
    all.find("resync", |_| true).await;
    api.start("mail").await;
    let created = all.find("jobs", |_| true).await;
    assert_eq!(created["events"][0]["kind"], "created");
    let other = api.start_failed("other").await;
    let failed = all.find("jobs", |data| data.to_string().contains(&other)).await;
    assert!(failed["events"].as_array().unwrap().iter().any(|event| event["type"] == "other"));
    let last = api.start("mail").await;
    let seen = mails.find("jobs", |data| {
        assert!(!data.to_string().contains(&other), "{data}");
        data.to_string().contains(&last)
    });
    seen.await;
}

#[tokio::test]
async fn errors_in_events_are_hidden_where_values_are_redacted() {
    for is_redacting in [true, false] {
        let api = Api::with(|server| match is_redacting {
            true => server.redact([RedactionPath::new("card").unwrap()]),
            false => server.payloads_from(Role::Operate),
        });
        let mut stream = Stream::open(&api, events(&api, "topic=jobs")).await;
        stream.find("resync", |_| true).await;
        api.start_failed("mail").await;
        let failed = stream.find("jobs", |data| data.to_string().contains("\"failed\"")).await;
        assert!(!failed.to_string().contains("it broke"), "{failed}");
        assert!(failed["events"].as_array().unwrap().iter().any(|event| event["error_hidden"] == true));
    }
}

#[tokio::test]
async fn a_stream_sends_heartbeats_and_ends_with_its_session() {
    let api = Api::with(|server| server.heartbeat(Duration::from_millis(20)));
    let login =
        api.call(Method::POST, "/session").json(&json!({"token": api.tokens[&Role::Read]})).send().await;
    let cookie = login.headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let by_cookie = api.call(Method::GET, "/events?topic=bulk").header(COOKIE, &cookie);
    let mut by_cookie = Stream::open(&api, by_cookie).await;
    let mut by_token = Stream::open(&api, events(&api, "topic=bulk")).await;
    by_cookie.find("heartbeat", |_| true).await;
    let log_out =
        api.call(Method::DELETE, "/session").header(COOKIE, &cookie).header("sec-fetch-site", "same-origin");
    log_out.send().await.ok();
    assert_eq!(by_cookie.find("end", |_| true).await["reason"], "session");
    assert!(by_cookie.next().await.is_none());
    by_token.find("heartbeat", |_| true).await;
    TokenFile::revoke(api.folder.path().join("tokens.toml"), "read").unwrap();
    assert_eq!(by_token.find("end", |_| true).await["reason"], "session");
}

#[tokio::test]
async fn streams_report_bulk_operations_and_end_with_the_server() {
    let stop = CancellationToken::new();
    let api = Api::with(|server| server.stop_token(stop.clone()));
    for _ in 0..3 {
        api.start("mail").await;
    }
    let mut stream = Stream::open(&api, events(&api, "topic=bulk")).await;
    api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}})).await.ok();
    let ended = stream.find("bulk", |data| data["state"] == "completed").await;
    assert_eq!(ended["changed"], 3);
    stop.cancel();
    assert_eq!(stream.find("end", |_| true).await["reason"], "stopping");
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn streams_need_authentication_in_a_header() {
    let api = Api::new();
    api.call(Method::GET, "/events").send().await.refused(401);
    let uri = format!("/events?token={}", api.tokens[&Role::Read]);
    api.call(Method::GET, &uri).send().await.refused(401);
    api.call(Method::GET, "/events?access_token=x").role(Role::Read).send().await.refused(400);
}

#[tokio::test(start_paused = true)]
async fn a_stream_for_an_identity_of_the_application_ends_after_a_while() {
    let client = windlass_core::Client::new(windlass_core::MemoryStore::new()).into_dyn();
    let access = Access::identity(|_| Some(Identity { name: "ada".to_owned(), role: Role::Read }));
    let api = Api::with_access(client, access, |server| server);
    let mut stream = Stream::open(&api, api.call(Method::GET, "/events?topic=bulk")).await;
    let began_at = tokio::time::Instant::now();
    let ended = loop {
        let (name, data) = stream.next().await.expect("the stream says why it ends");
        if name == "end" {
            break data;
        }
        assert!(began_at.elapsed() < Duration::from_secs(600), "the stream goes on");
    };
    assert_eq!(ended["reason"], "identity");
    assert!(began_at.elapsed() >= Duration::from_secs(300));
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn one_caller_cannot_take_all_streams() {
    let api = Api::new();
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX / 2 {
        streams.push(Stream::open(&api, events(&api, "topic=bulk")).await);
    }
    events(&api, "topic=bulk").send().await.refused(503);
    Stream::open(&api, api.call(Method::GET, "/events?topic=bulk").role(Role::Admin)).await;
    drop(streams);
    until("the places are free", async || {
        let request = events(&api, "topic=bulk").request();
        api.router.clone().oneshot(request).await.unwrap().status() == 200
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_loses_its_stream() {
    let api = Api::with(|server| server.heartbeat(Duration::from_secs(1)));
    let mut stream = Stream::open(&api, events(&api, "topic=bulk")).await;
    stream.find("heartbeat", |_| true).await;
    tokio::time::sleep(Duration::from_secs(120)).await; // tidy: the time is paused
    let mut left = 0;
    while stream.next().await.is_some() {
        left += 1;
        assert!(left < 5, "the stream goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_loses_no_event_after_the_subscription() {
    let api = Api::new();
    let mut stream = Stream::open(&api, events(&api, "topic=jobs")).await;
    // The subscription becomes active in the background. The client then fetches again what it shows.
    stream.find("resync", |_| true).await;
    let chain = api.start("mail").await;
    stream.find("jobs", |data| data.to_string().contains(&chain)).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_fetches_again_what_it_shows() {
    let api = Api::new();
    let mut jobs = Stream::open(&api, events(&api, "topic=jobs")).await;
    let mut bulk = Stream::open(&api, events(&api, "topic=bulk")).await;
    jobs.find("resync", |_| true).await;
    for _ in 0..90 {
        api.start("mail").await;
        api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["x"]}, "dry_run": true}))
            .await
            .ok();
        tokio::time::sleep(Duration::from_millis(300)).await; // tidy: the time is paused
    }
    // Without reading for 27 s, both have missed messages.
    for stream in [&mut jobs, &mut bulk] {
        stream.find("resync", |_| true).await;
    }
}

#[tokio::test]
async fn progress_of_a_bulk_operation_arrives_at_intervals() {
    let api = Api::new();
    for _ in 0..500 {
        api.start("mail").await;
    }
    let mut stream = Stream::open(&api, events(&api, "topic=bulk")).await;
    let began_at = Instant::now();
    api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}, "dry_run": true})).await.ok();
    let mut messages = 0;
    loop {
        let (name, data) = stream.next().await.unwrap();
        messages += usize::from(name == "bulk");
        if data["state"] == "completed" {
            break;
        }
    }
    // One every 250 ms, and the last one.
    let most = began_at.elapsed().as_millis() / 250 + 1;
    assert!(messages as u128 <= most, "{messages} messages, at most {most} expected");
}

#[tokio::test]
async fn an_operation_that_was_not_started_is_not_reported() {
    let api = Api::new();
    let mut stream = Stream::open(&api, events(&api, "topic=bulk")).await;
    let body = json!({"action": "retry", "filter": {"types": ["mail"]}});
    api.audit.fail(true);
    api.post("/bulk", body.clone()).await.refused(503);
    assert_eq!(api.get("/bulk").await.ok()["operations"], json!([]));
    api.audit.fail(false);
    let started = api.post("/bulk", body).await.ok();
    let first = stream.find("bulk", |_| true).await;
    assert_eq!((&first["id"], &first["state"]), (&started["id"], &json!("completed")));
}

#[tokio::test(start_paused = true)]
async fn a_page_shows_the_changes_of_a_bulk_operation_that_were_reported() {
    let (api, permits) = staged(0);
    let path = format!("/chains/{}", api.start("mail").await);
    let mut stream = Stream::open(&api, events(&api, "topic=bulk")).await;
    api.post("/bulk", json!({"action": "cancel", "filter": {"types": ["mail"]}})).await.ok();
    assert!(page(&api, Role::Read, &path).await.contains("class=\"state pending\""));
    permits.add_permits(1);
    stream.find("bulk", |operation| operation["changed"] == 1).await;
    assert!(page(&api, Role::Read, &path).await.contains("class=\"state cancelled\""));
}
