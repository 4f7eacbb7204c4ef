//! What holds for the project as a whole.

mod conformance_table;
