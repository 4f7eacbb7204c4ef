//! The events of jobs: one subscription per server, collected for all streams.
//!
//! At thousands of jobs per second, a message per event and stream would cost more than the jobs. So events are collected
//! for a moment, a bounded number of them is kept, and all streams get the same message.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout_at};
use windlass_core::{JobEvent, JobEventKind, JobEvents};

use crate::client::BoxedClient;
use crate::pages::SharedPages;

/// How long events are collected before they are sent.
const COLLECT: Duration = Duration::from_millis(250);

/// The number of events that are sent at once. The rest is only counted.
const EVENTS_MAX: usize = 100;

/// The number of messages that a slow client can fall behind.
const BUFFERED: usize = 64;

/// The delay before the next attempt to subscribe.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Events of jobs, for all streams of a server.
#[derive(Debug)]
pub(crate) struct JobFeed {
    client: BoxedClient,
    /// Pages that events make out of date.
    pages: Arc<SharedPages>,
    batches: broadcast::Sender<Arc<Batch>>,
    is_running: Mutex<bool>,
    this: Weak<Self>,
}

/// Events that were collected together.
#[derive(Debug)]
pub(crate) struct Batch {
    events: Vec<JobEvent>,
    missed: u64,
    /// Whether an unknown number of events was lost. Every stream must report this, regardless of its filter.
    has_gap: bool,
    /// The encoded messages for streams without a filter.
    with_errors: Bytes,
    without_errors: Bytes,
}

/// Which events a stream wants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) types: Vec<String>,
    pub(crate) chain: Option<String>,
}

/// Events of jobs, in order.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Events {
    events: Vec<Event>,
    /// The number of events that are not in this list, as far as it is known.
    missed: u64,
}

/// An event of a job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Event {
    kind: Kind,
    chain: Option<String>,
    /// The type of the chain.
    #[serde(rename = "type")]
    chain_type: Option<String>,
    key: Option<String>,
    attempt: Option<u32>,
    worker: Option<String>,
    error: Option<String>,
    error_hidden: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Created,
    Started,
    Retrying,
    Rescheduled,
    Released,
    Reaped,
    Completed,
    Failed,
    Cancelled,
    Reopened,
    WorkerStarted,
    WorkerStopped,
    Error,
}

/// Encodes a server-sent event.
pub(crate) fn frame(name: &str, data: &impl Serialize) -> Bytes {
    // JSON text has no line breaks, so one `data` line is enough.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

impl JobFeed {
    pub(crate) fn new(client: BoxedClient, pages: Arc<SharedPages>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            client,
            pages,
            batches: broadcast::channel(BUFFERED).0,
            is_running: Mutex::new(false),
            this: this.clone(),
        })
    }

    /// Returns the events from now on. The server subscribes to the notifier while there are receivers.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Arc<Batch>> {
        let receiver = self.batches.subscribe();
        let mut is_running = self.is_running();
        if !*is_running {
            *is_running = true;
            tokio::spawn(run(self.this.clone(), self.client.clone()));
        }
        receiver
    }

    /// Whether a stream still wants events. If not, the next call of [`watch`](Self::watch) starts another task.
    fn goes_on(&self) -> bool {
        let mut is_running = self.is_running();
        *is_running = self.batches.receiver_count() > 0;
        *is_running
    }

    fn is_running(&self) -> std::sync::MutexGuard<'_, bool> {
        self.is_running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, batch: Batch) {
        // Before the streams: a page that asks after an event must see what has happened.
        if batch.missed > 0 || batch.has_gap {
            self.pages.clear();
        } else {
            self.pages.forget(&batch.events.iter().filter_map(|event| event.chain).collect());
        }
        let _ = self.batches.send(Arc::new(batch));
    }
}

/// Subscribes, and subscribes again whenever that fails, until no stream wants events.
async fn run(feed: Weak<JobFeed>, client: BoxedClient) {
    loop {
        match client.job_events().await {
            Ok(mut events) => {
                // Streams may have begun, and pages may have been fetched, before the subscription was active.
                if let Some(feed) = feed.upgrade() {
                    feed.send(Batch::new(Vec::new(), 0, true));
                }
                if !forward(&feed, &mut events).await {
                    return;
                }
            }
            Err(error) => tracing::warn!("cannot subscribe to the events of jobs: {error}"),
        }
        let Some(feed) = feed.upgrade() else { return };
        // Events are lost from now on, until the next subscription.
        feed.send(Batch::new(Vec::new(), 0, true));
        if !feed.goes_on() {
            return;
        }
        drop(feed);
        sleep(RETRY_DELAY).await;
    }
}

