//! Settling attempts.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "settle.complete",
        "A completion stores the output and closes the chain as completed.",
        ["SA-CP01"],
        completes
    ),
    case!("settle.complete.clears_error", "A completion clears the error.", ["SA-CP02"], clears_error),
    case!(
        "settle.complete.retention",
        "A completion or failure can set another retention.",
        ["contract"],
        retention
    ),
    case!(
        "settle.retry",
        "A retry requeues the job with its error, due after the delay.",
        ["SA-RS01", "B4.19"],
        retries
    ),
    case!("settle.retry.at", "A retry can specify a time.", ["SA-RS02"], retry_at),
    case!("settle.retry.past", "A retry whose time has passed is due now.", ["SA-RS03"], retry_past),
    case!(
        "settle.retry.last",
        "A retry after the last allowed attempt fails the job.",
        ["A8.11"],
        retry_last
    ),
    case!(
        "settle.retry.unlimited",
        "A job without a maximum is retried without limit.",
        ["A8.11"],
        retry_unlimited
    ),
    case!(
        "settle.reschedule",
        "A reschedule runs the job again at the given time and does not count the attempt.",
        ["SA-RS01", "SA-RS02"],
        reschedules
    ),
    case!(
        "settle.reschedule.error",
        "A reschedule without an error keeps the previous one.",
        ["contract"],
        reschedule_error
    ),
    case!(
        "settle.reschedule.maximum",
        "A reschedule ignores the maximum number of attempts.",
        ["contract"],
        reschedule_maximum
    ),
    case!(
        "settle.reschedule.past",
        "A reschedule whose time has passed is due now.",
        ["SA-RS03"],
        reschedule_past
    ),
    case!(
        "settle.fail",
        "A failure stores the error and closes the chain as failed, even if attempts are left.",
        ["A8.11"],
        fails
    ),
    case!(
        "settle.release",
        "A release restores the job as it was: the attempt does not count, and the due time is kept.",
        ["never 10", "B4.2"],
        releases
    ),
    case!(
        "settle.release.keeps_error",
        "A release keeps the error of the previous attempt.",
        ["never 10"],
        release_keeps_error
    ),
    case!("settle.many", "One command can settle many attempts, each with its own outcome.", ["A8.12"], many),
    case!(
        "settle.order",
        "A later settlement of a command sees the effects of an earlier one.",
        ["contract"],
        order
    ),
    case!("settle.alone", "A lost or refused settlement does not affect the others.", ["never 11"], alone),
    case!(
        "settle.expired",
        "An attempt whose lease expired but was not reaped can still be settled.",
        ["contract"],
        expired
    ),
    case!("settle.empty", "An empty settlement returns an empty reply.", ["contract"], empty),
    case!(
        "settle.error_text",
        "A long error is shortened; any other error is stored unchanged.",
        ["never 9"],
        error_text
    ),
];

