//! The notifier cases. A hint may arrive more than once, so each case reads until it has seen the hint that it waits
//! for. To check that a hint does not arrive, a case publishes a later hint that must arrive and checks what came
//! before it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a case fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use windlass_core::{
    ChainId, ErrorKind, Hint, JobId, Notifier, Signal, Subscription, Timestamp, Topic, WorkerId,
};

use super::{NotifierCase, NotifierSubject};
use crate::outcome::type_name;

/// Builds a case from an id, a sentence, its sources, whether it needs a wake budget, and an async function.
macro_rules! case {
    ($id:literal, $name:literal, [$($source:literal),*], $budget:literal, $run:path) => {
        NotifierCase {
            id: $id,
            name: $name,
            sources: &[$($source),*],
            needs_wake_budget: $budget,
            run: |subject| Box::pin($run(subject)),
        }
    };
    ($id:literal, $name:literal, [$($source:literal),*], $run:path) => {
        case!($id, $name, [$($source),*], false, $run)
    };
}

pub(super) const CASES: &[NotifierCase] = &[
    case!("scheduled.delivered", "A hint reaches the subscribers of its job type.", ["NA-001"], scheduled),
    case!("scheduled.many", "Several hints all arrive.", ["NA-002"], many),
    case!("scheduled.other_type", "Hints of other types are not delivered.", ["NA-003"], other_type),
    case!(
        "scheduled.several_types",
        "A subscription to several types receives the hints of each.",
        ["NA-004"],
        several_types
    ),
    case!(
        "scheduled.hostile_names",
        "Type names with special characters are distinguished.",
        ["NA-003", "B4.31", "B4.25"],
        hostile_names
    ),
    case!(
        "scheduled.unsubscribed",
        "Publishing a hint without subscribers is not an error.",
        ["NA-006"],
        unsubscribed
    ),
    case!(
        "chain_closed.delivered",
        "The end of a chain is delivered to its subscribers only.",
        ["NA-010", "NA-011"],
        chain_closed
    ),
    case!(
        "ownership_lost.delivered",
        "The loss of a job is delivered to the worker that runs it, and to no other.",
        ["NA-014", "NA-015"],
        ownership_lost
    ),
    case!(
        "ownership_lost.every_job",
        "One subscription of a worker receives the loss of each of its jobs.",
        ["NA-014", "NA-016"],
        every_job
    ),
    case!(
        "events.delivered",
        "Events are delivered to their subscribers byte for byte.",
        ["contract"],
        events
    ),
    case!(
        "event_subscribers.delivered",
        "Announcements of event subscribers, and requests for them, are delivered.",
        ["issue: events across processes, without a flag"],
        event_subscribers
    ),
    case!(
        "subscription.two",
        "Two subscriptions to the same topic both receive its hints.",
        ["NA-012", "NA-016", "B4.10"],
        two_subscriptions
    ),
    case!("subscription.live", "A subscription is active when `subscribe` returns.", ["NA-001"], live),
    case!(
        "subscription.ended",
        "A subscription that ended does not affect publishers, and a later one receives later hints.",
        ["NA-005", "NA-013", "NA-017", "NA-019", "NA-020"],
        ended
    ),
    case!(
        "subscription.one_of_two",
        "When one of two subscriptions ends, the other continues.",
        ["NA-021", "B4.10"],
        one_of_two
    ),
    case!(
        "subscription.unread",
        "An unread subscription delays no one, and is notified of the hints that it missed.",
        ["NA-022"],
        unread
    ),
    case!("subscription.timely", "Hints arrive while others are still being published.", ["NA-018"], timely),
    case!("subscription.empty", "A subscription without topics is refused.", ["NA-003"], empty),
    case!("wake.no_budget", "If a type has no wake budget, all workers wake.", ["NA-007"], no_budget),
    case!("wake.budget", "As many workers wake as jobs were scheduled.", ["NA-008", "A8.13"], true, budget),
    case!("wake.sum", "The budgets of several hints add up.", ["NA-009"], true, sum),
    case!("wake.per_type", "Each type has its own wake budget.", ["NA-008"], true, per_type),
    case!(
        "wake.race",
        "Concurrent claims are granted as many times as the budget allows.",
        ["NA-008"],
        true,
        race
    ),
    case!(
        "close.later_calls",
        "A closed notifier returns errors of kind `Closed`, and closing it again does nothing.",
        ["NA-024"],
        close
    ),
    case!(
        "close.subscriptions",
        "Closing the notifier ends its subscriptions, which may be dropped before or after.",
        ["NA-024"],
        close_subscriptions
    ),
];

