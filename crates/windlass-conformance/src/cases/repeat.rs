//! Commands repeated after a lost reply, and second settlements with another outcome.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "repeat.settle.placed",
        "A repeated settlement returns the current state of the job.",
        ["never 12"],
        placed_now
    ),
    case!(
        "repeat.settle.last_attempt.placed",
        "Repeating a retry that used up the last attempt returns the failed job.",
        ["never 12", "A8.11"],
        last_attempt_placed
    ),
    case!(
        "repeat.settle.other_kinds",
        "An attempt that was settled with one outcome is lost for every other outcome.",
        ["never 2"],
        other_kinds
    ),
    case!(
        "repeat.settle.last_attempt.other_kinds",
        "A retry that used up the last attempt is not recognized as a failure, or the reverse.",
        ["never 2", "A8.11"],
        last_attempt_other_kinds
    ),
    case!(
        "repeat.settle.reaped",
        "A reaped attempt is not recognized as failed or retried.",
        ["never 2"],
        reaped
    ),
    case!(
        "repeat.settle.asked",
        "A repeated settlement of a job that was asked to stop returns the cancelled job.",
        ["never 12"],
        [Cancel],
        asked
    ),
    case!(
        "repeat.trigger",
        "A repeated trigger may find its job already acquired, and then changes nothing.",
        ["never 12"],
        [Trigger],
        trigger
    ),
    case!(
        "repeat.cancel",
        "A repeated cancel finds the chain closed and does not close it again.",
        ["never 12"],
        [Cancel],
        cancel
    ),
    case!(
        "repeat.cancel.ask",
        "Asking a running job to stop twice has the effect of asking once.",
        ["never 12"],
        [Cancel],
        cancel_ask
    ),
    case!(
        "repeat.delete",
        "A repeated delete finds its chains removed and deletes nothing else.",
        ["never 12"],
        [Delete],
        delete
    ),
    case!(
        "repeat.delete.create",
        "A delete erases the record of the creation: repeating the creation creates the chain again.",
        ["never 12"],
        [Delete],
        create_anew
    ),
    case!(
        "repeat.delete.fence",
        "An attempt of a deleted chain cannot change a chain created later with the same id.",
        ["never 2"],
        [Delete],
        former_life
    ),
    case!(
        "repeat.set_retention",
        "A repeated change of the retention has the same result.",
        ["never 12"],
        [SetRetention],
        set_retention
    ),
    case!(
        "repeat.retry.cancelled",
        "A cancelled chain is retried once, however often the retry is repeated.",
        ["never 12"],
        [Retry, Cancel],
        retry_cancelled
    ),
    case!(
        "repeat.outside.retried",
        "A completion from outside is recognized after its chain was retried.",
        ["never 12"],
        [Outside, Retry],
        outside_retried
    ),
];

async fn placed_now(s: Subject) {
    let id = s.start("a").await;
    let first = s.work("a", retry_after(5_000, "no")).await;
    let place = |status, due_at| JobSummary { job: first.job.id, chain: id, status, due_at };
    let due_at = s.now() + millis(5_000);
    assert_eq!(s.repeat(&first, retry_after(9_000, "other")).await, place(Status::Pending, due_at));
    s.advance(5_000);
    let second = s.acquire_one("a").await;
    assert_eq!(s.repeat(&first, retry("no")).await, place(Status::Running, due_at));
    let next = s.start("b").next_job();
    s.apply(&second, continue_with(next)).await;
    assert_eq!(s.repeat(&first, retry("no")).await, place(Status::Completed, due_at));
    let again = s.repeat(&second, continue_with(s.start("b").next_job())).await;
    assert_eq!(again, place(Status::Completed, due_at), "the settled job, not the chain's latest");
}

async fn last_attempt_placed(s: Subject) {
    let id = s.start("a").max_attempts(1).await;
    let attempt = s.work("a", retry_after(HOUR, "no")).await;
    let before = s.chain(id).await;
    let again = s.through_other().settle_reply(&attempt, retry_after(HOUR, "no")).await;
    let job =
        JobSummary { job: id.first_job(), chain: id, status: Status::Failed, due_at: attempt.job.due_at };
    assert_eq!(again, SettleReply { settled: vec![Settled::AlreadyApplied(job)], ripple: Ripple::default() });
    assert_eq!(s.chain(id).await, before);
}

