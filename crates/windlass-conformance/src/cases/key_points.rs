//! Deduplication keys: which chain a key points at. It may point at a chain that no longer holds it.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "key.points.closed",
        "A key points at its closed chain, whether or not the chain still holds it.",
        ["never 6"],
        closed
    ),
    case!(
        "key.points.retention",
        "A key points at its closed chain until the retention for that outcome ends, removed or not.",
        ["never 6", "B4.7"],
        retention
    ),
    case!(
        "key.points.latest",
        "A key points at the latest chain that was stored with it, not at an earlier one.",
        ["never 6"],
        latest
    ),
    case!(
        "key.points.not_back",
        "After its chain is removed, a key does not point at an earlier chain again.",
        ["never 6"],
        not_back
    ),
    case!(
        "key.points.met",
        "A creation that is refused, or that returns the holder of its key, does not change the key.",
        ["SA-CJ07"],
        met
    ),
    case!(
        "key.points.continued",
        "A key points at a chain that continues, throughout its jobs and after it closes.",
        ["A8.3"],
        continued
    ),
    case!(
        "key.points.failed_at_once",
        "A key points at a chain that failed on creation.",
        ["never 6"],
        failed_at_once
    ),
    case!(
        "key.points.set_retention",
        "The retention of a failed chain can be set by its key.",
        ["B4.8"],
        [SetRetention],
        set_retention
    ),
    case!(
        "key.points.cancelled",
        "A repeated cancel by key finds the chain that it closed.",
        ["never 12"],
        [Cancel],
        cancelled
    ),
    case!(
        "key.points.trigger",
        "A job can be triggered by its chain's key after the key's window has ended.",
        ["contract"],
        [Trigger],
        trigger
    ),
    case!(
        "key.points.deleted",
        "A key whose chain was deleted points at no chain, and the next chain can take it.",
        ["never 6"],
        [Delete],
        deleted
    ),
    case!(
        "key.points.retried",
        "A retried chain takes its key back from a chain that no longer holds it.",
        ["never 6"],
        [Retry],
        retried
    ),
];

async fn points_at(s: &Subject, chain: ChainId) -> bool {
    s.chain(chain).await.key.expect("the chain has a key").held
}

async fn closed(s: Subject) {
    for hold in [KeyHold::Open, KeyHold::Completed, KeyHold::CompletedOrFailed, KeyHold::Any] {
        for (outcome, closed_as) in [(complete("1"), ClosedAs::Completed), (fail("no"), ClosedAs::Failed)] {
            let name = format!("{hold:?} {closed_as:?}");
            let id = s.start(&name).key("k").hold(hold).await;
            s.work(&name, outcome).await;
            assert_eq!(s.by_key(&name, "k").await, Some(id), "{name}");
            assert_eq!(s.through_other().by_key(&name, "k").await, Some(id), "{name}");
            assert!(points_at(&s, id).await, "{name}: the key still points at it");
        }
    }
}

async fn retention(s: Subject) {
    let spans = Retention { completed: millis(9 * HOUR), failed: millis(HOUR), cancelled: millis(9 * HOUR) };
    let id = s.start("a").key("k").retentions(spans).await;
    s.work("a", fail("no")).await;
    s.advance(HOUR - 1);
    assert_eq!(s.by_key("a", "k").await, Some(id));
    s.advance(1);
    assert_eq!(s.by_key("a", "k").await, None);
    assert!(s.find_chain(id).await.is_some(), "it was not removed yet");
    let second = s.start("a").key("k").await;
    assert_eq!(s.by_key("a", "k").await, Some(second));
    s.expire().await;
    assert_eq!((s.find_chain(id).await, s.by_key("a", "k").await), (None, Some(second)));
}

async fn latest(s: Subject) {
    let mut former = Vec::new();
    for _ in 0..3 {
        let id = s.start("a").key("k").await;
        assert_eq!(s.by_key("a", "k").await, Some(id));
        s.work("a", complete("1")).await;
        for chain in &former {
            assert!(!points_at(&s, *chain).await, "the key no longer points at {chain}");
        }
        former.push(id);
    }
    let other = s.start("a").key("l").await;
    assert_eq!((s.by_key("a", "l").await, s.by_key("a", "k").await), (Some(other), Some(former[2])));
}

async fn not_back(s: Subject) {
    let first = s.start("a").key("k").retention(24 * HOUR).await;
    s.work("a", complete("1")).await;
    s.start("a").key("k").retention(HOUR).await;
    s.work("a", complete("2")).await;
    s.advance(2 * HOUR);
    assert_eq!(s.by_key("a", "k").await, None, "the later chain's retention is over");
    assert_eq!(s.expire().await.chains.len(), 1);
    assert_eq!((s.by_key("a", "k").await, points_at(&s, first).await), (None, false));
}

