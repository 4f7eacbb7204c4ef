use windlass_core::{BoxFuture, Capabilities, Clock, ManualClock, Millis, Timestamp};

use crate::subject::Subject;

/// Opens stores of one kind for the cases.
pub trait Fixture: Send + Sync + 'static {
    /// Returns the kind of store, for reports.
    fn name(&self) -> &str;

    /// Returns the capabilities of the store. Cases that need others are skipped.
    fn capabilities(&self) -> Capabilities;

    /// Whether transactions of the store read from a snapshot; see [`Transactional`](windlass_core::Transactional).
    fn has_snapshots(&self) -> bool {
        false
    }

    /// Opens a fresh, empty namespace that nothing else uses, through two independent handles.
    fn open(&self) -> BoxFuture<'_, Subject>;
}

/// The clock of a store under test. Its time changes only by [`advance`](Self::advance), and both handles of a subject
/// use it.
pub trait TestClock: Send + Sync {
    /// Returns the store's current time.
    fn now(&self) -> Timestamp;

    /// Advances the clock.
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
