//! Subjects. Each has the hints of one topic.

use std::fmt::Write;

use windlass_core::{Topic, TypeName};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_types_name_means_nothing_in_a_subject() {
        let subject = subject(&Topic::Scheduled(TypeName::new("a.*>").unwrap()));
        assert_eq!(subject, "scheduled.612e2a3e");
    }
}
