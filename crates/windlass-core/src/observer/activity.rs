use std::time::Duration;

use super::AboutWorker;
use crate::error::ErrorKind;
use crate::id::RequestId;
use crate::name::TypeName;

/// An activity of the client itself, as opposed to an event of a job. See
/// [`Observer::measure`](super::Observer::measure).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// The store answered a command, or the call failed.
    StoreCalled(StoreCall),
    /// One command wrote or queried the items of concurrent callers.
    Flushed {
        /// What the items are: `start`, `settle` or `query`.
        batch: &'static str,
        /// The number of items.
        items: usize,
    },
    /// A subscription to the notifier began.
    NotifierConnected,
    /// A subscription to the notifier ended. The client subscribes again later.
    NotifierLost,
    /// The connection of a subscription was interrupted, and hints were lost.
    NotifierGap {
        /// The number of lost hints that are known.
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
        /// Whether the worker is running now.
        is_running: bool,
    },
    /// A standalone reaper became the leader, or lost the leadership.
    Leadership {
        /// The id of the reaper.
        reaper: RequestId,
        /// Whether the reaper is the leader now.
        leads: bool,
    },
    /// A worker or reaper requeued jobs whose leases had expired. Reported only if there were such jobs.
    Reaped {
        /// The number of jobs.
        jobs: usize,
    },
}

/// A call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCall {
    /// The name of the [`Store`](crate::Store) method.
    pub command: &'static str,
    /// The number of items in the reply, if the reply has its own list. Otherwise, the number in the request.
    pub items: usize,
    /// How long the call took.
    pub took: Duration,
    /// The kind of error, if the call failed.
    pub error: Option<ErrorKind>,
}
