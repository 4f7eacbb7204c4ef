//! The workloads that Windlass is measured with.
//!
//! [`workload`] has them, each for any client; [`suite`] runs all of them several times and gives [`Figure`]s.
//! [`bare`] is the least that could do the work of a drain, as the measure of what Windlass adds to it;
//! [`instructions`] compares the two.

pub mod bare;
pub mod instructions;
pub mod suite;
pub mod workload;

mod figure;

pub use figure::{Figure, Unit, table};
