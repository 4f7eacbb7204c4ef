//! Streams of the events of a queue.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::Queue;
use crate::LEASE_EXPIRED;
use crate::client::{Client, EventKind, EventMessage, Watching};
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::name::TypeName;
use crate::notifier::{Hint, Signal, Subscription};
use crate::payload::Payload;
use crate::record::{AttemptEnd, ChainRecord, JobRecord};
use crate::store::{AnyStore, BoxFuture};

/// An event of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueEvent {
    /// A job was enqueued.
    Queued {
        /// The id of the job.
        id: String,
    },
    /// A consumer started an attempt.
    Processing {
        /// The id of the job.
        id: String,
        /// The number of the attempt, counted from 1.
        attempt: u32,
    },
    /// An attempt failed and the job will be retried.
    Failing {
        /// The id of the job.
        id: String,
        /// The number of the attempt, counted from 1.
        attempt: u32,
        /// The error, truncated if it is long.
        error: String,
    },
    /// A job completed.
    Completed {
        /// The id of the job.
        id: String,
        /// The result, which the stream queries from the store. `None` if it is no longer stored.
        result: Option<Payload>,
    },
    /// A job failed permanently.
    Failed {
        /// The id of the job.
        id: String,
        /// The error, truncated if it is long.
        error: String,
        /// Why there is no further attempt.
        kind: FailureKind,
        /// The payload of the job, which the stream queries from the store. `None` if it is no longer stored.
        payload: Option<Payload>,
    },
    /// A job was cancelled.
    Cancelled {
        /// The id of the job.
        id: String,
    },
    /// A consumer lost a job because its visibility expired before the attempt ended.
    Stalled {
        /// The id of the job.
        id: String,
        /// The number of the attempt, counted from 1.
        attempt: u32,
    },
    /// A job was requeued without counting the attempt, or reopened after it had closed.
    Requeued {
        /// The id of the job.
        id: String,
    },
    /// A consumer started, or a worker that also handles this queue.
    Started {
        /// The id of the worker.
        worker: WorkerId,
    },
    /// A consumer or worker stopped.
    Stopped {
        /// The id of the worker.
        worker: WorkerId,
    },
    /// An operation other than a job failed: a hook, a worker's main loop, or a store command.
    Error {
        /// The error, truncated if it is long.
        error: String,
    },
    /// Events were lost: this reader was slow, there were too many events, the connection was lost, or a
    /// job's id could not be queried.
    Missed {
        /// The number of lost events, as far as known.
        count: u64,
    },
}

/// Why a job failed permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The last allowed attempt failed.
    Exhausted,
    /// The last allowed attempt did not end before its visibility expired.
    Expired,
    /// The handler returned an error that must not be retried, or the job was failed from outside.
    Fatal,
    /// The job is no longer stored, so that the reason is unknown.
    Unknown,
}

impl<P, O> Queue<P, O> {
    /// Subscribes to the events of this queue from now on.
    ///
    /// The stream includes events of this client, and of other clients that the notifier reaches, including those in
    /// other processes. Those clients start publishing their events when they learn of the subscription, usually within
    /// milliseconds.
    ///
    /// An event is sent after the change it reports is stored. Delivery is lossy: a slow reader loses events and
    /// receives the number of lost ones, but never delays a consumer.
    ///
    /// # Errors
    /// The error of the notifier, if it does not accept the subscription.
    pub async fn events(&self) -> Result<Events> {
        let client = &self.shared.client;
        let (subscription, _watching) = client.shared.dispatcher.watch().await?;
        let reader =
            Reader { name: self.shared.name.clone(), client: client.clone(), subscription, _watching };
        Ok(Events { reader: Some(reader), reading: None })
    }
}

/// A stream of queue events; see [`Queue::events`].
///
/// The stream ends when the notifier is closed. Drop it to unsubscribe.
#[must_use = "a stream does nothing until it is polled"]
pub struct Events {
    /// `None` while a read is in progress, and after the end of the stream.
    reader: Option<Reader>,
    reading: Option<BoxFuture<'static, (Reader, Option<QueueEvent>)>>,
}

struct Reader {
    name: TypeName,
    client: Client<AnyStore>,
    subscription: Subscription,
    _watching: Watching,
}

