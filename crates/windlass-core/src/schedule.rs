//! Schedules: jobs that start at the times of a cron expression, at a fixed interval, or once.
//!
//! [`Cron`], [`Every`] and [`Once`] describe the times. [`Schedules`] stores, lists and changes schedules, and a worker can
//! declare them with [`Worker::schedule`](crate::Worker::schedule).
//!
//! A store only keeps the row of a schedule, and replaces it if its revision is the expected one; see
//! [`Store::change_schedules`](crate::Store::change_schedules). Everything else is in this module: `spec` and `cron`
//! compute occurrences, `definition` and `state` are the two texts of a row, and `visit` decides what to do with a row
//! at a point in time, without I/O, clock or randomness.

mod cron;
mod definition;
mod spec;
mod state;
mod visit;

#[cfg(test)]
mod tests;

pub(crate) use definition::{Definition, EncodedChain};
pub use spec::{Cron, Every, MissedRuns, Once, Overlap, ScheduleSpec};
pub use state::{RunOutcome, ScheduleRun};

pub use crate::client::{Schedule, ScheduleDetails, Schedules};
pub use crate::id::{Occurrence, ScheduleId};
pub use crate::name::ScheduleName;
pub(crate) use state::{State, time};
pub(crate) use visit::{ChainStatus, Visit, drop_paused, due_at, set_aside, visit};
