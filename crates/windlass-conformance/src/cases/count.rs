//! Counts and the history of attempts.

use windlass_core::{AttemptEnd, AttemptRecord};

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "count.statuses",
        "Jobs are counted by type and status after every change.",
        ["A8.17"],
        [Count],
        statuses
    ),
    case!(
        "count.ready",
        "A count reports the due time of the oldest ready job and the number of expired leases.",
        ["A8.17"],
        [Count],
        ready
    ),
    case!(
        "count.types",
        "Only the requested types are counted, sorted by name.",
        ["A8.17"],
        [Count],
        count_types
    ),
    case!("count.paused", "A count reports whether a type is paused.", ["contract"], [Count, Pause], paused),
    case!(
        "count.paused.without_jobs",
        "A count includes a paused type even if it has no jobs.",
        ["contract"],
        [Count, Pause],
        paused_without_jobs
    ),
    case!(
        "attempts.history",
        "Each attempt is recorded with its outcome, oldest first.",
        ["contract"],
        [Attempts],
        history
    ),
    case!("attempts.running", "The running attempt is listed last.", ["contract"], [Attempts], running),
    case!(
        "attempts.bounded",
        "When there are too many attempts, the oldest are dropped first.",
        ["never 8"],
        [Attempts],
        bounded
    ),
    case!(
        "attempts.reaped",
        "An attempt whose lease expired is recorded as reaped.",
        ["B4.32"],
        [Attempts],
        reaped
    ),
    case!(
        "attempts.exhausted",
        "The history distinguishes a retry that used up the last attempt from a failure.",
        ["A8.11"],
        [Attempts],
        exhausted
    ),
    case!(
        "attempts.unknown",
        "A job that is not stored, or was never acquired, has no attempts.",
        ["contract"],
        [Attempts],
        unknown
    ),
    case!(
        "attempts.displaced",
        "An attempt that was displaced from outside is recorded as such.",
        ["client"],
        [Attempts, Outside],
        displaced
    ),
    case!(
        "attempts.cancelled",
        "An attempt that was asked to stop is recorded as cancelled.",
        ["contract"],
        [Attempts, Cancel],
        cancelled
    ),
    case!(
        "attempts.retried_chain",
        "A retried chain keeps the history of its attempts.",
        ["A8.11"],
        [Attempts, Retry],
        retried_chain
    ),
];

async fn count_of(s: &Subject, name: &str) -> TypeCount {
    let reply = s.run(Count { types: Types::Only(vec![type_name(name)]) }).await;
    assert_eq!(reply.types.len(), 1, "{reply:?}");
    reply.types.into_iter().next().unwrap()
}

/// Returns the counts of blocked, pending, running, completed and failed jobs.
fn numbers(count: &TypeCount) -> [u64; 5] {
    [count.blocked, count.pending, count.running, count.completed, count.failed]
}

