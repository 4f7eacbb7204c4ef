//! Conversion of driver and server errors into store errors.

use std::fmt;

use windlass_core::{Error, ErrorKind};

/// Converts an error of PostgreSQL, with its SQLSTATE code and message, into a store error.
#[must_use]
pub fn from_sqlstate(code: &str, message: &str) -> Error {
    let (kind, remedy) = match code {
        // A lock that was not granted in time, or a row that a concurrent transaction inserted.
        "55P03" | "23505" => {
            (ErrorKind::Busy, "another transaction has locked the rows; try again, or end that transaction")
        }
        // A serialization failure, or a deadlock.
        "40001" | "40P01" => {
            (ErrorKind::Conflict, "roll the transaction back and run it again from its first statement")
        }
        "3F000" | "42P01" | "42883" | "42704" => {
            (ErrorKind::Outdated, "the schema is missing or has another version; run the migrations")
        }
        // Raised by `own_v1`. The store then begins a transaction for the command.
        "WL002" => {
            (ErrorKind::Unsupported, "the store's commands need a read-write transaction at read committed")
        }
        "25006" => (
            ErrorKind::Unavailable,
            "begin a read-write transaction or, if the server is a standby, connect to the primary",
        ),
        // `begin … read write` on a standby.
        "0A000" => (
            ErrorKind::Unavailable,
            "if the server is a hot standby, connect to the primary; if the schema was changed, try again",
        ),
        "25P03" => (
            ErrorKind::Unavailable,
            "the transaction was idle for longer than `idle_in_transaction_session_timeout`; keep it shorter, or raise the \
             timeout",
        ),
        "57014" => (
            ErrorKind::Unavailable,
            "raise `statement_timeout`, or try again if an operator cancelled the statement",
        ),
        "25P02" => (ErrorKind::Invalid, "an earlier statement of the transaction failed; roll it back"),
        "25P01" => (ErrorKind::Invalid, "begin a transaction first"),
        "42501" => (ErrorKind::AccessDenied, GRANT),
        "53100" => (ErrorKind::Unavailable, "the disk is full; free some space"),
        "3D000" => (ErrorKind::AccessDenied, CREATE_DATABASE),
        // PgBouncer reports denied access as a protocol violation.
        "08P01" if is_missing_database(message) => (ErrorKind::AccessDenied, CREATE_DATABASE),
        "08P01" if is_refused_login(message) => (ErrorKind::AccessDenied, CHECK_LOGIN),
        "08P01" if message.starts_with("unsupported startup parameter") => {
            (ErrorKind::Invalid, REFUSED_PARAMETER)
        }
        // A statement that another client of a pooler prepared, or did not; or one that `discard all` removed.
        "26000" | "42P05" => (
            ErrorKind::Unavailable,
            "a pooler has switched the server connection, or the session was reset; turn `Options::cached_statements` off",
        ),
        // Class 28: invalid authorization.
        _ if code.starts_with("28") => (ErrorKind::AccessDenied, CHECK_LOGIN),
        _ if code.starts_with("XX") => {
            (ErrorKind::Corrupt, "the database may be damaged; check the server's log")
        }
        _ => (ErrorKind::Unavailable, "check the server's log, and try again"),
    };
    Error::new(kind, format!("PostgreSQL: {message} ({code}): {remedy}"))
}

const CHECK_LOGIN: &str = "check the user name and password, and the server's `pg_hba.conf`";
const REFUSED_PARAMETER: &str = "the pooler refuses it; connect without it (sqlx: \
                                 `PgConnectOptions::extra_float_digits(None)`), or add it to PgBouncer's \
                                 `ignore_startup_parameters`";
const CREATE_DATABASE: &str = "create the database, or correct its name in the URL";
const GRANT: &str = "grant the privilege to the connection's role";

/// Whether the server ended a transaction because it was idle for too long.
pub(crate) fn is_idle_timeout(error: &Error) -> bool {
    error.to_string().contains("(25P03)")
}

/// Replaces the unnamed role in the error of a missing privilege. PostgreSQL's message names only the object.
pub(crate) fn name_role(error: Error, role: &str) -> Error {
    if error.kind() != ErrorKind::AccessDenied {
        return error;
    }
    let message = error.to_string().replace("the connection's role", &format!("role `{role}`"));
    error.with_message(message)
}

fn is_missing_database(message: &str) -> bool {
    message.starts_with("no such database")
        || (message.starts_with("database ") && message.ends_with("does not exist"))
}

fn is_refused_login(message: &str) -> bool {
    // Not `server login has been failing`: PgBouncer says this after any failed connection to the server.
    let parts = ["authentication failed", "no such user"];
    parts.iter().any(|part| message.contains(part))
}

/// Returns the error for a connection that cannot listen because a pooler is in between.
#[must_use]
pub fn pooled() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the connection goes through a pooler in transaction mode: connect the notifier directly, or use none",
    )
}

/// Returns the error for a connection that is lost or cannot be opened.
#[must_use]
pub fn unreachable(what: impl fmt::Display) -> Error {
    let text = format!("{UNREACHABLE}: {what}: check the address, and that the server runs");
    Error::new(ErrorKind::Unavailable, text)
}

const UNREACHABLE: &str = "PostgreSQL cannot be reached";

/// Adds the address to the error of a server that cannot be reached. The driver's message does not contain it.
pub(crate) fn name_address(error: Error, address: &str) -> Error {
    let text = error.to_string();
    match text.strip_prefix(UNREACHABLE) {
        Some(rest) => error.with_message(format!("{UNREACHABLE} at {address}{rest}")),
        None => error,
    }
}

/// Formats an error with its causes. tokio-postgres leaves them out of its own text.
#[cfg(feature = "tokio-postgres")]
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Returns the error for a pool that timed out.
#[must_use]
pub fn no_connection() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "timed out while waiting for a connection of the pool: check that the server runs, allow more connections, or \
         keep transactions shorter",
    )
}
