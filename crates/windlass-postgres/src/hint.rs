//! Hints as lines of text.

use std::fmt::Write;

use bytes::Bytes;
use uuid::Uuid;
use windlass_core::{ChainId, Hint, JobId, Timestamp, TypeName, WorkerId};

/// The longest payload: PostgreSQL's limit is 8,000 bytes, not included.
pub(crate) const PAYLOAD_MAX_BYTES: usize = 7_900;

/// One line of a notification.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    Hint(Hint),
    /// More jobs of a type were scheduled than are told one by one: those who wait for it look at the store.
    Unheard(TypeName),
    /// An event that is too large to be sent: those who watch look elsewhere.
    TooLarge,
    /// A notification of a notifier to itself.
    Trial(Uuid),
}

impl Line {
    /// A word for the kind, then its values; a type's name, which has no control character, stands last.
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
                    // Writing to a text does not fail.
                    let _ = write!(text, "{byte:02x}");
                }
                text
            }
            // A kind of hint that is newer than this code has no subscribers in it.
            Self::Hint(_) | Self::TooLarge => "too-large".to_owned(),
            Self::Unheard(job_type) => format!("unheard {job_type}"),
            Self::Trial(nonce) => format!("trial {nonce}"),
        }
    }

    /// The line that a text means; none if it is not one of these, or a newer version's.
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
            "unheard" => Self::Unheard(TypeName::new(rest).ok()?),
            "too-large" => Self::TooLarge,
            "trial" => Self::Trial(rest.parse().ok()?),
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
    fn lines_come_back_as_they_were() {
        let job_type = TypeName::new("a type with: 'spaces' — and more").unwrap();
        let due_at = Timestamp::from_millis(5).unwrap();
        for line in [
            Line::Hint(Hint::Scheduled { job_type, count: 3, due_at }),
            Line::Hint(Hint::ChainClosed(ChainId::new())),
            Line::Hint(Hint::OwnershipLost { worker: WorkerId::new(), job: JobId::new() }),
            Line::Hint(Hint::Event(Bytes::from_static(b"\0\n\xff any"))),
            Line::Hint(Hint::Event(Bytes::new())),
            Line::Unheard(TypeName::new("a b").unwrap()),
            Line::TooLarge,
            Line::Trial(Uuid::now_v7()),
        ] {
            let text = line.encoded();
            assert_eq!(Line::decoded(&text), Some(line), "{text}");
        }
    }

    #[test]
    fn what_is_no_line_is_passed_over() {
        for text in ["", "scheduled", "scheduled x 1 a", "closed nobody", "event 0", "later 1"] {
            assert_eq!(Line::decoded(text), None, "{text}");
        }
    }
}
