//! The dashboard without a browser: each page, each role, the base path, escaping, empty states.

use axum::Router;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, COOKIE, HOST, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use serde_json::json;
use tower::ServiceExt;
use windlass_core::command::Beat;
use windlass_core::{Client, MemoryStore, Millis, TypeName, WorkerId, WorkerName};
use windlass_server::{Access, Identity, Peer, RedactionPath, Role, TokenFile};

use crate::harness::{Api, until};

/// An answer with its text.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    fn page(self) -> String {
        assert_eq!(self.status, 200, "{}", self.text);
        assert_eq!(self.headers[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(self.headers[CACHE_CONTROL], "no-store");
        let policy = self.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        // The policy forbids inline scripts and styles, so none may be needed.
        for inline in ["<script>", "style=", " onclick=", "<style"] {
            assert!(!self.text.contains(inline), "{inline}");
        }
        self.text
    }

    fn location(&self) -> &str {
        assert_eq!(self.status, 303, "{}", self.text);
        self.headers[LOCATION].to_str().unwrap()
    }
}

async fn send(router: &Router, mut request: Request<Body>) -> Answer {
    request.headers_mut().entry(HOST).or_insert("localhost:8080".parse().unwrap());
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    Answer { status: parts.status, headers: parts.headers, text }
}

pub(crate) async fn get(api: &Api, role: Option<Role>, path: &str) -> Answer {
    let mut request = api.call(Method::GET, "");
    if let Some(role) = role {
        request = request.role(role);
    }
    let mut request = request.header("accept", "text/html").request();
    *request.uri_mut() = path.parse().unwrap();
    send(&api.router, request).await
}

pub(crate) async fn page(api: &Api, role: Role, path: &str) -> String {
    get(api, Some(role), path).await.page()
}

