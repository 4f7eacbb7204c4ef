//! Tests of announcements.

use std::time::Duration;

use super::*;
use crate::client::Client;
use crate::command::{ClosedChain, JobSummary, Ripple, Unblocked};
use crate::memory::MemoryStore;
use crate::name::TraceContext;
use crate::notifier::{InProcessNotifier, Notifier, Signal, Topic};
use crate::record::Status;

fn summary(chain: ChainId) -> JobSummary {
    let due_at = Timestamp::default();
    JobSummary { job: chain.first_job(), chain, status: Status::Pending, due_at }
}

fn closed(number: u32) -> ClosedChain {
    let chain = ChainId::new();
    let name = TypeName::new("blocker").unwrap();
    ClosedChain {
        chain,
        chain_type: name.clone(),
        job: chain.first_job(),
        job_type: name,
        closed_as: ClosedAs::Completed,
        error: None,
        created_at: Timestamp::default(),
        trace: Some(TraceContext::new(format!("blocker-{number}")).unwrap()),
    }
}

/// Returns the causes that the unblocked jobs are announced with, if this number of chains closed.
fn causes(blockers: u32) -> Vec<Vec<TraceContext>> {
    let name = TypeName::new("blocked").unwrap();
    let unblocked = Unblocked {
        job: summary(ChainId::new()),
        job_type: name.clone(),
        chain_type: name,
        traces: Vec::new(),
    };
    let closed = (0..blockers).map(closed).collect();
    let ripple = Ripple { unblocked: vec![unblocked; 2], closed, deferred: false };
    let mut announcements = Announcements::default();
    announcements.ripple(&ripple);
    let notes = announcements.notes.iter().filter_map(|note| match note {
        Note::Event(event) => match &**event {
            Event::JobUnblocked(about) => Some(about.cause_traces.clone()),
            _ => None,
        },
        _ => None,
    });
    notes.collect()
}

#[test]
fn a_job_is_linked_only_to_the_chain_that_unblocked_it() {
    let blocker = TraceContext::new("blocker-0").unwrap();
    assert_eq!(causes(1), [[blocker.clone()], [blocker]]);
    assert_eq!(causes(2), [[], []] as [[TraceContext; 0]; 2], "which one is unknown");
}

/// Whether workers learn of a change of schedules after a write that is not stored.
async fn announces_schedules(end: TxEnd) -> bool {
    let notifier = InProcessNotifier::new();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    let mut subscription = notifier.subscribe(vec![Topic::Schedules]).await.unwrap();
    let dispatcher = &client.shared.dispatcher;
    let mut announcements = Announcements::new(dispatcher);
    announcements.wrote(Written::Created(ChainId::new().first_job()));
    announcements.schedules_changed();
    assert!(announcements.end_by(end, |_| Fate::Lost, dispatcher).is_empty());
    dispatcher.flush(Duration::from_secs(60)).await;
    subscription.try_next() == Some(Signal::Hint(Hint::SchedulesChanged))
}

/// The write before it was rolled back to a savepoint.
#[tokio::test]
async fn a_change_of_schedules_does_not_share_the_fate_of_an_earlier_write() {
    assert!(announces_schedules(TxEnd::Committed).await);
    assert!(announces_schedules(TxEnd::Unknown).await);
    assert!(!announces_schedules(TxEnd::RolledBack).await);
}
