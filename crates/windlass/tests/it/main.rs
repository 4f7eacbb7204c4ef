//! Tests of the project as a whole.

mod conformance_table;
mod defaults;
mod derive;
mod readme;
#[cfg(feature = "postgres")]
mod signup;