/// A form, as a browser sends it.
fn form(path: &str, body: &str) -> Request<Body> {
    Request::post(path)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header("origin", "http://localhost:8080")
        .header("sec-fetch-site", "same-origin")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

/// Stores a chain in each state, and a schedule. Returns a failed chain and an open one.
async fn fill(api: &Api) -> (String, String) {
    let failed = api.start_failed("mail").await;
    let chain = api.post("/chains", json!({"type": "mail", "key": "k-1", "input": {"to": "ada"}})).await.ok();
    let open = chain["chain"].as_str().unwrap().to_owned();
    api.post("/chains", json!({"type": "ship", "blocked_by": [open]})).await.ok();
    let schedule = json!({"cron": "0 3 * * *", "job": {"type": "report", "input": {"of": "sales"}}});
    api.call(Method::PUT, "/schedules/nightly").role(Role::Admin).json(&schedule).send().await.ok();
    (failed, open)
}

const PAGES: [&str; 9] = [
    "/",
    "/types",
    "/jobs",
    "/chains",
    "/workers",
    "/schedules",
    "/schedules/nightly",
    "/bulk",
    "/chains?status=failed",
];

#[tokio::test]
async fn every_page_is_served_to_every_role_and_is_small() {
    let api = Api::new();
    let (failed, open) = fill(&api).await;
    let mut paths: Vec<_> = PAGES.map(str::to_owned).into();
    for id in [&failed, &open] {
        paths.extend([format!("/chains/{id}"), format!("/jobs/{id}")]);
    }
    let first = page(&api, Role::Read, "/").await;
    let mut bytes = first.len();
    let mut assets: Vec<_> =
        first.split('"').filter(|text| text.starts_with("/assets/")).map(str::to_owned).collect();
    // The module imports others, which the page does not name.
    let module = assets.iter().find(|asset| asset.ends_with("/dashboard.js")).unwrap().clone();
    assets.extend(["live.js", "actions.js"].map(|name| module.replace("dashboard.js", name)));
    assets.sort_unstable();
    assets.dedup();
    for asset in &assets {
        let answer = get(&api, None, asset).await;
        // Scripts import only what is counted.
        for imported in answer.text.split("from \"./").skip(1).filter_map(|text| text.split('"').next()) {
            assert!(assets.iter().any(|asset| asset.ends_with(imported)), "{asset} imports {imported}");
        }
        assert_eq!(
            (answer.status.as_u16(), &answer.headers["x-content-type-options"]),
            (200, &"nosniff".parse().unwrap())
        );
        assert_eq!(answer.headers[CACHE_CONTROL], "public, max-age=31536000, immutable");
        bytes += answer.text.len();
        let other = asset.replace("/assets/", "/assets/0");
        assert_eq!(get(&api, None, &other).await.status, 404);
    }
    assert!(bytes < 150_000, "the first page takes {bytes} bytes");
    for role in Role::ALL {
        for path in &paths {
            let text = page(&api, role, path).await;
            assert!(text.contains("<html lang=\"en\">") && text.contains("<h1>"), "{path}");
            let external = text.replace("http-equiv", "").matches("http").count();
            assert_eq!(external, 0, "{path} refers to no other site: {text}");
        }
    }
}

#[tokio::test]
async fn buttons_are_shown_only_to_roles_that_may_use_them() {
    let api = Api::new();
    let (failed, open) = fill(&api).await;
    let chain = format!("/chains/{failed}");
    for (path, button, role) in [
        (chain.as_str(), ">Retry<", Role::Operate),
        (&chain, ">Delete<", Role::Admin),
        (&format!("/chains/{open}"), ">Cancel<", Role::Operate),
        (&format!("/jobs/{open}"), ">Run now<", Role::Operate),
        (&format!("/jobs/{failed}"), ">Retry<", Role::Operate),
        ("/types", ">Pause<", Role::Operate),
        ("/schedules", ">Run now<", Role::Operate),
        ("/schedules/nightly", ">Delete<", Role::Admin),
        ("/chains?status=failed", ">Retry all that match<", Role::Operate),
        ("/chains?status=failed", ">Delete all that match<", Role::Admin),
    ] {
        for visitor in Role::ALL {
            let has_button = page(&api, visitor, path).await.contains(button);
            assert_eq!(has_button, visitor >= role, "{path} {button} {visitor}");
        }
    }
    // An action that the filter excludes is not offered.
    let text = page(&api, Role::Admin, "/chains?status=pending").await;
    assert!(text.contains(">Cancel all that match<") && !text.contains(">Retry all that match<"), "{text}");
    assert!(!page(&api, Role::Admin, "/chains").await.contains("all that match<"), "no filter, no bulk");
}

#[tokio::test]
async fn hidden_and_redacted_payloads_are_hidden_in_pages() {
    let path = |text| RedactionPath::new(text).unwrap();
    let api = Api::with(|server| server.payloads_from(Role::Operate).redact([path("card")]));
    let body = json!({"type": "pay", "input": {"card": "4711-secret", "name": "plain"}});
    let chain = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    let fail = json!({"fail": "declined: 4711-secret of plain"});
    api.post(&format!("/chains/{chain}/complete"), fail).await.ok();
    for path in
        [format!("/chains/{chain}"), format!("/jobs/{chain}"), "/chains".to_owned(), "/jobs".to_owned()]
    {
        let operator = page(&api, Role::Operate, &path).await;
        assert!(!operator.contains("4711-secret") && operator.contains("declined"), "{path}: {operator}");
        let reader = page(&api, Role::Read, &path).await;
        assert!(
            !reader.contains("4711") && !reader.contains("plain") && !reader.contains("declined"),
            "{path}"
        );
    }
    let text = page(&api, Role::Read, &format!("/jobs/{chain}")).await;
    assert!(
        text.contains("your role may not see payloads") && text.contains("The error is hidden"),
        "{text}"
    );
}

#[tokio::test]
async fn texts_are_escaped_everywhere() {
    let api = Api::new();
    let evil = "\"'><script>alert(1)</script>&";
    let body = json!({"type": "mail", "key": evil, "input": {evil: evil}});
    let chain = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    api.post(&format!("/chains/{chain}/complete"), json!({"fail": evil})).await.ok();
    let encoded: String = evil.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let schedule = json!({"every_ms": 90_000, "job": {"type": "check", "input": {evil: evil}}});
    let put = api.call(Method::PUT, &format!("/schedules/{encoded}")).role(Role::Admin);
    put.json(&schedule).send().await.ok();
    let worker = WorkerId::new();
    let (name, types) = (Some(WorkerName::new(evil).unwrap()), vec![TypeName::new(evil).unwrap()]);
    let beat = Beat { worker, name, types, concurrency: 1, running: 0, ttl: Millis::from_days(1) };
    api.client.store().beat(beat).await.unwrap();
    let token = TokenFile::create(api.folder.path().join("tokens.toml"), evil, Role::Operate, None).unwrap();
    let by_evil = |method, path: &str| {
        api.call(method, path)
            .header("authorization", &format!("Bearer {token}"))
            .header("accept", "text/html")
    };
    // The server notices the token within a second.
    until("the token is known", async || by_evil(Method::GET, "/session").send().await.status == 200).await;
    let bulk = json!({"action": "cancel", "filter": {"types": [evil], "key": evil}, "dry_run": true});
    by_evil(Method::POST, "/bulk").json(&bulk).send().await.ok();
    let mut shown = by_evil(Method::GET, "").request();
    *shown.uri_mut() = "/bulk".parse().unwrap();
    let shown = send(&api.router, shown).await.page();
    assert!(shown.matches("&lt;script&gt;").count() >= 2, "the visitor, and who started it: {shown}");
    assert!(!shown.contains("<script>") && !shown.contains("'><"), "{shown}");
    for path in ["/workers", "/schedules"] {
        let text = page(&api, Role::Admin, path).await;
        assert!(text.contains("&lt;script&gt;alert(1)"), "{path} shows the name: {text}");
    }
    for path in [
        "/workers".to_owned(),
        "/schedules".to_owned(),
        format!("/chains/{chain}"),
        format!("/jobs/{chain}"),
        "/chains".to_owned(),
        "/jobs".to_owned(),
        format!("/chains?key={encoded}"),
        format!("/chains?type={encoded}"),
        format!("/jobs?status={encoded}"),
        format!("/jobs?within={encoded}"),
        format!("/jobs?after={encoded}"),
        format!("/chains/{encoded}"),
        format!("/schedules/{encoded}"),
        format!("/login?next={encoded}"),
        format!("/{encoded}"),
    ] {
        for role in [Some(Role::Admin), None] {
            let answer = get(&api, role, &path).await;
            assert!(
                !answer.text.contains("<script>") && !answer.text.contains("'><"),
                "{path}: {}",
                answer.text
            );
            assert!(answer.status.as_u16() < 500, "{path}: {}", answer.status);
        }
    }
}

#[tokio::test]
async fn pages_work_under_any_path() {
    let api = Api::new();
    let (_, open) = fill(&api).await;
    let app = Router::new().nest("/ops/jobs", api.router.clone());
    let token = format!("Bearer {}", api.tokens[&Role::Admin]);
    let visit = async |path: &str| {
        let request = Request::get(path).header("authorization", &token).body(Body::empty()).unwrap();
        send(&app, request).await
    };
    for path in [
        "/ops/jobs",
        "/ops/jobs/types",
        "/ops/jobs/chains?status=failed",
        &format!("/ops/jobs/chains/{open}"),
    ] {
        let text = visit(path).await.page();
        for part in text.split(['"', ' ']).filter_map(|part| part.split_once('/').map(|_| part)) {
            let is_path = part.starts_with('/') && part != "/" && !part.starts_with("/>");
            // Actions name paths of the API, which the script completes.
            let is_action =
                part.starts_with("/chains/") || part.starts_with("/bulk") || part.starts_with("/types/");
            assert!(!is_path || part.starts_with("/ops/jobs") || is_action, "{path}: {part}");
        }
        assert!(text.contains("data-base=\"/ops/jobs\""), "{text}");
        let asset = text.split('"').find(|part| part.ends_with(".css")).unwrap();
        assert_eq!(visit(asset).await.status, 200);
    }
    let anonymous = Request::get("/ops/jobs/jobs?status=failed").body(Body::empty()).unwrap();
    assert_eq!(send(&app, anonymous).await.location(), "/ops/jobs/login?next=%2Fjobs%3Fstatus%3Dfailed");
    let body = format!("token={}&next=%2Fjobs%3Fstatus%3Dfailed", api.tokens[&Role::Read]);
    let answer = send(&app, form("/ops/jobs/login", &body)).await;
    assert_eq!(answer.location(), "/ops/jobs/jobs?status=failed");
    assert!(answer.headers[SET_COOKIE].to_str().unwrap().contains("Path=/ops/jobs;"));
}

#[tokio::test]
async fn visitors_log_in_and_out_with_forms() {
    let api = Api::new();
    assert_eq!(get(&api, None, "/").await.location(), "/login");
    assert_eq!(get(&api, None, "/types").await.location(), "/login?next=%2Ftypes");
    let text = get(&api, None, "/login").await.page();
    assert!(text.contains("type=\"password\"") && !text.contains("<nav"), "{text}");
    let wrong = send(&api.router, form("/login", "token=wrong&next=")).await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.text.contains("the token is not valid"), "{}", wrong.text);
    let right = format!("token={}&next=%2F%2Fevil.example.com", api.tokens[&Role::Operate]);
    // A form of another site must not log a browser in.
    for (name, value) in [("origin", "http://evil.example.com"), ("sec-fetch-site", "cross-site")] {
        let mut request = form("/login", &right);
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(send(&api.router, request).await.status, 403);
    }
    let mut request = form("/login", &right);
    request.headers_mut().remove("origin");
    request.headers_mut().remove("sec-fetch-site");
    assert_eq!(send(&api.router, request).await.status, 403, "a browser says where a form comes from");
    let mut request = form("/login", &right);
    request.headers_mut().insert(CONTENT_TYPE, "text/plain".parse().unwrap());
    assert_eq!(send(&api.router, request).await.status, 415);
    assert_eq!(send(&api.router, form("/login", &"x".repeat(5_000))).await.status, 413);
    let answer = send(&api.router, form("/login", &right)).await;
    assert_eq!(answer.location(), "/", "a login leads to no other site");
    let cookie = answer.headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let visit = async |path: &str| {
        send(&api.router, Request::get(path).header(COOKIE, &cookie).body(Body::empty()).unwrap()).await
    };
    let text = visit("/").await.page();
    assert!(text.contains("operate") && text.contains("Log out"), "{text}");
    assert_eq!(visit("/login").await.location(), "/");
    let mut out = form("/logout", "");
    out.headers_mut().insert(COOKIE, cookie.parse().unwrap());
    let mut foreign = form("/logout", "");
    foreign.headers_mut().insert(COOKIE, cookie.parse().unwrap());
    foreign.headers_mut().insert("origin", "http://evil.example.com".parse().unwrap());
    assert_eq!(send(&api.router, foreign).await.status, 403);
    assert_eq!(send(&api.router, out).await.location(), "/login");
    assert_eq!(visit("/").await.location(), "/login");
    let actions: Vec<_> = api.audit.lines().iter().map(|line| line["action"].clone()).collect();
    assert!(actions.contains(&json!("login")) && actions.contains(&json!("logout")), "{actions:?}");
    // Failed logins are limited, like those of the API.
    let mut statuses = Vec::new();
    for _ in 0..12 {
        let mut wrong = form("/login", "token=wrong");
        wrong.extensions_mut().insert(Peer { address: "10.0.0.1:1".parse().unwrap(), is_tls: false });
        statuses.push(send(&api.router, wrong).await.status.as_u16());
    }
    assert_eq!((statuses[0], statuses[11]), (401, 429), "{statuses:?}");
}

