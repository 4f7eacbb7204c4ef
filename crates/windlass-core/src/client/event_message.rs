//! Messages to event subscribers: the events of jobs in a form that can cross processes.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{ChainId, WorkerId};
use crate::name::{ErrorText, TypeName};
use crate::observer::{About, Event};

/// The maximum length of an error text in a message, in bytes. Some notifiers limit the size of messages. The
/// store has the full text.
const ERROR_SHOWN_BYTES: usize = 1_000;

/// A summary of an event. Unknown fields are omitted; the store has the details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventMessage {
    pub(crate) what: EventKind,
    /// The type of the job's chain. `None` if the event concerns no particular type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chain_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chain: Option<ChainId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) worker: Option<WorkerId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The number of events that were dropped before they were published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missed: Option<u64>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EventKind {
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
    ConsumerStarted,
    ConsumerStopped,
    Error,
    Missed,
    /// A kind that a newer version has added.
    #[serde(other)]
    Unknown,
}

impl EventMessage {
    /// Returns the message for an event, or `None` if the event is not published.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::ChainCreated(about) => Self::about(EventKind::Created, about),
            Event::AttemptStarted(about) => Self::about(EventKind::Started, about),
            Event::AttemptFailed(about, error, _) => Self::about(EventKind::Retrying, about).because(error),
            Event::AttemptRescheduled(about, _) => Self::about(EventKind::Rescheduled, about),
            Event::AttemptReleased(about) => Self::about(EventKind::Released, about),
            Event::AttemptReaped(about) => Self::about(EventKind::Reaped, about),
            Event::JobCompleted(about, None) => Self::about(EventKind::Completed, about),
            Event::JobFailed(about, error) => Self::about(EventKind::Failed, about).because(error),
            Event::JobCancelled(about) => Self::about(EventKind::Cancelled, about),
            Event::ChainRetried(about) => Self::about(EventKind::Reopened, about),
            Event::HookFailed(about, error) => Self::about(EventKind::Error, about).because(error),
            Event::WorkerFailed(worker, error) => {
                Self { worker: Some(worker.id), ..Self::new(EventKind::Error) }.because(error)
            }
            Event::StoreFailed(_, error) => Self::new(EventKind::Error).because(error),
            _ => return None,
        })
    }

    /// Creates a message that reports `count` dropped events.
    pub(super) fn missed(count: u64) -> Self {
        Self { missed: Some(count), ..Self::new(EventKind::Missed) }
    }

    /// Creates a message about a consumer of jobs of this type.
    pub(crate) fn consumer(what: EventKind, job_type: &TypeName, worker: WorkerId) -> Self {
        let chain_type = Some(job_type.as_str().to_owned());
        Self { chain_type, worker: Some(worker), ..Self::new(what) }
    }

    pub(crate) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Decodes a message. Returns `None` if it is invalid.
    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        serde_json::from_slice(message).ok()
    }

    const fn new(what: EventKind) -> Self {
        Self {
            what,
            chain_type: None,
            chain: None,
            key: None,
            attempt: None,
            worker: None,
            error: None,
            missed: None,
        }
    }

    fn about(what: EventKind, about: &About) -> Self {
        Self {
            chain_type: Some(about.chain_type.as_str().to_owned()),
            chain: Some(about.chain),
            key: about.key.as_ref().map(|key| key.as_str().to_owned()),
            attempt: about.attempt,
            worker: about.worker,
            ..Self::new(what)
        }
    }

    fn because(self, error: &ErrorText) -> Self {
        Self { error: Some(shortened(error.as_str()).into_owned()), ..self }
    }
}

fn shortened(error: &str) -> Cow<'_, str> {
    match error.len() {
        0..=ERROR_SHOWN_BYTES => error.into(),
        _ => format!("{}…", &error[..error.floor_char_boundary(ERROR_SHOWN_BYTES)]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_unknown_kinds_are_accepted() {
        let message = EventMessage { error: Some("\"ä\"".into()), ..EventMessage::missed(7) };
        assert_eq!(EventMessage::decode(&message.encode()), Some(message));
        let newer = br#"{"what":"something-new","colour":"red"}"#;
        assert_eq!(EventMessage::decode(newer).map(|message| message.what), Some(EventKind::Unknown));
        assert_eq!(EventMessage::decode(b"not a message"), None);
    }

    #[test]
    fn long_errors_are_shortened() {
        let long = "ß".repeat(ERROR_SHOWN_BYTES);
        assert!(shortened(&long).len() <= ERROR_SHOWN_BYTES + '…'.len_utf8());
        assert_eq!(shortened("boom"), "boom");
    }
}
