//! What users get from this crate, as they would use it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod bench;
mod run;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The message with which an assertion fails.
#[track_caller]
fn failing<T>(assertion: impl FnOnce() -> T) -> String {
    match catch_unwind(AssertUnwindSafe(assertion)) {
        Ok(_) => panic!("the assertion should have failed"),
        Err(panic) => *panic.downcast::<String>().expect("an assertion fails with a formatted message"),
    }
}
