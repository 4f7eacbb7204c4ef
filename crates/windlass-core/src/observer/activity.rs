use std::time::Duration;

use super::AboutWorker;
use crate::error::ErrorKind;
use crate::id::RequestId;
use crate::name::TypeName;

/// Something that the client itself does, as opposed to what happens to jobs. See
/// [`Observer::measure`](super::Observer::measure).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// The store answered a command, or failed to.
    StoreCalled(StoreCall),
    /// Items of concurrent callers were written or queried with one command.
    Flushed {
        /// What the items are: `start`, `settle` or `query`.
        batch: &'static str,
        /// The number of items.
        items: usize,
    },
    /// A subscription to the notifier began.
    NotifierConnected,
    /// A subscription to the notifier ended. It is tried again later.
    NotifierLost,
    /// The connection of a subscription was interrupted, and hints were lost.
    NotifierGap {
        /// The number of lost hints, as far as known.
        missed: u64,
    },
    /// A worker started, or has stopped.
    WorkerCapacity {
        /// The worker.
        worker: AboutWorker,
        /// The job types that it handles.
        types: Vec<TypeName>,
        /// The maximum number of attempts that it runs at the same time.
        concurrency: u32,
        /// Whether it runs now.
        is_running: bool,
    },
    /// A standalone reaper became the leader, or no longer is.
    Leadership {
        /// The id of the reaper.
        reaper: RequestId,
        /// Whether it leads.
        leads: bool,
    },
    /// A worker or reaper requeued jobs whose leases had expired. Not reported if there were none.
    Reaped {
        /// The number of jobs.
        jobs: usize,
    },
}

/// A call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCall {
    /// The name of the command: that of the [`Store`](crate::Store) method.
    pub command: &'static str,
    /// The number of items: those that the reply has, if it has a list of its own, otherwise those of the request.
    pub items: usize,
    /// How long the call took.
    pub took: Duration,
    /// The kind of error, if the call failed.
    pub error: Option<ErrorKind>,
}
