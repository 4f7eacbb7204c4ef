//! Conversion of driver and server errors into store errors.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind as DriverKind, RedisError, ServerErrorKind};
use windlass_core::{Error, ErrorKind};

/// Converts a driver error into a store error whose message says what to do.
pub(crate) fn from_driver(error: RedisError) -> Error {
    let (kind, cure) = cure(&error);
    Error::new(kind, format!("the Redis server: {error}: {cure}")).with_source(error)
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
        format!("{what}: something else has written under this namespace; look at it before going on"),
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

fn cure(error: &RedisError) -> (ErrorKind, &'static str) {
    let forbidden = (ErrorKind::Unavailable, "allow this user scripts and the keys `{windlass:*`");
    match (error.kind(), error.code()) {
        (DriverKind::Server(ServerErrorKind::BusyLoading), _) => {
            (ErrorKind::Unavailable, "it loads its data; try again")
        }
        (DriverKind::Server(ServerErrorKind::ReadOnly), _) => {
            (ErrorKind::Unavailable, "it is a replica; connect to the primary")
        }
        (DriverKind::AuthenticationFailed, _) | (_, Some("NOAUTH")) => {
            (ErrorKind::Unavailable, "mend the user or the password in the URL")
        }
        (DriverKind::Server(ServerErrorKind::NoPerm), _) => forbidden,
        (DriverKind::Server(ServerErrorKind::ResponseError), _) if is_forbidden_in_script(error) => forbidden,
        (_, Some("OOM")) => (ErrorKind::Unavailable, "it is out of memory; raise `maxmemory` or expire more"),
        (_, Some("BUSY")) => (ErrorKind::Busy, "a script of somebody's runs for too long; try again"),
        (_, Some("WRONGTYPE")) => (
            ErrorKind::Corrupt,
            "something else has written under this namespace; nothing was changed, look at the key",
        ),
        (DriverKind::Server(ServerErrorKind::ResponseError), _) => {
            (ErrorKind::Corrupt, "a script stopped; nothing of this call was written, look at what is stored")
        }
        (DriverKind::InvalidClientConfig, _) => {
            (ErrorKind::Invalid, "mend the URL; one with `rediss://` needs the feature `tls`")
        }
        (DriverKind::Io, _) if is_tls(error) => {
            (ErrorKind::Unavailable, "have the system trust its certificate, or bring a client that does")
        }
        (DriverKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask), _) => (
            ErrorKind::Unavailable,
            "it is part of a cluster, and another shard has this namespace; open the store by URL, or with a cluster's \
             connection",
        ),
        (DriverKind::Server(ServerErrorKind::TryAgain), _) => {
            (ErrorKind::Unavailable, "the cluster moves this namespace to another shard; try again")
        }
        _ => (ErrorKind::Unavailable, "try again when it can be reached; the command is safe to repeat"),
    }
}
