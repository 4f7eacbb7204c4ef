//! Tokens and sessions.

use axum::http::Method;
use axum::http::header::{COOKIE, SET_COOKIE};
use serde_json::json;
use windlass_core::Timestamp;
use windlass_server::{Access, Peer, Role, Server, TokenFile};

use crate::harness::{Answer, Api, send, until};

const ORIGIN: &str = "http://localhost:8080";

async fn log_in(api: &Api, token: &str) -> Answer {
    api.call(Method::POST, "/session").json(&json!({"token": token})).send().await
}

/// Returns the cookie of an answer, as a browser sends it back.
fn cookie(answer: &Answer) -> String {
    let text = answer.headers[SET_COOKIE].to_str().unwrap();
    text.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_stands_for_its_token() {
    let api = Api::new();
    let answer = log_in(&api, &api.tokens[&Role::Operate]).await;
    let text = answer.headers[SET_COOKIE].to_str().unwrap().to_owned();
    for part in ["HttpOnly", "SameSite=Lax", "Path=/;", "Max-Age=43200"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("Secure"), "the connection is not encrypted");
    let cookie = cookie(&answer);
    let who = api.call(Method::GET, "/session").header(COOKIE, &cookie).send().await.ok();
    assert_eq!(
        (&who["name"], &who["role"], &who["authentication"]),
        (&json!("operate"), &json!("operate"), &json!("tokens"))
    );
    let start = || {
        api.call(Method::POST, "/chains")
            .header(COOKIE, &format!("a=b; {cookie}"))
            .json(&json!({"type": "a"}))
    };
    start().header("origin", ORIGIN).send().await.ok();
    start().header("sec-fetch-site", "same-origin").send().await.ok();
    start().send().await.refused(403);
    api.call(Method::DELETE, "/chains/019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11")
        .header(COOKIE, &cookie)
        .header("origin", ORIGIN)
        .send()
        .await
        .refused(403);
    let out =
        api.call(Method::DELETE, "/session").header(COOKIE, &cookie).header("origin", ORIGIN).send().await;
    assert!(out.headers[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    api.call(Method::GET, "/session").header(COOKIE, &cookie).send().await.refused(401);
}

#[tokio::test]
async fn a_session_survives_a_restart_and_ends_with_its_token() {
    let api = Api::new();
    let cookie = cookie(&log_in(&api, &api.tokens[&Role::Read]).await);
    let request = || api.call(Method::GET, "/session").header(COOKIE, &cookie).request();
    let router = api.restarted();
    assert_eq!(send(router.clone(), request()).await.status, 200);
    let path = api.folder.path().join("tokens.toml");
    assert!(TokenFile::revoke(&path, "read").unwrap());
    until("the revocation is noticed", async || send(router.clone(), request()).await.status == 401).await;
    // Another token with the same name does not revive it.
    let token = TokenFile::create(&path, "read", Role::Read, None).unwrap();
    until("the new token is noticed", async || log_in(&api, &token).await.status == 200).await;
    assert_eq!(send(api.router.clone(), request()).await.status, 401);
    let files = std::fs::read_to_string(path.with_file_name("tokens.toml.sessions")).unwrap()
        + &std::fs::read_to_string(&path).unwrap();
    assert!(
        !files.contains(cookie.split_once('=').unwrap().1) && !files.contains(&token),
        "only hashes are stored"
    );
}

#[tokio::test]
async fn wrong_expired_and_forged_credentials_are_refused() {
    let api = Api::new();
    let path = api.folder.path().join("tokens.toml");
    let expired = TokenFile::create(&path, "old", Role::Admin, Some(Timestamp::now())).unwrap();
    let router = api.restarted();
    let get = |name: &str, value: &str| api.call(Method::GET, "/session").header(name, value).request();
    for (name, value) in [
        ("authorization", format!("Bearer {expired}")),
        ("authorization", "Bearer windlass_0000".to_owned()),
        ("authorization", "Bearer ".to_owned()),
        ("authorization", format!("Basic {}", api.tokens[&Role::Admin])),
        ("authorization", api.tokens[&Role::Admin].clone()),
        ("cookie", "windlass_session_8080=".to_owned()),
        ("cookie", format!("windlass_session_8080={}", "0".repeat(64))),
        ("cookie", format!("windlass_session_8080={}", api.tokens[&Role::Admin])),
        ("cookie", "windlass_session_8080".to_owned()),
    ] {
        let answer = send(router.clone(), get(name, &value)).await;
        let challenge = answer.headers["www-authenticate"].clone();
        answer.refused(401);
        assert!(challenge.to_str().unwrap().starts_with("Bearer"));
    }
    // A wrong header is not rescued by a right cookie, and two headers are ambiguous.
    let cookie = cookie(&log_in(&api, &api.tokens[&Role::Admin]).await);
    let both = api.call(Method::GET, "/session").header(COOKIE, &cookie).header("authorization", "Bearer x");
    both.send().await.refused(401);
    let token = format!("Bearer {}", api.tokens[&Role::Admin]);
    let twice = api
        .call(Method::GET, "/session")
        .header("authorization", &token)
        .also_header("authorization", &token);
    twice.send().await.refused(401);
    // A token in the URL is never accepted.
    let uri = format!("/session?token={}", api.tokens[&Role::Admin]);
    api.call(Method::GET, &uri).send().await.refused(401);
}

/// Logs in from an address.
async fn log_in_from(api: &Api, address: &str, token: &str) -> Answer {
    let mut request = api.call(Method::POST, "/session").json(&json!({"token": token})).request();
    request.extensions_mut().insert(Peer { address: address.parse().unwrap(), is_tls: false });
    send(api.router.clone(), request).await
}

#[tokio::test]
async fn failed_logins_are_limited() {
    let api = Api::new();
    for _ in 0..10 {
        log_in_from(&api, "192.0.2.1:1", "windlass_wrong").await.refused(401);
    }
    let answer = log_in_from(&api, "192.0.2.1:2", "windlass_wrong").await;
    assert!(answer.headers.contains_key("retry-after"));
    answer.refused(429);
    log_in_from(&api, "192.0.2.1:3", &api.tokens[&Role::Admin]).await.refused(429);
    api.get("/session").await.ok();
    log_in_from(&api, "192.0.2.2:1", &api.tokens[&Role::Admin]).await.ok();
}

#[tokio::test]
async fn failed_logins_of_some_do_not_keep_others_out() {
    let api = Api::new();
    for last in 0..250 {
        log_in_from(&api, &format!("198.51.100.{last}:1"), "windlass_wrong").await.refused(401);
    }
    log_in_from(&api, "192.0.2.1:1", &api.tokens[&Role::Admin]).await.ok();
    // An application that does not say where requests come from has no limit by address.
    for _ in 0..20 {
        log_in(&api, "windlass_wrong").await.refused(401);
    }
    log_in(&api, &api.tokens[&Role::Admin]).await.ok();
}

#[tokio::test]
async fn logins_and_logouts_are_in_the_audit_log() {
    let api = Api::new();
    let cookie = cookie(&log_in(&api, &api.tokens[&Role::Read]).await);
    log_in(&api, "windlass_wrong").await.refused(401);
    let out = api.call(Method::DELETE, "/session").header(COOKIE, &cookie).header("origin", ORIGIN);
    out.send().await.ok();
    let lines = api.audit.lines();
    let actions: Vec<_> = lines.iter().filter_map(|line| line["action"].as_str()).collect();
    assert_eq!((actions, &lines[0]["name"]), (vec!["login", "logout"], &json!("read")));
    assert!(!api.audit.lines().iter().any(|line| line.to_string().contains(&cookie[20..])));
}

#[test]
fn tokens_that_cannot_be_told_apart_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    TokenFile::create(&path, "ada", Role::Read, None).unwrap();
    TokenFile::create(&path, "bob", Role::Admin, None).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let value = |name: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.split('"').nth(1).unwrap().to_owned()).collect()
    };
    for field in ["name", "id", "hash"] {
        let values = value(field);
        std::fs::write(&path, text.replace(&values[1], &values[0])).unwrap();
        assert!(TokenFile::open(&path).is_err(), "{field}");
    }
    std::fs::write(&path, &text).unwrap();
    TokenFile::open(&path).unwrap();
}

