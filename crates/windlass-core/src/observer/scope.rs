use std::any::Any;
use std::fmt;

use super::About;
use crate::worker::{Ended, Stage};

/// Follows one attempt of an [`Observer`](super::Observer), from its start to its end. Spans need no other bookkeeping.
///
/// Every begin is followed by exactly one end, or by the drop of the scope. The scope is dropped without
/// [`ended`](Self::ended) if the attempt lost its job while it ran, or if the process stops. Panics are caught.
pub trait AttemptScope: Send + Sync + fmt::Debug {
    /// Called before each poll of the attempt, on the thread that polls it. The returned value is dropped after the
    /// poll. It may set thread-local state for the handler, such as a current trace context.
    fn enter(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// The handler begins a transaction.
    fn began(&self, stage: Stage) {
        let _ = stage;
    }

    /// The transaction of this stage ended. `error` says why it was not committed. For [`Stage::Finish`], the
    /// transaction includes the settlement of the job.
    fn closed(&self, stage: Stage, error: Option<&str>) {
        let _ = (stage, error);
    }

    /// The end of the attempt is stored, or the attempt has lost its job. Called at most once.
    fn ended(&self, about: &About, ended: &Ended) {
        let _ = (about, ended);
    }
}
