//! Errors as answers, after RFC 9457.

use std::borrow::Cow;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use windlass_core::{Error, ErrorKind, Refusal};

/// An error as an answer. Boxed, because it is the rare case of most results.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Problem(Box<Body>);

/// The body of an answer that reports an error, after RFC 9457.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
struct Body {
    /// Identifies the kind of problem, for programs.
    #[serde(rename = "type")]
    kind: Cow<'static, str>,
    /// The kind of problem, for people.
    title: &'static str,
    /// The status code of the answer.
    #[serde(serialize_with = "number")]
    #[schemars(with = "u16")]
    status: StatusCode,
    /// The problem, and the remedy.
    detail: String,
    #[serde(skip)]
    #[schemars(skip)]
    header: Option<(HeaderName, HeaderValue)>,
}

macro_rules! problems {
    ($($name:ident: $status:ident, $kind:literal, $title:literal;)*) => {
        impl Problem {
            $(
                pub(crate) fn $name(detail: impl Into<String>) -> Self {
                    Self::new(StatusCode::$status, $kind, $title, detail.into())
                }
            )*
        }
    };
}

problems! {
    invalid: BAD_REQUEST, "invalid-request", "The request is invalid";
    unauthenticated: UNAUTHORIZED, "unauthenticated", "Authentication is required";
    forbidden: FORBIDDEN, "forbidden", "The role does not permit this";
    cross_site: FORBIDDEN, "cross-site", "The request comes from another site";
    not_found: NOT_FOUND, "not-found", "Not found";
    wrong_method: METHOD_NOT_ALLOWED, "wrong-method", "The method is not supported here";
    too_slow: REQUEST_TIMEOUT, "request-timeout", "The request took too long to arrive";
    conflict: CONFLICT, "conflict", "The state does not permit this";
    too_large: PAYLOAD_TOO_LARGE, "too-large", "The request is too large";
    wrong_content_type: UNSUPPORTED_MEDIA_TYPE, "wrong-content-type", "The content type is not supported";
    wrong_host: MISDIRECTED_REQUEST, "wrong-host", "The host is not served here";
    refused: UNPROCESSABLE_ENTITY, "refused", "The change was refused";
    too_many: TOO_MANY_REQUESTS, "too-many-requests", "Too many requests";
    internal: INTERNAL_SERVER_ERROR, "internal", "The server failed";
    unsupported: NOT_IMPLEMENTED, "unsupported", "The store does not support this";
    unavailable: SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable";
    timed_out: GATEWAY_TIMEOUT, "timeout", "The store did not answer in time";
}

impl Problem {
    fn new(status: StatusCode, kind: &str, title: &'static str, detail: String) -> Self {
        let kind = format!("urn:windlass:problem:{kind}").into();
        Self(Box::new(Body { kind, title, status, detail, header: None }))
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.header = Some((name, value));
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(crate) fn title(&self) -> &'static str {
        self.0.title
    }

    pub(crate) fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        self.0.header.clone()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let content_type = (header::CONTENT_TYPE, "application/problem+json");
        let mut response = (self.status(), [content_type], body).into_response();
        if let Some((name, value)) = self.header() {
            response.headers_mut().insert(name, value);
        }
        // The guard writes one log line per problem.
        response.extensions_mut().insert(self);
        response
    }
}

/// Errors of the store. Their messages name no payloads, but they may contain addresses of servers, which only the log
/// gets.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::Invalid if is_refusal(&error) => Self::refused(text),
            ErrorKind::Invalid => Self::invalid(text),
            ErrorKind::NotFound => Self::not_found(text),
            ErrorKind::Changed | ErrorKind::Conflict | ErrorKind::LeaseLost => Self::conflict(text),
            ErrorKind::Unsupported => Self::unsupported(text),
            ErrorKind::Busy => Self::unavailable("the store is busy: try again"),
            kind => {
                tracing::error!("the store failed ({kind:?}): {text}");
                match kind {
                    ErrorKind::Unavailable | ErrorKind::Closed => Self::unavailable(
                        "the store cannot be reached: try again, or see the log of the server",
                    ),
                    _ => Self::internal("the store failed: see the log of the server"),
                }
            }
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::refused(refusal.to_string())
    }
}

fn is_refusal(error: &Error) -> bool {
    error.inner().is_some_and(|inner| inner.is::<Refusal>())
}

fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}
