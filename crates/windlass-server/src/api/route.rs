//! Routes: from a request to a handler's parameters, and from its result to an answer.
//!
//! The types of a handler are its description: the OpenAPI document is generated from them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::time::timeout;
use windlass_core::{ChainId, JobId, Key, ScheduleName, TypeName};

use super::problem::Problem;
use super::session::check_rate;
use super::wire::shortened;
use crate::audit::{Change, Entry, Subject};
use crate::auth::{Caller, Role, authenticate};
use crate::client::BoxedClient;
use crate::guard::{Facts, is_change, names_site};
use crate::payload::Sight;
use crate::permits::Permit;
use crate::server::App;
use crate::{BODY_MAX_BYTES, LOGIN_MAX_BYTES, REQUEST_TIMEOUT, WAIT_MAX};

/// A method and a path with their handler.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// The path below the prefix of the API.
    pub(crate) path: &'static str,
    pub(crate) need: Need,
    pub(crate) summary: &'static str,
    pub(crate) describe: fn(&mut SchemaGenerator) -> Description,
    handle: Arc<dyn Fn(Arc<App>, Request) -> Answering + Send + Sync>,
}

type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// The callers that a route admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Anyone,
    AtLeast(Role),
}

impl Need {
    /// Returns the maximum size of a body. Anyone can send one to a route without a role.
    const fn body_max_bytes(self) -> usize {
        match self {
            Self::Anyone => LOGIN_MAX_BYTES,
            Self::AtLeast(_) => BODY_MAX_BYTES,
        }
    }
}

/// The parameters and answers of a route.
pub(crate) struct Description {
    pub(crate) query: Schema,
    pub(crate) body: Option<Schema>,
    pub(crate) answers: Vec<(StatusCode, &'static str, Schema)>,
}

/// One call of a handler.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) facts: Facts,
    /// The request, without its body.
    pub(crate) request: Parts,
    caller: Option<Caller>,
}

/// The parameters of a call.
pub(crate) struct Given<Q, B> {
    pub(crate) path: PathParameters,
    pub(crate) query: Q,
    pub(crate) body: B,
}

/// The named parts of a path.
#[derive(Clone)]
pub(crate) struct PathParameters(Vec<(String, String)>);

/// A route without parameters in its query.
#[derive(serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoQuery {}

/// The body of a request.
pub(crate) trait RequestBody: Sized + Send + 'static {
    fn read(bytes: &[u8]) -> Result<Self, Problem>;
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema>;
}

/// A route without a body. What a client sends is ignored.
pub(crate) struct NoBody;

/// A body of JSON.
pub(crate) struct Json<T>(pub(crate) T);

/// The result of a handler.
pub(crate) trait Answer: Sized + Send + 'static {
    /// How long the handler may wait for a chain to close, in addition to the time for the store.
    const WAIT: Duration = Duration::ZERO;

    fn into_response(self) -> Response;

    /// Waits for what the answer reports. The wait is dropped if the client disconnects.
    fn settled(self) -> Settling<Self> {
        Box::pin(std::future::ready(self))
    }

    fn describe(generator: &mut SchemaGenerator) -> Vec<(StatusCode, &'static str, Schema)>;
}

/// 201 if something was created, and 200 if it existed before.
pub(crate) struct Created<T> {
    pub(crate) is_new: bool,
    pub(crate) answer: T,
}

/// The answer of a change that has been made, after a wait.
pub(crate) enum Awaited<T> {
    Now(Created<T>),
    Later(Settling<Created<T>>),
}

pub(crate) type Settling<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// 200 after a wait.
pub(crate) struct Waited<T>(pub(crate) T);

/// 202: the work continues after the answer.
pub(crate) struct Accepted<T>(pub(crate) T);

/// 200 with a cookie.
pub(crate) struct WithCookie<T> {
    pub(crate) cookie: HeaderValue,
    pub(crate) answer: T,
}

