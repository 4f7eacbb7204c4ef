//! Exit codes, and the one-line error message of a failed command.

use std::fmt;
use std::process::ExitCode;

use windlass::{Error, ErrorKind, Refusal};

/// Documentation of the exit codes, shown by `--help`.
pub(crate) const PAGE: &str = "\
Exit codes:
  0    done
  1    what was asked for failed: a job failed or was cancelled, a check found something, a change was not possible
  2    the call is wrong: an argument, JSON that is none, a name or a limit
  3    what was named is not stored
  4    the store cannot be reached, is busy with somebody's open transaction, has another layout, or lacks the command
  5    the time for waiting was over
  130  interrupted by Ctrl-C or SIGTERM; `work` alone ends with 0 then: that is how it is stopped";

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// Nothing is wrong: help was printed, or the reader of the output closed the pipe.
    Done = 0,
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
    /// Whether the store's schema is older than this program requires.
    is_outdated: bool,
}

/// The result of a command.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Creates a failure. The message says what is wrong and how to fix it, in one line.
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
    pub(crate) const fn told(code: Code) -> Self {
        Self { code, message: String::new(), is_outdated: false }
    }

    /// Whether the program ends early without an error.
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.code, Code::Done)
    }

    /// Puts context in front of the message.
    pub(crate) fn about(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Appends more to the message.
    pub(crate) fn and(self, more: impl fmt::Display) -> Self {
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
        let refusal = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Refusal>());
        if let Some(refusal) = refusal {
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
            | ErrorKind::Incompatible
            | ErrorKind::Corrupt
            | ErrorKind::Closed => Code::Store,
            _ => Code::Failed,
        };
        let message = with_causes(&error);
        match error.kind() {
            ErrorKind::Outdated => {
                let message = format!("{message}; `windlass migrate` does this");
                Self { is_outdated: true, ..Self::new(code, message) }
            }
            ErrorKind::Unsupported => Self::new(code, format!("{message}: use another store")),
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

/// Formats an error with its causes, without those that its own text already contains.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let because = error.to_string();
        // A driver's text often repeats ours after a prefix and an error code. Compare only what follows the prefix.
        let core = because.rsplit([':', ')']).next().unwrap_or_default().trim();
        let core = if core.is_empty() { &because } else { core };
        if !text.contains(core) {
            text = format!("{text}: {because}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(Failure::usage("a\n  b").line().as_deref(), Some("a b"));
        assert_eq!(Failure::told(Code::Failed).line(), None);
    }

    #[test]
    fn every_cause_is_told_once() {
        let error = Error::new(ErrorKind::Unavailable, "no answer").with_source("refused");
        assert_eq!(Failure::from(error).line().as_deref(), Some("no answer: refused"));
        let error = Error::new(ErrorKind::Unavailable, "no answer").with_source("refused (os error 111)");
        assert_eq!(Failure::from(error).line().as_deref(), Some("no answer: refused (os error 111)"));
        for source in ["refused", "error returned from the database: (code: 7) refused"] {
            let error = Error::new(ErrorKind::Unavailable, "no answer: refused").with_source(source);
            assert_eq!(Failure::from(error).line().as_deref(), Some("no answer: refused"));
        }
    }
}