async fn completes(s: Subject) {
    let id = s.start("a").retention(HOUR).await;
    let attempt = s.acquire_one("a").await;
    s.advance(1_000);
    let reply = s.settle_reply(&attempt, complete(r#"{"n":1}"#)).await;
    let job =
        JobSummary { job: attempt.job.id, chain: id, status: Status::Completed, due_at: attempt.job.due_at };
    assert_eq!(reply.settled, [Settled::Applied(Applied { job, next: None, created: Vec::new() })]);
    let chain = s.through_other().chain(id).await;
    let closed = chain.closed.unwrap();
    assert_eq!((closed.at, closed.closed_as), (s.now(), ClosedAs::Completed));
    assert_eq!(closed.retain_until, s.now() + millis(HOUR));
    let job = chain.latest;
    assert_eq!((job.status, job.output, job.lease), (Status::Completed, Some(json(r#"{"n":1}"#)), None));
    assert_eq!((job.closed_at, job.closed_by, job.attempt), (Some(s.now()), Some(s.worker), 1));
    s.expect_none_due("a").await;
}

async fn clears_error(s: Subject) {
    let id = s.start("a").await;
    s.work("a", retry("no")).await;
    assert_eq!(s.acquire_one("a").await.job.error, Some(ErrorText::new("no")));
    s.advance(LEASE.get() + 1);
    s.reap().await;
    s.work("a", complete("1")).await;
    assert_eq!(s.chain(id).await.latest.error, None);
}

async fn retention(s: Subject) {
    let span = Some(millis(2 * HOUR));
    let completion = Outcome::Complete { output: json("1"), retention: span, create: Vec::new() };
    let failure = Outcome::Fail { error: ErrorText::new("no"), retention: span };
    for outcome in [completion, failure] {
        let id = s.start("a").retention(HOUR).await;
        s.work("a", outcome).await;
        assert_eq!(s.chain(id).await.closed.unwrap().retain_until, s.now() + millis(2 * HOUR));
    }
}

async fn retries(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.advance(1_000);
    let applied = s.apply(&attempt, retry_after(5_000, "no")).await;
    let due_at = s.now() + millis(5_000);
    assert_eq!(applied.job, JobSummary { job: attempt.job.id, chain: id, status: Status::Pending, due_at });
    let job = s.through_other().job(attempt.job.id).await;
    assert_eq!((job.status, job.attempt, job.error), (Status::Pending, 1, Some(ErrorText::new("no"))));
    assert_eq!((job.lease, job.due_at, job.closed_at), (None, due_at, None));
    s.expect_none_due("a").await;
    s.advance(5_000);
    assert_eq!(s.acquire_one("a").await.job.attempt, 2);
}

async fn retry_at(s: Subject) {
    s.start("a").await;
    let schedule = DueTime::At(s.now() + millis(7_000));
    let attempt = s.work("a", Outcome::Retry { schedule, error: ErrorText::new("no") }).await;
    assert_eq!(s.job(attempt.job.id).await.due_at, s.now() + millis(7_000));
}

async fn retry_past(s: Subject) {
    s.start("a").await;
    let past = DueTime::At(s.now());
    s.advance(1_000);
    let attempt = s.work("a", Outcome::Retry { schedule: past, error: ErrorText::new("no") }).await;
    assert_eq!(s.job(attempt.job.id).await.due_at, s.now());
    s.acquire_one("a").await;
}

async fn retry_last(s: Subject) {
    let id = s.start("a").max_attempts(2).await;
    s.work("a", retry("first")).await;
    s.expect_status(id, Status::Pending).await;
    let attempt = s.acquire_one("a").await;
    let reply = s.settle_reply(&attempt, retry_after(HOUR, "second")).await;
    assert_eq!(
        reply.ripple.closed.iter().map(|closed| closed.closed_as).collect::<Vec<_>>(),
        [ClosedAs::Failed]
    );
    let job = s.job(id.first_job()).await;
    assert_eq!((job.status, job.attempt, job.error), (Status::Failed, 2, Some(ErrorText::new("second"))));
    assert_eq!((job.closed_at, job.closed_by, job.lease), (Some(s.now()), Some(s.worker), None));
    s.advance(2 * HOUR);
    s.expect_none_due("a").await;
}

async fn retry_unlimited(s: Subject) {
    s.start("a").await;
    for number in 1..=30 {
        assert_eq!(s.work("a", retry("no")).await.job.attempt, number);
    }
}

async fn reschedules(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let at = s.now() + millis(5_000);
    let applied = s.apply(&attempt, reschedule(DueTime::At(at), Some("later"))).await;
    assert_eq!(
        applied.job,
        JobSummary { job: attempt.job.id, chain: id, status: Status::Pending, due_at: at }
    );
    let job = s.job(attempt.job.id).await;
    assert_eq!((job.attempt, job.error, job.lease), (0, Some(ErrorText::new("later")), None));
    s.advance(4_999);
    s.expect_none_due("a").await;
    s.advance(1);
    let attempt = s.work("a", reschedule_after(1_000)).await;
    assert_eq!(attempt.job.attempt, 1);
    assert_eq!(s.job(attempt.job.id).await.due_at, s.now() + millis(1_000));
}

async fn reschedule_error(s: Subject) {
    s.start("a").await;
    s.work("a", retry("before")).await;
    let attempt = s.work("a", reschedule_after(0)).await;
    assert_eq!(s.job(attempt.job.id).await.error, Some(ErrorText::new("before")));
    let attempt = s.work("a", reschedule(DueTime::Now, Some("after"))).await;
    assert_eq!(s.job(attempt.job.id).await.error, Some(ErrorText::new("after")));
}

async fn reschedule_maximum(s: Subject) {
    let id = s.start("a").max_attempts(1).await;
    for _ in 0..3 {
        assert_eq!(s.work("a", reschedule_after(0)).await.job.attempt, 1);
        s.expect_status(id, Status::Pending).await;
    }
    s.work("a", retry("no")).await;
    s.expect_status(id, Status::Failed).await;
}

async fn reschedule_past(s: Subject) {
    s.start("a").await;
    let past = DueTime::At(s.now());
    s.advance(1_000);
    let attempt = s.work("a", reschedule(past, None)).await;
    assert_eq!(s.job(attempt.job.id).await.due_at, s.now());
}

async fn fails(s: Subject) {
    let id = s.start("a").max_attempts(5).retention(HOUR).await;
    s.work("a", fail("bad")).await;
    let chain = s.chain(id).await;
    let closed = chain.closed.unwrap();
    assert_eq!((closed.closed_as, closed.retain_until), (ClosedAs::Failed, s.now() + millis(HOUR)));
    let job = chain.latest;
    assert_eq!((job.status, job.attempt, job.error), (Status::Failed, 1, Some(ErrorText::new("bad"))));
    assert_eq!((job.output, job.lease, job.closed_by), (None, None, Some(s.worker)));
    s.expect_none_due("a").await;
}

async fn releases(s: Subject) {
    let first = s.start("a").await;
    s.advance(1_000);
    let second = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.advance(1_000);
    let applied = s.apply(&attempt, release()).await;
    assert_eq!((applied.job.status, applied.job.due_at), (Status::Pending, attempt.job.due_at));
    let job = s.job(attempt.job.id).await;
    assert_eq!((job.attempt, job.due_at, job.error, job.lease), (0, attempt.job.due_at, None, None));
    // A released job keeps its place in the order, before the newer job.
    let again = s.acquire("a", 10).await;
    assert_eq!((chains_of(&again), again[0].job.attempt), (vec![first, second], 1));
}

async fn release_keeps_error(s: Subject) {
    s.start("a").max_attempts(2).await;
    s.work("a", retry("no")).await;
    let attempt = s.work("a", release()).await;
    let job = s.job(attempt.job.id).await;
    assert_eq!((job.attempt, job.error, job.status), (1, Some(ErrorText::new("no")), Status::Pending));
    assert_eq!(s.acquire_one("a").await.job.attempt, 2);
}

async fn many(s: Subject) {
    s.create((0..100).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", 100).await;
    let outcomes = [
        (complete("1"), Status::Completed),
        (fail("no"), Status::Failed),
        (retry_after(HOUR, "no"), Status::Pending),
        (continue_with(s.start("b").next_job()), Status::Pending),
        (release(), Status::Pending),
    ];
    let turns = || attempts.iter().enumerate().map(|(turn, attempt)| (attempt, turn % outcomes.len()));
    let settlements = turns().map(|(attempt, turn)| match turn {
        3 => settlement(attempt, continue_with(s.start("b").next_job())),
        _ => settlement(attempt, outcomes[turn].0.clone()),
    });
    let reply = s.run(Settle { settlements: settlements.collect() }).await;
    for ((attempt, turn), settled) in turns().zip(&reply.settled) {
        let Settled::Applied(applied) = settled else { panic!("expected it to be applied: {settled:?}") };
        assert_eq!(applied.job.job, attempt.job.id);
        s.expect_status(attempt.job.chain, outcomes[turn].1).await;
    }
    assert_eq!((s.acquire("a", 100).await.len(), s.acquire("b", 100).await.len()), (20, 20));
}

async fn order(s: Subject) {
    let blocker = s.start("a").await;
    s.start("a").await;
    let attempts = s.acquire("a", 2).await;
    let next = s.start("b").blocked_by([blocker]).next_job();
    let settlements =
        vec![settlement(&attempts[0], complete("1")), settlement(&attempts[1], continue_with(next.clone()))];
    let reply = s.run(Settle { settlements }).await;
    let Settled::Applied(Applied { next: Some(placed), .. }) = reply.settled[1] else { panic!("{reply:?}") };
    assert_eq!((placed.job, placed.status), (next.id, Status::Pending));
    assert_eq!(s.acquire_one("b").await.blockers[0].output, Some(json("1")));
}

async fn alone(s: Subject) {
    s.create((0..3).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", 3).await;
    let mut stale = settlement(&attempts[0], complete("0"));
    stale.fence = Fence(stale.fence.0 + 1);
    let unknown = Settlement { job: JobId::new(), fence: Fence(1), outcome: complete("x") };
    let missing = ChainId::new();
    let refused = settlement(&attempts[1], continue_with(s.start("b").blocked_by([missing]).next_job()));
    let good = settlement(&attempts[2], complete("2"));
    let reply = s.run(Settle { settlements: vec![stale, unknown, refused, good] }).await;
    assert!(matches!(reply.settled[0], Settled::Lost(Lost::TakenOver)), "{:?}", reply.settled[0]);
    assert_eq!(reply.settled[1], Settled::Lost(Lost::NotFound));
    assert_eq!(reply.settled[2], Settled::Refused(Refusal::BlockerNotFound(missing)));
    assert!(matches!(reply.settled[3], Settled::Applied(_)), "{:?}", reply.settled[3]);
    for attempt in &attempts[..2] {
        assert_eq!(s.job(attempt.job.id).await, attempt.job, "nothing was written for it");
        s.complete(attempt, "1").await;
    }
}

async fn expired(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.advance(10 * LEASE.get());
    s.complete(&attempt, "1").await;
    assert_eq!(s.reap().await.reaped, []);
    s.expect_status(id, Status::Completed).await;
}

async fn empty(s: Subject) {
    let reply = s.run(Settle { settlements: Vec::new() }).await;
    assert_eq!(reply, SettleReply { settled: Vec::new(), ripple: Ripple::default() });
}

async fn error_text(s: Subject) {
    for text in
        ["", "'; drop table job; --", "ünï\n\t\u{1f600}", "x".repeat(limit::ERROR_MAX_BYTES + 1).as_str()]
    {
        s.start("a").await;
        let attempt = s.work("a", fail(text)).await;
        let stored = s.job(attempt.job.id).await.error.unwrap();
        assert_eq!(stored, ErrorText::new(text));
        assert_eq!(stored.as_str() == text, text.len() <= limit::ERROR_MAX_BYTES);
    }
}