#[tokio::test]
async fn other_kinds_of_access_have_no_login() {
    let client = Client::new(MemoryStore::new()).into_dyn();
    let open = Api::with_access(client.clone(), Access::without_authentication(), |server| server);
    let text = get(&open, None, "/").await.page();
    assert!(text.contains("No jobs are stored yet") && !text.contains("Log out"), "{text}");
    assert_eq!(get(&open, None, "/login").await.location(), "/");
    let access = Access::identity(|request| {
        let name = request.headers.get("x-user")?.to_str().ok()?.to_owned();
        Some(Identity { name, role: Role::Read })
    });
    let embedded = Api::with_access(client, access, |server| server);
    let answer = get(&embedded, None, "/").await;
    assert_eq!(answer.status, 401);
    assert!(answer.text.contains("<h1>Authentication is required</h1>"), "{}", answer.text);
    let request = Request::get("/").header("x-user", "ada").body(Body::empty()).unwrap();
    send(&embedded.router, request).await.page();
}

#[tokio::test]
async fn empty_pages_say_what_to_do_next() {
    let api = Api::new();
    for (path, text) in [
        ("/", "windlass start"),
        ("/types", "windlass start TYPE INPUT"),
        ("/jobs", "windlass start TYPE INPUT"),
        ("/chains?key=none", "Show all chains"),
        ("/workers", "windlass work"),
        ("/schedules", "windlass schedules put"),
        ("/bulk", "failed chains"),
    ] {
        assert!(page(&api, Role::Operate, path).await.contains(text), "{path}");
    }
    assert!(page(&api, Role::Read, "/bulk").await.contains("needs the role"));
}

