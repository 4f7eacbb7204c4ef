//! Conversion of driver and server errors into store errors.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind as DriverKind, RedisError, ServerErrorKind, Value};
use windlass_core::{Error, ErrorKind};

/// Converts a driver error into a store error whose message says what to do.
pub(crate) fn from_driver(error: RedisError) -> Error {
    for_user(error, None)
}

/// Converts a driver error like [`from_driver`], and names the user if access is denied.
pub(crate) fn for_user(error: RedisError, user: Option<&str>) -> Error {
    let (kind, remedy) = remedy(&error);
    let user = user.filter(|_| kind == ErrorKind::AccessDenied);
    let user = user.map(|user| format!(" (user `{user}`)")).unwrap_or_default();
    Error::new(kind, format!("Redis: {error}{user}: {remedy}")).with_inner(error)
}

/// Whether the server refused the login. With RESP2 the driver has its own kind for this, with RESP3 it returns the
/// server's error.
pub(crate) fn is_refused_login(error: &RedisError) -> bool {
    let is_login = error.kind() == DriverKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"));
    is_login && !has_too_many_clients(error)
}

/// Whether the server may have refused the connection, for a reason that an operator can change.
pub(crate) fn is_refused(error: &RedisError) -> bool {
    is_refused_login(error) || is_forbidden(error) || has_too_many_clients(error)
}

/// Whether a reply is a replica's error about a write.
pub(crate) fn is_from_replica(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::ReadOnly))
}

/// Whether the server has reached its limit of clients. With RESP2 the driver reports this as a failed login.
fn has_too_many_clients(error: &RedisError) -> bool {
    error.to_string().contains("max number of clients")
}

/// Whether the server rejected a command because the user may not run it or because it does not exist.
pub(crate) fn is_forbidden(error: &RedisError) -> bool {
    let kind = error.kind();
    matches!(kind, DriverKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError))
}

/// Returns an error of kind `Corrupt`, for stored data or a reply that this crate cannot have written.
pub(crate) fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{what}: another program may have written under this namespace; inspect it before you continue"
        ),
    )
}

/// Whether a script was stopped because the user may not run a command in it.
///
/// There is no error code for this. Redis 7.0 uses the first message; later versions and Valkey use the second.
fn is_forbidden_in_script(error: &RedisError) -> bool {
    let begins = ["The user executing the script", "ACL failure in script"];
    error.detail().is_some_and(|detail| begins.iter().any(|begin| detail.starts_with(begin)))
}

/// Whether the TLS handshake with the server failed.
fn is_tls(error: &RedisError) -> bool {
    // The driver wraps the source error in an `Arc`, so this downcasts twice.
    let source = error.source().and_then(|source| source.downcast_ref::<Arc<dyn StdError + Send + Sync>>());
    let io = source.and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|io| io.kind() == io::ErrorKind::InvalidData)
}

fn remedy(error: &RedisError) -> (ErrorKind, &'static str) {
    let forbidden = (
        ErrorKind::AccessDenied,
        "allow the user scripts, and the keys and channels of the namespace: \
         `ACL SETUSER <user> ~{windlass:*}* &{windlass:*}* +@all -@dangerous`",
    );
    match (error.kind(), error.code()) {
        _ if has_too_many_clients(error) => {
            (ErrorKind::Unavailable, "raise `maxclients`, or close other connections")
        }
        _ if is_refused_login(error) => {
            (ErrorKind::AccessDenied, "check the user name and password in the URL")
        }
        (DriverKind::Server(ServerErrorKind::BusyLoading), _) => {
            (ErrorKind::Unavailable, "try again when the server has loaded its data")
        }
        (DriverKind::Server(ServerErrorKind::ReadOnly), _) => {
            (ErrorKind::Unavailable, "the server is a replica; connect to the primary")
        }
        (DriverKind::Server(ServerErrorKind::NoPerm), _) => forbidden,
        (DriverKind::Server(ServerErrorKind::ResponseError), _) if is_forbidden_in_script(error) => forbidden,
        (_, Some("OOM")) => {
            (ErrorKind::Unavailable, "the server is out of memory; raise `maxmemory`, or shorten retentions")
        }
        (_, Some("BUSY")) => {
            (ErrorKind::Busy, "another client's script has been running for too long; try again")
        }
        (_, Some("WRONGTYPE")) => (
            ErrorKind::Corrupt,
            "another program has written under this namespace; nothing was changed; inspect the key before you continue",
        ),
        (DriverKind::Server(ServerErrorKind::ResponseError), _) => (
            ErrorKind::Corrupt,
            "a script failed, and nothing of this call was written; inspect the stored data before you continue",
        ),
        (DriverKind::InvalidClientConfig, _) => {
            (ErrorKind::Invalid, "correct the URL; `rediss://` requires the feature `tls`")
        }
        (DriverKind::Io, _) if is_tls(error) => (
            ErrorKind::Unavailable,
            "add the server's certificate to the system's, or pass a client that trusts it",
        ),
        (DriverKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask), _) => (
            ErrorKind::Unavailable,
            "the server is part of a cluster, and another shard holds this namespace; open the store by URL, or with a \
             cluster connection",
        ),
        (DriverKind::Server(ServerErrorKind::TryAgain), _) => {
            (ErrorKind::Unavailable, "the cluster is moving this namespace to another shard; try again")
        }
        _ => (ErrorKind::Unavailable, "check that the server is reachable, and try again"),
    }
}
