//! The router under a path of an application.

use axum::Router;
use axum::http::Method;
use axum::http::header::SET_COOKIE;
use serde_json::json;
use tower::ServiceExt;
use windlass_server::Role;

use crate::harness::Api;

#[tokio::test]
async fn the_router_works_under_any_path() {
    let api = Api::new();
    let app = Router::new()
        .route("/", axum::routing::get(|| async { "home" }))
        .nest("/ops/jobs", api.router.clone());
    let call = async |method: Method, path: &str, body: serde_json::Value| {
        let mut request = api.call(method, "").role(Role::Admin).json(&body).request();
        *request.uri_mut() = path.parse().unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        (parts, serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default())
    };
    let (parts, _) = call(Method::POST, "/ops/jobs/api/v1/chains", json!({"type": "mail"})).await;
    assert_eq!(parts.status, 201);
    let (_, document) = call(Method::GET, "/ops/jobs/api/v1/openapi.json", json!(null)).await;
    assert_eq!(document["servers"][0]["url"], "/ops/jobs/api/v1");
    let login = json!({"token": api.tokens[&Role::Read]});
    let (parts, _) = call(Method::POST, "/ops/jobs/api/v1/session", login).await;
    assert!(parts.headers[SET_COOKIE].to_str().unwrap().contains("Path=/ops/jobs;"));
    let (parts, problem) = call(Method::GET, "/ops/jobs/nothing", json!(null)).await;
    assert_eq!((parts.status.as_u16(), &problem["status"]), (404, &json!(404)));
    let (parts, _) = call(Method::GET, "/", json!(null)).await;
    assert_eq!(parts.status, 200);
}