#[tokio::test]
async fn problems_are_pages_for_browsers_and_json_for_programs() {
    let api = Api::new();
    for (path, status) in [
        ("/nothing", 404),
        ("/chains/019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11", 404),
        ("/jobs/x", 400),
        ("/jobs?limit=0", 400),
        ("/jobs?nothing=1", 400),
        ("/schedules/none", 404),
    ] {
        let answer = get(&api, Some(Role::Read), path).await;
        assert_eq!(answer.status.as_u16(), status, "{path}");
        assert!(
            answer.text.starts_with("<!DOCTYPE html>") && answer.text.contains(&status.to_string()),
            "{path}"
        );
    }
    let request = Request::get("/nothing").body(Body::empty()).unwrap();
    let answer = send(&api.router, request).await;
    assert_eq!(answer.headers[CONTENT_TYPE], "application/problem+json");
    let mut request = api.call(Method::POST, "").role(Role::Admin).request();
    *request.uri_mut() = "/jobs".parse().unwrap();
    assert_eq!(send(&api.router, request).await.status, 405, "pages change nothing");
    // A page that reports an outage looks for the end of it.
    api.client.close().await.unwrap();
    let answer = get(&api, Some(Role::Read), "/jobs").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text.contains("data-refresh=\"slow\"") && answer.text.contains("<nav"), "{}", answer.text);
}

