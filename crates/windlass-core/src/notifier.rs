//! The notifier: hints that something happened.

mod in_process;
mod message;
mod subscription;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use in_process::InProcessNotifier;
pub use subscription::{Publisher, Signal, Subscription};

use crate::error::Result;
use crate::id::{ChainId, JobId, WorkerId};
use crate::name::TypeName;
use crate::store::BoxFuture;
use crate::time::Timestamp;

/// Carries hints between those who change jobs and those who wait.
///
/// Hints are lossy: each may arrive once, more than once, or never. Nothing may depend on one; with all of
/// them lost, polling still does the work. Publish only what has been committed.
pub trait Notifier: Send + Sync + fmt::Debug + 'static {
    /// Tells everyone who subscribed to the hint's topic. It is no error if there is nobody. It never waits
    /// for a reader: a slow one misses hints and is told so by [`Signal::Gap`].
    ///
    /// A [`Hint::Scheduled`] first adds its count to the wake budget of its type, then is delivered.
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>>;

    /// Receives the hints of these topics; there must be at least one. The subscription is live when this
    /// returns; it ends when it is closed or dropped, and a later one is independent of it. A subscription
    /// harms no other, whether it is read or not.
    ///
    /// The notifier connects again by itself when its connection is lost, subscribes again, and sends
    /// [`Signal::Gap`]: whoever gets that looks at the store.
    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>>;

    /// Asks whether to look for jobs of this type after a hint: takes one from the type's wake budget. When
    /// `n` jobs are scheduled, `n` waiting workers get `true`. Budgets of several hints add up. A type
    /// without a budget, or one that is a minute old, gives `true` to all.
    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>>;

    /// Whether somebody may be waiting for the end of this chain; when in doubt, yes. Most chains end unwatched,
    /// so that whoever has many ends to tell asks first. It answers at once, from what it knows.
    fn is_awaited(&self, _chain: ChainId) -> bool {
        true
    }

    /// Whether somebody in this process is subscribed to [`Topic::Events`]; when in doubt, no. Events are
    /// published only if somebody is known to watch, or if a client was told to. It answers at once.
    fn is_watched(&self) -> bool {
        false
    }

    /// Closes the notifier. Later calls give an error of kind `Closed`; subscriptions end. Closing again does
    /// nothing.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// Jobs of a type were scheduled.
    Scheduled {
        /// The type.
        job_type: TypeName,
        /// How many.
        count: u32,
        /// When the earliest of them is due.
        due_at: Timestamp,
    },
    /// A chain closed.
    ChainClosed(ChainId),
    /// A worker's attempt lost its job, or is asked to stop.
    OwnershipLost {
        /// The worker.
        worker: WorkerId,
        /// The job.
        job: JobId,
    },
    /// An event for those who watch, encoded by its sender.
    Event(Bytes),
}

impl Hint {
    /// The topic under which it is published.
    #[must_use]
    pub fn topic(&self) -> Topic {
        match self {
            Self::Scheduled { job_type, .. } => Topic::Scheduled(job_type.clone()),
            Self::ChainClosed(chain) => Topic::ChainClosed(*chain),
            Self::OwnershipLost { worker, .. } => Topic::OwnershipLost(*worker),
            Self::Event(_) => Topic::Events,
        }
    }
}

/// What a subscription is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// Jobs of this type are scheduled.
    Scheduled(TypeName),
    /// This chain closes.
    ChainClosed(ChainId),
    /// Attempts of this worker are to stop.
    OwnershipLost(WorkerId),
    /// All events.
    Events,
}

/// Those who share a notifier publish and subscribe through the same one.
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

    fn is_watched(&self) -> bool {
        (**self).is_watched()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        (**self).close()
    }
}
