//! Errors that a handler returns to control whether and when its job is retried.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use super::BoxError;
use crate::error::Error;
use crate::name::ErrorText;

/// An error that fails the job, without further attempts. Return it from a handler if retrying cannot help.
///
/// The worker finds it anywhere in the chain of [sources](StdError::source), so it may be wrapped in another error, for
/// example with a context from `anyhow` or `eyre`. If the chain contains several `Fatal` or [`RetryAfter`] errors, the
/// outermost one applies.
///
/// ```
/// use windlass::queue::Item;
/// use windlass::{BoxError, Fatal};
///
/// async fn divide(item: Item<(u32, u32)>) -> Result<u32, BoxError> {
///     let (dividend, divisor) = *item.payload();
///     Ok(dividend.checked_div(divisor).ok_or_else(|| Fatal::new("division by zero"))?)
/// }
/// ```
#[derive(Debug)]
#[must_use = "return this error from the handler"]
pub struct Fatal(Decision);

/// An error that sets the delay before the job is retried, instead of the backoff. The attempt counts: if it was the
/// last one, the job fails.
///
/// The worker finds it in the chain of sources, like [`Fatal`].
///
/// ```
/// use std::time::Duration;
/// use windlass::{BoxError, RetryAfter};
///
/// fn check(status: u16) -> Result<(), BoxError> {
///     match status {
///         429 => Err(RetryAfter::new(Duration::from_secs(60), "too many requests").into()),
///         _ => Ok(()),
///     }
/// }
/// # assert!(check(200).is_ok() && check(429).is_err());
/// ```
#[derive(Debug)]
#[must_use = "return this error from the handler"]
pub struct RetryAfter(Decision);

impl Fatal {
    /// Wraps an error, so that the job fails with its text.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Self(Decision { error: error.into(), retry: Retry::Never })
    }
}

impl RetryAfter {
    /// Wraps an error, so that the job is retried after this delay.
    pub fn new(delay: Duration, error: impl Into<BoxError>) -> Self {
        Self(Decision { error: error.into(), retry: Retry::After(delay) })
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.error.fmt(f)
    }
}

impl fmt::Display for RetryAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.error.fmt(f)
    }
}

impl StdError for Fatal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

impl StdError for RetryAfter {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

/// The error that [`Fatal`] and [`RetryAfter`] wrap.
///
/// It is a separate type, and their source, because a boxed `anyhow::Error` hides the type of its outermost error. A
/// downcast does not find that error, but it finds the source.
#[derive(Debug)]
struct Decision {
    error: BoxError,
    retry: Retry,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry {
            Retry::Never => f.write_str("no more attempts"),
            Retry::After(delay) => write!(f, "retry after {delay:?}"),
            Retry::AfterBackoff => f.write_str("retry"),
        }
    }
}

impl StdError for Decision {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// Whether and when a job is retried after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    AfterBackoff,
    After(Duration),
    Never,
}

/// An error of a handler or a middleware.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Failure {
    pub(crate) text: ErrorText,
    pub(crate) retry: Retry,
}

impl Failure {
    /// Takes the texts of an error and its sources, and what the outermost of them decides.
    pub(crate) fn new(error: &BoxError) -> Self {
        let mut chain = Vec::new();
        let mut next: Option<&(dyn StdError + 'static)> = Some(&**error);
        while let Some(error) = next {
            chain.push(error);
            next = error.source();
        }
        let decision = |error: &&(dyn StdError + 'static)| match error.downcast_ref::<Decision>() {
            Some(found) => Some(found.retry),
            None => error.downcast_ref::<Error>().filter(|error| error.is_fatal()).map(|_| Retry::Never),
        };
        // The decision shows in what happens to the job, so the text omits it.
        let mut texts: Vec<String> = Vec::new();
        for error in chain.iter().filter(|error| !error.is::<Decision>()) {
            let text = error.to_string();
            // Some errors, such as those of sqlx, repeat the text of their source.
            if texts.last().is_none_or(|last| !last.ends_with(&text)) {
                texts.push(text);
            }
        }
        let text = texts.join(": ");
        Self {
            text: ErrorText::new(text),
            retry: chain.iter().find_map(decision).unwrap_or(Retry::AfterBackoff),
        }
    }

    /// A failure that is retried after the backoff.
    pub(crate) const fn retried(text: ErrorText) -> Self {
        Self { text, retry: Retry::AfterBackoff }
    }
}

/// Returns the message of an error, followed by the messages of its sources.
pub(crate) fn error_text(error: &BoxError) -> ErrorText {
    Failure::new(error).text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(7);

    fn check(error: impl Into<BoxError>, text: &str, retry: Retry) {
        let failure = Failure::new(&error.into());
        assert_eq!((failure.text.as_str(), failure.retry), (text, retry));
    }

    #[test]
    fn decisions_are_found_in_errors() {
        check("broken", "broken", Retry::AfterBackoff);
        check(Fatal::new("broken"), "broken", Retry::Never);
        check(RetryAfter::new(DELAY, "broken"), "broken", Retry::After(DELAY));
        check(Fatal::new(RetryAfter::new(DELAY, "broken")), "broken", Retry::Never);
        check(RetryAfter::new(DELAY, Fatal::new("broken")), "broken", Retry::After(DELAY));
    }

    #[test]
    fn a_text_that_repeats_its_source_is_taken_once() {
        #[derive(Debug)]
        struct Outer(BoxError);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "error returned from database: {}", self.0)
            }
        }
        impl StdError for Outer {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&*self.0)
            }
        }
        check(
            Outer("no such column".into()),
            "error returned from database: no such column",
            Retry::AfterBackoff,
        );
    }

    #[test]
    fn decisions_are_found_through_anyhow() {
        use anyhow::{Context, anyhow};
        check(anyhow!("broken").context("outer"), "outer: broken", Retry::AfterBackoff);
        check(anyhow!(Fatal::new("broken")), "broken", Retry::Never);
        check(anyhow!(Fatal::new("broken")).context("outer"), "outer: broken", Retry::Never);
        check(Fatal::new(anyhow!("broken").context("inner")), "inner: broken", Retry::Never);
        let wrapped: Result<(), _> = Err(RetryAfter::new(DELAY, "broken"));
        let error = wrapped.context("inner").context("outer").unwrap_err();
        check(error, "outer: inner: broken", Retry::After(DELAY));
    }

    #[test]
    fn decisions_are_found_through_eyre() {
        use eyre::{WrapErr, eyre};
        check(eyre!("broken").wrap_err("outer"), "outer: broken", Retry::AfterBackoff);
        check(eyre!(Fatal::new("broken")), "broken", Retry::Never);
        check(eyre!(Fatal::new("broken")).wrap_err("outer"), "outer: broken", Retry::Never);
        let wrapped: Result<(), _> = Err(RetryAfter::new(DELAY, "broken"));
        check(wrapped.wrap_err("outer").unwrap_err(), "outer: broken", Retry::After(DELAY));
    }
}
