//! What replies contain, so that callers need no further query.

use windlass_core::{BLOCKER_FAILED, LEASE_EXPIRED};

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "reply.closed",
        "A closed chain is reported with its type, creation time and trace, and its last job's type and error.",
        ["contract"],
        closed
    ),
    case!(
        "reply.closed.dependents",
        "Chains that fail with their blocker are reported with an error that names it.",
        ["contract"],
        closed_dependents
    ),
    case!(
        "reply.closed.reaped",
        "A chain that fails because a lease expired is reported with that error.",
        ["contract"],
        closed_reaped
    ),
    case!(
        "reply.acquired",
        "An acquired job includes its chain's creation time, retention, key and trace.",
        ["contract"],
        acquired
    ),
    case!(
        "reply.existing",
        "The chain that holds a key is returned with its own trace.",
        ["contract"],
        existing_trace
    ),
    case!(
        "reply.unblocked",
        "An unblocked job is reported with its types and one trace per blocker, or `None`.",
        ["SA-UB04", "SA-UB09"],
        unblocked
    ),
    case!(
        "reply.unblocked.other_command",
        "A job whose waits were resolved by several commands is reported with all their traces.",
        ["SA-UB04"],
        unblocked_later
    ),
    case!(
        "reply.cancelled",
        "A cancelled chain is reported as closed, with the error that its job had.",
        ["contract"],
        [Cancel],
        cancelled
    ),
    case!(
        "reply.triggered",
        "A triggered or retried job is reported with its type and its chain's type.",
        ["contract"],
        [Trigger, Retry],
        triggered
    ),
    case!(
        "reply.received",
        "A blocker that was retried after its failure was received is reported with its current state.",
        ["contract"],
        [Retry],
        received
    ),
];

fn text(trace: Option<&TraceContext>) -> Option<&str> {
    trace.map(TraceContext::as_str)
}

async fn closed(s: Subject) {
    for (outcome, closed_as, error) in
        [(complete("1"), ClosedAs::Completed, None), (fail("no"), ClosedAs::Failed, Some("no"))]
    {
        let id = s.start("a").traces("00-chain-01", "00-first-01").await;
        let created_at = s.now();
        s.advance(1_000);
        let next = s.start("b").traces("00-unused-01", "00-next-01").next_job();
        s.work("a", continue_with(next.clone())).await;
        s.work("b", retry("before")).await;
        let attempt = s.acquire_one("b").await;
        let reply = s.settle_reply(&attempt, outcome).await;
        let expected = ClosedChain {
            chain: id,
            chain_type: type_name("a"),
            job: next.id,
            job_type: type_name("b"),
            closed_as,
            error: error.map(ErrorText::new),
            created_at,
            trace: Some(TraceContext::new("00-chain-01").unwrap()),
        };
        assert_eq!(reply.ripple.closed, [expected]);
    }
}

async fn closed_dependents(s: Subject) {
    let blocker = s.start("a").await;
    s.advance(1_000);
    let created_at = s.now();
    let waiting = s.start("b").traces("00-chain-01", "00-job-01").blocked_by([blocker]);
    let waiting = waiting.on_failure(OnBlockerFailure::Fail).await;
    let attempt = s.acquire_one("a").await;
    let closed = s.settle_reply(&attempt, fail("no")).await.ripple.closed;
    let reported: Vec<_> = closed.iter().map(|one| (one.chain, one.job_type.as_str())).collect();
    assert_eq!(reported, [(blocker, "a"), (waiting, "b")]);
    let error = ErrorText::new(format!("{BLOCKER_FAILED}{blocker}"));
    assert_eq!((&closed[1].error, closed[1].created_at), (&Some(error), created_at));
    assert_eq!((text(closed[1].trace.as_ref()), &closed[0].trace), (Some("00-chain-01"), &None));
}

async fn closed_reaped(s: Subject) {
    let id = s.start("a").max_attempts(1).traces("00-chain-01", "00-job-01").await;
    let created_at = s.now();
    s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    let closed = s.reap().await.ripple.closed.remove(0);
    assert_eq!((closed.chain, closed.closed_as, closed.created_at), (id, ClosedAs::Failed, created_at));
    assert_eq!(closed.error, Some(ErrorText::new(LEASE_EXPIRED)));
    assert_eq!(text(closed.trace.as_ref()), Some("00-chain-01"));
}

async fn acquired(s: Subject) {
    let retention = Retention { completed: millis(1), failed: millis(22), cancelled: millis(333) };
    let start = s.start("a").key("k").retentions(retention).traces("00-chain-01", "00-job-01");
    start.await;
    let created_at = s.now();
    s.advance(1_000);
    let next = s.start("b").key("unused").retention(9).traces("00-unused-01", "00-next-01").next_job();
    let first = s.work("a", continue_with(next)).await;
    s.advance(1_000);
    for attempt in [first, s.acquire_one("b").await] {
        assert_eq!((attempt.chain_created_at, attempt.retention), (created_at, retention));
        assert_eq!((attempt.key, text(attempt.chain_trace.as_ref())), (Some(key("k")), Some("00-chain-01")));
    }
}

