//! Enum values as they are stored in the tables.

use windlass_core::{AttemptEnd, ClosedAs, KeyHold, OnBlockerFailure, Status};

/// An enum that is stored as text.
pub(crate) trait Word: Copy + Sized + 'static {
    /// Each value and its stored text.
    const WORDS: &'static [(Self, &'static str)];

    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, known)| *known == word).map(|(value, _)| *value)
    }
}

impl Word for Status {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Blocked, "blocked"),
        (Self::Pending, "pending"),
        (Self::Running, "running"),
        (Self::Completed, "completed"),
        (Self::Failed, "failed"),
        (Self::Cancelled, "cancelled"),
    ];
}

impl Word for ClosedAs {
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Completed, "completed"), (Self::Failed, "failed"), (Self::Cancelled, "cancelled")];
}

impl Word for OnBlockerFailure {
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Wait, "wait"), (Self::Fail, "fail"), (Self::Receive, "receive")];
}

impl Word for KeyHold {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Open, "open"),
        (Self::Completed, "completed"),
        (Self::CompletedOrFailed, "completed_or_failed"),
        (Self::Any, "any"),
    ];
}

impl Word for AttemptEnd {
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Running, "running"),
        (Self::Completed, "completed"),
        (Self::Continued, "continued"),
        (Self::Retried, "retried"),
        (Self::Rescheduled, "rescheduled"),
        (Self::Failed, "failed"),
        (Self::Exhausted, "exhausted"),
        (Self::Released, "released"),
        (Self::Reaped, "reaped"),
        (Self::Cancelled, "cancelled"),
        (Self::Displaced, "displaced"),
    ];
}

/// Returns the stored text of a value.
pub(crate) fn word<T: Word + PartialEq>(value: T) -> Option<String> {
    T::WORDS.iter().find(|(known, _)| *known == value).map(|(_, word)| (*word).to_owned())
}