fn job_scheduled(name: &str, count: u32) -> Hint {
    Hint::Scheduled { job_type: type_name(name), count, due_at: Timestamp::from_millis(1_000).unwrap() }
}

fn ownership_lost_of(worker: WorkerId) -> Hint {
    Hint::OwnershipLost { worker, job: JobId::new() }
}

async fn subscribe(notifier: &Arc<dyn Notifier>, topics: Vec<Topic>) -> Subscription {
    notifier.subscribe(topics).await.expect("subscribing works")
}

async fn publish(notifier: &Arc<dyn Notifier>, hint: &Hint) {
    notifier.publish(hint.clone()).await.expect("publishing works");
}

/// Reads until the expected hint arrives. Fails the case if one of `unwanted` arrives first.
async fn expect_hint(subscription: &mut Subscription, expected: &Hint, unwanted: &[Hint]) {
    loop {
        match subscription.next().await {
            Some(Signal::Hint(hint)) if hint == *expected => return,
            Some(Signal::Hint(hint)) => assert!(!unwanted.contains(&hint), "{hint:?} was not subscribed to"),
            Some(Signal::Gap { .. }) => {}
            None => panic!("the subscription ended before {expected:?} arrived"),
        }
    }
}

/// Publishes an unwanted and a wanted hint through the other handle. Checks that only the wanted one arrives.
async fn check_apart(s: &NotifierSubject, wanted: Hint, unwanted: Hint) {
    let mut subscription = subscribe(&s.notifier, vec![wanted.topic()]).await;
    for _ in 0..3 {
        publish(&s.other, &unwanted).await;
        publish(&s.other, &wanted).await;
        expect_hint(&mut subscription, &wanted, std::slice::from_ref(&unwanted)).await;
    }
}

async fn scheduled(s: NotifierSubject) {
    let hint = job_scheduled("a", 3);
    let mut near = subscribe(&s.notifier, vec![hint.topic()]).await;
    let mut far = subscribe(&s.other, vec![hint.topic()]).await;
    publish(&s.notifier, &hint).await;
    expect_hint(&mut near, &hint, &[]).await;
    expect_hint(&mut far, &hint, &[]).await;
}

async fn many(s: NotifierSubject) {
    let mut subscription = subscribe(&s.notifier, vec![Topic::Scheduled(type_name("a"))]).await;
    let hints: Vec<_> = (1..=50).map(|count| job_scheduled("a", count)).collect();
    for hint in &hints {
        publish(&s.other, hint).await;
    }
    let mut missing = hints;
    while !missing.is_empty() {
        let Some(Signal::Hint(hint)) = subscription.next().await else {
            panic!("{missing:?} did not arrive")
        };
        missing.retain(|one| *one != hint);
    }
}

async fn other_type(s: NotifierSubject) {
    check_apart(&s, job_scheduled("a", 1), job_scheduled("b", 1)).await;
}

async fn several_types(s: NotifierSubject) {
    let topics = ["a", "b"].map(|name| Topic::Scheduled(type_name(name)));
    let mut subscription = subscribe(&s.notifier, topics.to_vec()).await;
    for name in ["b", "a", "b"] {
        publish(&s.other, &job_scheduled("c", 1)).await;
        publish(&s.other, &job_scheduled(name, 1)).await;
        expect_hint(&mut subscription, &job_scheduled(name, 1), &[job_scheduled("c", 1)]).await;
    }
}

async fn hostile_names(s: NotifierSubject) {
    let names =
        ["a", "a:b", "a.b", "a.>", "*", "a b", "A", "'", "\"a\"", "{a}", "../a", "ü", "\u{1f600}", "a\\"];
    for (index, name) in names.iter().enumerate() {
        let other = names[(index + 1) % names.len()];
        check_apart(&s, job_scheduled(name, 1), job_scheduled(other, 1)).await;
    }
    let long = "x".repeat(200);
    check_apart(&s, job_scheduled(&long, 1), job_scheduled(&long[1..], 1)).await;
}