impl Route {
    pub(crate) fn new<Q, B, A, F, R>(
        method: Method,
        path: &'static str,
        need: Need,
        summary: &'static str,
        handler: F,
    ) -> Self
    where
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        B: RequestBody,
        A: Answer + Send + 'static,
        F: Fn(Call, Given<Q, B>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<A, Problem>> + Send + 'static,
    {
        let handle = Arc::new(move |app: Arc<App>, request: Request| -> Answering {
            let handler = handler.clone();
            Box::pin(async move {
                let answered = answer::<Q, B, A, F, R>(app, need, &handler, request).await;
                answered.unwrap_or_else(Problem::into_response)
            })
        });
        let describe = |generator: &mut SchemaGenerator| Description {
            query: generator.root_schema_for::<Q>(),
            body: B::schema(generator),
            answers: A::describe(generator),
        };
        Self { method, path, need, summary, describe, handle }
    }

    pub(crate) fn into_handler(self) -> MethodRouter<Arc<App>> {
        let filter = MethodFilter::try_from(self.method.clone()).unwrap_or(MethodFilter::GET);
        on(filter, move |State(app): State<Arc<App>>, request: Request| {
            let handle = Arc::clone(&self.handle);
            async move { handle(app, request).await }
        })
    }
}

/// Admits the caller, reads the parameters and runs the handler.
async fn answer<Q, B, A, F, R>(
    app: Arc<App>,
    need: Need,
    handler: &F,
    request: Request,
) -> Result<Response, Problem>
where
    Q: DeserializeOwned + Send + 'static,
    B: RequestBody,
    A: Answer + Send + 'static,
    F: Fn(Call, Given<Q, B>) -> R,
    R: Future<Output = Result<A, Problem>> + Send + 'static,
{
    let (mut parts, body) = request.into_parts();
    let facts = parts.extensions.remove::<Facts>();
    let facts = facts.ok_or_else(|| Problem::internal("the request was not checked"))?;
    let is_change = is_change(&parts.method);
    let caller = admit(&app, need, &parts)?;
    if is_change {
        if need == Need::Anyone {
            // Before the body is read: what anyone can send must cost little.
            check_rate(&app, &facts)?;
        }
        check_content_type(&parts.headers)?;
    }
    let path = path_parameters(&mut parts).await?;
    let query = serde_html_form::from_str(parts.uri.query().unwrap_or_default())
        .map_err(|error| Problem::invalid(format!("invalid query: {}", shortened(&error.to_string()))))?;
    let body = if is_change { read(body, need.body_max_bytes()).await? } else { Bytes::new() };
    let body = B::read(&body)?;
    let call = Call { app: Arc::clone(&app), facts, request: parts, caller };
    let handling = handler(call, Given { path, query, body });
    let answered = if is_change {
        // A change that has begun is completed and logged, even if the client disconnects.
        let handling = tokio::spawn(async move {
            let mut clearing = ClearPages { app, is_needed: true };
            let answered = handling.await;
            // A change that was refused has changed nothing. One that failed may have.
            clearing.is_needed = !answered.as_ref().is_err_and(|problem| problem.status().is_client_error());
            answered
        });
        match timeout(REQUEST_TIMEOUT, handling).await {
            Ok(Ok(answered)) => Ok(answered),
            Ok(Err(_)) => return Err(Problem::internal("the handler failed: see the log of the server")),
            Err(elapsed) => Err(elapsed),
        }
    } else {
        timeout(REQUEST_TIMEOUT + A::WAIT, handling).await
    };
    let answered = answered.map_err(|_| {
        Problem::timed_out("the store did not answer in time: a change may have been made or not")
    })?;
    // Only the change goes on without its client: a wait ends when the client disconnects.
    let answer = timeout(REQUEST_TIMEOUT + WAIT_MAX, answered?.settled()).await;
    let answer =
        answer.map_err(|_| Problem::timed_out("the wait did not end in time: the change was made"))?;
    Ok(answer.into_response())
}

/// Forgets the shared pages when it is dropped: also if a handler panics, because that may be after its change.
struct ClearPages {
    app: Arc<App>,
    is_needed: bool,
}

impl Drop for ClearPages {
    fn drop(&mut self) {
        if self.is_needed {
            self.app.pages.clear();
        }
    }
}

/// Admits the caller of a page, if it needs one, and reads the named parts of its path. Returns the body as well.
pub(crate) async fn visit(
    app: Arc<App>,
    need: Need,
    request: Request,
) -> Result<(Call, PathParameters, Body), Problem> {
    let (mut parts, body) = request.into_parts();
    let facts = parts.extensions.remove::<Facts>();
    let facts = facts.ok_or_else(|| Problem::internal("the request was not checked"))?;
    let caller = admit(&app, need, &parts)?;
    let path = path_parameters(&mut parts).await?;
    Ok((Call { app, facts, request: parts, caller }, path, body))
}

/// Returns the caller, if the route needs one.
fn admit(app: &App, need: Need, request: &Parts) -> Result<Option<Caller>, Problem> {
    let Need::AtLeast(role) = need else { return Ok(None) };
    let caller = authenticate(&app.access, request).ok_or_else(|| {
        let text = "the request has no valid token or session: log in, or send `authorization: Bearer TOKEN`";
        let scheme = HeaderValue::from_static("Bearer realm=\"windlass\"");
        Problem::unauthenticated(text).with_header(header::WWW_AUTHENTICATE, scheme)
    })?;
    let is_session = matches!(caller.via, crate::auth::Via::Session(_));
    if is_change(&request.method) && is_session && !names_site(&request.headers) {
        return Err(Problem::cross_site(
            "a change with a cookie needs `Origin` or `Sec-Fetch-Site`, which browsers send: use a token instead",
        ));
    }
    check_role(&caller, role)?;
    Ok(Some(caller))
}

fn check_role(caller: &Caller, role: Role) -> Result<(), Problem> {
    if caller.identity.role >= role {
        return Ok(());
    }
    let text = format!("this needs the role `{role}`, and the caller has `{}`", caller.identity.role);
    Err(Problem::forbidden(text))
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next()).map(str::trim);
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    Err(Problem::wrong_content_type(
        "every change needs `content-type: application/json`, even without a body",
    ))
}

