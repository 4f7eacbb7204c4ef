//! The one error type.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::id::ChainId;
use crate::name::ErrorText;
use crate::record::Status;
use crate::refusal::Refusal;

/// What went wrong with a whole command. What happened to one of its items is a value in the reply.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    job_error: Option<ErrorText>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
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
    /// The transaction conflicts with a concurrent one: a serialization failure or a deadlock. None of its
    /// writes is stored: roll it back and run it again from its first statement.
    Conflict,
    /// The store cannot be reached or did not answer: try again later. The command may have been carried out.
    Unavailable,
    /// The store has another layout than this code: migrate it.
    Incompatible,
    /// The store holds something that it should not: look at it with care.
    Corrupt,
    /// The store or notifier was closed.
    Closed,
    /// What was asked for is not stored.
    NotFound,
    /// What the caller looked at has changed since: look again.
    Changed,
    /// The attempt no longer holds its job: stop.
    LeaseLost,
    /// The time for waiting was over. What was waited for goes on.
    TimedOut,
    /// The chain or the queue's job that was waited for failed; see [`Error::job_error`].
    ChainFailed,
    /// The queue's job that was waited for failed in the last of its attempts; see [`Error::job_error`].
    AttemptsExhausted,
    /// The chain or the queue's job that was waited for was cancelled.
    ChainCancelled,
}

impl Error {
    /// An error of this kind. The message is a sentence fragment that says what, and how to cure it.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), job_error: None, source: None }))
    }

    /// The same error with the driver's error as its source.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let Inner { kind, message, job_error, .. } = &*self.0;
        let source = Some(Arc::from(source.into()));
        Self(Arc::new(Inner { kind: *kind, message: message.clone(), job_error: job_error.clone(), source }))
    }

    /// The error of a chain that ended without an output.
    #[must_use]
    pub(crate) fn chain_failed(chain: ChainId, status: Status, job_error: Option<ErrorText>) -> Self {
        match status {
            Status::Cancelled => {
                Self::ended(ErrorKind::ChainCancelled, format!("chain {chain} was cancelled"), job_error)
            }
            _ => Self::ended(ErrorKind::ChainFailed, format!("chain {chain} failed"), job_error),
        }
    }

    /// The error of something that was waited for and ended without an output.
    #[must_use]
    pub(crate) fn ended(kind: ErrorKind, what: String, job_error: Option<ErrorText>) -> Self {
        let message = match &job_error {
            Some(error) => format!("{what}: {error}"),
            None => what,
        };
        Self(Arc::new(Inner { kind, message, job_error, source: None }))
    }

    /// The stored error of the chain that was waited for.
    #[must_use]
    pub fn job_error(&self) -> Option<&ErrorText> {
        self.0.job_error.as_ref()
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
