//! Tests of the public API, used as in an application.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod harness;
mod run;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the message of a failing assertion.
#[track_caller]
fn failing<T>(assertion: impl FnOnce() -> T) -> String {
    match catch_unwind(AssertUnwindSafe(assertion)) {
        Ok(_) => panic!("the assertion should have failed"),
        Err(panic) => *panic.downcast::<String>().expect("an assertion fails with a formatted message"),
    }
}
