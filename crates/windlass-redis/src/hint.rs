//! Channels. Each has the hints of one topic.

use windlass_core::Topic;

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