async fn existing_trace(s: Subject) {
    s.start("a").key("k").hold(KeyHold::Any).traces("00-chain-01", "00-job-01").await;
    let again = || s.start("a").key("k").traces("00-other-01", "00-other-01");
    let met = existing(again().created().await);
    assert_eq!(text(met.trace.as_ref()), Some("00-chain-01"));
    s.work("a", complete("1")).await;
    let met = existing(again().created().await);
    assert_eq!(text(met.trace.as_ref()), Some("00-chain-01"));
    s.start("b").key("k").await;
    assert_eq!(existing(s.start("b").key("k").created().await).trace, None);
}

async fn unblocked(s: Subject) {
    let (one, two, three) = (s.start("x").await, s.start("x").await, s.start("x").await);
    let id = s.start("a").await;
    let next = s.start("b").blocked_by([three]).blocked_by_traced(one, "00-one-01").blocked_by([two]);
    let next = next.next_job();
    s.work("a", continue_with(next.clone())).await;
    let attempts = s.acquire("x", 3).await;
    let settlements = attempts.iter().map(|attempt| settlement(attempt, complete("1"))).collect();
    let reported = s.run(Settle { settlements }).await.ripple.unblocked;
    let expected = Unblocked {
        job: JobSummary { job: next.id, chain: id, status: Status::Pending, due_at: s.now() },
        job_type: type_name("b"),
        chain_type: type_name("a"),
        traces: vec![None, Some(TraceContext::new("00-one-01").unwrap()), None],
    };
    assert_eq!(reported, [expected]);
}

async fn unblocked_later(s: Subject) {
    let (one, two, done) = (s.start("x").await, s.start("y").await, s.start("z").await);
    s.work("z", complete("0")).await;
    let waiting = s.start("a").blocked_by_traced(done, "00-done-01").blocked_by_traced(two, "00-two-01");
    waiting.blocked_by_traced(one, "00-one-01").await;
    s.work("x", complete("1")).await;
    let attempt = s.acquire_one("y").await;
    let reported = s.settle_reply(&attempt, complete("2")).await.ripple.unblocked;
    let traces: Vec<_> = reported[0].traces.iter().map(|trace| text(trace.as_ref())).collect();
    assert_eq!(traces, [Some("00-done-01"), Some("00-two-01"), Some("00-one-01")]);
}

async fn cancelled(s: Subject) {
    let id = s.start("a").traces("00-chain-01", "00-job-01").await;
    s.work("a", retry("before")).await;
    let reply = s.run(Cancel { chains: vec![id.into()], mode: CancelMode::UnlessRunning }).await;
    let closed = &reply.ripple.closed[0];
    assert_eq!((closed.closed_as, &closed.error), (ClosedAs::Cancelled, &Some(ErrorText::new("before"))));
    assert_eq!((closed.job, text(closed.trace.as_ref())), (id.first_job(), Some("00-chain-01")));
}

async fn triggered(s: Subject) {
    let id = s.start("a").await;
    s.work("a", continue_with(s.start("b").after(HOUR).next_job())).await;
    let reply = s.run(Trigger { jobs: vec![id.into()] }).await;
    let TriggerReply::Triggered(reported) = reply else { panic!("it is pending") };
    assert_eq!((reported[0].job_type.as_str(), reported[0].chain_type.as_str()), ("b", "a"));
    s.work("b", fail("no")).await;
    let job = s.chain(id).await.latest;
    let reply = s.run(Retry { chains: vec![RetryTarget { job: job.id, version: job.version }] }).await;
    let placed = JobSummary { job: job.id, chain: id, status: Status::Pending, due_at: s.now() };
    let (job_type, chain_type) = (type_name("b"), type_name("a"));
    assert_eq!(reply.chains, [Retried::Retried { job: placed, job_type, chain_type }]);
}

async fn received(s: Subject) {
    let blocker = s.start("a").await;
    s.start("b").blocked_by([blocker]).on_failure(OnBlockerFailure::Receive).await;
    s.work("a", fail("no")).await;
    let job = s.chain(blocker).await.latest;
    s.run(Retry { chains: vec![RetryTarget { job: job.id, version: job.version }] }).await;
    let attempt = s.acquire_one("b").await;
    assert_eq!((attempt.blockers[0].status, &attempt.blockers[0].output), (Status::Pending, &None));
    s.apply(&attempt, retry("not yet")).await;
    s.work("a", complete("1")).await;
    let attempt = s.acquire_one("b").await;
    assert_eq!(attempt.blockers[0].status, Status::Completed);
    assert_eq!(attempt.blockers[0].output, Some(json("1")));
}
