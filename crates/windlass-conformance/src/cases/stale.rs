//! Stale attempts change nothing, and a repeated command takes effect only once.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!("stale.reaped", "An attempt whose job was reaped changes nothing.", ["never 2", "B4.11"], reaped),
    case!(
        "stale.taken_over",
        "An attempt whose job is held by another attempt changes nothing.",
        ["never 2", "B4.11", "B4.12"],
        taken_over
    ),
    case!(
        "stale.closed",
        "An attempt whose job was closed by another attempt changes nothing.",
        ["never 2", "B4.11"],
        closed
    ),
    case!(
        "stale.same_worker",
        "Fences distinguish two attempts of the same worker.",
        ["never 2"],
        same_worker
    ),
    case!(
        "stale.future_fence",
        "An attempt with a fence that was never issued is lost.",
        ["never 2"],
        future_fence
    ),
    case!(
        "stale.other_kind",
        "An attempt that was settled is lost for a different outcome.",
        ["never 2"],
        other_kind
    ),
    case!(
        "repeat.settle",
        "A repeated settlement of any kind is already applied and takes effect once.",
        ["never 12", "SA-CJ08"],
        settle
    ),
    case!(
        "repeat.settle.later",
        "A settlement is recognized after later attempts.",
        ["never 12"],
        settle_later
    ),
    case!(
        "repeat.settle.last_attempt",
        "A repeated retry that failed the job is already applied.",
        ["never 12"],
        settle_last_attempt
    ),
    case!(
        "repeat.settle.history",
        "Settlements are recognized for as many attempts as the history keeps.",
        ["never 12"],
        settle_history
    ),
    case!(
        "repeat.settle.closed_chain",
        "A settlement is recognized for a long time after its chain closed.",
        ["never 12"],
        settle_closed_chain
    ),
    case!(
        "repeat.settle.same_batch",
        "A settlement that is listed twice in one command is applied once.",
        ["SA-CJ19"],
        settle_same_batch
    ),
    case!(
        "repeat.settle.carried",
        "A repeated settlement creates its carried chains once.",
        ["never 12"],
        settle_carried
    ),
];

/// Returns an attempt that lost its job because the lease expired.
async fn stale(s: &Subject) -> Acquired {
    let attempt = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    assert_eq!(s.reap().await.reaped.len(), 1);
    attempt
}

/// Returns one outcome of each kind.
fn outcomes(s: &Subject) -> [Outcome; 6] {
    let carried = vec![s.start("carried").build()];
    let next = s.start("next").next_job();
    [
        complete_with_chains("1", carried.clone()),
        continue_with_chains(next, carried),
        retry("no"),
        reschedule_after(0),
        fail("no"),
        release(),
    ]
}

async fn reaped(s: Subject) {
    let id = s.start("a").await;
    let attempt = stale(&s).await;
    let before = s.chain(id).await;
    for outcome in outcomes(&s) {
        assert_eq!(s.settle(&attempt, outcome).await, Settled::Lost(Lost::Requeued));
    }
    assert_eq!(s.chain(id).await, before);
    s.expect_none_due("carried").await;
}

async fn taken_over(s: Subject) {
    let id = s.start("a").await;
    let attempt = stale(&s).await;
    let present = s.through_other().acquire_one("a").await;
    let before = s.chain(id).await;
    for outcome in outcomes(&s) {
        assert_eq!(s.settle(&attempt, outcome).await, Settled::Lost(Lost::TakenOver));
    }
    assert_eq!((s.chain(id).await, before.latest.fence), (before, present.job.fence));
    s.expect_none_due("carried").await;
    s.complete(&present, "2").await;
    assert_eq!(s.chain(id).await.output(), Some(&json("2")));
}

async fn closed(s: Subject) {
    let id = s.start("a").await;
    let attempt = stale(&s).await;
    s.through_other().work("a", complete("2")).await;
    let before = s.chain(id).await;
    for outcome in outcomes(&s) {
        assert_eq!(s.settle(&attempt, outcome).await, Settled::Lost(Lost::Closed(ClosedAs::Completed)));
    }
    assert_eq!(s.chain(id).await, before);
    s.expect_none_due("carried").await;
}

