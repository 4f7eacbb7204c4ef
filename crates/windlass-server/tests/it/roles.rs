//! Each route with each role.

use axum::http::Method;
use serde_json::{Value, json};
use windlass_server::Role;

use crate::harness::{Api, document};

/// The role that each route needs. A change of this list is a change of who may do what.
const NEEDED: &str = "\
delete /chains/{id} admin
delete /schedules/{name} admin
delete /session read
get /bulk read
get /bulk/{id} read
get /chains read
get /chains/{id} read
get /chains/{id}/graph read
get /chains/{id}/wait read
get /events read
get /jobs read
get /jobs/{id} read
get /openapi.json -
get /overview read
get /queues/{queue}/jobs/{id} read
get /schedules read
get /schedules/{name} read
get /session read
get /types read
get /types/{type} read
get /types/{type}/keys/{key} read
get /workers read
post /bulk operate
post /bulk/{id}/abort operate
post /chains produce
post /chains/batch produce
post /chains/{id}/cancel operate
post /chains/{id}/complete operate
post /chains/{id}/retry operate
post /chains/{id}/trigger operate
post /jobs/{id}/trigger operate
post /queues/{queue}/jobs produce
post /schedules/{name}/accept operate
post /schedules/{name}/pause operate
post /schedules/{name}/resume operate
post /schedules/{name}/run operate
post /session -
post /types/{type}/pause operate
post /types/{type}/resume operate
put /schedules/{name} admin
";

/// Returns all operations of the document: method, path and role.
fn operations() -> Vec<(String, String, Option<Role>)> {
    let mut operations = Vec::new();
    for (path, item) in document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let role = operation.get("x-role").and_then(Value::as_str).map(|role| role.parse().unwrap());
            operations.push((method.clone(), path.clone(), role));
        }
    }
    operations.sort();
    operations
}

#[test]
fn every_route_needs_the_role_that_is_documented() {
    let line = |(method, path, role): (String, String, Option<Role>)| {
        format!("{method} {path} {}\n", role.map_or("-", Role::as_str))
    };
    assert_eq!(operations().into_iter().map(line).collect::<String>(), NEEDED);
}

/// Returns a path with an id that is not stored.
fn filled(path: &str) -> String {
    let path = path.replace("{id}", "019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11");
    path.replace("{type}", "t").replace("{key}", "k").replace("{name}", "n").replace("{queue}", "q")
}

#[tokio::test]
async fn a_role_that_is_too_weak_is_refused_by_every_route() {
    let api = Api::new();
    for (method, path, needed) in operations() {
        let Some(needed) = needed else { continue };
        let method: Method = method.to_ascii_uppercase().parse().unwrap();
        for role in Role::ALL {
            if path == "/events" && role >= needed {
                continue; // It does not end.
            }
            let answer = api.call(method.clone(), &filled(&path)).role(role).json(&json!({})).send().await;
            let status = answer.status.as_u16();
            if role < needed {
                answer.refused(403);
            } else {
                assert!(
                    status != 401 && status != 403,
                    "{method} {path} as {role}: {status} {}",
                    answer.json
                );
            }
        }
        api.call(method.clone(), &filled(&path)).json(&json!({})).send().await.refused(401);
    }
    let kept: Vec<_> =
        api.audit.lines().iter().map(|line| line["role"].clone()).filter(|role| role == "read").collect();
    assert!(kept.is_empty(), "a reader begins no change");
}

#[tokio::test]
async fn a_bulk_delete_needs_an_administrator() {
    let api = Api::new();
    let body = json!({"action": "delete", "filter": {"statuses": ["completed"]}});
    let call = || api.call(Method::POST, "/bulk").json(&body);
    call().role(Role::Operate).send().await.refused(403);
    call().role(Role::Admin).send().await.ok();
}

#[tokio::test]
async fn a_read_changes_nothing() {
    let api = Api::new();
    let chain = api.start("mail").await;
    let before = api.get(&format!("/chains/{chain}")).await.ok();
    let lines = api.audit.lines().len();
    for (method, path, _) in
        operations().into_iter().filter(|(method, path, _)| method == "get" && path != "/events")
    {
        let method: Method = method.to_ascii_uppercase().parse().unwrap();
        let path = path.replace("{id}", &chain).replace("{type}", "mail")
            + if path.ends_with("/wait") { "?timeout_ms=1" } else { "" };
        api.call(method, &path.replace("{key}", "k").replace("{name}", "n").replace("{queue}", "q"))
            .role(Role::Read)
            .send()
            .await;
    }
    assert_eq!(api.get(&format!("/chains/{chain}")).await.ok(), before);
    assert_eq!(api.audit.lines().len(), lines);
}

/// The roles in the table of `docs/serve.md` are those of the routes.
#[test]
fn the_documentation_names_the_role_of_every_route() {
    let text = include_str!("../../../../docs/serve.md");
    let mut documented = std::collections::BTreeMap::new();
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let role = cells[1].parse::<Role>().ok();
        if role.is_none() && cells[1] != "–" {
            continue; // Another table.
        }
        // `POST /a/b`, `…/c`: the method and the beginning of the path are those of the entry before.
        let (mut methods, mut last) = (Vec::new(), String::new());
        for part in cells[0].split(", ").map(|part| part.trim_matches('`')) {
            let path = match part.split_once(' ') {
                Some((method, path)) => {
                    methods.push(method.to_owned());
                    path.to_owned()
                }
                None if part.starts_with('…') => {
                    let folder = last.rsplit_once('/').unwrap().0;
                    format!("{folder}{}", part.trim_start_matches('…'))
                }
                None => {
                    methods.push(part.to_owned());
                    continue;
                }
            };
            for method in methods.clone() {
                documented.insert((method.to_ascii_lowercase(), path.clone()), role);
            }
            if !part.starts_with('…') {
                methods = vec![methods.pop().unwrap()];
            }
            last = path;
        }
    }
    for (method, path, role) in operations() {
        if path.starts_with("/session") || path == "/openapi.json" {
            continue; // Described in words.
        }
        let found = documented.remove(&(method.clone(), path.clone()));
        assert_eq!(found, Some(role), "{method} {path} in docs/serve.md");
    }
    documented.retain(|(_, path), _| path != "/session");
    assert!(documented.is_empty(), "docs/serve.md names routes that do not exist: {documented:?}");
}
