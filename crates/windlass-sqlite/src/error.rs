//! What the driver says, in the words of the contract.

use sqlx::error::DatabaseError;
use windlass_core::{Error, ErrorKind};

const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const CORRUPT: i32 = 11;
const NOT_A_DATABASE: i32 = 26;

/// The driver's error as the contract's.
pub(crate) fn from_driver(error: sqlx::Error) -> Error {
    let (kind, message) = match &error {
        sqlx::Error::Database(database) => from_database(&**database),
        sqlx::Error::PoolTimedOut => (
            ErrorKind::Busy,
            "all read connections are taken: allow more of them, or ask for less at once".to_owned(),
        ),
        sqlx::Error::PoolClosed => return closed(),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) | sqlx::Error::Decode(_) => {
            (ErrorKind::Corrupt, format!("a row cannot be read: {error}; restore the file from a backup"))
        }
        _ => (ErrorKind::Unavailable, format!("the database did not answer: {error}")),
    };
    Error::new(kind, message).with_source(error)
}

/// The error of a store that was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed: open it again")
}

/// The error of a row that holds what this code never writes.
pub(crate) fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a row holds {what}: restore the file from a backup"))
}

fn from_database(error: &dyn DatabaseError) -> (ErrorKind, String) {
    // The low byte is SQLite's primary result code, the rest says more about it.
    let code = error.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or(0) & 0xff;
    match code {
        BUSY | LOCKED => (
            ErrorKind::Busy,
            "another connection held the database for too long: try again, or end the transaction that holds it"
                .to_owned(),
        ),
        CORRUPT | NOT_A_DATABASE => {
            (ErrorKind::Corrupt, format!("the database file is damaged: {error}; restore it from a backup"))
        }
        _ => (ErrorKind::Unavailable, format!("the database refused: {error}")),
    }
}
