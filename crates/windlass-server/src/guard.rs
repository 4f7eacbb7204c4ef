//! The checks before every handler, and the headers of every answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{OriginalUri, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Method, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::Problem;
use crate::auth::CookieName;
use crate::server::App;

/// Pages may load scripts, styles and data from this server only, and no inline script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Browsers use HTTPS for this host from now on, for a year.
const HTTPS_ONLY: &str = "max-age=31536000";

/// Headers in which a proxy describes the request that it forwards.
const FORWARDED: [&str; 10] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-forwarded-server",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
];

/// The other end of a connection. [`Server::listen`](crate::Server::listen) puts it into the extensions of each request.
/// An application that serves the router itself can do the same: the login rate limit and the audit log use the address.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The address.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
}

/// Facts about a request, before it is handled.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The address of the client, if it is known.
    pub(crate) remote: Option<IpAddr>,
    /// Host and port by which the client reached this server.
    pub(crate) authority: String,
    /// Whether the client used HTTPS.
    pub(crate) is_https: bool,
    /// The path under which the router is mounted, without a slash at its end.
    pub(crate) base: String,
}

/// Checks a request, runs its handler and completes the answer.
pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let peer = request.extensions().get::<Peer>().copied();
    let found = facts(&app, &request);
    // For the log: a request without facts has at least a peer.
    let remote = found.as_ref().map_or_else(|_| peer.map(|peer| peer.address.ip()), |facts| facts.remote);
    let checked = found.and_then(|facts| {
        if !method.is_safe() {
            check_site(request.headers(), &facts)?;
        }
        Ok(facts)
    });
    // Only for TLS of this server. Browsers apply the header to all ports of a host, so it is not sent to `localhost`.
    let is_tls = peer.is_some_and(|peer| peer.is_tls);
    let is_https_only = is_tls && authority(&request).is_ok_and(|host| !is_loopback_name(host.host()));
    let mut response = match checked {
        Ok(facts) => {
            request.extensions_mut().insert(facts.cookie_name());
            request.extensions_mut().insert(facts);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    if let Some(problem) = response.extensions().get::<Problem>() {
        // The path and the detail come from the caller: `Debug` escapes control characters.
        tracing::warn!(
            status = problem.status().as_u16(),
            %method,
            path = ?uri.path(),
            remote = remote.map(tracing::field::display),
            "request refused: {:?}",
            problem.detail(),
        );
    }
    complete(response.headers_mut());
    if is_https_only {
        response
            .headers_mut()
            .insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(HTTPS_ONLY));
    }
    response
}