async fn path_parameters(parts: &mut Parts) -> Result<PathParameters, Problem> {
    let found = RawPathParams::from_request_parts(parts, &()).await;
    let found = found.map_err(|_| Problem::invalid("the path is not valid UTF-8"))?;
    Ok(PathParameters(found.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
}

/// Reads the body of a change, within the limits of size and time.
pub(crate) async fn read(body: Body, max_bytes: usize) -> Result<Bytes, Problem> {
    match timeout(REQUEST_TIMEOUT, axum::body::to_bytes(body, max_bytes)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_length_limit(&error) => {
            Err(Problem::too_large(format!("this request has at most {max_bytes} bytes")))
        }
        Ok(Err(_)) => Err(Problem::invalid("the body is incomplete")),
        Err(_) => Err(Problem::too_slow(format!("the body did not arrive within {REQUEST_TIMEOUT:?}"))),
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(|source| source.to_string().contains("length limit"))
}

impl Call {
    pub(crate) fn client(&self) -> &BoxedClient {
        &self.app.client
    }

    /// Returns the caller of a route that needs one.
    pub(crate) fn caller(&self) -> Result<&Caller, Problem> {
        self.caller.as_ref().ok_or_else(|| Problem::internal("the route has no caller"))
    }

    /// Returns what the caller sees. A caller who was not admitted sees as little as possible.
    pub(crate) fn sight(&self) -> Sight<'_> {
        let role = self.caller.as_ref().map_or(Role::Read, |caller| caller.identity.role);
        self.app.rules.sight(role)
    }

    /// Refuses a call whose parameters need a higher role than its route.
    pub(crate) fn require(&self, role: Role) -> Result<(), Problem> {
        check_role(self.caller()?, role)
    }

    /// Writes to the audit log that a change begins.
    pub(crate) async fn audit(&self, action: &str, subject: impl Into<Subject>) -> Result<Entry, Problem> {
        self.audit_as(self.caller()?, action, subject).await
    }

    /// Like [`audit`](Self::audit), for a caller who proves who they are with this very request.
    pub(crate) async fn audit_as(
        &self,
        caller: &Caller,
        action: &str,
        subject: impl Into<Subject>,
    ) -> Result<Entry, Problem> {
        self.app.audit.begin(self.change(caller, action, subject)).await
    }

    /// Like [`audit`](Self::audit), for a change that stops something: it is made even if the log cannot be written.
    pub(crate) async fn audit_anyway(
        &self,
        action: &str,
        subject: impl Into<Subject>,
    ) -> Result<Entry, Problem> {
        Ok(self.app.audit.begin_anyway(self.change(self.caller()?, action, subject)).await)
    }

    fn change<'a>(&self, caller: &'a Caller, action: &'a str, subject: impl Into<Subject>) -> Change<'a> {
        Change { caller, remote: self.facts.remote, action, subject: subject.into() }
    }

    /// Takes a permit for a wait.
    pub(crate) fn wait_permit(&self) -> Result<Permit, Problem> {
        Ok(self.app.waits.take(&self.caller()?.identity.name)?)
    }
}

impl PathParameters {
    pub(crate) fn text(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    pub(crate) fn chain(&self) -> Result<ChainId, Problem> {
        self.text("id").parse().map_err(|_| invalid_id(self.text("id")))
    }

    pub(crate) fn job(&self) -> Result<JobId, Problem> {
        self.text("id").parse().map_err(|_| invalid_id(self.text("id")))
    }

    pub(crate) fn type_name(&self, name: &str) -> Result<TypeName, Problem> {
        Ok(TypeName::new(self.text(name))?)
    }

    pub(crate) fn key(&self, name: &str) -> Result<Key, Problem> {
        Ok(Key::new(self.text(name))?)
    }

    pub(crate) fn schedule(&self) -> Result<ScheduleName, Problem> {
        Ok(ScheduleName::new(self.text("name"))?)
    }
}

/// Parses an id that the caller has chosen for a new chain. Only version 7 is accepted: version 8 means that a schedule
/// has started the chain, so a chain with such an id could displace an occurrence, or pass for one.
pub(crate) fn chosen_id(text: &str) -> Result<ChainId, Problem> {
    let id: ChainId = text.parse().map_err(|_| invalid_id(text))?;
    if id.as_uuid().get_version_num() != 7 {
        let text = format!("invalid id {:?} for a new chain: use a UUID of version 7", shortened(text));
        return Err(Problem::invalid(text));
    }
    Ok(id)
}

pub(crate) fn invalid_id(text: &str) -> Problem {
    Problem::invalid(format!(
        "invalid id {:?}: use a UUID like `019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11`",
        shortened(text)
    ))
}

impl RequestBody for NoBody {
    fn read(_: &[u8]) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }
}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> RequestBody for Json<T> {
    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        let parsed = serde_json::from_slice(bytes);
        parsed
            .map(Self)
            .map_err(|error| Problem::invalid(format!("invalid JSON body: {}", described(&error))))
    }

    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }
}