#[cfg(unix)]
#[test]
fn a_change_keeps_the_link_and_the_mode_of_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("tokens.toml"), folder.path().join("link.toml"));
    TokenFile::create(&path, "ada", Role::Read, None).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    TokenFile::create(&link, "bob", Role::Read, None).unwrap();
    assert!(link.is_symlink());
    assert_eq!(TokenFile::list(&path).unwrap().len(), 2);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn tokens_that_are_created_at_the_same_time_are_all_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let path = &path;
            scope.spawn(move || TokenFile::create(path, &number.to_string(), Role::Read, None).unwrap());
        }
    });
    assert_eq!(TokenFile::list(&path).unwrap().len(), 8);
}

#[tokio::test]
async fn an_unreadable_file_of_tokens_admits_nobody() {
    let api = Api::new();
    std::fs::write(api.folder.path().join("tokens.toml"), "tokens = 5").unwrap();
    until("nobody is admitted", async || api.get("/session").await.status == 401).await;
    let opened = TokenFile::open(api.folder.path().join("tokens.toml"));
    assert!(opened.unwrap_err().to_string().contains("not a file of tokens"));
    let empty = api.folder.path().join("empty.toml");
    std::fs::write(&empty, "").unwrap();
    assert!(TokenFile::open(&empty).unwrap_err().to_string().contains("no token"));
    assert!(TokenFile::open(api.folder.path().join("none.toml")).is_err());
}