async fn unsubscribed(s: NotifierSubject) {
    publish(&s.notifier, &job_scheduled("a", 1)).await;
    publish(&s.notifier, &Hint::ChainClosed(ChainId::new())).await;
    publish(&s.notifier, &ownership_lost_of(WorkerId::new())).await;
    publish(&s.notifier, &Hint::Event(vec![1].into())).await;
}

async fn chain_closed(s: NotifierSubject) {
    check_apart(&s, Hint::ChainClosed(ChainId::new()), Hint::ChainClosed(ChainId::new())).await;
}

async fn ownership_lost(s: NotifierSubject) {
    let worker = WorkerId::new();
    check_apart(&s, ownership_lost_of(worker), ownership_lost_of(WorkerId::new())).await;
    // A chain with the same UUID as the worker is another topic.
    check_apart(&s, ownership_lost_of(worker), Hint::ChainClosed(ChainId::from_uuid(*worker.as_uuid())))
        .await;
}

async fn every_job(s: NotifierSubject) {
    let worker = WorkerId::new();
    let mut subscription = subscribe(&s.notifier, vec![Topic::OwnershipLost(worker)]).await;
    for _ in 0..5 {
        let hint = ownership_lost_of(worker);
        publish(&s.other, &hint).await;
        expect_hint(&mut subscription, &hint, &[]).await;
    }
}

async fn events(s: NotifierSubject) {
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let mut subscription = subscribe(&s.notifier, vec![Topic::Events]).await;
    for bytes in [every_byte, Vec::new(), "ü\n\"".as_bytes().to_vec()] {
        let hint = Hint::Event(bytes.into());
        publish(&s.other, &hint).await;
        expect_hint(&mut subscription, &hint, &[]).await;
    }
}

async fn event_subscribers(s: NotifierSubject) {
    let mut subscription = subscribe(&s.notifier, vec![Topic::EventSubscribers]).await;
    for hint in [Hint::FindEventSubscribers, Hint::EventSubscriber] {
        publish(&s.other, &hint).await;
        expect_hint(&mut subscription, &hint, &[]).await;
    }
}

async fn two_subscriptions(s: NotifierSubject) {
    for hint in [Hint::ChainClosed(ChainId::new()), ownership_lost_of(WorkerId::new())] {
        let mut one = subscribe(&s.notifier, vec![hint.topic()]).await;
        let mut two = subscribe(&s.notifier, vec![hint.topic()]).await;
        publish(&s.other, &hint).await;
        expect_hint(&mut one, &hint, &[]).await;
        expect_hint(&mut two, &hint, &[]).await;
    }
}

async fn live(s: NotifierSubject) {
    for count in 1..20 {
        let hint = job_scheduled("a", count);
        let mut subscription = subscribe(&s.notifier, vec![hint.topic()]).await;
        publish(&s.other, &hint).await;
        expect_hint(&mut subscription, &hint, &[]).await;
    }
}

async fn ended(s: NotifierSubject) {
    for hint in [job_scheduled("a", 1), Hint::ChainClosed(ChainId::new()), ownership_lost_of(WorkerId::new())]
    {
        let first = subscribe(&s.notifier, vec![hint.topic()]).await;
        first.close();
        publish(&s.other, &hint).await;
        publish(&s.notifier, &hint).await;
        let mut second = subscribe(&s.notifier, vec![hint.topic()]).await;
        publish(&s.other, &hint).await;
        expect_hint(&mut second, &hint, &[]).await;
    }
}

async fn one_of_two(s: NotifierSubject) {
    let hint = Hint::ChainClosed(ChainId::new());
    let one = subscribe(&s.notifier, vec![hint.topic()]).await;
    let mut two = subscribe(&s.notifier, vec![hint.topic(), Topic::Events]).await;
    drop(one);
    publish(&s.other, &hint).await;
    expect_hint(&mut two, &hint, &[]).await;
}