/// Returns one outcome of each kind, without carried chains.
fn kinds(s: &Subject) -> [Outcome; 6] {
    let next = s.start("next").next_job();
    [complete("1"), continue_with(next), retry("no"), reschedule_after(0), fail("no"), release()]
}

async fn other_kinds(s: Subject) {
    for (index, first) in kinds(&s).into_iter().enumerate() {
        let name = format!("type {index}");
        let id = s.start(&name).await;
        let attempt = s.work(&name, first.clone()).await;
        let before = s.chain(id).await;
        for (other, second) in kinds(&s).into_iter().enumerate().filter(|(other, _)| *other != index) {
            let settled = s.settle(&attempt, second.clone()).await;
            assert!(matches!(settled, Settled::Lost(_)), "{first:?}, then {second:?} ({other}): {settled:?}");
        }
        assert_eq!(s.chain(id).await, before, "nothing was written after {first:?}");
        s.repeat(&attempt, first).await;
    }
}

async fn last_attempt_other_kinds(s: Subject) {
    let lost = Settled::Lost(Lost::Closed(ClosedAs::Failed));
    for (first, second) in [(retry("no"), fail("no")), (fail("no"), retry("no"))] {
        s.start("a").max_attempts(1).await;
        let attempt = s.work("a", first.clone()).await;
        assert_eq!(s.settle(&attempt, second).await, lost, "after {first:?}");
        s.repeat(&attempt, first).await;
    }
}

async fn reaped(s: Subject) {
    let id = s.start("a").max_attempts(1).await;
    let attempt = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    s.reap().await;
    for outcome in [retry("no"), fail("no"), release(), complete("1")] {
        assert_eq!(s.settle(&attempt, outcome).await, Settled::Lost(Lost::Closed(ClosedAs::Failed)));
    }
    s.expect_status(id, Status::Failed).await;
}

async fn asked(s: Subject) {
    for outcome in [retry("no"), release(), reschedule_after(HOUR), continue_with(s.start("b").next_job())] {
        let id = s.start("a").await;
        let attempt = s.acquire_one("a").await;
        s.run(Cancel { chains: vec![id.into()], mode: CancelMode::Ask }).await;
        s.apply(&attempt, outcome.clone()).await;
        let job = s.repeat(&attempt, outcome).await;
        assert_eq!((job.job, job.status), (attempt.job.id, Status::Cancelled));
        assert_eq!(s.settle(&attempt, fail("no")).await, Settled::Lost(Lost::Closed(ClosedAs::Cancelled)));
    }
}

async fn trigger(s: Subject) {
    let id = s.start("a").after(HOUR).await;
    let request = || Trigger { jobs: vec![id.into()] };
    for _ in 0..2 {
        let reply = s.run(request()).await;
        assert!(matches!(&reply, TriggerReply::Triggered(one) if one[0].job.due_at == s.now()), "{reply:?}");
    }
    let attempt = s.acquire_one("a").await;
    let taken = TriggerReply::Refused(vec![Some(Untriggerable::NotPending(Status::Running))]);
    assert_eq!(s.run(request()).await, taken);
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
}

async fn cancel(s: Subject) {
    let id = s.start("a").await;
    let waiting = s.start("b").blocked_by([id]).on_failure(OnBlockerFailure::Receive).await;
    let request = || Cancel { chains: vec![id.into()], mode: CancelMode::Ask };
    let first = s.run(request()).await;
    assert_eq!((first.ripple.closed.len(), first.ripple.unblocked.len()), (1, 1));
    let before = s.chain(id).await;
    s.advance(1_000);
    let again = s.through_other().run(request()).await;
    assert_eq!(again.chains, [Cancelled::Closed { chain: id, closed_as: ClosedAs::Cancelled }]);
    assert_eq!((again.ripple, s.chain(id).await), (Ripple::default(), before));
    s.expect_status(waiting, Status::Pending).await;
}

async fn cancel_ask(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let request = || Cancel { chains: vec![id.into()], mode: CancelMode::Ask };
    let asked = [Cancelled::Asked { chain: id, job: attempt.job.id, worker: s.worker }];
    assert_eq!(s.run(request()).await.chains, asked);
    let before = s.job(attempt.job.id).await;
    assert_eq!(before.version, attempt.job.version.next());
    assert_eq!(s.run(request()).await.chains, asked);
    assert_eq!(s.job(attempt.job.id).await, before);
}

