use windlass_core::{BoxFuture, Capabilities, Clock, ManualClock, Millis, Timestamp};

use crate::subject::Subject;

/// Opens stores of one kind for the cases.
pub trait Fixture: Send + Sync + 'static {
    /// The kind of store, for reports.
    fn name(&self) -> &str;

    /// What the store can do. Cases that need more are skipped.
    fn capabilities(&self) -> Capabilities;

    /// Whether its transactions read from a snapshot; see [`Transactional`](windlass_core::Transactional).
    fn has_snapshots(&self) -> bool {
        false
    }

    /// Opens a fresh, empty namespace that nobody else uses, through two independent handles.
    fn open(&self) -> BoxFuture<'_, Subject>;
}

/// The clock of a store under test. It stands still until it is turned, and both handles of a subject follow it.
pub trait TestClock: Send + Sync {
    /// The store's time.
    fn now(&self) -> Timestamp;

    /// Turns it forward.
    fn advance(&self, by: Millis);
}

impl TestClock for ManualClock {
    fn now(&self) -> Timestamp {
        Clock::now(self)
    }

    fn advance(&self, by: Millis) {
        Self::advance(self, by);
    }
}
