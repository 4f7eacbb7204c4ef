//! The workloads that Windlass is measured with.
//!
//! [`workload`] has them, each for any client. A [`Subject`] is a store that is measured, and beside it the least that
//! the same database could do the work with; [`suite`] runs both in turns, several times, and gives a [`Report`].
//! [`channel`] is the least that could do the work of a drain in memory; [`instructions`] compares the two. [`round_trip`]
//! measures the queue.

pub mod channel;
pub mod instructions;
pub mod round_trip;
pub mod subject;
pub mod suite;
pub mod workload;

mod figure;
mod meter;
mod report;

pub use figure::{Figure, Unit};
pub use report::{Cost, Ratio, Report};
pub use subject::Subject;