#[test]
fn tokens_have_unique_names_and_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    let secret = TokenFile::create(&path, "a", Role::Read, None).unwrap();
    assert!(secret.starts_with("windlass_") && secret.len() == 73, "{}", secret.len());
    assert!(TokenFile::create(&path, "a", Role::Admin, None).is_err());
    assert!(TokenFile::create(&path, "", Role::Admin, None).is_err());
    assert!(TokenFile::create(&path, "a\nb", Role::Admin, None).is_err());
    TokenFile::create(&path, "b", Role::Admin, None).unwrap();
    let names: Vec<_> = TokenFile::list(&path).unwrap().into_iter().map(|token| token.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(!TokenFile::revoke(&path, "c").unwrap());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[tokio::test]
async fn cookies_are_secure_and_scoped_behind_tls() {
    let api = Api::with(|server| server.https());
    let answer = log_in(&api, &api.tokens[&Role::Read]).await;
    assert!(answer.headers[SET_COOKIE].to_str().unwrap().ends_with("; Secure"));
    // The same behind a trusted proxy that says so.
    let api = Api::with(Server::trust_proxy);
    let call = api.call(Method::POST, "/session").json(&json!({"token": api.tokens[&Role::Read]}));
    let answer = call.header("x-forwarded-proto", "https").send().await;
    assert!(answer.headers[SET_COOKIE].to_str().unwrap().ends_with("; Secure"));
}

#[tokio::test]
async fn servers_on_one_host_have_sessions_of_their_own() {
    // A browser sends the cookies of all ports of a host.
    let (one, two) = (Api::new(), Api::new());
    let mut cookies = Vec::new();
    for (api, host) in [(&one, "localhost:8080"), (&two, "localhost:8081")] {
        let call = api.call(Method::POST, "/session").json(&json!({"token": api.tokens[&Role::Read]}));
        cookies.push(cookie(&call.header("host", host).send().await));
    }
    let both = cookies.join("; ");
    for (api, host) in [(&one, "localhost:8080"), (&two, "localhost:8081")] {
        api.call(Method::GET, "/session").header("host", host).header(COOKIE, &both).send().await.ok();
    }
}

#[tokio::test]
async fn cookies_have_a_prefix_behind_tls() {
    let api = Api::with(|server| server.https());
    let call = api.call(Method::POST, "/session").json(&json!({"token": api.tokens[&Role::Read]}));
    let answer = call.header("host", "jobs.example.com").send().await;
    let text = answer.headers[SET_COOKIE].to_str().unwrap().to_owned();
    assert!(text.starts_with("__Host-windlass_session=") && text.contains("; Path=/;"), "{text}");
    let call = api.call(Method::GET, "/session").header("host", "jobs.example.com");
    call.header(COOKIE, &cookie(&answer)).send().await.ok();
}

#[tokio::test]
async fn a_server_without_tokens_has_no_login() {
    let client = windlass_core::Client::new(windlass_core::MemoryStore::new()).into_dyn();
    let api = Api::with_access(client, Access::without_authentication(), |server| server);
    log_in(&api, "windlass_x").await.refused(409);
    let who = api.get("/session").await.ok();
    assert_eq!((&who["role"], &who["authentication"]), (&json!("admin"), &json!("none")));
}
