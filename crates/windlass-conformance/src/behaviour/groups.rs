//! The behaviours, one module for each subject.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a case fails by panicking")]

mod blockers;
mod chains;

use windlass_core::{Store, Transactional};

use super::Behaviour;

/// The behaviours that any store has with a client and a worker.
#[must_use]
pub fn behaviours<S: Store>() -> Vec<Behaviour<S>> {
    [chains::cases(), blockers::cases()].into_iter().flatten().collect()
}

/// Those that a store with transactions has besides.
#[must_use]
pub fn transactional_behaviours<S: Transactional>() -> Vec<Behaviour<S>> {
    Vec::new()
}

/// What most of the groups use.
mod prelude {
    pub(super) use std::sync::{Arc, Mutex};

    pub(super) use windlass_core::{BoxError, Ctx, Event, Next, Status, Store, next};

    pub(super) use super::super::behaviour;
    pub(super) use super::super::job::job;
    pub(super) use super::super::{Behaviour, Scene};
    pub(super) use super::{Lines, Result};
}

/// What handlers of the cases return.
type Result<T, E = windlass_core::BoxError> = std::result::Result<T, E>;

/// What happened, in order.
#[derive(Clone, Default)]
struct Lines(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Lines {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}
