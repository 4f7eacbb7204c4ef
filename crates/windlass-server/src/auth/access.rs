//! Identifies the caller of a request.

use std::fmt;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;

use super::role::Role;
use super::session::{CookieName, Sessions, has_session, session_of};
use super::token::{Token, TokenFile, sessions_path};

/// Who may use a server, and how callers authenticate. There is no default.
pub struct Access(pub(crate) Kind);

pub(crate) enum Kind {
    Tokens { tokens: TokenFile, sessions: Arc<Sessions> },
    Hook(Arc<Hook>),
    Nobody,
}

type Hook = dyn Fn(&Parts) -> Option<Identity> + Send + Sync;

/// A caller's name and role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name, which appears in the audit log.
    pub name: String,
    /// What the caller may do.
    pub role: Role,
}

/// A caller who was admitted.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) via: Via,
}

/// How a caller proved who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Token,
    /// A cookie, with the id of its session.
    Session(String),
    Hook,
    Nobody,
}

impl Access {
    /// Admits callers with a bearer token, and browsers with a session that was started with one. Sessions are kept in a
    /// file beside the file of the tokens, whose name ends with `.sessions`.
    #[must_use]
    pub fn tokens(tokens: TokenFile) -> Self {
        let sessions = Arc::new(Sessions::open(sessions_path(tokens.path())));
        Self(Kind::Tokens { tokens, sessions })
    }

    /// Admits callers that the application identifies. `identify` maps a request to an identity, or to `None` if the caller
    /// may not use the server. It can read an identity that an earlier middleware has put into the request's extensions.
    ///
    /// The server still refuses changes that come from other sites.
    pub fn identity(identify: impl Fn(&Parts) -> Option<Identity> + Send + Sync + 'static) -> Self {
        Self(Kind::Hook(Arc::new(identify)))
    }

    /// Admits all callers as administrators. The server accepts only requests to a loopback name. It refuses requests that
    /// a proxy has forwarded and, if the [`Peer`](crate::Peer) is known, requests from other machines. It cannot recognize a
    /// proxy that adds no headers.
    #[must_use]
    pub const fn without_authentication() -> Self {
        Self(Kind::Nobody)
    }

    /// Whether callers must prove who they are.
    #[must_use]
    pub const fn is_authenticated(&self) -> bool {
        !matches!(self.0, Kind::Nobody)
    }
}

/// Returns the caller of a request, or `None` if the caller is not known.
pub(crate) fn authenticate(access: &Access, request: &Parts) -> Option<Caller> {
    match &access.0 {
        Kind::Tokens { tokens, sessions } => {
            // A header that is present decides alone: a wrong token is not rescued by a cookie.
            if request.headers.contains_key(AUTHORIZATION) {
                let token = tokens.find(bearer(request)?)?;
                return Some(Caller { via: Via::Token, identity: token.into() });
            }
            let session = session_of(&request.headers, request.extensions.get::<CookieName>()?)?;
            let token = tokens.by_id(&sessions.token(session)?)?;
            Some(Caller { via: Via::Session(session.to_owned()), identity: token.into() })
        }
        Kind::Hook(identify) => Some(Caller { identity: identify(request)?, via: Via::Hook }),
        Kind::Nobody => {
            let identity = Identity { name: "anonymous".to_owned(), role: Role::Admin };
            Some(Caller { identity, via: Via::Nobody })
        }
    }
}

/// Whether a request has a token or a session, valid or not.
pub(crate) fn has_credentials(headers: &HeaderMap, cookie: Option<&CookieName>) -> bool {
    headers.contains_key(AUTHORIZATION) || cookie.is_some_and(|name| has_session(headers, name))
}

/// Returns the token in the `Authorization` header.
fn bearer(request: &Parts) -> Option<&str> {
    let mut values = request.headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

impl From<Token> for Identity {
    fn from(token: Token) -> Self {
        Self { name: token.name, role: token.role }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Tokens { .. } => "Access::tokens",
            Kind::Hook(_) => "Access::identity",
            Kind::Nobody => "Access::without_authentication",
        })
    }
}
