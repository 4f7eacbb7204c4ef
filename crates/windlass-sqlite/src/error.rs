//! Conversion of driver and database errors into store errors.

use std::time::Duration;

use windlass_core::{Error, ErrorKind};

/// Converts an extended result code and message of SQLite into a store error.
#[must_use]
pub fn from_code(code: i32, message: &str) -> Error {
    // The low byte is the primary result code. The other bits refine it.
    let (kind, remedy) = match (code, code & 0xff) {
        (517, _) => (
            ErrorKind::Conflict,
            "the transaction has read, and another connection has written since then; roll it back and repeat it, or \
             take the write lock first with `begin immediate`",
        ),
        (_, 5 | 6) => (
            ErrorKind::Busy,
            "another connection has locked the database for too long; try again, or end its transaction",
        ),
        (1032, _) => {
            (ErrorKind::Unavailable, "the file was moved or deleted; put it back, or open the store again")
        }
        // A file that this user may not read or write (`SQLITE_PERM`, `SQLITE_READONLY`, `SQLITE_AUTH`) needs an
        // operator. A repeat does not help.
        (_, 3 | 8 | 23) => {
            (ErrorKind::AccessDenied, "grant this user write permission for the file and its directory")
        }
        // SQLite opens more files as it works, so this may be transient.
        (_, 14) => (
            ErrorKind::Unavailable,
            "check that the directory exists, that this user may write to it, and the limit of open files",
        ),
        (_, 11) => (ErrorKind::Corrupt, "the file is damaged; restore it from a backup"),
        (_, 26) => (
            ErrorKind::Corrupt,
            "the file is not a database, or damaged; check the path, or restore it from a backup",
        ),
        (_, 13) => (
            ErrorKind::Unavailable,
            "the disk is full, or the file has reached its size limit; free some space",
        ),
        _ => (ErrorKind::Unavailable, "check the file and its disk, and try again"),
    };
    Error::new(kind, format!("SQLite: {message} ({code}): {remedy}"))
}

/// Returns the error of a write that did not get the write lock in time.
#[must_use]
pub fn write_timed_out(write_timeout: Duration) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "no write lock within {write_timeout:?}, because another transaction is open: end it; a task that has a \
             transaction open must send its commands through it: `tx.start(…)` after `client.begin()`, or \
             `client.in_tx(&mut tx)` with a transaction of your own"
        ),
    )
}

/// Converts an error of the store's own connections.
pub(crate) fn from_sqlite(error: &rusqlite::Error) -> Error {
    match error {
        rusqlite::Error::SqliteFailure(cause, message) => {
            let known = || rusqlite::ffi::code_to_str(cause.extended_code).to_owned();
            from_code(cause.extended_code, &message.clone().unwrap_or_else(known))
        }
        other => Error::new(
            ErrorKind::Corrupt,
            format!("the SQLite store is inconsistent: {other}: restore the file from a backup"),
        ),
    }
}