async fn same_worker(s: Subject) {
    s.start("a").await;
    let old = stale(&s).await;
    let new = s.acquire_one("a").await;
    assert_eq!(s.settle(&old, complete("old")).await, Settled::Lost(Lost::TakenOver));
    s.complete(&new, "new").await;
    assert_eq!(s.job(new.job.id).await.output, Some(json("new")));
}

async fn future_fence(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let mut early = attempt.clone();
    early.job.fence = attempt.job.fence.next();
    assert!(
        matches!(s.settle(&early, complete("1")).await, Settled::Lost(_)),
        "the fence was not issued yet"
    );
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
}

async fn other_kind(s: Subject) {
    s.start("a").await;
    let attempt = s.work("a", retry("no")).await;
    assert_eq!(s.settle(&attempt, complete("1")).await, Settled::Lost(Lost::Requeued));
    s.work("a", complete("2")).await;
    let id = s.start("a").await;
    let attempt = s.work("a", complete("3")).await;
    assert_eq!(s.settle(&attempt, fail("no")).await, Settled::Lost(Lost::Closed(ClosedAs::Completed)));
    assert_eq!(s.settle(&attempt, release()).await, Settled::Lost(Lost::Closed(ClosedAs::Completed)));
    assert_eq!(s.chain(id).await.output(), Some(&json("3")));
}

async fn settle(s: Subject) {
    for (outcome, index) in outcomes(&s).into_iter().zip(0..) {
        let name = format!("type {index}");
        let id = s.start(&name).await;
        let attempt = s.work(&name, outcome.clone()).await;
        let before = s.chain(id).await;
        let reply = s.through_other().settle_reply(&attempt, outcome.clone()).await;
        assert!(matches!(reply.settled[..], [Settled::AlreadyApplied(_)]), "{outcome:?}: {reply:?}");
        assert_eq!((s.chain(id).await, reply.ripple), (before, Ripple::default()));
    }
    assert_eq!(s.acquire("next", 10).await.len(), 1);
}

async fn settle_later(s: Subject) {
    let id = s.start("a").await;
    let first = s.work("a", retry("no")).await;
    let second = s.acquire_one("a").await;
    s.repeat(&first, retry("no")).await;
    s.complete(&second, "1").await;
    s.repeat(&first, retry("no")).await;
    s.expect_status(id, Status::Completed).await;
}

async fn settle_last_attempt(s: Subject) {
    let id = s.start("a").max_attempts(1).await;
    let attempt = s.work("a", retry("no")).await;
    s.repeat(&attempt, retry("no")).await;
    s.expect_status(id, Status::Failed).await;
}

async fn settle_history(s: Subject) {
    s.start("a").await;
    let mut attempts = Vec::new();
    for _ in 0..limit::HISTORY_MAX {
        attempts.push(s.work("a", retry("no")).await);
    }
    for attempt in &attempts {
        s.repeat(attempt, retry("no")).await;
    }
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn settle_closed_chain(s: Subject) {
    s.start("a").retention(0).await;
    let attempt = s.work("a", complete("1")).await;
    s.advance(limit::REPEAT_WINDOW_MS - 1);
    s.expire().await;
    s.repeat(&attempt, complete("1")).await;
}

async fn settle_same_batch(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let item = settlement(&attempt, continue_with(s.start("b").next_job()));
    let reply = s.run(Settle { settlements: vec![item.clone(), item] }).await;
    assert!(matches!(reply.settled[0], Settled::Applied(_)), "{reply:?}");
    assert!(matches!(reply.settled[1], Settled::AlreadyApplied(_)), "{reply:?}");
    assert_eq!((s.chain(id).await.latest.index, s.acquire("b", 10).await.len()), (1, 1));
}

async fn settle_carried(s: Subject) {
    s.start("a").await;
    let outcome = complete_with_chains("1", vec![s.start("b").build()]);
    let attempt = s.work("a", outcome.clone()).await;
    s.repeat(&attempt, outcome).await;
    assert_eq!(s.acquire("b", 10).await.len(), 1);
}
