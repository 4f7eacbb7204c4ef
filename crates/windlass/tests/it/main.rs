//! Tests of the project as a whole.

mod compile_fail;
mod conformance_table;
mod derive;
mod readme;