#[tokio::test]
async fn ids_and_keys_are_found() {
    let api = Api::new();
    let (_, open) = fill(&api).await;
    let find = async |text: &str| {
        let answer = get(&api, Some(Role::Read), &format!("/find?q={text}")).await;
        answer.location().to_owned()
    };
    assert_eq!(find(&open).await, format!("/chains/{open}"));
    let then = json!({"then": {"type": "second"}});
    api.post(&format!("/chains/{open}/complete"), then).await.ok();
    let jobs = api.get(&format!("/chains/{open}")).await.ok();
    let second = jobs["chain_jobs"][1]["id"].as_str().unwrap().to_owned();
    assert_eq!(find(&second).await, format!("/jobs/{second}"));
    assert_eq!(find("k-1").await, "/chains?key=k-1");
    assert_eq!(find("a%26b%3Dc").await, "/chains?key=a%26b%3Dc");
    assert_eq!(
        find("019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11").await,
        "/chains?key=019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11"
    );
    assert_eq!(find("").await, "/chains");
    assert_eq!(get(&api, None, "/find?q=x").await.location(), "/login?next=%2Ffind%3Fq%3Dx");
}

#[tokio::test]
async fn long_lists_and_graphs_are_cut() {
    let api = Api::new();
    let mut blockers = Vec::new();
    for _ in 0..20 {
        blockers.push(api.start("part").await);
    }
    let body = json!({"type": "whole", "blocked_by": blockers});
    let whole = api.post("/chains", body).await.ok()["chain"].as_str().unwrap().to_owned();
    let text = page(&api, Role::Read, &format!("/chains/{whole}")).await;
    assert!(text.contains("8 more chains"), "{text}");
    assert_eq!(text.matches("class=\"edge waits\"").count(), 12);
    let chain = api.start("long").await;
    for _ in 0..60 {
        let then = json!({"then": {"type": "long"}});
        api.post(&format!("/chains/{chain}/complete"), then).await.ok();
    }
    let text = page(&api, Role::Read, &format!("/chains/{chain}")).await;
    assert!(text.contains("… 11 jobs between") && text.contains("All jobs of this chain"), "{text}");
    let text = page(&api, Role::Read, &format!("/jobs?order=oldest&chain={chain}")).await;
    assert!(text.contains(">Continue<") && text.contains(&format!("chain={chain}&amp;after=")), "{text}");
    // A large payload is cut, and a short text in a list.
    let large = api.post("/chains", json!({"type": "large", "input": "x".repeat(200_000)})).await.ok();
    let text = page(&api, Role::Read, &format!("/chains/{}", large["chain"].as_str().unwrap())).await;
    assert!(text.len() < 150_000 && text.contains("Only the beginning is shown"), "{}", text.len());
}
