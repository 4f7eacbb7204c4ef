//! Pub/sub channel names. Each topic has its own channel.

use windlass_core::Topic;

/// Returns the channel name of a topic, without the namespace prefix. User-chosen names come last.
pub(crate) fn channel(topic: &Topic) -> String {
    match topic {
        Topic::Scheduled(job_type) => format!("scheduled:{job_type}"),
        Topic::ChainClosed(chain) => format!("closed:{chain}"),
        Topic::OwnershipLost(worker) => format!("lost:{worker}"),
        Topic::Events => "events".to_owned(),
        Topic::Schedules => "schedules".to_owned(),
        Topic::EventSubscribers => "event-subscribers".to_owned(),
        // `Topic` is non-exhaustive. Topics that this version does not know share one channel.
        _ => "unknown".to_owned(),
    }
}
