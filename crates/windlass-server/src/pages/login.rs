//! Logging in and out. These are plain forms, so that lookups need no JavaScript.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tokio::time::timeout;

use super::filter::{Pairs, encoded};
use super::layout::{self, Page, Refresh, Section};
use super::{failed, html as html_response, redirect};
use crate::api::route::{Call, Given, NoBody, NoQuery, read, visit};
use crate::api::session;
use crate::api::{Need, Problem};
use crate::auth::{Kind, Role};
use crate::guard::{Facts, names_site};
use crate::server::App;
use crate::{LOGIN_MAX_BYTES, REQUEST_TIMEOUT};

/// A token, and the page to go to.
#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    token: String,
    #[serde(default)]
    next: String,
}

/// Returns the address of the login, which leads back to the wanted page.
pub(super) fn path(base: &str, wanted: &Uri) -> String {
    let wanted = wanted.path_and_query().map_or("/", |wanted| wanted.as_str());
    if wanted == "/" { format!("{base}/login") } else { format!("{base}/login?next={}", encoded(wanted)) }
}

/// Returns the address of a page of this server. Anything else could lead to another site.
fn own_page(base: &str, next: &str) -> String {
    let is_own = next.starts_with('/')
        && !next.starts_with("//")
        && !next.contains('\\')
        && !next.chars().any(|letter| letter.is_control() || letter.is_whitespace());
    if is_own && next != "/" { format!("{base}{next}") } else { layout::home(base).to_owned() }
}

fn base_of(request: &Request) -> String {
    request.extensions().get::<Facts>().map(|facts| facts.base.clone()).unwrap_or_default()
}

pub(super) async fn form(State(app): State<Arc<App>>, request: Request) -> Response {
    let base = base_of(&request);
    let pairs = Pairs::of(request.uri());
    let next = pairs.get("next").unwrap_or_default().to_owned();
    if !matches!(app.access.0, Kind::Tokens { .. }) {
        return redirect(layout::home(&base));
    }
    // A visitor who has a session does not need another one.
    if visit(app, Need::AtLeast(Role::Read), request).await.is_ok() {
        return redirect(&own_page(&base, &next));
    }
    html_response(StatusCode::OK, page(&base, &next, None))
}

fn page(base: &str, next: &str, problem: Option<&Problem>) -> Markup {
    let body = html! {
        form class="card login" method="post" action={ (base) "/login" } {
            h1 { "Log in" }
            @if let Some(problem) = problem { p class="error-line" role="alert" { (problem.detail()) } }
            label for="token" { "Token" }
            input id="token" name="token" type="password" autocomplete="current-password" required autofocus
                maxlength="512" spellcheck="false";
            input type="hidden" name="next" value=(next);
            button type="submit" class="primary" { "Log in" }
            p class="note" {
                "An administrator creates tokens with " code { "windlass serve token create" } "."
            }
        }
    };
    layout::bare(base, &Page::new("Log in", Section::None, Refresh::Never, body))
}

pub(super) async fn log_in(State(app): State<Arc<App>>, request: Request) -> Response {
    let base = base_of(&request);
    let (login, call) = match received(app, request).await {
        Ok(received) => received,
        Err(problem) => return failed(problem, &base, None),
    };
    let Login { token, next } = login;
    let starting = async move { session::log_in(&call, token.trim()).await };
    match completed(starting).await {
        Ok((_, cookie)) => {
            let mut response = redirect(&own_page(&base, &next));
            response.headers_mut().insert(header::SET_COOKIE, cookie);
            response
        }
        Err(problem) => {
            let mut response = html_response(problem.status(), page(&base, &next, Some(&problem)));
            if let Some((name, value)) = problem.header() {
                response.headers_mut().insert(name, value);
            }
            response.extensions_mut().insert(problem);
            response
        }
    }
}

/// Completes a change and its entry in the audit log, even if the browser disconnects or the answer is late.
async fn completed<T: Send + 'static>(
    change: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    match timeout(REQUEST_TIMEOUT, tokio::spawn(change)).await {
        Ok(Ok(changed)) => changed,
        Ok(Err(_)) => Err(Problem::internal("the handler failed: see the log of the server")),
        Err(_) => Err(Problem::timed_out("the disk did not answer in time: try again")),
    }
}

/// Reads the form. A form of another site could log a browser in, so the browser must name where it comes from: the guard
/// has then compared it.
async fn received(app: Arc<App>, request: Request) -> Result<(Login, Call), Problem> {
    if !names_site(request.headers()) {
        return Err(Problem::cross_site("a form needs `Origin` or `Sec-Fetch-Site`, which browsers send"));
    }
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if !content_type.is_some_and(|value| value.starts_with(b"application/x-www-form-urlencoded")) {
        return Err(Problem::wrong_content_type("this is a form: programs use `POST /api/v1/session`"));
    }
    let (call, _, body) = visit(app, Need::Anyone, request).await?;
    session::check_rate(&call.app, &call.facts)?;
    let body = read(body, LOGIN_MAX_BYTES).await?;
    let login = serde_html_form::from_bytes(&body);
    Ok((login.map_err(|_| Problem::invalid("the form cannot be read"))?, call))
}

pub(super) async fn log_out(State(app): State<Arc<App>>, request: Request) -> Response {
    let base = base_of(&request);
    let ended = async {
        if !names_site(request.headers()) {
            return Err(Problem::cross_site(
                "a form needs `Origin` or `Sec-Fetch-Site`, which browsers send",
            ));
        }
        let (call, path, _) = visit(app, Need::AtLeast(Role::Read), request).await?;
        completed(session::end(call, Given { path, query: NoQuery {}, body: NoBody })).await
    };
    match ended.await {
        Ok(ended) => {
            let mut response = redirect(&format!("{base}/login"));
            response.headers_mut().insert(header::SET_COOKIE, ended.cookie);
            response
        }
        // The session has ended already.
        Err(problem) if problem.status() == StatusCode::UNAUTHORIZED => redirect(&format!("{base}/login")),
        Err(problem) => failed(problem, &base, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_own_pages_only() {
        assert_eq!(own_page("", "/jobs?status=failed"), "/jobs?status=failed");
        assert_eq!(own_page("/ops", "/jobs"), "/ops/jobs");
        for next in [
            "",
            "/",
            "//example.com",
            "https://example.com",
            "/\\example.com",
            "\\\\x",
            "/a\nb",
            "/\t/x",
            "javascript:x",
        ] {
            assert_eq!(own_page("", next), "/", "{next:?}");
            assert_eq!(own_page("/ops", next), "/ops", "{next:?}");
        }
    }
}