impl Events {
    /// Returns the next event, or `None` at the end of the stream.
    ///
    /// Cancel-safe: dropping the future loses no event.
    pub async fn next(&mut self) -> Option<QueueEvent> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Events {
    type Item = QueueEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<QueueEvent>> {
        if let Some(mut reader) = self.reader.take() {
            self.reading = Some(Box::pin(async move {
                let event = reader.next().await;
                (reader, event)
            }));
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let (reader, event) = ready!(reading.as_mut().poll(context));
        self.reading = None;
        self.reader = event.is_some().then_some(reader);
        Poll::Ready(event)
    }
}

impl Reader {
    async fn next(&mut self) -> Option<QueueEvent> {
        loop {
            match self.subscription.next().await? {
                Signal::Gap { missed } => return Some(QueueEvent::Missed { count: missed }),
                Signal::Hint(Hint::Event(message)) => {
                    let Some(message) = EventMessage::decode(&message) else { continue };
                    if self.concerns(&message)
                        && let Some(event) = self.read(message).await
                    {
                        return Some(event);
                    }
                }
                Signal::Hint(_) => {}
            }
        }
    }

    fn concerns(&self, message: &EventMessage) -> bool {
        message.chain_type.as_ref().is_none_or(|chain_type| chain_type == self.name.as_str())
    }

    async fn read(&self, mut message: EventMessage) -> Option<QueueEvent> {
        Some(match message.what {
            EventKind::ConsumerStarted => QueueEvent::Started { worker: message.worker? },
            EventKind::ConsumerStopped => QueueEvent::Stopped { worker: message.worker? },
            EventKind::Error => QueueEvent::Error { error: message.error.unwrap_or_default() },
            EventKind::Missed => QueueEvent::Missed { count: message.missed.unwrap_or_default() },
            EventKind::Unknown => return None,
            EventKind::Completed | EventKind::Failed => {
                // The message has neither the result nor the payload: notifiers limit its size.
                match (self.record(&message).await, self.id(&mut message).await) {
                    (Ok(record), Ok(id)) => {
                        let id = id?;
                        let closed = self.closed(message, id, record.map(|record| record.latest)).await;
                        closed.unwrap_or(QueueEvent::Missed { count: 1 })
                    }
                    _ => QueueEvent::Missed { count: 1 },
                }
            }
            _ => match self.id(&mut message).await {
                Ok(id) => of_job(message, id?)?,
                Err(_) => QueueEvent::Missed { count: 1 },
            },
        })
    }

    /// Returns the caller's id, or `None` for a job that was started without one.
    ///
    /// A client that reaps or cancels does not know the id. It is queried here so that those operations need
    /// not wait for it.
    async fn id(&self, message: &mut EventMessage) -> Result<Option<String>> {
        if message.key.is_some() || message.chain.is_none() {
            return Ok(message.key.take());
        }
        let record = self.record(message).await?;
        let record = record.ok_or_else(|| Error::new(ErrorKind::NotFound, "the job is no longer stored"))?;
        Ok(record.key.map(|key| key.key.as_str().to_owned()))
    }

    /// Converts an event message about a job that has closed, and which is stored like this.
    async fn closed(&self, message: EventMessage, id: String, job: Option<JobRecord>) -> Result<QueueEvent> {
        if matches!(message.what, EventKind::Completed) {
            return Ok(QueueEvent::Completed { id, result: job.and_then(|job| job.output) });
        }
        let error = message.error.unwrap_or_default();
        let kind = match &job {
            Some(job) => self.failure(job).await?,
            None => FailureKind::Unknown,
        };
        Ok(QueueEvent::Failed { id, error, kind, payload: job.map(|job| job.input) })
    }

    /// Returns why a job failed permanently.
    async fn failure(&self, job: &JobRecord) -> Result<FailureKind> {
        let is_last = job.max_attempts.is_some_and(|max| job.attempt >= max);
        match &job.error {
            Some(error) if error.as_str() == LEASE_EXPIRED => return Ok(FailureKind::Expired),
            _ if !is_last => return Ok(FailureKind::Fatal),
            _ => {}
        }
        // The handler may have returned an error that must not be retried, and the job may have been failed from outside.
        // Only the record of the attempt shows that.
        let attempts = self.client.attempts(job.id).await?;
        Ok(match attempts.last().map(|attempt| attempt.end) {
            Some(AttemptEnd::Failed | AttemptEnd::Displaced) => FailureKind::Fatal,
            _ => FailureKind::Exhausted,
        })
    }

    /// Queries the job that an event concerns.
    async fn record(&self, message: &EventMessage) -> Result<Option<ChainRecord>> {
        match message.chain {
            Some(chain) => self.client.chain(chain).await,
            None => Ok(None),
        }
    }
}

/// Converts an event message about a job.
fn of_job(message: EventMessage, id: String) -> Option<QueueEvent> {
    let (attempt, error) = (message.attempt.unwrap_or_default(), message.error.unwrap_or_default());
    Some(match message.what {
        EventKind::Created => QueueEvent::Queued { id },
        EventKind::Started => QueueEvent::Processing { id, attempt },
        EventKind::Retrying => QueueEvent::Failing { id, attempt, error },
        EventKind::Cancelled => QueueEvent::Cancelled { id },
        EventKind::Reaped => QueueEvent::Stalled { id, attempt },
        EventKind::Released | EventKind::Rescheduled | EventKind::Reopened => QueueEvent::Requeued { id },
        _ => return None,
    })
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
