//! Deduplication keys: how long a chain holds its key.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!("key.hold.open", "By default a key is free as soon as its chain closes.", ["SA-CJ11"], hold_open),
    case!(
        "key.hold.outcomes",
        "A closed chain holds its key if its outcome is one of those that hold it.",
        ["SA-CJ11", "contract"],
        hold_outcomes
    ),
    case!(
        "key.hold.last_attempt",
        "A chain that failed in its last attempt counts as failed for its key.",
        ["contract"],
        hold_last_attempt
    ),
    case!(
        "key.window",
        "A key is held only within its window, counted from the chain's creation.",
        ["SA-CJ20"],
        window
    ),
    case!(
        "key.window.open",
        "An open chain whose window ended no longer holds its key.",
        ["SA-CJ20"],
        window_open
    ),
    case!(
        "key.window.and_hold",
        "A key is held only while both the window and the outcome hold it.",
        ["SA-CJ21"],
        window_and_hold
    ),
    case!(
        "key.window.look_up",
        "A key whose window has ended still points at its chain, open or closed.",
        ["SA-CJ20"],
        window_look_up
    ),
    case!(
        "key.retention",
        "A closed chain holds its key only until its retention ends, removed or not.",
        ["contract", "B4.7"],
        retention
    ),
    case!(
        "key.retention.look_up",
        "A key points at no chain after the closed chain's retention has ended.",
        ["B4.7"],
        retention_look_up
    ),
    case!("key.removed", "The key of a removed chain is free.", ["B4.1", "B4.7"], removed),
];

async fn hold_open(s: Subject) {
    let first = s.start("a").key("k").await;
    s.work("a", complete("1")).await;
    let second = s.start("a").key("k").await;
    assert_eq!(s.by_key("a", "k").await, Some(second));
    assert!(!s.chain(first).await.key.unwrap().held, "the key points at the new chain alone");
    assert_eq!(s.chain(first).await.output(), Some(&json("1")));
}

async fn hold_outcomes(s: Subject) {
    let holds = [KeyHold::Open, KeyHold::Completed, KeyHold::CompletedOrFailed, KeyHold::Any];
    let outcomes = [(complete("1"), ClosedAs::Completed), (fail("no"), ClosedAs::Failed)];
    for hold in holds {
        for (outcome, closed_as) in &outcomes {
            let name = format!("{hold:?} {closed_as:?}");
            let first = s.start(&name).key("k").hold(hold).await;
            s.work(&name, outcome.clone()).await;
            let created = s.start(&name).key("k").created().await;
            let expected = hold.holds(*closed_as);
            assert_eq!(
                created.chain() == Some(first),
                expected,
                "held after {closed_as:?} with {hold:?}: {created:?}"
            );
        }
    }
}

async fn hold_last_attempt(s: Subject) {
    for (hold, expected) in [(KeyHold::Completed, false), (KeyHold::CompletedOrFailed, true)] {
        let name = format!("{hold:?}");
        let first = s.start(&name).key("k").hold(hold).max_attempts(1).await;
        s.work(&name, retry("no")).await;
        assert_eq!(s.start(&name).key("k").created().await.chain() == Some(first), expected, "{hold:?}");
    }
}

async fn window(s: Subject) {
    let first = s.start("a").key("k").hold(KeyHold::Any).window(10_000).await;
    s.work("a", complete("1")).await;
    s.advance(9_999);
    assert_eq!(existing(s.start("a").key("k").created().await).chain, first);
    s.advance(2);
    s.start("a").key("k").await;
}

async fn window_open(s: Subject) {
    let first = s.start("a").key("k").window(10_000).await;
    s.advance(10_001);
    let second = s.start("a").key("k").await;
    assert_eq!(s.by_key("a", "k").await, Some(second));
    assert!(
        !s.chain(first).await.key.unwrap().held,
        "the key no longer points at the chain whose window ended"
    );
    s.expect_status(first, Status::Pending).await;
    assert_eq!(s.acquire("a", 10).await.len(), 2);
}

async fn window_and_hold(s: Subject) {
    s.start("a").key("k").hold(KeyHold::Open).window(10_000).await;
    s.work("a", complete("1")).await;
    let second = s.start("a").key("k").hold(KeyHold::Completed).window(10_000).await;
    s.work("a", fail("no")).await;
    let third = s.start("a").key("k").hold(KeyHold::Completed).window(10_000).await;
    s.work("a", complete("3")).await;
    assert_eq!(existing(s.start("a").key("k").created().await).chain, third);
    assert_ne!(second, third);
    s.advance(10_001);
    s.start("a").key("k").await;
}

async fn window_look_up(s: Subject) {
    let id = s.start("a").key("k").window(10_000).await;
    s.advance(9_999);
    assert_eq!(s.by_key("a", "k").await, Some(id));
    s.advance(2);
    assert_eq!(s.by_key("a", "k").await, Some(id));
    s.work("a", complete("1")).await;
    assert_eq!(s.by_key("a", "k").await, Some(id));
    let second = s.start("a").key("k").await;
    assert_eq!(s.by_key("a", "k").await, Some(second));
}

async fn retention(s: Subject) {
    let first = s.start("a").key("k").hold(KeyHold::Any).retention(HOUR).await;
    s.work("a", complete("1")).await;
    s.advance(HOUR - 1);
    assert_eq!(existing(s.start("a").key("k").created().await).chain, first);
    s.advance(2);
    let second = s.start("a").key("k").await;
    s.expire().await;
    assert_eq!(s.find_chain(first).await, None);
    assert_eq!(existing(s.start("a").key("k").created().await).chain, second);
}

async fn retention_look_up(s: Subject) {
    let id = s.start("a").key("k").hold(KeyHold::Any).retention(HOUR).await;
    s.work("a", complete("1")).await;
    s.advance(HOUR - 1);
    assert_eq!(s.by_key("a", "k").await, Some(id));
    s.advance(2);
    assert_eq!(s.by_key("a", "k").await, None);
}

async fn removed(s: Subject) {
    s.start("a").key("k").hold(KeyHold::Any).retention(HOUR).await;
    s.work("a", complete("1")).await;
    s.advance(2 * HOUR);
    assert_eq!(s.expire().await.chains.len(), 1);
    let second = s.start("a").key("k").await;
    assert_eq!(s.by_key("a", "k").await, Some(second));
}
