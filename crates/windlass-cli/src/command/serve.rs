//! `windlass serve`: an HTTP API, a dashboard, and their tokens.

use std::net::SocketAddr;

use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use windlass::server::{Access, AuditLog, Server, Tls, Token, TokenError, TokenFile};
use windlass::shutdown_signal;
use windlass::time::Timestamp;

use super::Context;
use crate::arguments::{CreateToken, RevokeToken, Serve, ServeAction, TokenAction};
use crate::exit::{Failure, Result};
use crate::output::{Output, note};
use crate::store::OpenMode;

pub(crate) async fn run(context: &Context, serve: Serve) -> Result {
    match serve.action {
        Some(ServeAction::Token(action)) => token(context.output, action),
        None => listen(context, serve).await,
    }
}

async fn listen(context: &Context, serve: Serve) -> Result {
    // Check everything before opening the store: an invalid call must not create a SQLite file.
    let access = match &serve.tokens {
        Some(path) => Access::tokens(TokenFile::open(path).map_err(unusable)?),
        None => Access::without_authentication(),
    };
    if !access.is_authenticated() && !serve.listen.ip().to_canonical().is_loopback() {
        return Err(Failure::usage(format!(
            "refusing to listen on {} without authentication: pass --tokens FILE, or listen on 127.0.0.1",
            serve.listen
        )));
    }
    let tls = match (&serve.tls_cert, &serve.tls_key) {
        (Some(certificates), Some(key)) => Some(Tls::from_files(certificates, key).map_err(Failure::usage)?),
        _ => None,
    };
    let audit = match &serve.audit {
        Some(path) => AuditLog::file(path)
            .map_err(|error| Failure::usage(format!("cannot write to `{}`: {error}", path.display())))?,
        None => AuditLog::writer(std::io::stderr()),
    };
    let listener = TcpListener::bind(serve.listen).await;
    let listener =
        listener.map_err(|error| Failure::failed(format!("cannot listen on {}: {error}", serve.listen)))?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    // Install the signal handlers before the address is printed: a signal sent in between would kill the process.
    let shutdown_requested = shutdown_signal();
    let connection = context.open(OpenMode::CreateFile).await?;
    let stop = CancellationToken::new();
    let is_authenticated = access.is_authenticated();
    let mut server = Server::new(connection.client(), access)
        .payloads_from(serve.payloads_from)
        .redact(serve.redact)
        .audit(audit)
        .stop_token(stop.clone());
    if serve.trust_proxy {
        server = server.trust_proxy();
    }
    let listening = Listening::at(if tls.is_some() { "https" } else { "http" }, address);
    context.output.print_change(&listening, || listening.dashboard.clone())?;
    if !is_authenticated {
        note("no tokens are set: everyone on this machine can change jobs");
    }
    let serving = server.listen(listener, tls);
    let stopping = async {
        shutdown_requested.await;
        stop.cancel();
    };
    let (served, ()) = tokio::join!(serving, stopping);
    served.map_err(Failure::usage)
}

/// The line that is printed when the server listens.
#[derive(Serialize)]
pub(crate) struct Listening {
    /// The address of the API.
    url: String,
    pub(crate) dashboard: String,
}

impl Listening {
    pub(crate) fn at(scheme: &str, address: SocketAddr) -> Self {
        Self { url: format!("{scheme}://{address}/api/v1"), dashboard: format!("{scheme}://{address}/") }
    }
}

fn token(output: Output, action: TokenAction) -> Result {
    match action {
        TokenAction::Create(CreateToken { name, role, expires, path }) => {
            let expires_at = expires.map(|after| Timestamp::now() + after);
            let secret = TokenFile::create(&path.tokens, &name, role, expires_at).map_err(unusable)?;
            let created = Created { name: &name, role: role.as_str(), token: &secret };
            output.print_change(&created, || secret.clone())?;
            if !output.is_json() {
                note("this is the only time that the token is shown: keep it like a password");
            }
            Ok(())
        }
        TokenAction::List(path) => list(output, &TokenFile::list(&path.tokens).map_err(unusable)?),
        TokenAction::Revoke(RevokeToken { name, path }) => {
            if !TokenFile::revoke(&path.tokens, &name).map_err(unusable)? {
                return Err(Failure::not_found(format!("no token has the name `{name}`")));
            }
            output.print_change(&Revoked { revoked: &name }, || format!("{name}: revoked"))
        }
    }
}

fn unusable(error: TokenError) -> Failure {
    Failure::usage(error)
}

/// A new token.
#[derive(Serialize)]
struct Created<'a> {
    name: &'a str,
    role: &'a str,
    token: &'a str,
}

/// A token that was revoked.
#[derive(Serialize)]
struct Revoked<'a> {
    revoked: &'a str,
}

/// A token in a list.
#[derive(Serialize)]
struct TokenView<'a> {
    name: &'a str,
    id: &'a str,
    role: &'a str,
    created_at: &'a str,
    expires_at: Option<&'a str>,
}

fn list(output: Output, tokens: &[Token]) -> Result {
    if output.is_json() {
        return tokens.iter().try_for_each(|token| {
            output.object(&TokenView {
                name: &token.name,
                id: &token.id,
                role: token.role.as_str(),
                created_at: &token.created_at,
                expires_at: token.expires_at.as_deref(),
            })
        });
    }
    let row = |token: &Token| {
        let expires_at = token.expires_at.clone().unwrap_or_else(|| "never".to_owned());
        [token.name.clone(), token.role.to_string(), token.created_at.clone(), expires_at]
    };
    let rows: Vec<_> = tokens.iter().map(row).collect();
    output.table(["NAME", "ROLE", "CREATED", "EXPIRES"], &rows)
}