async fn unread(s: NotifierSubject) {
    const HINTS: u32 = 2_000;
    let mut slow = subscribe(&s.notifier, vec![Topic::Scheduled(type_name("a"))]).await;
    let mut quick = subscribe(&s.notifier, vec![Topic::Events]).await;
    for count in 1..=HINTS {
        publish(&s.notifier, &job_scheduled("a", count)).await;
    }
    let event = Hint::Event(vec![1].into());
    publish(&s.notifier, &event).await;
    expect_hint(&mut quick, &event, &[]).await;
    let mut seen = 0;
    while seen < HINTS {
        match slow.next().await {
            Some(Signal::Hint(_)) => seen += 1,
            Some(Signal::Gap { .. }) => return,
            None => panic!("the subscription ended after {seen} hints"),
        }
    }
}

async fn timely(s: NotifierSubject) {
    let hint = job_scheduled("a", 1);
    let mut subscription = subscribe(&s.notifier, vec![hint.topic()]).await;
    let seen = Arc::new(AtomicBool::new(false));
    let (publisher, is_seen) = (Arc::clone(&s.other), Arc::clone(&seen));
    let publishing = tokio::spawn(async move {
        // Publish until the first hint has arrived. If delivery waited for the publisher to finish, neither would end.
        while !is_seen.load(Ordering::SeqCst) {
            publish(&publisher, &job_scheduled("a", 1)).await;
            tokio::task::yield_now().await;
        }
    });
    expect_hint(&mut subscription, &hint, &[]).await;
    seen.store(true, Ordering::SeqCst);
    publishing.await.unwrap();
}

async fn empty(s: NotifierSubject) {
    let subscribed = s.notifier.subscribe(Vec::new()).await;
    assert_eq!(subscribed.unwrap_err().kind(), ErrorKind::Invalid);
}

/// Makes this many claims, alternating between the handles, and returns how many are granted.
async fn granted(s: &NotifierSubject, name: &str, claims: usize) -> usize {
    let mut granted = 0;
    for turn in 0..claims {
        let notifier = if turn % 2 == 0 { &s.notifier } else { &s.other };
        granted += usize::from(notifier.claim_wake(type_name(name)).await.expect("claiming works"));
    }
    granted
}

async fn no_budget(s: NotifierSubject) {
    assert_eq!(granted(&s, "a", 10).await, 10);
}

async fn budget(s: NotifierSubject) {
    publish(&s.notifier, &job_scheduled("a", 3)).await;
    assert_eq!(granted(&s, "a", 10).await, 3);
    publish(&s.other, &job_scheduled("a", 1)).await;
    assert_eq!(granted(&s, "a", 10).await, 1);
}

async fn sum(s: NotifierSubject) {
    publish(&s.notifier, &job_scheduled("a", 2)).await;
    publish(&s.other, &job_scheduled("a", 3)).await;
    assert_eq!(granted(&s, "a", 10).await, 5);
}

async fn per_type(s: NotifierSubject) {
    publish(&s.notifier, &job_scheduled("a", 2)).await;
    publish(&s.notifier, &job_scheduled("a:b", 1)).await;
    assert_eq!(
        (granted(&s, "a", 5).await, granted(&s, "a:b", 5).await, granted(&s, "b", 5).await),
        (2, 1, 5)
    );
}

async fn race(s: NotifierSubject) {
    publish(&s.notifier, &job_scheduled("a", 7)).await;
    let workers: Vec<_> = (0..10)
        .map(|_| {
            let s = s.clone();
            tokio::spawn(async move { granted(&s, "a", 2).await })
        })
        .collect();
    let mut total = 0;
    for worker in workers {
        total += worker.await.unwrap();
    }
    assert_eq!(total, 7);
}

async fn close(s: NotifierSubject) {
    s.notifier.close().await.unwrap();
    s.notifier.close().await.unwrap();
    let published = s.notifier.publish(job_scheduled("a", 1)).await;
    assert_eq!(published.unwrap_err().kind(), ErrorKind::Closed);
    let subscribed = s.notifier.subscribe(vec![Topic::Events]).await;
    assert_eq!(subscribed.unwrap_err().kind(), ErrorKind::Closed);
    let claimed = s.notifier.claim_wake(type_name("a")).await;
    assert_eq!(claimed.unwrap_err().kind(), ErrorKind::Closed);
}

async fn close_subscriptions(s: NotifierSubject) {
    let before = subscribe(&s.notifier, vec![Topic::Events]).await;
    let mut open = subscribe(&s.notifier, vec![Topic::Events]).await;
    drop(before);
    s.notifier.close().await.unwrap();
    while open.next().await.is_some() {}
    open.close();
}
