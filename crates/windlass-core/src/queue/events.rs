use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::Queue;
use crate::client::{Client, News, Watching, What};
use crate::clock::answered;
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::name::TypeName;
use crate::notifier::{Hint, Signal, Subscription};
use crate::store::{AnyStore, BoxFuture};

/// Something that happened in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueEvent {
    /// A job was enqueued.
    Queued {
        /// Its id.
        id: String,
    },
    /// A consumer began an attempt.
    Processing {
        /// Its id.
        id: String,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// An attempt failed, and there will be another.
    Failing {
        /// Its id.
        id: String,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// Why; shortened, if it is long.
        error: String,
    },
    /// A job is done; its result is in the store.
    Completed {
        /// Its id.
        id: String,
    },
    /// A job failed for good.
    Failed {
        /// Its id.
        id: String,
        /// Why; shortened, if it is long.
        error: String,
    },
    /// A job was called off.
    Cancelled {
        /// Its id.
        id: String,
    },
    /// A consumer lost a job: its visibility was over before the attempt ended.
    Stalled {
        /// Its id.
        id: String,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// A job was given back uncounted, or opened again after its end.
    Requeued {
        /// Its id.
        id: String,
    },
    /// A consumer started, or a worker that handles this queue among others.
    Started {
        /// Its worker.
        worker: WorkerId,
    },
    /// It stopped.
    Stopped {
        /// Its worker.
        worker: WorkerId,
    },
    /// Something failed that is not a job: a hook, a worker's turn, a command of the store.
    Error {
        /// What; shortened, if it is long.
        error: String,
    },
    /// Events were lost: this reader was slow, there were too many, the connection was lost, or a job could not
    /// be looked up.
    Missed {
        /// How many, as far as is known.
        count: u64,
    },
}

impl<P, O> Queue<P, O> {
    /// What happens in this queue from now on: by this client, by others in this process that share its
    /// notifier if that is in-process, and by clients in other processes that
    /// [publish](crate::ClientBuilder::publish_events) events, where the notifier crosses them.
    ///
    /// Events are told after what they tell is stored. They are lossy: a reader that is slow loses some, with
    /// their number, and never holds a consumer up.
    pub async fn events(&self) -> Result<Events> {
        let client = &self.shared.client;
        let watched = client.shared.teller.watch().await.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the notifier did not take the subscription: try again later")
        })?;
        let (subscription, _watching) = watched;
        let reader =
            Reader { name: self.shared.name.clone(), client: client.clone(), subscription, _watching };
        Ok(Events { reader: Some(reader), reading: None })
    }
}

/// A stream of what happens in a queue; see [`Queue::events`]. It ends when the notifier is closed. Dropping it
/// ends it.
#[must_use = "events are for reading"]
pub struct Events {
    /// None while it is read from, and after the end.
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
    /// The next event; none at the end.
    ///
    /// Cancel-safe: a dropped call loses nothing.
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
                    let Some(news) = News::decode(&message) else { continue };
                    if self.concerns(&news)
                        && let Some(event) = self.read(news).await
                    {
                        return Some(event);
                    }
                }
                Signal::Hint(_) => {}
            }
        }
    }

    fn concerns(&self, news: &News) -> bool {
        news.chain_type.as_ref().is_none_or(|chain_type| chain_type == self.name.as_str())
    }

    async fn read(&self, mut news: News) -> Option<QueueEvent> {
        Some(match news.what {
            What::ConsumerStarted => QueueEvent::Started { worker: news.worker? },
            What::ConsumerStopped => QueueEvent::Stopped { worker: news.worker? },
            What::Trouble => QueueEvent::Error { error: news.error.unwrap_or_default() },
            What::Missed => QueueEvent::Missed { count: news.missed.unwrap_or_default() },
            What::Unknown => return None,
            _ => match self.id(&mut news).await {
                Ok(id) => of_job(news, id?)?,
                Err(_) => QueueEvent::Missed { count: 1 },
            },
        })
    }

    /// The caller's id; none for a job that was started without. Whoever reaps or cancels does not know it, so
    /// that it is looked up here, where nobody else waits for it.
    async fn id(&self, news: &mut News) -> Result<Option<String>> {
        let (None, Some(chain)) = (&news.key, news.chain) else { return Ok(news.key.take()) };
        let record = answered(self.client.chain(chain)).await?;
        let record = record.ok_or_else(|| Error::new(ErrorKind::NotFound, "the job is kept no longer"))?;
        Ok(record.key.map(|key| key.key.as_str().to_owned()))
    }
}

/// What news of a job mean.
fn of_job(news: News, id: String) -> Option<QueueEvent> {
    let (attempt, error) = (news.attempt.unwrap_or_default(), news.error.unwrap_or_default());
    Some(match news.what {
        What::Created => QueueEvent::Queued { id },
        What::Started => QueueEvent::Processing { id, attempt },
        What::Retrying => QueueEvent::Failing { id, attempt, error },
        What::Completed => QueueEvent::Completed { id },
        What::Failed => QueueEvent::Failed { id, error },
        What::Cancelled => QueueEvent::Cancelled { id },
        What::Reaped => QueueEvent::Stalled { id, attempt },
        What::Released | What::Rescheduled | What::Reopened => QueueEvent::Requeued { id },
        _ => return None,
    })
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
