//! The one error type.

use std::error::Error as StdError;
use std::fmt;

use crate::refusal::Refusal;

/// What went wrong with a whole command. What happened to one of its items is a value in the reply.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request breaks a limit or a rule of the contract: change it.
    Invalid,
    /// The store lacks the capability: use another store.
    Unsupported,
    /// Somebody else held the store for too long: try again, or end the transaction that holds it.
    Busy,
    /// The store cannot be reached or did not answer: try again later. The command may have been carried out.
    Unavailable,
    /// The store has another layout than this code: migrate it.
    Incompatible,
    /// The store holds something that it should not: look at it with care.
    Corrupt,
    /// The store or notifier was closed.
    Closed,
}

impl Error {
    /// An error of this kind. The message is a sentence fragment that says what, and how to cure it.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), source: None }))
    }

    /// The same error with the driver's error as its source.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The error of a store that lacks a command.
    #[must_use]
    pub fn unsupported(command: &str) -> Self {
        Self::new(ErrorKind::Unsupported, format!("this store does not support `{command}`"))
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(ErrorKind::Invalid, refusal.to_string()).with_source(refusal)
    }
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