async fn delete_one(s: &Subject, chain: ChainId) -> usize {
    match s.run(Delete { chains: vec![chain.into()], cascade: false, seen: None }).await {
        DeleteReply::Deleted(deleted) => deleted.chains.len(),
        other => panic!("expected the chain to be deleted, got {other:?}"),
    }
}

async fn delete(s: Subject) {
    let id = s.start("a").key("k").await;
    assert_eq!(delete_one(&s, id).await, 1);
    let successor = s.start("a").key("k").await;
    assert_eq!(delete_one(&s, id).await, 0);
    s.expect_status(successor, Status::Pending).await;
}

async fn create_anew(s: Subject) {
    let chain = s.start("a").key("k").build();
    s.create(vec![chain.clone()]).await;
    s.work("a", complete("1")).await;
    delete_one(&s, chain.id).await;
    s.advance(1);
    let again = s.create(vec![chain.clone()]).await.remove(0);
    assert_eq!(summary(&again).status, Status::Pending);
    assert_eq!(s.chain(chain.id).await.created_at, s.now());
    assert_eq!(s.acquire_one("a").await.job.attempt, 1);
}

async fn former_life(s: Subject) {
    let chain = s.start("a").build();
    s.create(vec![chain.clone()]).await;
    for _ in 0..5 {
        s.work("a", retry("no")).await;
    }
    let old = s.acquire_one("a").await;
    delete_one(&s, chain.id).await;
    s.create(vec![chain.clone()]).await;
    let before = s.chain(chain.id).await;
    assert!(before.latest.fence > old.job.fence, "fences start above those of the former life");
    assert_eq!(s.settle(&old, complete("old")).await, Settled::Lost(Lost::Requeued));
    for _ in 0..6 {
        let new = s.acquire_one("a").await;
        assert_eq!(s.renew(&old).await, Renewed::Lost(Lost::TakenOver));
        assert_eq!(s.settle(&old, complete("old")).await, Settled::Lost(Lost::TakenOver));
        s.apply(&new, retry("no")).await;
    }
    assert_eq!(
        s.settle(&old, retry("no")).await,
        Settled::Lost(Lost::Requeued),
        "the old attempt matches no recorded attempt"
    );
}

async fn set_retention(s: Subject) {
    let id = s.start("a").await;
    s.work("a", complete("1")).await;
    let request = || SetRetention { chains: vec![id.into()], retention: millis(HOUR) };
    let first = s.run(request()).await;
    let before = s.chain(id).await;
    assert_eq!((s.run(request()).await, s.chain(id).await), (first, before));
}

async fn retry_cancelled(s: Subject) {
    let id = s.start("a").await;
    s.run(Cancel { chains: vec![id.into()], mode: CancelMode::Ask }).await;
    let cancelled = s.chain(id).await.latest;
    let request = || Retry { chains: vec![RetryTarget { job: cancelled.id, version: cancelled.version }] };
    let reply = s.run(request()).await;
    assert!(matches!(reply.chains[0], Retried::Retried { .. }), "{reply:?}");
    assert_eq!(s.run(request()).await.chains, [Retried::AlreadyRetried]);
    s.run(Cancel { chains: vec![id.into()], mode: CancelMode::Ask }).await;
    assert_eq!(s.run(request()).await.chains, [Retried::AlreadyRetried], "the caller saw another end");
    s.expect_status(id, Status::Cancelled).await;
}

async fn outside_retried(s: Subject) {
    let id = s.start("a").await;
    let job = s.chain(id).await.latest;
    let steps = vec![Step::Fail { error: ErrorText::new("no"), retention: None }];
    let outside = CompleteFromOutside { request: RequestId::new(), job: job.id, version: job.version, steps };
    let applied = s.run(outside.clone()).await;
    assert!(matches!(applied, CompleteFromOutsideReply::Applied(_)), "{applied:?}");
    let failed = s.chain(id).await.latest;
    s.run(Retry { chains: vec![RetryTarget { job: failed.id, version: failed.version }] }).await;
    assert_eq!(s.run(outside.clone()).await, CompleteFromOutsideReply::AlreadyApplied);
    s.expect_status(id, Status::Pending).await;
    s.work("a", complete("1")).await;
    assert_eq!(s.run(outside).await, CompleteFromOutsideReply::AlreadyApplied);
    assert_eq!(s.chain(id).await.output(), Some(&json("1")));
}
