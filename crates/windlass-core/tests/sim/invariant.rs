//! The invariants that a simulation can check.

/// A property that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// An acknowledged start is stored until it is deleted.
    StartsAreKept,
    /// A chain that was rolled back was never visible.
    RollbacksLeaveNothing,
    /// Once the faults have ended, all work is finished: no job is running, waits for a worker, or is blocked
    /// without reason.
    NothingIsStuck,
    /// Only the attempt that holds a job writes for it.
    StaleAttemptsWriteNothing,
    /// A job is closed once, and again only after a retry.
    JobsCloseOnce,
    /// The rows that a handler writes in its transaction are stored if and only if the job's settlement is.
    EffectsCommitWithTheEnd,
    /// Observers and notifiers receive only committed changes, each once.
    OnlyCommitsAreAnnounced,
    /// A key points at one open chain at a time.
    KeysPointAtOneChain,
    /// A handler runs once per acquisition.
    AttemptsRunOnce,
    /// A job runs only after its blockers have closed.
    BlockedJobsDoNotRun,
    /// An attempt that is interrupted by a stop is not counted, and no job exceeds its maximum number of
    /// attempts.
    AttemptsAreCountedRight,
    /// A stop ends within its deadline plus a bounded time.
    StopsEnd,
    /// A stop requeues unfinished jobs, if the store can be reached.
    StopsGiveBack,
    /// A worker whose calls meet no fault loses no lease.
    LeasesAreKept,
    /// A wait for a chain returns its actual result.
    WaitsAreAnswered,
    /// Each occurrence of a schedule starts exactly one chain.
    OccurrencesStartOnce,
    /// Each occurrence starts a chain, or is counted as missed or overlapped.
    OccurrencesAreCounted,
    /// An occurrence starts while the former chain is open only if the schedule allows it.
    OccurrencesDoNotOverlap,
    /// No occurrence starts before its time on the store's clock, or when it counts as missed.
    OccurrencesStartInTime,
}

/// A violated invariant.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) what: String,
}
