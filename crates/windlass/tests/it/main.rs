//! Tests of the project as a whole.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod conformance_table;
mod defaults;
mod derive;
#[cfg(feature = "postgres")]
mod orders;
mod readme;
mod run_on;
#[cfg(feature = "postgres")]
mod signup;
