//! Tests of the project as a whole.

mod conformance_table;
mod derive;
mod readme;
