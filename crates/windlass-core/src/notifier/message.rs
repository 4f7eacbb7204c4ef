//! Encoding of hints as messages.

use bytes::Bytes;

use crate::notifier::{Hint, Topic};
use crate::time::Timestamp;

/// The message of [`Hint::FindEventSubscribers`].
const FIND: &[u8] = b"find";

/// The message of [`Hint::EventSubscriber`].
const HERE: &[u8] = b"here";

/// Encoding for notifiers with a channel or subject per topic.
impl Hint {
    /// Encodes the part of the hint that its topic does not already contain.
    #[must_use]
    pub fn to_message(&self) -> Bytes {
        match self {
            Self::Scheduled { count, due_at, .. } => format!("{count} {}", due_at.as_millis()).into(),
            Self::ChainClosed(_) | Self::SchedulesChanged => Bytes::new(),
            Self::OwnershipLost { job, .. } => job.to_string().into(),
            Self::Event(event) => event.clone(),
            Self::FindEventSubscribers => Bytes::from_static(FIND),
            Self::EventSubscriber => Bytes::from_static(HERE),
        }
    }

    /// Decodes a message that was received on `topic`. Returns `None` if the message is not a hint, or is one
    /// of a newer version.
    #[must_use]
    pub fn from_message(topic: &Topic, message: &[u8]) -> Option<Self> {
        let text = || std::str::from_utf8(message).ok();
        Some(match topic {
            Topic::Scheduled(job_type) => {
                let (count, due_at) = text()?.split_once(' ')?;
                let due_at = Timestamp::from_millis(due_at.parse().ok()?).ok()?;
                Self::Scheduled { job_type: job_type.clone(), count: count.parse().ok()?, due_at }
            }
            Topic::ChainClosed(chain) => Self::ChainClosed(*chain),
            Topic::OwnershipLost(worker) => {
                Self::OwnershipLost { worker: *worker, job: text()?.parse().ok()? }
            }
            Topic::Schedules => Self::SchedulesChanged,
            Topic::Events => Self::Event(Bytes::copy_from_slice(message)),
            Topic::EventSubscribers if message == FIND => Self::FindEventSubscribers,
            Topic::EventSubscribers if message == HERE => Self::EventSubscriber,
            Topic::EventSubscribers => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ChainId, JobId, WorkerId};
    use crate::name::TypeName;

    #[test]
    fn hints_round_trip() {
        let job_type = TypeName::new("a type with: {braces} — and more").unwrap();
        for hint in [
            Hint::Scheduled { job_type, count: 3, due_at: Timestamp::from_millis(5).unwrap() },
            Hint::ChainClosed(ChainId::new()),
            Hint::OwnershipLost { worker: WorkerId::new(), job: JobId::new() },
            Hint::Event(Bytes::from_static(b"\0\n\xff any")),
            Hint::Event(Bytes::new()),
            Hint::FindEventSubscribers,
            Hint::EventSubscriber,
            Hint::SchedulesChanged,
        ] {
            assert_eq!(Hint::from_message(&hint.topic(), &hint.to_message()), Some(hint));
        }
    }

    #[test]
    fn messages_that_are_not_hints_are_ignored() {
        let scheduled = Topic::Scheduled(TypeName::new("a").unwrap());
        for message in [&b""[..], b"1", b"x 1", b"1 -1", b"\xff 1"] {
            assert_eq!(Hint::from_message(&scheduled, message), None);
        }
        let lost = Topic::OwnershipLost(WorkerId::new());
        assert_eq!(Hint::from_message(&lost, b"nobody"), None);
        assert_eq!(Hint::from_message(&Topic::EventSubscribers, b""), None);
    }
}
