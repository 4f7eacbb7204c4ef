//! The [`Notifier`] trait: hints that wake waiting workers and callers.

mod connected;
mod event_files;
mod in_process;
mod lazy;
mod mailbox;
mod message;
mod subscription;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use connected::Connected;
pub use event_files::EventFiles;
pub use in_process::InProcessNotifier;
pub use lazy::LazyNotifier;
pub use subscription::{Publisher, Signal, Subscription};

use crate::error::{Error, Result};
use crate::id::{ChainId, JobId, WorkerId};
use crate::name::TypeName;
use crate::store::BoxFuture;
use crate::time::Timestamp;

/// Delivers hints from the processes that change jobs to those that wait.
///
/// Hints are lossy: each may arrive once, more than once, or never. Nothing may depend on a hint. If all
/// hints are lost, polling still processes every job. Publish only committed changes.
pub trait Notifier: Send + Sync + fmt::Debug + 'static {
    /// Delivers a hint to all subscribers of its topic. Succeeds if there are none. Never waits for a
    /// subscriber: a slow one misses hints and receives [`Signal::Gap`].
    ///
    /// A [`Hint::Scheduled`] first adds its count to the wake budget of its job type and is then delivered.
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>>;

    /// Subscribes to the hints of these topics. At least one topic is required.
    ///
    /// The subscription is active when this returns, and ends when it is closed or dropped. Subscriptions are
    /// independent of each other: one that is not read does not affect the others.
    ///
    /// If its connection is lost, the notifier reconnects, subscribes again and sends [`Signal::Gap`]. The
    /// subscriber must then query the store.
    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>>;

    /// Takes one wake-up from the budget of a job type. Returns whether the caller should query the store for
    /// jobs of this type after a hint.
    ///
    /// If `n` jobs are scheduled, `n` waiting workers get `true`. The budgets of several hints add up. If a
    /// type has no budget, or its budget is a minute old, every caller gets `true`.
    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>>;

    /// Whether a subscriber may be waiting for this chain to close. Returns `true` if the notifier does not
    /// know.
    ///
    /// Most chains close without a subscriber. Publishers call this first to skip needless hints. Does not wait: uses
    /// only what the notifier already knows.
    fn is_awaited(&self, _chain: ChainId) -> bool {
        true
    }

    /// Whether there is a subscriber to [`Topic::Events`], in any process. Returns `None` if the notifier does
    /// not know. Answers immediately.
    ///
    /// Clients publish events only if there may be a subscriber. If the notifier does not know, subscribers and
    /// publishers find each other through [`Topic::EventSubscribers`].
    fn is_watched(&self) -> Option<bool> {
        None
    }

    /// Returns which processes hints currently arrive from. Does not wait.
    ///
    /// Workers and waits poll rarely while hints arrive from everywhere, and often otherwise.
    fn reach(&self) -> Reach {
        Reach::Process
    }

    /// Closes the notifier and ends its subscriptions. Later calls return an error of kind `Closed`. Closing it again
    /// does nothing.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

/// The processes that hints arrive from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reach {
    /// Every process that uses the store.
    Everywhere,
    /// This process only, or it is not known yet.
    Process,
    /// This process only, because the notifier cannot connect, for this reason.
    Lost(Error),
}

/// A notification about a change in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// Jobs of a type were scheduled.
    Scheduled {
        /// The job type.
        job_type: TypeName,
        /// The number of jobs.
        count: u32,
        /// When the earliest of the jobs is due.
        due_at: Timestamp,
    },
    /// A chain closed.
    ChainClosed(ChainId),
    /// An attempt of a worker has lost its job or was asked to stop.
    OwnershipLost {
        /// The worker.
        worker: WorkerId,
        /// The job.
        job: JobId,
    },
    /// An event for subscribers, encoded by the publisher.
    Event(Bytes),
    /// Schedules were changed, so that the next one may be due earlier.
    SchedulesChanged,
    /// Asks the subscribers to events to announce themselves.
    FindEventSubscribers,
    /// A subscriber to events announces itself.
    EventSubscriber,
}

impl Hint {
    /// Returns the topic under which the hint is published.
    #[must_use]
    pub fn topic(&self) -> Topic {
        match self {
            Self::Scheduled { job_type, .. } => Topic::Scheduled(job_type.clone()),
            Self::ChainClosed(chain) => Topic::ChainClosed(*chain),
            Self::OwnershipLost { worker, .. } => Topic::OwnershipLost(*worker),
            Self::Event(_) => Topic::Events,
            Self::SchedulesChanged => Topic::Schedules,
            Self::FindEventSubscribers | Self::EventSubscriber => Topic::EventSubscribers,
        }
    }
}

/// A topic to subscribe to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// Jobs of this type were scheduled.
    Scheduled(TypeName),
    /// This chain closed.
    ChainClosed(ChainId),
    /// Attempts of this worker lost their job or were asked to stop.
    OwnershipLost(WorkerId),
    /// All events.
    Events,
    /// Schedules were changed.
    Schedules,
    /// Announcements of the subscribers to events, and requests for them.
    EventSubscribers,
}

/// A shared notifier: all clones publish and subscribe through the same one.
impl<N: Notifier + ?Sized> Notifier for Arc<N> {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        (**self).publish(hint)
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        (**self).subscribe(topics)
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        (**self).claim_wake(job_type)
    }

    fn is_awaited(&self, chain: ChainId) -> bool {
        (**self).is_awaited(chain)
    }

    fn is_watched(&self) -> Option<bool> {
        (**self).is_watched()
    }

    fn reach(&self) -> Reach {
        (**self).reach()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        (**self).close()
    }
}
