//! Exit codes, and the one-line error message of a failed command.

use std::fmt;
use std::process::ExitCode;

use windlass::record::Refusal;
use windlass::{Error, ErrorKind};

/// Documentation of the exit codes, shown by `--help`.
pub(crate) const PAGE: &str = "\
Exit codes:
  0    success
  1    the operation failed: a failed or cancelled job, a check that found a problem, or a change that was not possible
  2    usage error: an invalid argument, name or JSON text, or a limit exceeded
  3    not found: the chain, job or job type is not stored
  4    store error: unreachable, access denied, locked, another schema version, or an unsupported operation
  5    timed out while waiting, or the job has not ended yet (`result`)
  130  interrupted by Ctrl-C or SIGTERM; `work` exits with 0 instead";

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// Not an error: help was printed, or the reader of the output closed the pipe.
    Success = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Store = 4,
    TimedOut = 5,
    Interrupted = 130,
}

/// Why the program ends early: an exit code and an optional message.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    message: String,
    /// Whether the store's schema is missing or older than this program requires.
    is_outdated: bool,
}

/// The result of a command.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Creates a failure. The message states the problem, then the remedy.
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), is_outdated: false }
    }

    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self::new(Code::Failed, message)
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Code::Usage, message)
    }

    pub(crate) fn not_found(message: impl fmt::Display) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub(crate) fn store(message: impl fmt::Display) -> Self {
        Self::new(Code::Store, message)
    }

    /// Creates a failure without a message, because it was already printed or there is none.
    pub(crate) const fn silent(code: Code) -> Self {
        Self { code, message: String::new(), is_outdated: false }
    }

    /// Whether the program ends early without an error.
    pub(crate) const fn is_success(&self) -> bool {
        matches!(self.code, Code::Success)
    }

    /// Puts context in front of the message.
    pub(crate) fn with_context(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Appends more to the message.
    pub(crate) fn with_note(self, more: impl fmt::Display) -> Self {
        Self { message: format!("{}; {more}", self.message), ..self }
    }

    /// Whether `windlass migrate` would fix this failure.
    pub(crate) const fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Returns the exit code of the process.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code as u8)
    }

    /// Returns the message on a single line, or `None` if there is nothing to print.
    pub(crate) fn line(&self) -> Option<String> {
        let words: Vec<_> = self.message.split_whitespace().collect();
        (!words.is_empty()).then(|| words.join(" "))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let refusal = error.inner().and_then(|inner| inner.downcast_ref::<Refusal>());
        // A refusal inside another kind of error is about stored data, not about the arguments.
        if let Some(refusal) = refusal.filter(|_| error.kind() == ErrorKind::Invalid) {
            return refusal.clone().into();
        }
        let code = match error.kind() {
            ErrorKind::Invalid => Code::Usage,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::TimedOut => Code::TimedOut,
            ErrorKind::Unsupported
            | ErrorKind::Busy
            | ErrorKind::Conflict
            | ErrorKind::Unavailable
            | ErrorKind::Outdated
            | ErrorKind::AccessDenied
            | ErrorKind::Incompatible
            | ErrorKind::Corrupt
            | ErrorKind::Closed => Code::Store,
            _ => Code::Failed,
        };
        let message = with_sources(&error);
        match error.kind() {
            ErrorKind::Outdated => {
                let message = format!("{message}; `windlass migrate` does this");
                Self { is_outdated: true, ..Self::new(code, message) }
            }
            _ => Self::new(code, message),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::BlockerNotFound(_) => Self::not_found(refusal),
            _ => Self::usage(refusal),
        }
    }
}

/// Formats an error with all its sources.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(Failure::usage("a\n  b").line().as_deref(), Some("a b"));
        assert_eq!(Failure::silent(Code::Failed).line(), None);
    }

    #[test]
    fn sources_are_printed_once() {
        let error = Error::new(ErrorKind::Unavailable, "no reply").with_source("refused");
        assert_eq!(Failure::from(error).line().as_deref(), Some("no reply: refused"));
        let inner = Error::new(ErrorKind::Closed, "outer: inner").with_inner("inner");
        let error = Error::new(ErrorKind::Unavailable, "no reply").with_source(inner);
        assert_eq!(Failure::from(error).line().as_deref(), Some("no reply: outer: inner"));
    }

    #[test]
    fn only_an_outdated_schema_needs_migrate() {
        let failure = Failure::from(Error::new(ErrorKind::Outdated, "version 1: migrate it"));
        assert!(failure.is_outdated());
        assert_eq!(failure.line().as_deref(), Some("version 1: migrate it; `windlass migrate` does this"));
        let failure = Failure::from(Error::new(ErrorKind::Incompatible, "version 9: update this program"));
        assert!(!failure.is_outdated());
        assert_eq!(failure.line().as_deref(), Some("version 9: update this program"));
    }
}
