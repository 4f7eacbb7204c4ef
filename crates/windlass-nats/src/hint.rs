//! The subjects of topics.

use std::fmt::Write;

use windlass_core::{Topic, TypeName};

/// Returns the subject of a topic, without the prefix.
pub(crate) fn subject(topic: &Topic) -> String {
    match topic {
        Topic::Scheduled(job_type) => format!("scheduled.{}", token(job_type)),
        Topic::ChainClosed(chain) => format!("closed.{chain}"),
        Topic::OwnershipLost(worker) => format!("lost.{worker}"),
        Topic::Events => "events".to_owned(),
        Topic::Schedules => "schedules".to_owned(),
        Topic::EventSubscribers => "event-subscribers".to_owned(),
        // A topic kind that is newer than this version. Nothing is published on this subject.
        _ => "unknown".to_owned(),
    }
}

/// Encodes a type name for a subject or key, where dots, asterisks and spaces have a meaning.
pub(crate) fn token(job_type: &TypeName) -> String {
    job_type.as_str().bytes().fold(String::new(), |mut token, byte| {
        // Writing to a string cannot fail.
        let _ = write!(token, "{byte:02x}");
        token
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_name_is_escaped_in_a_subject() {
        let subject = subject(&Topic::Scheduled(TypeName::new("a.*>").unwrap()));
        assert_eq!(subject, "scheduled.612e2a3e");
    }
}
