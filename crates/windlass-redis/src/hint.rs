//! Hints as messages. A channel has the hints of one topic.

use bytes::Bytes;
use windlass_core::{Hint, Timestamp, Topic};

/// The last part of a channel's name. A type's name stands at its end.
pub(crate) fn channel(topic: &Topic) -> String {
    match topic {
        Topic::Scheduled(job_type) => format!("scheduled:{job_type}"),
        Topic::ChainClosed(chain) => format!("closed:{chain}"),
        Topic::OwnershipLost(worker) => format!("lost:{worker}"),
        Topic::Events => "events".to_owned(),
        // A kind of topic that is newer than this code has nobody who publishes there.
        _ => "unknown".to_owned(),
    }
}

/// What a hint says beyond its topic.
pub(crate) fn encoded(hint: &Hint) -> Vec<u8> {
    match hint {
        Hint::Scheduled { count, due_at, .. } => format!("{count} {}", due_at.as_millis()).into_bytes(),
        Hint::OwnershipLost { job, .. } => job.to_string().into_bytes(),
        Hint::Event(event) => event.to_vec(),
        _ => Vec::new(),
    }
}

/// The hint that a message means; none if it is a newer version's.
pub(crate) fn decoded(topic: &Topic, message: &[u8]) -> Option<Hint> {
    let text = || std::str::from_utf8(message).ok();
    Some(match topic {
        Topic::Scheduled(job_type) => {
            let (count, due_at) = text()?.split_once(' ')?;
            Hint::Scheduled {
                job_type: job_type.clone(),
                count: count.parse().ok()?,
                due_at: Timestamp::from_millis(due_at.parse().ok()?).ok()?,
            }
        }
        Topic::ChainClosed(chain) => Hint::ChainClosed(*chain),
        Topic::OwnershipLost(worker) => Hint::OwnershipLost { worker: *worker, job: text()?.parse().ok()? },
        Topic::Events => Hint::Event(Bytes::copy_from_slice(message)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use windlass_core::{ChainId, JobId, TypeName, WorkerId};

    use super::*;

    #[test]
    fn hints_come_back_as_they_were() {
        let job_type = TypeName::new("a type with: {braces} — and more").unwrap();
        for hint in [
            Hint::Scheduled { job_type, count: 3, due_at: Timestamp::from_millis(5).unwrap() },
            Hint::ChainClosed(ChainId::new()),
            Hint::OwnershipLost { worker: WorkerId::new(), job: JobId::new() },
            Hint::Event(Bytes::from_static(b"\0\n\xff any")),
            Hint::Event(Bytes::new()),
        ] {
            assert_eq!(decoded(&hint.topic(), &encoded(&hint)), Some(hint));
        }
    }

    #[test]
    fn what_is_no_hint_is_passed_over() {
        let scheduled = Topic::Scheduled(TypeName::new("a").unwrap());
        for message in [&b""[..], b"1", b"x 1", b"1 -1", b"\xff 1"] {
            assert_eq!(decoded(&scheduled, message), None);
        }
        assert_eq!(decoded(&Topic::OwnershipLost(WorkerId::new()), b"nobody"), None);
    }
}
