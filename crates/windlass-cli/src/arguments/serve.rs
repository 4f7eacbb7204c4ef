use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use windlass::server::{RedactionPath, Role};

use super::value::duration;

/// Serve a dashboard and an HTTP API, or manage the tokens
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  windlass serve
  windlass serve token create --tokens tokens.toml ada --role operate
  windlass serve --listen 0.0.0.0:8443 --tokens tokens.toml --tls-cert cert.pem --tls-key key.pem --audit audit.jsonl
  curl -H 'authorization: Bearer TOKEN' http://127.0.0.1:8080/api/v1/jobs

Without --tokens, everyone who can connect is an administrator. The server then listens only on a loopback address and \
accepts only requests to a loopback name. See docs/serve.md for the API and its security.

SIGTERM or Ctrl-C stops the server: open requests have 10 seconds to end."
)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) action: Option<ServeAction>,

    /// Address and port to listen on; port 0 chooses a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// File of tokens that callers need [default: none; only loopback]
    #[arg(long, value_name = "FILE", env = "WINDLASS_TOKENS")]
    pub(crate) tokens: Option<PathBuf>,

    /// File to append the audit log to [default: standard error]
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,

    /// Weakest role that sees inputs, outputs and errors: read, produce, operate or admin
    #[arg(long, value_name = "ROLE", default_value = "read")]
    pub(crate) payloads_from: Role,

    /// Path of values in inputs and outputs to hide, e.g. `card.number` or `**.password`; can be repeated
    #[arg(long, value_name = "PATH", value_parser = RedactionPath::new)]
    pub(crate) redact: Vec<RedactionPath>,

    /// Trust the headers X-Forwarded-For, X-Forwarded-Host and X-Forwarded-Proto of a proxy
    #[arg(long, requires = "tokens")]
    pub(crate) trust_proxy: bool,

    /// File with the TLS certificates, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// File with the private key of the TLS certificate, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServeAction {
    /// Manage the tokens of a file; a running server notices changes within a second
    #[command(subcommand)]
    Token(TokenAction),
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenAction {
    /// Create a token and print it; only its hash is stored
    Create(CreateToken),
    /// List the tokens: names, roles and times
    List(TokenPath),
    /// Revoke a token; sessions that were started with it end
    Revoke(RevokeToken),
}

#[derive(Args, Debug)]
pub(crate) struct TokenPath {
    /// File of tokens
    #[arg(long, value_name = "FILE", env = "WINDLASS_TOKENS")]
    pub(crate) tokens: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct CreateToken {
    /// Name of the token, which appears in the audit log
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// What the token permits: read, produce, operate or admin
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Role,

    /// Time after which the token stops working, e.g. `90d` [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) expires: Option<Duration>,

    #[command(flatten)]
    pub(crate) path: TokenPath,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeToken {
    /// Name of the token
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) path: TokenPath,
}
