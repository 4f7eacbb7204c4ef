//! Benchmarks of Windlass.
//!
//! [`workload`] contains the workloads, generic over the store. A [`Subject`] is a store to measure, together with a
//! baseline: bare statements that do the same work on the same database. [`suite`] runs both alternately for several
//! rounds and returns a [`Report`]. [`channel`] is the baseline for a drain in memory, and [`instructions`] compares
//! the two. [`comparison`] compares Windlass with other libraries, as a [`candidate`] among them. [`round_trip`] measures
//! the queue and [`callers`] how it scales with its callers, [`scale`] whether the cost of a job depends on how many are
//! stored, [`commits`] how much noticing the application's commits costs, and [`telemetry`] what metrics and traces cost.

#![forbid(unsafe_code)]

pub mod callers;
pub mod candidate;
pub mod channel;
pub mod commits;
pub mod comparison;
pub mod instructions;
pub mod postgres_scale;
pub mod round_trip;
pub mod scale;
pub mod subject;
pub mod suite;
pub mod telemetry;
pub mod workload;

mod figure;
mod meter;
mod report;

pub use figure::{Figure, Unit};
pub use report::{Cost, Ratio, Report};
pub use subject::Subject;