fn complete(headers: &mut HeaderMap) {
    let fixed: [(HeaderName, &str); 6] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Returns what is known about a request, or refuses it.
fn facts(app: &App, request: &Request) -> Result<Facts, Problem> {
    let headers = request.headers();
    let peer = request.extensions().get::<Peer>();
    let authority = authority(request)?;
    let forwarded = FORWARDED.iter().find(|name| headers.contains_key(**name));
    if !app.access.is_authenticated() {
        if peer.is_some_and(|peer| !peer.address.ip().to_canonical().is_loopback()) {
            return Err(Problem::invalid(
                "the request comes from another machine, which needs authentication: start the server with tokens",
            ));
        }
        if !is_loopback_name(authority.host()) {
            return Err(Problem::wrong_host(
                "without authentication, only requests to a loopback name are accepted, such as `localhost`",
            ));
        }
        if let Some(name) = forwarded {
            return Err(Problem::invalid(format!(
                "a proxy forwarded the request (`{name}`), which needs authentication: start the server with tokens"
            )));
        }
    }
    let mut facts = Facts {
        remote: peer.map(|peer| peer.address.ip()),
        authority: authority.as_str().to_owned(),
        is_https: app.is_https || peer.is_some_and(|peer| peer.is_tls),
        base: base(request),
    };
    if app.trusts_proxy {
        facts.apply_forwarded(headers)?;
    }
    Ok(facts)
}

impl Facts {
    /// Applies the headers of a trusted proxy. If a header is a list, the last element counts: the nearest proxy added it.
    fn apply_forwarded(&mut self, headers: &HeaderMap) -> Result<(), Problem> {
        let last = |name: &str| {
            let value = headers.get_all(name).iter().next_back()?.to_str().ok()?;
            value.rsplit(',').next().map(str::trim)
        };
        if let Some(address) = last("x-forwarded-for") {
            // Some proxies add the port.
            let parsed = address.parse().or_else(|_| address.parse().map(|address: SocketAddr| address.ip()));
            self.remote =
                Some(parsed.map_err(|_| Problem::invalid("`x-forwarded-for` has no valid address"))?);
        }
        if let Some(host) = last("x-forwarded-host") {
            let parsed = host.parse::<Authority>();
            let parsed = parsed.map_err(|_| Problem::invalid("`x-forwarded-host` is not a valid host"))?;
            self.authority = parsed.as_str().to_owned();
        }
        if let Some(protocol) = last("x-forwarded-proto") {
            // A connection that is known to be encrypted stays so, whatever a header says.
            self.is_https |= protocol.eq_ignore_ascii_case("https");
        }
        Ok(())
    }

    /// Returns the name of the cookie that has the session.
    pub(crate) fn cookie_name(&self) -> CookieName {
        CookieName::new(&self.authority, &self.base, self.is_https)
    }

    /// Returns the origin of the pages of this server.
    fn is_own_origin(&self, origin: &str) -> bool {
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        // Without knowledge about the connection, a proxy of an embedding application may use HTTPS.
        let is_scheme = if self.is_https { scheme == "https" } else { matches!(scheme, "http" | "https") };
        let default_port = if scheme == "https" { ":443" } else { ":80" };
        let bare =
            |authority: &str| authority.strip_suffix(default_port).unwrap_or(authority).to_ascii_lowercase();
        is_scheme && bare(authority) == bare(&self.authority)
    }
}

/// Returns the host that the client named.
fn authority(request: &Request) -> Result<Authority, Problem> {
    // HTTP/2 has it in the URI.
    if request.version() == Version::HTTP_2
        && let Some(authority) = request.uri().authority()
    {
        return Ok(authority.clone());
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err(Problem::invalid("the request must have one `Host` header"));
    };
    let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    host.filter(|host| !host.as_str().contains('@'))
        .ok_or_else(|| Problem::invalid("the `Host` header is not a host name"))
}

fn is_loopback_name(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Returns the path under which the router is mounted.
fn base(request: &Request) -> String {
    let original = request.extensions().get::<OriginalUri>().map(|OriginalUri(uri)| uri.path());
    let (inner, original) = (request.uri().path(), original.unwrap_or_default());
    // The root of a nested router has the path of the router itself, without a slash at its end.
    let base = if inner == "/" { original } else { original.strip_suffix(inner).unwrap_or_default() };
    match base.trim_matches('/') {
        "" => String::new(),
        // Two slashes at the beginning of a link would name another host.
        base => format!("/{base}"),
    }
}

/// Refuses a change that a page of another site asks for.
fn check_site(headers: &HeaderMap, facts: &Facts) -> Result<(), Problem> {
    let refused = || {
        Problem::cross_site(
            "a page of another site must not change anything here: use the API from your own program",
        )
    };
    for site in headers.get_all("sec-fetch-site") {
        if !matches!(site.as_bytes(), b"same-origin" | b"none") {
            return Err(refused());
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        if !origin.to_str().is_ok_and(|origin| facts.is_own_origin(origin)) {
            return Err(refused());
        }
    }
    Ok(())
}

/// Whether a browser has said where the request comes from.
pub(crate) fn names_site(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site")
}

/// Whether a method changes something.
pub(crate) fn is_change(method: &Method) -> bool {
    !method.is_safe()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_loopback() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]", "::1", "[::ffff:127.0.0.1]"]
        {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in
            ["localhost.example.com", "127.0.0.1.example.com", "example.com", "0.0.0.0", "10.0.0.1", ""]
        {
            assert!(!is_loopback_name(host), "{host}");
        }
    }

    #[test]
    fn origins_are_compared_with_scheme_host_and_port() {
        let facts = |authority: &str, is_https: bool| Facts {
            remote: None,
            authority: authority.to_owned(),
            is_https,
            base: String::new(),
        };
        assert!(facts("jobs.example.com", true).is_own_origin("https://jobs.example.com"));
        assert!(facts("jobs.example.com:443", true).is_own_origin("https://Jobs.example.com"));
        assert!(facts("localhost:8080", false).is_own_origin("http://localhost:8080"));
        for origin in
            ["http://jobs.example.com", "https://jobs.example.com:8443", "https://example.com", "null", ""]
        {
            assert!(!facts("jobs.example.com", true).is_own_origin(origin), "{origin}");
        }
        assert!(!facts("localhost:8080", false).is_own_origin("http://localhost:3000"));
    }
}