/// Passes events on to the streams. Returns whether to subscribe again.
async fn forward(feed: &Weak<JobFeed>, subscription: &mut JobEvents) -> bool {
    loop {
        let deadline = tokio::time::Instant::now() + COLLECT;
        let (mut events, mut missed, mut has_gap, mut is_open) = (Vec::new(), 0, false, true);
        while let Ok(event) = timeout_at(deadline, subscription.next()).await {
            match event {
                None => {
                    is_open = false;
                    break;
                }
                Some(JobEvent { kind: JobEventKind::Missed(count), .. }) => {
                    (missed, has_gap) = (missed + count, true);
                }
                Some(event) if events.len() < EVENTS_MAX => events.push(event),
                Some(_) => missed += 1,
            }
        }
        let Some(feed) = feed.upgrade() else { return false };
        if !events.is_empty() || missed > 0 || has_gap {
            feed.send(Batch::new(events, missed, has_gap));
        }
        if !feed.goes_on() {
            return false;
        }
        if !is_open {
            return true;
        }
    }
}

impl Batch {
    fn new(events: Vec<JobEvent>, missed: u64, has_gap: bool) -> Self {
        let encoded = |shows_errors| {
            let events = events.iter().filter_map(|event| Event::of(event, shows_errors)).collect();
            message(&Events { events, missed }, has_gap)
        };
        let (with_errors, without_errors) = (encoded(true), encoded(false));
        Self { events, missed, has_gap, with_errors, without_errors }
    }

    /// Returns the message for a stream, or `None` if it has nothing for it.
    pub(crate) fn frame(&self, wanted: &Wanted, shows_errors: bool) -> Option<Bytes> {
        if wanted.types.is_empty() && wanted.chain.is_none() {
            let all = if shows_errors { &self.with_errors } else { &self.without_errors };
            return Some(all.clone());
        }
        let events = self.events.iter().filter(|event| wanted.matches(event));
        let events: Vec<_> = events.filter_map(|event| Event::of(event, shows_errors)).collect();
        let has_content = !events.is_empty() || self.missed > 0 || self.has_gap;
        has_content.then(|| message(&Events { events, missed: self.missed }, self.has_gap))
    }
}

/// Encodes events. After a gap, `resync` asks the client to fetch again what it shows.
fn message(events: &Events, has_gap: bool) -> Bytes {
    let resync = || frame("resync", &serde_json::json!({}));
    match (has_gap, events.events.is_empty() && events.missed == 0) {
        (true, true) => resync(),
        (true, false) => [resync(), frame("jobs", events)].concat().into(),
        (false, _) => frame("jobs", events),
    }
}

impl Wanted {
    fn matches(&self, event: &JobEvent) -> bool {
        let is_type = event.chain_type.as_ref().is_some_and(|name| self.types.contains(name));
        let is_chain = match (&self.chain, event.chain) {
            (Some(wanted), Some(chain)) => *wanted == chain.to_string(),
            (None, _) => true,
            (Some(_), None) => false,
        };
        (self.types.is_empty() || is_type) && is_chain
    }
}

impl Event {
    fn of(event: &JobEvent, shows_errors: bool) -> Option<Self> {
        let error = event.error.clone().filter(|_| shows_errors);
        Some(Self {
            kind: Kind::of(event.kind)?,
            chain: event.chain.map(|chain| chain.to_string()),
            chain_type: event.chain_type.clone(),
            key: event.key.clone(),
            attempt: event.attempt,
            worker: event.worker.map(|worker| worker.to_string()),
            error_hidden: event.error.is_some() && error.is_none(),
            error,
        })
    }
}

impl Kind {
    const fn of(kind: JobEventKind) -> Option<Self> {
        Some(match kind {
            JobEventKind::Created => Self::Created,
            JobEventKind::Started => Self::Started,
            JobEventKind::Retrying => Self::Retrying,
            JobEventKind::Rescheduled => Self::Rescheduled,
            JobEventKind::Released => Self::Released,
            JobEventKind::Reaped => Self::Reaped,
            JobEventKind::Completed => Self::Completed,
            JobEventKind::Failed => Self::Failed,
            JobEventKind::Cancelled => Self::Cancelled,
            JobEventKind::Reopened => Self::Reopened,
            JobEventKind::ConsumerStarted => Self::WorkerStarted,
            JobEventKind::ConsumerStopped => Self::WorkerStopped,
            JobEventKind::Error => Self::Error,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_reaches_streams_with_a_filter() {
        let wanted = Wanted { types: vec!["mail".to_owned()], chain: None };
        assert_eq!(Batch::new(Vec::new(), 0, false).frame(&wanted, true), None);
        for wanted in [wanted, Wanted::default()] {
            let gap = Batch::new(Vec::new(), 0, true).frame(&wanted, true).unwrap();
            assert!(gap.starts_with(b"event: resync\n"), "{gap:?}");
        }
    }
}
