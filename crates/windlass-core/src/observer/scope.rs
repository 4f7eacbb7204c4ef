use std::fmt;

use super::About;
use crate::worker::{Ended, Stage};

/// Follows one attempt from its start to its end. An [`Observer`](super::Observer) that records spans can keep them here,
/// and needs no map of running attempts.
///
/// Every call of [`began`](Self::began) is followed by exactly one call of [`closed`](Self::closed), or by the drop of the
/// scope. The scope is dropped without [`ended`](Self::ended) if the attempt is dropped before its end is stored, for
/// example because its worker is dropped or the runtime stops. The client catches panics.
pub trait AttemptScope: Send + Sync + fmt::Debug {
    /// Called for each poll of the attempt, on the thread that polls it. `poll` runs the handler. It may set
    /// thread-local state around the call of `poll`, such as a current trace context. `poll` never panics. If this
    /// method does not call `poll`, the client polls the attempt outside the scope. Further calls do nothing.
    fn within(&self, poll: &mut dyn FnMut()) {
        poll();
    }

    /// Called when the handler begins a transaction.
    fn began(&self, stage: Stage) {
        let _ = stage;
    }

    /// Called when the transaction of this stage has ended. If it was not committed, `error` is the reason. For
    /// [`Stage::Finish`], the transaction includes the settlement of the job.
    fn closed(&self, stage: Stage, error: Option<&str>) {
        let _ = (stage, error);
    }

    /// Called when the end of the attempt has been stored, or the attempt has lost its job. Called at most once.
    fn ended(&self, about: &About, ended: &Ended) {
        let _ = (about, ended);
    }
}
