//! What is never true, as far as a simulated world can tell.

/// Something that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// An acknowledged start is stored until it is deleted.
    StartsAreKept,
    /// What was rolled back was never there.
    RollbacksLeaveNothing,
    /// Once the faults have ended everything comes to its end: nothing runs, waits for a worker, or is blocked
    /// for nothing.
    NothingIsStuck,
    /// Only the attempt that holds a job writes for it.
    StaleAttemptsWriteNothing,
    /// A job is closed once; a closed one only after it was retried.
    JobsCloseOnce,
    /// What a handler wrote in its transaction is there exactly if the job's end is.
    EffectsCommitWithTheEnd,
    /// What observers and notifiers are told has been committed, and is told once.
    OnlyCommitsAreAnnounced,
    /// A key points at one open chain at a time.
    KeysPointAtOneChain,
    /// One acquisition is one run of a handler.
    AttemptsRunOnce,
    /// A job runs after its blockers have ended.
    BlockedJobsDoNotRun,
    /// What a stop interrupts is not counted, and nothing is tried more often than it may.
    AttemptsAreCountedRight,
    /// A stop ends within its deadline and a bounded time.
    StopsEnd,
    /// What a stop leaves undone is given back, if the store can be reached.
    StopsGiveBack,
    /// A worker without trouble loses no lease.
    LeasesAreKept,
    /// Whoever waits for a chain gets its true answer.
    WaitsAreAnswered,
}

/// A broken invariant.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) what: String,
}
