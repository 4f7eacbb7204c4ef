//! Hints as messages. A subject has the hints of one topic.

use std::fmt::Write;

use bytes::Bytes;
use windlass_core::{Hint, Timestamp, Topic, TypeName};

/// The last parts of a subject.
pub(crate) fn subject(topic: &Topic) -> String {
    match topic {
        Topic::Scheduled(job_type) => format!("scheduled.{}", token(job_type)),
        Topic::ChainClosed(chain) => format!("closed.{chain}"),
        Topic::OwnershipLost(worker) => format!("lost.{worker}"),
        Topic::Events => "events".to_owned(),
        // A kind of topic that is newer than this code has nobody who publishes there.
        _ => "unknown".to_owned(),
    }
}

/// The name of a type as a part of a subject or key, where dots, stars and spaces would mean something.
pub(crate) fn token(job_type: &TypeName) -> String {
    job_type.as_str().bytes().fold(String::new(), |mut token, byte| {
        // Writing to a text does not fail.
        let _ = write!(token, "{byte:02x}");
        token
    })
}

/// What a hint says beyond its topic.
pub(crate) fn encoded(hint: &Hint) -> Bytes {
    match hint {
        Hint::Scheduled { count, due_at, .. } => format!("{count} {}", due_at.as_millis()).into(),
        Hint::OwnershipLost { job, .. } => job.to_string().into(),
        Hint::Event(event) => event.clone(),
        _ => Bytes::new(),
    }
}

/// The hint that a message means; none if it is a newer version's.
pub(crate) fn decoded(topic: &Topic, message: &Bytes) -> Option<Hint> {
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
        Topic::Events => Hint::Event(message.clone()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use windlass_core::{ChainId, JobId, WorkerId};

    use super::*;

    #[test]
    fn hints_come_back_as_they_were() {
        let job_type = TypeName::new("a.type >with * — more").unwrap();
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
    fn a_types_name_means_nothing_in_a_subject() {
        let subject = subject(&Topic::Scheduled(TypeName::new("a.*>").unwrap()));
        assert_eq!(subject, "scheduled.612e2a3e");
    }
}
