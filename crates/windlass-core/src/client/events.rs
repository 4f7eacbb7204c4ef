//! The events of all jobs, for tools that watch a whole store.

use std::fmt;

use super::Client;
use super::event_message::{EventKind, EventMessage};
use super::interest::Watching;
use crate::error::Result;
use crate::id::{ChainId, WorkerId};
use crate::notifier::{Hint, Signal, Subscription};
use crate::store::Store;

/// An event of a job or worker, in a form that can cross processes. See [`Client::job_events`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobEvent {
    /// What happened.
    pub kind: JobEventKind,
    /// The type of the job's chain, if the event concerns one.
    pub chain_type: Option<String>,
    /// The job's chain, if the event concerns one.
    pub chain: Option<ChainId>,
    /// The chain's key, if known.
    pub key: Option<String>,
    /// The number of the attempt, if the event concerns one.
    pub attempt: Option<u32>,
    /// The worker, if the event concerns one.
    pub worker: Option<WorkerId>,
    /// The error, truncated if it is long.
    pub error: Option<String>,
}

/// What a [`JobEvent`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobEventKind {
    /// A chain was created.
    Created,
    /// An attempt started.
    Started,
    /// An attempt failed and the job will be retried.
    Retrying,
    /// An attempt rescheduled its job.
    Rescheduled,
    /// A worker requeued the job because it was stopping.
    Released,
    /// The lease of an attempt expired.
    Reaped,
    /// A job completed, and its chain with it.
    Completed,
    /// A job failed, without further attempts.
    Failed,
    /// A job was cancelled.
    Cancelled,
    /// A failed or cancelled chain was reopened.
    Reopened,
    /// A worker or consumer of a queue started.
    ConsumerStarted,
    /// A worker or consumer of a queue stopped.
    ConsumerStopped,
    /// An operation other than a job failed.
    Error,
    /// This number of events was lost: there were too many, this reader was slow, or the connection was lost. 0 if the
    /// number is not known.
    Missed(u64),
}

/// The events of all jobs; see [`Client::job_events`]. Drop it to unsubscribe.
#[must_use = "events are only read by `next`"]
pub struct JobEvents {
    subscription: Subscription,
    _watching: Watching,
}

impl<S: Store + ?Sized> Client<S> {
    /// Subscribes to the events of all jobs from now on: those of this client, and of other clients that the notifier
    /// reaches.
    ///
    /// Delivery is lossy, and each event costs its publisher a message. To follow one queue, use
    /// [`Queue::events`](crate::Queue::events).
    ///
    /// # Errors
    ///
    /// The error of the notifier, if it does not accept the subscription.
    pub async fn job_events(&self) -> Result<JobEvents> {
        let (subscription, _watching) = self.shared.dispatcher.watch().await?;
        Ok(JobEvents { subscription, _watching })
    }
}

impl JobEvents {
    /// Returns the next event, or `None` once the notifier is closed.
    ///
    /// Cancel-safe: dropping the future loses no event.
    pub async fn next(&mut self) -> Option<JobEvent> {
        loop {
            match self.subscription.next().await? {
                Signal::Gap { missed } => return Some(JobEvent::missed(missed)),
                Signal::Hint(Hint::Event(message)) => {
                    if let Some(event) = EventMessage::decode(&message).and_then(JobEvent::of) {
                        return Some(event);
                    }
                }
                Signal::Hint(_) => {}
            }
        }
    }
}

impl JobEvent {
    fn of(message: EventMessage) -> Option<Self> {
        let kind = match message.what {
            EventKind::Created => JobEventKind::Created,
            EventKind::Started => JobEventKind::Started,
            EventKind::Retrying => JobEventKind::Retrying,
            EventKind::Rescheduled => JobEventKind::Rescheduled,
            EventKind::Released => JobEventKind::Released,
            EventKind::Reaped => JobEventKind::Reaped,
            EventKind::Completed => JobEventKind::Completed,
            EventKind::Failed => JobEventKind::Failed,
            EventKind::Cancelled => JobEventKind::Cancelled,
            EventKind::Reopened => JobEventKind::Reopened,
            EventKind::ConsumerStarted => JobEventKind::ConsumerStarted,
            EventKind::ConsumerStopped => JobEventKind::ConsumerStopped,
            EventKind::Error => JobEventKind::Error,
            EventKind::Missed => JobEventKind::Missed(message.missed.unwrap_or_default()),
            EventKind::Unknown => return None,
        };
        let EventMessage { chain_type, chain, key, attempt, worker, error, .. } = message;
        Some(Self { kind, chain_type, chain, key, attempt, worker, error })
    }

    const fn missed(count: u64) -> Self {
        let kind = JobEventKind::Missed(count);
        Self { kind, chain_type: None, chain: None, key: None, attempt: None, worker: None, error: None }
    }
}

impl fmt::Debug for JobEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobEvents")
    }
}
