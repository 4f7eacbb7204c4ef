//! The behavior cases, one module for each subject.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a case fails by panicking")]

mod blockers;
mod chains;
mod client;
mod failures;
mod leases;
mod notify;
mod process;
mod queue;
mod reaper;
mod repeats;
mod resilience;
mod schedules;
mod stopping;
mod worker;

use std::sync::{Arc, Mutex};

pub use queue::QUEUE_EXCLUDED;
use tokio::sync::Semaphore;
use windlass_core::{BoxError, MemoryStore, Transactional};

use super::{Behavior, Rule};

/// Returns the cases for every store.
#[must_use]
pub fn behaviors() -> Vec<Behavior> {
    let groups = [
        chains::cases(),
        blockers::cases(),
        client::cases(),
        process::cases(),
        failures::cases(),
        worker::cases(),
        leases::cases(),
        reaper::cases(),
        stopping::cases(),
        repeats::cases(),
        notify::cases(),
        resilience::cases(),
        schedules::cases(),
        queue::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// Returns the additional cases for a store with transactions.
#[must_use]
pub fn transactional_behaviors<S: Transactional>() -> Vec<Behavior<S>> {
    let groups = [
        client::transactional_cases(),
        process::transactional_cases(),
        failures::transactional_cases(),
        worker::transactional_cases(),
        leases::transactional_cases(),
        stopping::transactional_cases(),
        repeats::transactional_cases(),
        resilience::transactional_cases(),
        schedules::transactional_cases(),
        queue::transactional_cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// Returns what all cases say, including those about transactions.
#[must_use]
pub fn rules() -> Vec<Rule> {
    // The memory store stands for all: the rules do not depend on the store. Other crates share this instance of the
    // cases instead of compiling their own.
    let transactional = transactional_behaviors::<MemoryStore>();
    let rules = behaviors().iter().map(|case| case.rule(false)).collect::<Vec<_>>();
    rules.into_iter().chain(transactional.iter().map(|case| case.rule(true))).collect()
}

/// Imports that most of the groups use.
mod prelude {
    pub(super) use std::sync::{Arc, Mutex};
    pub(super) use std::time::Duration;

    pub(super) use windlass_core::{
        BoxError, Chain, Ctx, Event, JobOptions, Next, Status, Store, Transactional, Worker, next,
    };

    pub(super) use super::super::faulty::{Fault, Faulty};
    pub(super) use super::super::job::{QUICK_BACKOFF, job, quick};
    pub(super) use super::super::scene::{POLL, unless_busy};
    pub(super) use super::super::{Behavior, Need, Scene, behavior};
    pub(super) use super::{Gate, Lines, Result};
}

/// Result type of the handlers in cases.
type Result<T, E = BoxError> = std::result::Result<T, E>;

/// A gate that lets one task pass for each time it is opened.
#[derive(Clone)]
struct Gate(Arc<Semaphore>);

impl Gate {
    fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    fn open(&self, times: usize) {
        self.0.add_permits(times);
    }

    async fn pass(&self) {
        self.0.acquire().await.expect("the gate is never closed").forget();
    }
}

/// Records lines in the order in which they are added.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}
