//! The bytes of enumerations.

use windlass_core::{AttemptEnd, ClosedAs, KeyHold, OnBlockerFailure, Status};

use super::Coded;

impl Coded for Status {
    const CODES: &'static [(u8, Self)] = &[
        (1, Self::Blocked),
        (2, Self::Pending),
        (3, Self::Running),
        (4, Self::Completed),
        (5, Self::Failed),
        (6, Self::Cancelled),
    ];
}

impl Coded for ClosedAs {
    const CODES: &'static [(u8, Self)] = &[(1, Self::Completed), (2, Self::Failed), (3, Self::Cancelled)];
}

impl Coded for OnBlockerFailure {
    const CODES: &'static [(u8, Self)] = &[(1, Self::Wait), (2, Self::Fail), (3, Self::Receive)];
}

impl Coded for KeyHold {
    const CODES: &'static [(u8, Self)] =
        &[(1, Self::Open), (2, Self::Completed), (3, Self::CompletedOrFailed), (4, Self::Any)];
}

impl Coded for AttemptEnd {
    const CODES: &'static [(u8, Self)] = &[
        (1, Self::Running),
        (2, Self::Completed),
        (3, Self::Continued),
        (4, Self::Retried),
        (5, Self::Rescheduled),
        (6, Self::Failed),
        (7, Self::Exhausted),
        (8, Self::Released),
        (9, Self::Reaped),
        (10, Self::Cancelled),
        (11, Self::Displaced),
    ];
}