async fn statuses(s: Subject) {
    let blocker = s.start("b").await;
    s.start("a").blocked_by([blocker]).await;
    s.create((0..4).map(|_| s.start("a").build()).collect()).await;
    assert_eq!(numbers(&count_of(&s, "a").await), [1, 4, 0, 0, 0]);
    let attempts = s.acquire("a", 3).await;
    assert_eq!(numbers(&count_of(&s, "a").await), [1, 1, 3, 0, 0]);
    s.complete(&attempts[0], "1").await;
    s.apply(&attempts[1], retry("no")).await;
    s.work("b", complete("1")).await;
    assert_eq!(numbers(&count_of(&s, "a").await), [0, 3, 1, 1, 0]);
    s.apply(&attempts[2], fail("no")).await;
    let count = s.through_other().run(Count { types: Types::All }).await;
    assert_eq!(count.types.iter().map(|one| one.job_type.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    if !count.closed_estimated {
        assert_eq!((numbers(&count.types[0]), count.types[0].cancelled), ([0, 3, 0, 1, 1], 0));
    }
}

async fn ready(s: Subject) {
    s.start("a").after(1_000).priority(-1).await;
    s.start("a").after(5_000).priority(1).await;
    assert_eq!(count_of(&s, "a").await.oldest_ready, None);
    let due = s.now() + millis(1_000);
    s.advance(9_000);
    assert_eq!(count_of(&s, "a").await.oldest_ready, Some(due));
    s.acquire("a", 2).await;
    let count = count_of(&s, "a").await;
    assert_eq!((count.oldest_ready, count.expired_leases), (None, 0));
    s.advance(LEASE.get() + 1);
    assert_eq!(count_of(&s, "a").await.expired_leases, 2);
    s.reap().await;
    assert_eq!(count_of(&s, "a").await.expired_leases, 0);
}

async fn count_types(s: Subject) {
    for name in ["c", "a", "b"] {
        s.start(name).await;
    }
    let names =
        |reply: CountReply| reply.types.iter().map(|one| one.job_type.to_string()).collect::<Vec<_>>();
    assert_eq!(names(s.run(Count { types: Types::All }).await), ["a", "b", "c"]);
    let some = vec![type_name("c"), type_name("z"), type_name("a")];
    assert_eq!(names(s.run(Count { types: Types::Only(some) }).await), ["a", "c"]);
    assert_eq!(names(s.run(Count { types: Types::Only(Vec::new()) }).await), [""; 0]);
}

async fn paused(s: Subject) {
    s.start("a").await;
    assert!(!count_of(&s, "a").await.paused, "it is not paused");
    s.run(Pause { types: vec![type_name("a")], paused: true }).await;
    assert!(count_of(&s, "a").await.paused, "it is paused");
}

async fn paused_without_jobs(s: Subject) {
    s.run(Pause { types: vec![type_name("a"), type_name("b")], paused: true }).await;
    s.run(Pause { types: vec![type_name("b")], paused: false }).await;
    let counts = s.run(Count { types: Types::All }).await.types;
    assert_eq!(
        counts.iter().map(|one| (one.job_type.as_str(), one.paused)).collect::<Vec<_>>(),
        [("a", true)]
    );
    assert_eq!((counts[0].pending, counts[0].running, counts[0].oldest_ready), (0, 0, None));
}

async fn attempts(s: &Subject, job: JobId) -> Vec<AttemptRecord> {
    s.run(ListAttempts { job }).await.attempts
}

async fn history(s: Subject) {
    let job = s.start("a").await.first_job();
    let outcomes = [
        (retry("one"), AttemptEnd::Retried, 1, Some("one")),
        (reschedule(DueTime::Now, Some("two")), AttemptEnd::Rescheduled, 2, Some("two")),
        (release(), AttemptEnd::Released, 2, None),
        (retry("three"), AttemptEnd::Retried, 2, Some("three")),
        (complete("1"), AttemptEnd::Completed, 3, None),
    ];
    let mut expected = Vec::new();
    for (outcome, end, number, error) in outcomes {
        let attempt = s.acquire_one("a").await;
        let started_at = s.now();
        s.advance(10);
        s.apply(&attempt, outcome).await;
        expected.push(AttemptRecord {
            attempt: number,
            fence: attempt.job.fence,
            worker: s.worker,
            worker_name: Some(worker_name()),
            started_at,
            ended_at: Some(s.now()),
            end,
            error: error.map(ErrorText::new),
        });
    }
    assert_eq!(s.through_other().run(ListAttempts { job }).await.attempts, expected);
}

async fn running(s: Subject) {
    let job = s.start("a").await.first_job();
    s.work("a", retry("no")).await;
    let attempt = s.acquire_one("a").await;
    let records = attempts(&s, job).await;
    assert_eq!(
        records.iter().map(|one| one.end).collect::<Vec<_>>(),
        [AttemptEnd::Retried, AttemptEnd::Running]
    );
    assert_eq!((records[1].fence, records[1].ended_at, records[1].attempt), (attempt.job.fence, None, 2));
    s.apply(&attempt, continue_with(s.start("b").next_job())).await;
    assert_eq!(attempts(&s, job).await[1].end, AttemptEnd::Continued);
}

async fn bounded(s: Subject) {
    let job = s.start("a").await.first_job();
    for number in 0..limit::HISTORY_MAX + 5 {
        s.work("a", retry(&number.to_string())).await;
    }
    s.work("a", fail("last")).await;
    let records = attempts(&s, job).await;
    assert_eq!(records.len(), limit::HISTORY_MAX + 1);
    assert_eq!(records[0].error, Some(ErrorText::new("5")));
    let last = records.last().unwrap();
    assert_eq!((last.end, &last.error), (AttemptEnd::Failed, &Some(ErrorText::new("last"))));
}

async fn reaped(s: Subject) {
    let job = s.start("a").max_attempts(2).await.first_job();
    for _ in 0..2 {
        s.acquire_one("a").await;
        s.advance(LEASE.get() + 1);
        s.reap().await;
    }
    let ends: Vec<_> = attempts(&s, job).await.iter().map(|one| (one.attempt, one.end)).collect();
    assert_eq!(ends, [(1, AttemptEnd::Reaped), (2, AttemptEnd::Reaped)]);
}

async fn exhausted(s: Subject) {
    for (outcome, end) in [(retry("no"), AttemptEnd::Exhausted), (fail("no"), AttemptEnd::Failed)] {
        let job = s.start("a").max_attempts(2).await.first_job();
        s.work("a", retry("first")).await;
        s.work("a", outcome).await;
        let records = attempts(&s, job).await;
        let ends: Vec<_> = records.iter().map(|one| (one.attempt, one.end)).collect();
        assert_eq!(ends, [(1, AttemptEnd::Retried), (2, end)]);
        assert_eq!(records[1].error, Some(ErrorText::new("no")));
    }
}

async fn unknown(s: Subject) {
    let job = s.start("a").await.first_job();
    assert_eq!((attempts(&s, job).await, attempts(&s, JobId::new()).await), (Vec::new(), Vec::new()));
}

async fn displaced(s: Subject) {
    let job = s.start("a").await.first_job();
    let attempt = s.acquire_one("a").await;
    let steps = vec![Step::Complete { output: json("1"), retention: None, create: Vec::new() }];
    s.run(CompleteFromOutside { request: RequestId::new(), job, version: attempt.job.version, steps }).await;
    let records = attempts(&s, job).await;
    assert_eq!(
        (records.len(), records[0].end, records[0].ended_at),
        (1, AttemptEnd::Displaced, Some(s.now()))
    );
}

async fn cancelled(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.run(Cancel { chains: vec![id.into()], mode: CancelMode::Ask }).await;
    s.apply(&attempt, retry("no")).await;
    let records = attempts(&s, attempt.job.id).await;
    assert_eq!((records.len(), records[0].end), (1, AttemptEnd::Cancelled));
    assert_eq!((records[0].ended_at, &records[0].error), (Some(s.now()), &Some(ErrorText::new("no"))));
}

async fn retried_chain(s: Subject) {
    let id = s.start("a").await;
    s.work("a", fail("one")).await;
    let failed = s.chain(id).await.latest;
    s.run(Retry { chains: vec![RetryTarget { job: failed.id, version: failed.version }] }).await;
    assert_eq!(attempts(&s, failed.id).await.len(), 1);
    s.work("a", fail("two")).await;
    let errors: Vec<_> =
        attempts(&s, failed.id).await.iter().map(|one| (one.attempt, one.error.clone())).collect();
    assert_eq!(errors, [(1, Some(ErrorText::new("one"))), (1, Some(ErrorText::new("two")))]);
}
