//! Text encoding of hints, one line each.

use std::fmt::Write;

use bytes::Bytes;
use uuid::Uuid;
use windlass_core::{ChainId, Hint, JobId, Timestamp, TypeName, WorkerId};

/// Maximum size of a notification payload. PostgreSQL requires less than 8,000 bytes.
pub(crate) const PAYLOAD_MAX_BYTES: usize = 7_900;

/// One line of a notification.
#[derive(Debug, PartialEq)]
pub(crate) enum NotificationLine {
    /// The notifier that sent the notification. The first line.
    Sender(Uuid),
    Hint(Hint),
    /// Jobs of a type were scheduled, but too many hints were queued to send each. Delivered as a gap, so that
    /// subscribers query the store.
    Collapsed(TypeName),
    /// An event was too large to send. Delivered as a gap to event subscribers.
    TooLarge,
    /// A notification that a notifier sends to itself to test its connection.
    Test(Uuid),
}

impl NotificationLine {
    /// Encodes the line: the kind, then the values. A type name comes last. It may contain spaces, but no
    /// control characters.
    pub(crate) fn encoded(&self) -> String {
        match self {
            Self::Hint(Hint::Scheduled { job_type, count, due_at }) => {
                format!("scheduled {count} {} {job_type}", due_at.as_millis())
            }
            Self::Hint(Hint::ChainClosed(chain)) => format!("closed {chain}"),
            Self::Hint(Hint::OwnershipLost { worker, job }) => format!("lost {worker} {job}"),
            Self::Hint(Hint::Event(bytes)) => {
                let mut text = String::with_capacity(6 + 2 * bytes.len());
                text.push_str("event ");
                for byte in bytes {
                    // Writing to a `String` does not fail.
                    let _ = write!(text, "{byte:02x}");
                }
                text
            }
            Self::Hint(Hint::FindEventSubscribers) => "find-event-subscribers".to_owned(),
            Self::Hint(Hint::EventSubscriber) => "event-subscriber".to_owned(),
            Self::Hint(Hint::SchedulesChanged) => "schedules".to_owned(),
            // `Hint` is non-exhaustive. Kinds that this version does not know cannot be encoded.
            Self::Hint(_) | Self::TooLarge => "too-large".to_owned(),
            Self::Collapsed(job_type) => format!("unheard {job_type}"),
            Self::Test(nonce) => format!("trial {nonce}"),
            Self::Sender(sender) => format!("from {}", sender.simple()),
        }
    }

    /// Decodes a line. Returns `None` if it is malformed or of a kind that this version does not know.
    pub(crate) fn decoded(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
        Some(match kind {
            "scheduled" => {
                let mut values = rest.splitn(3, ' ');
                let count = values.next()?.parse().ok()?;
                let due_at = Timestamp::from_millis(values.next()?.parse().ok()?).ok()?;
                let job_type = TypeName::new(values.next()?).ok()?;
                Self::Hint(Hint::Scheduled { job_type, count, due_at })
            }
            "closed" => Self::Hint(Hint::ChainClosed(rest.parse::<ChainId>().ok()?)),
            "lost" => {
                let (worker, job) = rest.split_once(' ')?;
                let (worker, job) = (worker.parse::<WorkerId>().ok()?, job.parse::<JobId>().ok()?);
                Self::Hint(Hint::OwnershipLost { worker, job })
            }
            "event" => Self::Hint(Hint::Event(bytes(rest)?)),
            "find-event-subscribers" => Self::Hint(Hint::FindEventSubscribers),
            "event-subscriber" => Self::Hint(Hint::EventSubscriber),
            "schedules" => Self::Hint(Hint::SchedulesChanged),
            "unheard" => Self::Collapsed(TypeName::new(rest).ok()?),
            "too-large" => Self::TooLarge,
            "trial" => Self::Test(rest.parse().ok()?),
            "from" => Self::Sender(rest.parse().ok()?),
            _ => return None,
        })
    }
}

fn bytes(hex: &str) -> Option<Bytes> {
    let pairs = hex.as_bytes().chunks(2);
    if !hex.len().is_multiple_of(2) {
        return None;
    }
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect::<Option<Vec<u8>>>().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip() {
        let job_type = TypeName::new("a type with: 'spaces' — and more").unwrap();
        let due_at = Timestamp::from_millis(5).unwrap();
        for line in [
            NotificationLine::Hint(Hint::Scheduled { job_type, count: 3, due_at }),
            NotificationLine::Hint(Hint::ChainClosed(ChainId::new())),
            NotificationLine::Hint(Hint::OwnershipLost { worker: WorkerId::new(), job: JobId::new() }),
            NotificationLine::Hint(Hint::Event(Bytes::from_static(b"\0\n\xff any"))),
            NotificationLine::Hint(Hint::Event(Bytes::new())),
            NotificationLine::Hint(Hint::FindEventSubscribers),
            NotificationLine::Hint(Hint::EventSubscriber),
            NotificationLine::Collapsed(TypeName::new("a b").unwrap()),
            NotificationLine::TooLarge,
            NotificationLine::Test(Uuid::now_v7()),
            NotificationLine::Sender(Uuid::now_v7()),
        ] {
            let text = line.encoded();
            assert_eq!(NotificationLine::decoded(&text), Some(line), "{text}");
        }
    }

    #[test]
    fn malformed_lines_are_ignored() {
        for text in ["", "scheduled", "scheduled x 1 a", "closed nobody", "event 0", "later 1"] {
            assert_eq!(NotificationLine::decoded(text), None, "{text}");
        }
    }
}