async fn met(s: Subject) {
    let id = s.start("a").key("k").hold(KeyHold::Any).await;
    assert_eq!(existing(s.start("a").key("k").created().await).chain, id);
    s.work("a", complete("1")).await;
    assert_eq!(existing(s.start("a").key("k").created().await).chain, id);
    assert_eq!((s.by_key("a", "k").await, points_at(&s, id).await), (Some(id), true));
    let free = s.start("b").key("k").await;
    s.work("b", complete("1")).await;
    let missing = ChainId::new();
    let refused = s.start("b").key("k").blocked_by([missing]).created().await;
    assert_eq!(refused, Created::Refused(Refusal::BlockerNotFound(missing)));
    assert_eq!((s.by_key("b", "k").await, points_at(&s, free).await), (Some(free), true));
}

async fn continued(s: Subject) {
    let id = s.start("a").key("k").await;
    s.work("a", continue_with(s.start("b").next_job())).await;
    assert_eq!(s.by_key("a", "k").await, Some(id));
    s.work("b", fail("no")).await;
    let found = s.find_chain(Target::Key(type_name("a"), key("k"))).await.unwrap();
    assert_eq!((found.id, found.status(), found.latest.index), (id, Status::Failed, 1));
}

async fn failed_at_once(s: Subject) {
    let blocker = s.start("b").await;
    s.work("b", fail("no")).await;
    let id = s.start("a").key("k").blocked_by([blocker]).on_failure(OnBlockerFailure::Fail).await;
    assert_eq!(s.by_key("a", "k").await, Some(id));
    let second = s.start("a").key("k").await;
    assert_eq!((s.by_key("a", "k").await, points_at(&s, id).await), (Some(second), false));
}

async fn set_retention(s: Subject) {
    let id = s.start("a").key("k").hold(KeyHold::Completed).retention(HOUR).await;
    s.work("a", fail("no")).await;
    let chains = vec![Target::Key(type_name("a"), key("k"))];
    let reply = s.run(SetRetention { chains, retention: millis(5 * HOUR) }).await;
    assert_eq!(reply.chains, [RetentionSet::Until(s.now() + millis(5 * HOUR))]);
    s.advance(5 * HOUR - 1);
    assert_eq!(s.by_key("a", "k").await, Some(id));
    s.advance(1);
    assert_eq!(s.by_key("a", "k").await, None);
}

async fn cancelled(s: Subject) {
    let id = s.start("a").key("k").await;
    let request =
        || Cancel { chains: vec![Target::Key(type_name("a"), key("k"))], mode: CancelMode::UnlessRunning };
    assert_eq!(s.run(request()).await.chains, [Cancelled::Cancelled { chain: id, job: id.first_job() }]);
    let again = s.run(request()).await;
    assert_eq!(again.chains, [Cancelled::Closed { chain: id, closed_as: ClosedAs::Cancelled }]);
    assert_eq!(again.ripple, Ripple::default());
}

async fn trigger(s: Subject) {
    let id = s.start("a").key("k").window(1_000).after(HOUR).await;
    s.advance(2_000);
    let jobs = vec![Target::Key(type_name("a"), key("k"))];
    let TriggerReply::Triggered(triggered) = s.run(Trigger { jobs }).await else { panic!("it is pending") };
    assert_eq!((triggered.len(), triggered[0].job.chain), (1, id));
    s.acquire_one("a").await;
}

async fn deleted(s: Subject) {
    let first = s.start("a").key("k").await;
    s.work("a", complete("1")).await;
    let second = s.start("a").key("k").await;
    let reply = s.run(Delete { chains: vec![second.into()], cascade: false, seen: None }).await;
    assert!(matches!(reply, DeleteReply::Deleted(_)), "{reply:?}");
    assert_eq!((s.by_key("a", "k").await, points_at(&s, first).await), (None, false));
    let third = s.start("a").key("k").await;
    assert_eq!(s.by_key("a", "k").await, Some(third));
}

async fn retried(s: Subject) {
    let first = s.start("a").key("k").await;
    s.work("a", fail("no")).await;
    let second = s.start("a").key("k").await;
    s.work("a", complete("1")).await;
    let failed = s.chain(first).await.latest;
    let reply = s.run(Retry { chains: vec![RetryTarget { job: failed.id, version: failed.version }] }).await;
    assert!(matches!(reply.chains[0], Retried::Retried { .. }), "{reply:?}");
    assert_eq!(s.by_key("a", "k").await, Some(first));
    assert_eq!((points_at(&s, first).await, points_at(&s, second).await), (true, false));
    assert_eq!(existing(s.start("a").key("k").created().await).chain, first);
}