/// Describes an error in a body without quoting it: the message of the error can contain a value or a name, which can be a
/// secret.
fn described(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        Category::Io | Category::Syntax => "it is not JSON",
        Category::Eof => "it is incomplete",
        // These names come from the type, not from the body.
        Category::Data if error.to_string().starts_with("missing field") => "a required field is missing",
        Category::Data => "a field is unknown, or its value has the wrong type",
    };
    format!("{what} (line {}, column {}): see `openapi.json`", error.line(), error.column())
}

const JSON: &str = "application/json";

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (status, [(header::CONTENT_TYPE, JSON)], body).into_response(),
        Err(error) => Problem::internal(format!("the answer cannot be encoded: {error}")).into_response(),
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Answer for Json<T> {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }

    fn describe(generator: &mut SchemaGenerator) -> Vec<(StatusCode, &'static str, Schema)> {
        vec![(StatusCode::OK, JSON, generator.subschema_for::<T>())]
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Answer for Created<T> {
    fn into_response(self) -> Response {
        json(if self.is_new { StatusCode::CREATED } else { StatusCode::OK }, &self.answer)
    }

    fn describe(generator: &mut SchemaGenerator) -> Vec<(StatusCode, &'static str, Schema)> {
        let schema = generator.subschema_for::<T>();
        vec![(StatusCode::CREATED, JSON, schema.clone()), (StatusCode::OK, JSON, schema)]
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Answer for Awaited<T> {
    fn into_response(self) -> Response {
        match self {
            Self::Now(created) => created.into_response(),
            Self::Later(_) => Problem::internal("the answer was sent before its wait").into_response(),
        }
    }

    fn settled(self) -> Settling<Self> {
        Box::pin(async {
            match self {
                Self::Now(created) => Self::Now(created),
                Self::Later(settling) => Self::Now(settling.await),
            }
        })
    }

    fn describe(generator: &mut SchemaGenerator) -> Vec<(StatusCode, &'static str, Schema)> {
        Created::<T>::describe(generator)
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Answer for Waited<T> {
    const WAIT: Duration = WAIT_MAX;

    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }

    fn describe(generator: &mut SchemaGenerator) -> Vec<(StatusCode, &'static str, Schema)> {
        Json::<T>::describe(generator)
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Answer for Accepted<T> {
    fn into_response(self) -> Response {
        json(StatusCode::ACCEPTED, &self.0)
    }

    fn describe(generator: &mut SchemaGenerator) -> Vec<(StatusCode, &'static str, Schema)> {
        vec![(StatusCode::ACCEPTED, JSON, generator.subschema_for::<T>())]
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> Answer for WithCookie<T> {
    fn into_response(self) -> Response {
        let mut response = json(StatusCode::OK, &self.answer);
        response.headers_mut().insert(header::SET_COOKIE, self.cookie);
        response
    }

    fn describe(generator: &mut SchemaGenerator) -> Vec<(StatusCode, &'static str, Schema)> {
        vec![(StatusCode::OK, JSON, generator.subschema_for::<T>())]
    }
}

/// Returns a duration in milliseconds, at most `max`.
pub(crate) fn at_most(ms: Option<u64>, default: Duration, max: Duration) -> Duration {
    ms.map_or(default, Duration::from_millis).min(max)
}
