//! The error type of this crate.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::id::ChainId;
use crate::name::ErrorText;
use crate::record::Status;
use crate::refusal::Refusal;
use crate::time::Timestamp;

/// An error that affects a whole command. What happens to a single item is a value in the reply.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    job_error: Option<ErrorText>,
    next_attempt_at: Option<Timestamp>,
    /// Whether a job whose handler returns this error fails, without further attempts.
    is_fatal: bool,
    inner: Option<Arc<dyn StdError + Send + Sync>>,
    /// Whether the message contains the text of `inner`.
    shows_inner: bool,
}

/// The category of an [`Error`]. It determines how a caller should react.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request exceeds a limit or breaks a rule of the contract. Change the request.
    Invalid,
    /// The store does not support the operation. Use another store.
    Unsupported,
    /// Another writer held the store for too long. Try again, or end the transaction that holds it.
    Busy,
    /// The transaction conflicts with a concurrent one: a serialization failure or a deadlock. None of its
    /// writes are stored. Roll it back and run it again from its first statement.
    Conflict,
    /// The store cannot be reached or did not answer. Try again later. The command may have taken effect.
    Unavailable,
    /// The server refused the login, the database does not exist, or a privilege is missing. Fix the
    /// credentials or grant the privilege. A client does not repeat the command. Workers, reapers and notifiers
    /// retry with backoff, because credentials may change while they run.
    AccessDenied,
    /// The store's schema is missing or older than this code needs. Migrate it.
    Outdated,
    /// This code does not work with the store: its schema is newer, its server is too old, or a setting is unsuitable.
    /// Migrating does not help.
    Incompatible,
    /// The store contains invalid data. Inspect it before you continue.
    Corrupt,
    /// The store or notifier is closed.
    Closed,
    /// The requested item is not stored.
    NotFound,
    /// The item has changed since the caller read it. Read it again.
    Changed,
    /// The attempt no longer holds its job. Stop working on it.
    LeaseLost,
    /// The wait timed out or was cancelled. The awaited chain or job continues, unless it waits for a blocker that
    /// failed. See [`Error::job_error`].
    TimedOut,
    /// The awaited chain or queue job failed. See [`Error::job_error`].
    ChainFailed,
    /// The awaited queue job failed in its last allowed attempt. See [`Error::job_error`].
    AttemptsExhausted,
    /// The awaited chain or queue job was cancelled.
    ChainCancelled,
}

impl Error {
    /// Creates an error of this kind. The message is a sentence fragment: what is wrong, then the remedy.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::build(kind, message.into(), None)
    }

    fn build(kind: ErrorKind, message: String, job_error: Option<ErrorText>) -> Self {
        let (next_attempt_at, is_fatal, inner, shows_inner) = (None, false, None, false);
        Self(Arc::new(Inner { kind, message, job_error, next_attempt_at, is_fatal, inner, shows_inner }))
    }

    /// Changes a field of the error. Copies the error if it is shared.
    fn change(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Sets the underlying error. Use this if the message does not contain its text:
    /// [`source`](StdError::source) returns the underlying error, so that reporters print it after the message.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.with(source.into(), false)
    }

    /// Sets the underlying error, usually that of the driver. Use this if the message contains its text:
    /// [`source`](StdError::source) returns `None`, so that reporters do not print the text twice.
    #[must_use]
    pub fn with_inner(self, inner: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.with(inner.into(), true)
    }

    fn with(self, source: Box<dyn StdError + Send + Sync>, shows_inner: bool) -> Self {
        self.change(|error| (error.inner, error.shows_inner) = (Some(Arc::from(source)), shows_inner))
    }

    /// Returns the underlying error, whether or not the message contains its text. Downcast it to the error type
    /// of the database driver.
    #[must_use]
    pub fn inner(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.inner.as_deref()
    }

    /// Replaces the message. The kind and the underlying error stay the same.
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> Self {
        self.change(|error| error.message = message.into())
    }

    /// Creates the error for a wait that ended before the chain or job did.
    #[must_use]
    pub(crate) fn timed_out(
        message: String,
        job_error: Option<ErrorText>,
        next_attempt_at: Option<Timestamp>,
    ) -> Self {
        Self::build(ErrorKind::TimedOut, message, job_error)
            .change(|error| error.next_attempt_at = next_attempt_at)
    }

    /// Creates the error for a chain that ended without an output.
    #[must_use]
    pub(crate) fn chain_failed(chain: ChainId, status: Status, job_error: Option<ErrorText>) -> Self {
        match status {
            Status::Cancelled => {
                Self::ended(ErrorKind::ChainCancelled, format!("chain {chain} was cancelled"), job_error)
            }
            _ => Self::ended(ErrorKind::ChainFailed, format!("chain {chain} failed"), job_error),
        }
    }

    /// Creates the error for an awaited chain or job that ended without an output.
    #[must_use]
    pub(crate) fn ended(kind: ErrorKind, what: String, job_error: Option<ErrorText>) -> Self {
        let message = match &job_error {
            Some(error) => format!("{what}: {error}"),
            None => what,
        };
        Self::build(kind, message, job_error)
    }

    /// Returns the stored error of the awaited chain or job. If the wait ended first ([`ErrorKind::TimedOut`]), this is
    /// the error of the latest attempt. If the job waits for a blocker that failed, this is the blocker's error.
    #[must_use]
    pub fn job_error(&self) -> Option<&ErrorText> {
        self.0.job_error.as_ref()
    }

    /// Returns when the awaited job will be attempted next, if the wait ended ([`ErrorKind::TimedOut`]) while the job
    /// was pending.
    #[must_use]
    pub fn next_attempt_at(&self) -> Option<Timestamp> {
        self.0.next_attempt_at
    }

    /// Marks the error of an outcome that cannot be stored. If the outcome exceeds a limit or breaks a rule, another
    /// attempt would do so too: the job fails. Other errors are retried.
    pub(crate) fn of_outcome(self) -> Self {
        let is_refusal = self.inner().is_some_and(|inner| inner.is::<Refusal>());
        self.change(|error| error.is_fatal = is_refusal)
    }

    /// Whether a job whose handler returns this error fails, without further attempts.
    pub(crate) fn is_fatal(&self) -> bool {
        self.0.is_fatal
    }

    /// Creates the error for a command that the store does not support.
    #[must_use]
    pub fn unsupported(command: &str) -> Self {
        Self::new(ErrorKind::Unsupported, format!("this store does not support `{command}`"))
    }

    /// Returns the category of the error.
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
        self.inner().filter(|_| !self.0.shows_inner).map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(ErrorKind::Invalid, refusal.to_string()).with_inner(refusal)
    }
}

/// A result with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reporters_print_the_underlying_error_once() {
        let error = Error::new(ErrorKind::Unavailable, "cannot connect").with_source("refused");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("refused"));
        let error = Error::new(ErrorKind::Unavailable, "cannot connect: refused").with_inner("refused");
        assert!(error.source().is_none());
        assert_eq!(error.inner().map(ToString::to_string).as_deref(), Some("refused"));
    }
}
