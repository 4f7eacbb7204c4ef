//! Enum values as they are stored in the tables.

use windlass_core::{AttemptEnd, ClosedAs, KeyHold, OnBlockerFailure, Status};

/// An enum that is stored as text.
pub(crate) trait EnumText: Copy + Sized + 'static {
    /// Each value and its stored text.
    const TEXTS: &'static [(Self, &'static str)];

    fn from_text(text: &str) -> Option<Self> {
        Self::TEXTS.iter().find(|(_, known)| *known == text).map(|(value, _)| *value)
    }
}

impl EnumText for Status {
    const TEXTS: &'static [(Self, &'static str)] = &[
        (Self::Blocked, "blocked"),
        (Self::Pending, "pending"),
        (Self::Running, "running"),
        (Self::Completed, "completed"),
        (Self::Failed, "failed"),
        (Self::Cancelled, "cancelled"),
    ];
}

impl EnumText for ClosedAs {
    const TEXTS: &'static [(Self, &'static str)] =
        &[(Self::Completed, "completed"), (Self::Failed, "failed"), (Self::Cancelled, "cancelled")];
}

impl EnumText for OnBlockerFailure {
    const TEXTS: &'static [(Self, &'static str)] =
        &[(Self::Wait, "wait"), (Self::Fail, "fail"), (Self::Receive, "receive")];
}

impl EnumText for KeyHold {
    const TEXTS: &'static [(Self, &'static str)] = &[
        (Self::Open, "open"),
        (Self::Completed, "completed"),
        (Self::CompletedOrFailed, "completed_or_failed"),
        (Self::Any, "any"),
    ];
}

impl EnumText for AttemptEnd {
    const TEXTS: &'static [(Self, &'static str)] = &[
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
pub(crate) fn enum_text<T: EnumText + PartialEq>(value: T) -> Option<String> {
    T::TEXTS.iter().find(|(known, _)| *known == value).map(|(_, text)| (*text).to_owned())
}
