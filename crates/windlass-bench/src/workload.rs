//! The workloads, generic over the store. A measurement ends when the last completion is stored.

mod drain;
mod single;
mod start;
mod sustained;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::Job;

pub use drain::{check_completed, drain_all, drain_by, drain_fan_in, drain_in_transactions, drain_steps};
pub use single::{latency, round_trip};
pub use start::{start, start_all, start_chains, start_fan_in, start_for_later, start_others};
pub use sustained::{Sustained, sustained};

/// A job whose handler does nothing.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, output = u64)]
pub struct NoOp {
    /// Number of the job, returned as its output.
    pub number: u64,
}

/// A job of a type that no worker handles.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, output = u64)]
pub struct Other {
    /// Number of the job.
    pub number: u64,
}

/// A step of a chain.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, then(Step), output = u64)]
pub struct Step {
    /// How many steps follow.
    pub left: u64,
}

/// A job that is blocked by others.
#[derive(Serialize, Deserialize, Debug, Job)]
#[job(entry, blocked_by(Vec<NoOp>), output = u64)]
pub struct Gather;

/// Chains per call to the store.
const BATCH: u64 = 1_000;

/// Timeout for stopping a worker. Only the last completions are left to store by then, so a worker that reaches it hangs.
pub(crate) const STOP: Duration = Duration::from_secs(120);
