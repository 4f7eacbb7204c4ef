//! Logging in and out.

use std::io;
use std::sync::Arc;

use axum::http::HeaderValue;
use axum::http::header::RETRY_AFTER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::route::{Call, Given, Json, NoBody, NoQuery, WithCookie};
use crate::audit::{Outcome, Subject};
use crate::auth::{Caller, Identity, Kind, Role, Via};
use crate::guard::Facts;
use crate::server::App;

/// The caller and its role.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Session {
    name: String,
    role: Role,
    /// Whether the caller sees payloads and errors.
    sees_payloads: bool,
    authentication: Authentication,
}

/// How callers of this server prove who they are.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Authentication {
    /// With tokens, or with sessions that were started with one.
    Tokens,
    /// The application that embeds the server knows them.
    Application,
    /// Not at all.
    None,
}

/// A token to log in with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    token: String,
}

/// The end of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LoggedOut {
    ended: bool,
}

pub(crate) async fn get(call: Call, _: Given<NoQuery, NoBody>) -> Result<Json<Session>, Problem> {
    Ok(Json(Session::of(&call, &call.caller()?.identity)))
}

impl Session {
    fn of(call: &Call, identity: &Identity) -> Self {
        let authentication = match &call.app.access.0 {
            Kind::Tokens { .. } => Authentication::Tokens,
            Kind::Hook(_) => Authentication::Application,
            Kind::Nobody => Authentication::None,
        };
        let sees_payloads = call.app.rules.sight(identity.role).sees_payloads();
        Self { name: identity.name.clone(), role: identity.role, sees_payloads, authentication }
    }
}

pub(crate) async fn start(
    call: Call,
    given: Given<NoQuery, Json<Login>>,
) -> Result<WithCookie<Session>, Problem> {
    let Json(Login { token }) = given.body;
    let (identity, cookie) = log_in(&call, &token).await?;
    Ok(WithCookie { cookie, answer: Session::of(&call, &identity) })
}

/// Starts a session with a token. Returns the identity and the cookie.
pub(crate) async fn log_in(call: &Call, token: &str) -> Result<(Identity, HeaderValue), Problem> {
    let (app, remote) = (&call.app, call.facts.remote);
    let Kind::Tokens { tokens, sessions } = &app.access.0 else {
        return Err(Problem::conflict("this server has no tokens to log in with"));
    };
    check_rate(app, &call.facts)?;
    let Some(token) = tokens.find(token) else {
        app.logins.failed(remote);
        return Err(Problem::unauthenticated("the token is not valid: it may have expired or been revoked"));
    };
    let (token_id, caller) = (token.id.clone(), Caller { identity: token.into(), via: Via::Token });
    let entry = call.audit_as(&caller, "login", Subject::default()).await?;
    let sessions = Arc::clone(sessions);
    let started = written(move || sessions.start(&token_id)).await;
    let (id, lifetime) = entry.end_with(started, |_| Outcome::word("logged in")).await?;
    Ok((caller.identity, cookie(call, &id, lifetime.as_secs())?))
}

pub(crate) async fn end(call: Call, _: Given<NoQuery, NoBody>) -> Result<WithCookie<LoggedOut>, Problem> {
    let mut ended = false;
    if let (Kind::Tokens { sessions, .. }, Via::Session(id)) = (&call.app.access.0, &call.caller()?.via) {
        let entry = call.audit_anyway("logout", Subject::default()).await?;
        let (sessions, id) = (Arc::clone(sessions), id.clone());
        let logged_out = written(move || sessions.end(&id)).await;
        entry.end_with(logged_out, |()| Outcome::word("logged out")).await?;
        ended = true;
    }
    Ok(WithCookie { cookie: cookie(&call, "", 0)?, answer: LoggedOut { ended } })
}

/// Refuses logins from an address with too many failed ones.
pub(crate) fn check_rate(app: &App, facts: &Facts) -> Result<(), Problem> {
    let Some(wait) = app.logins.wait(facts.remote) else { return Ok(()) };
    let seconds = HeaderValue::from(wait.as_secs() + 1);
    Err(Problem::too_many("too many failed logins: wait a minute").with_header(RETRY_AFTER, seconds))
}

/// Changes the file of sessions outside of the threads that serve requests: a disk can be slow.
async fn written<T: Send + 'static>(
    change: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    let changed = tokio::task::spawn_blocking(change).await;
    changed.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
        tracing::error!("the sessions cannot be stored: {error}");
        Problem::unavailable("the session cannot be stored: see the log of the server")
    })
}

fn cookie(call: &Call, id: &str, seconds: u64) -> Result<HeaderValue, Problem> {
    let base = &call.facts.base;
    let path = if base.is_empty() { "/" } else { base.as_str() };
    let secure = if call.facts.is_https { "; Secure" } else { "" };
    let name = call.facts.cookie_name();
    let text =
        format!("{}={id}; HttpOnly; SameSite=Lax; Path={path}; Max-Age={seconds}{secure}", name.as_str());
    HeaderValue::try_from(text).map_err(|_| Problem::internal("the cookie cannot be encoded"))
}
