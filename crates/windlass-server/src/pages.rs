//! The dashboard: pages for people, rendered on the server.
//!
//! A page calls the same handlers as the JSON API, so roles, redaction and limits are the same. Pages only query: their
//! buttons call the API from the browser. Only logging in and out are forms, so that lookups need no JavaScript.

mod asset;
mod bulk;
mod chain;
mod chart;
mod filter;
mod find;
mod form;
mod format;
mod graph;
mod job;
mod json;
mod layout;
mod lists;
mod login;
mod overview;
mod part;
mod schedules;
mod shared;
mod types;
mod workers;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use maud::Markup;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::REQUEST_TIMEOUT;
use crate::api::route::{Call, Given, NoBody, PathParameters, visit};
use crate::api::wire::shortened;
use crate::api::{Need, Problem};
use crate::auth::{CookieName, Kind, Role, has_credentials};
use crate::guard::Facts;
use crate::server::App;
use filter::Pairs;
use layout::Page;
pub(crate) use shared::SharedPages;

/// Returns the router of the pages. Pages that query the store are shared by equal requests.
pub(crate) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/", page(overview::show))
        .route("/types", page(types::show))
        .route("/jobs", shared_page(lists::jobs))
        .route("/jobs/{id}", shared_page(job::show))
        .route("/chains", shared_page(lists::chains))
        .route("/chains/{id}", shared_page(chain::show))
        .route("/workers", shared_page(workers::show))
        .route("/schedules", shared_page(schedules::list))
        .route("/schedules/{name}", shared_page(schedules::one))
        .route("/bulk", page(bulk::show))
        .route("/find", get(find::find))
        .route("/login", get(login::form).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/assets/{version}/{name}", get(asset::get))
}

/// A request for a page.
pub(crate) struct Visit {
    call: Call,
    path: PathParameters,
    pairs: Pairs,
}

impl Visit {
    fn role(&self) -> Role {
        self.call.caller().map_or(Role::Read, |caller| caller.identity.role)
    }

    fn base(&self) -> &str {
        &self.call.facts.base
    }

    /// Returns the parameters of a handler of the API without a query.
    fn given<Q: DeserializeOwned>(&self) -> Result<Given<Q, NoBody>, Problem> {
        self.given_with(&Pairs::default())
    }

    fn given_with<Q: DeserializeOwned>(&self, pairs: &Pairs) -> Result<Given<Q, NoBody>, Problem> {
        Ok(Given { path: self.path.clone(), query: pairs.parse()?, body: NoBody })
    }
}

/// Serves a page for everyone who may query.
fn page<F, R>(handler: F) -> MethodRouter<Arc<App>>
where
    F: Fn(Visit) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Page, Problem>> + Send + 'static,
{
    serve(handler, false)
}

/// Like [`page`], for a page that equal requests share for a moment.
fn shared_page<F, R>(handler: F) -> MethodRouter<Arc<App>>
where
    F: Fn(Visit) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Page, Problem>> + Send + 'static,
{
    serve(handler, true)
}

fn serve<F, R>(handler: F, is_shared: bool) -> MethodRouter<Arc<App>>
where
    F: Fn(Visit) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Page, Problem>> + Send + 'static,
{
    get(move |State(app): State<Arc<App>>, request: Request| {
        let handler = handler.clone();
        async move { answer(app, request, handler, is_shared).await }
    })
}

async fn answer<F, R>(app: Arc<App>, request: Request, handler: F, is_shared: bool) -> Response
where
    F: Fn(Visit) -> R,
    R: Future<Output = Result<Page, Problem>>,
{
    let base = request.extensions().get::<Facts>().map(|facts| facts.base.clone()).unwrap_or_default();
    let visit = match admitted(Arc::clone(&app), request).await {
        Ok(visit) => visit,
        Err(refusal) => return refusal,
    };
    let shell = layout::Shell::of(&visit);
    let making = async {
        if is_shared {
            app.pages.get(shared::Key::of(&visit), handler(visit)).await
        } else {
            handler(visit).await.map(Arc::new)
        }
    };
    let made = timeout(REQUEST_TIMEOUT, making).await;
    let made =
        made.unwrap_or_else(|_| Err(Problem::timed_out("the store did not answer in time: try again")));
    match made {
        Ok(page) => html(StatusCode::OK, shell.render(&page)),
        Err(problem) => failed(problem, &base, Some(&shell)),
    }
}

/// Admits the visitor of a page. A visitor without a session is sent to the login.
async fn admitted(app: Arc<App>, request: Request) -> Result<Visit, Response> {
    let base = request.extensions().get::<Facts>().map(|facts| facts.base.clone()).unwrap_or_default();
    let wanted = request.uri().clone();
    let has_login = matches!(app.access.0, Kind::Tokens { .. });
    let has_credentials = has_credentials(request.headers(), request.extensions().get::<CookieName>());
    match visit(app, Need::AtLeast(Role::Read), request).await {
        Ok((call, path, _)) => Ok(Visit { call, path, pairs: Pairs::of(&wanted) }),
        Err(problem) if problem.status() == StatusCode::UNAUTHORIZED && has_login => {
            let mut response = redirect(&login::path(&base, &wanted));
            // The guard logs a token or a session that is not valid. A visitor who has none is not an error.
            if has_credentials {
                response.extensions_mut().insert(problem);
            }
            Err(response)
        }
        Err(problem) => Err(failed(problem, &base, None)),
    }
}

fn html(status: StatusCode, page: Markup) -> Response {
    let content_type = (header::CONTENT_TYPE, "text/html; charset=utf-8");
    (status, [content_type], Body::from(page.0)).into_response()
}

/// Returns a page that reports a problem. The guard logs it.
fn failed(problem: Problem, base: &str, shell: Option<&layout::Shell>) -> Response {
    let page = layout::problem(&problem, base);
    let page = shell.map_or_else(|| layout::bare(base, &page), |shell| shell.render(&page));
    let mut response = html(problem.status(), page);
    if let Some((name, value)) = problem.header() {
        response.headers_mut().insert(name, value);
    }
    response.extensions_mut().insert(problem);
    response
}

fn redirect(path: &str) -> Response {
    match HeaderValue::try_from(path) {
        Ok(location) => (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response(),
        Err(_) => Problem::internal("the address cannot be encoded").into_response(),
    }
}

/// Answers a path that is not served: a page for a browser, and a problem for a program.
pub(crate) async fn not_found(headers: HeaderMap, uri: Uri, request: Request) -> Response {
    let problem = Problem::not_found(format!("{:?} is not served here", shortened(uri.path())));
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_page = !uri.path().starts_with(crate::api::PREFIX);
    if !is_page || !accept.is_some_and(|accept| accept.contains("text/html")) {
        return problem.into_response();
    }
    let base = request.extensions().get::<Facts>().map(|facts| facts.base.clone()).unwrap_or_default();
    failed(problem, &base, None)
}
