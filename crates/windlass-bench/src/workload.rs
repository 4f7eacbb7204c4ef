//! The workloads, each for any client. A clock stops when the last completion is stored.

mod drain;
mod single;
mod start;
mod sustained;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::Job;

pub use drain::{check_completed, work_off, work_off_fan_in, work_off_in_transactions, work_off_steps};
pub use single::{latency, round_trip};
pub use start::{start, start_all, start_chains, start_fan_in, start_for_later, start_others};
pub use sustained::{Sustained, sustained};

/// A job that does nothing.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, output = u64)]
pub struct NoOp {
    /// Which one it is. It comes back as the output.
    pub number: u64,
}

/// A job that nobody works on.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, output = u64)]
pub struct Other {
    /// Which one it is.
    pub number: u64,
}

/// A step of a chain.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, then(Step), output = u64)]
pub struct Step {
    /// How many steps follow.
    pub left: u64,
}

/// A job that waits for others.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, blocked_by(Vec<NoOp>), output = u64)]
pub struct Gather;

/// How many chains go into one command.
const BATCH: u64 = 1_000;

/// How long a worker may take to stop; it has nothing left to do by then.
const STOP: Duration = Duration::from_secs(10);
