//! Jobs with a cancel request, and cancelled chains that are reopened.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "cancel.ask.successor",
        "A recurring chain that was asked to stop completes without a successor.",
        ["B4.16", "contract"],
        [Cancel],
        successor
    ),
    case!(
        "cancel.ask.successor.repeated",
        "A completion without its successor is recognized when repeated.",
        ["never 12"],
        [Cancel],
        successor_repeated
    ),
    case!(
        "cancel.ask.carried",
        "If a job was asked to stop and completes, its other carried chains are created.",
        ["contract"],
        [Cancel],
        carried
    ),
    case!(
        "cancel.ask.carried.refused",
        "If a carried chain is refused, a job that was asked to stop does not complete.",
        ["B4.15"],
        [Cancel],
        carried_refused
    ),
    case!(
        "cancel.ask.error",
        "A job that is cancelled instead of retried keeps the error of that attempt.",
        ["contract"],
        [Cancel],
        error
    ),
    case!(
        "cancel.ask.waits",
        "If a job was asked to stop, the blockers of its continuation are not checked.",
        ["contract"],
        [Cancel],
        unchecked
    ),
    case!(
        "cancel.ask.outside.continue",
        "Continuing a job from outside that was asked to stop cancels it; later steps are dropped.",
        ["contract"],
        [Cancel, Outside],
        outside_continue
    ),
    case!(
        "cancel.ask.outside.ends",
        "A job that was asked to stop can be completed or failed from outside, without its successor.",
        ["contract"],
        [Cancel, Outside],
        outside_ends
    ),
    case!(
        "cancel.ask.outside.blocked",
        "A job that was not asked to stop can be continued from outside.",
        ["contract"],
        [Cancel, Outside],
        outside_not_asked
    ),
    case!(
        "retry.cancelled",
        "A cancelled chain can be retried: its job is pending and due now.",
        ["contract"],
        [Retry, Cancel],
        retried
    ),
    case!(
        "retry.cancelled.asked",
        "Retrying a job that stopped on request clears the request.",
        ["contract"],
        [Retry, Cancel],
        retried_asked
    ),
    case!(
        "retry.cancelled.blocked",
        "A chain that was cancelled while it was blocked is blocked again when it is retried.",
        ["never 5"],
        [Retry, Cancel],
        retried_blocked
    ),
    case!(
        "retry.cancelled.dependents",
        "Dependents that still wait for a cancelled chain continue when it is retried and completes.",
        ["never 5"],
        [Retry, Cancel],
        retried_dependents
    ),
    case!(
        "retry.cancelled.key_taken",
        "A cancelled chain whose key is held by another chain is not retried.",
        ["never 6"],
        [Retry, Cancel],
        retried_key_taken
    ),
];

async fn ask(s: &Subject, chain: ChainId) {
    let reply = s.run(Cancel { chains: vec![chain.into()], mode: CancelMode::Ask }).await;
    assert!(matches!(reply.chains[0], Cancelled::Asked { .. }), "expected a running chain: {reply:?}");
}

async fn cancel(s: &Subject, chain: ChainId) {
    let reply = s.run(Cancel { chains: vec![chain.into()], mode: CancelMode::UnlessRunning }).await;
    assert!(matches!(reply.chains[0], Cancelled::Cancelled { .. }), "expected an idle chain: {reply:?}");
}

async fn retry_chain(s: &Subject, chain: ChainId) -> Retried {
    let job = s.chain(chain).await.latest;
    s.run(Retry { chains: vec![RetryTarget { job: job.id, version: job.version }] }).await.chains.remove(0)
}

/// Returns a running chain with a key and a cancel request, and the chain that would succeed it.
async fn recurring(s: &Subject) -> (ChainId, Acquired, NewChain) {
    let id = s.start("a").key("tick").await;
    let attempt = s.acquire_one("a").await;
    ask(s, id).await;
    (id, attempt, s.start("a").key("tick").replaces(id).build())
}

async fn successor(s: Subject) {
    let (id, attempt, next) = recurring(&s).await;
    let applied = s.apply(&attempt, complete_with_chains("1", vec![next.clone()])).await;
    assert_eq!(applied.created, [Created::Refused(Refusal::CancelRequested)]);
    assert_eq!((s.find_chain(next.id).await, s.by_key("a", "tick").await), (None, Some(id)));
    s.expect_status(id, Status::Completed).await;
    s.expect_none_due("a").await;
}

async fn successor_repeated(s: Subject) {
    let (_, attempt, next) = recurring(&s).await;
    let outcome = complete_with_chains("1", vec![next.clone()]);
    s.apply(&attempt, outcome.clone()).await;
    assert_eq!(s.repeat(&attempt, outcome).await.status, Status::Completed);
    assert_eq!(s.find_chain(next.id).await, None);
}

async fn carried(s: Subject) {
    let stranger = s.start("b").key("k").await;
    let (_, attempt, next) = recurring(&s).await;
    let chains = vec![s.start("b").build(), next, s.start("b").key("k").replaces(stranger).build()];
    let applied = s.apply(&attempt, complete_with_chains("1", chains.clone())).await;
    assert_eq!(summary(&applied.created[0]).chain, chains[0].id);
    assert_eq!(applied.created[1], Created::Refused(Refusal::CancelRequested));
    assert_eq!(summary(&applied.created[2]).chain, chains[2].id);
    assert_eq!(s.by_key("b", "k").await, Some(chains[2].id));
}

async fn carried_refused(s: Subject) {
    let (_, attempt, next) = recurring(&s).await;
    let before = s.job(attempt.job.id).await;
    let missing = ChainId::new();
    let chains = vec![next, s.start("b").build(), s.start("b").blocked_by([missing]).build()];
    let settled = s.settle(&attempt, complete_with_chains("1", chains.clone())).await;
    assert_eq!(settled, Settled::Refused(Refusal::BlockerNotFound(missing)));
    assert_eq!((s.find_chain(chains[1].id).await, s.job(attempt.job.id).await), (None, before));
}

async fn error(s: Subject) {
    let outcomes = [
        (retry("now"), "now"),
        (reschedule(DueTime::Now, Some("now")), "now"),
        (reschedule_after(0), "before"),
        (release(), "before"),
    ];
    for (outcome, expected) in outcomes {
        let id = s.start("a").await;
        s.work("a", retry("before")).await;
        let attempt = s.acquire_one("a").await;
        ask(&s, id).await;
        let closed = s.settle_reply(&attempt, outcome.clone()).await.ripple.closed;
        assert_eq!(closed[0].error, Some(ErrorText::new(expected)), "{outcome:?}");
        assert_eq!(s.chain(id).await.latest.error, Some(ErrorText::new(expected)), "{outcome:?}");
    }
}

async fn unchecked(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    ask(&s, id).await;
    let applied =
        s.apply(&attempt, continue_with(s.start("b").blocked_by([ChainId::new()]).next_job())).await;
    assert_eq!((applied.job.status, applied.next), (Status::Cancelled, None));
    s.expect_status(id, Status::Cancelled).await;
}

async fn complete_outside(s: &Subject, chain: ChainId, steps: Vec<Step>) -> OutsideApplied {
    let job = s.chain(chain).await.latest;
    let outside = CompleteFromOutside { request: RequestId::new(), job: job.id, version: job.version, steps };
    let CompleteFromOutsideReply::Applied(applied) = s.run(outside.clone()).await else {
        panic!("expected the steps to be applied")
    };
    assert_eq!(s.run(outside).await, CompleteFromOutsideReply::AlreadyApplied);
    applied
}

async fn outside_continue(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    ask(&s, id).await;
    let (next, carried) = (s.start("b").next_job(), s.start("c").build());
    let steps = vec![
        Step::Continue { next: next.clone(), create: vec![carried.clone()] },
        Step::Complete { output: json("1"), retention: None, create: Vec::new() },
    ];
    let applied = complete_outside(&s, id, steps).await;
    assert_eq!((applied.latest.job, applied.latest.status), (attempt.job.id, Status::Cancelled));
    assert_eq!((applied.displaced, applied.created.len()), (Some(s.worker), 0));
    let closed: Vec<_> = applied.ripple.closed.iter().map(|one| (one.chain, one.closed_as)).collect();
    assert_eq!(closed, [(id, ClosedAs::Cancelled)]);
    assert_eq!((s.find_job(next.id).await, s.find_chain(carried.id).await), (None, None));
    let chain = s.chain(id).await;
    assert_eq!((chain.status(), chain.latest.closed_by, chain.output()), (Status::Cancelled, None, None));
    assert_eq!(s.settle(&attempt, complete("1")).await, Settled::Lost(Lost::Closed(ClosedAs::Cancelled)));
}

async fn outside_ends(s: Subject) {
    let (id, _, next) = recurring(&s).await;
    let other = s.start("b").build();
    let create = vec![next.clone(), other.clone()];
    let applied =
        complete_outside(&s, id, vec![Step::Complete { output: json("1"), retention: None, create }]).await;
    assert_eq!(applied.latest.status, Status::Completed);
    assert_eq!(applied.created[0], Created::Refused(Refusal::CancelRequested));
    assert_eq!(summary(&applied.created[1]).chain, other.id);
    assert_eq!(s.find_chain(next.id).await, None);
    let (id, ..) = recurring(&s).await;
    let step = Step::Fail { error: ErrorText::new("no"), retention: None };
    assert_eq!(complete_outside(&s, id, vec![step]).await.latest.status, Status::Failed);
}

async fn outside_not_asked(s: Subject) {
    let id = s.start("a").key("tick").await;
    let next = s.start("a").key("tick").replaces(id).build();
    let go_on = Step::Continue { next: s.start("b").next_job(), create: Vec::new() };
    let done = Step::Complete { output: json("1"), retention: None, create: vec![next.clone()] };
    let applied = complete_outside(&s, id, vec![go_on, done]).await;
    assert_eq!((applied.latest.status, summary(&applied.created[0]).chain), (Status::Completed, next.id));
    assert_eq!(s.by_key("a", "tick").await, Some(next.id));
}

async fn retried(s: Subject) {
    let id = s.start("a").max_attempts(2).key("k").after(HOUR).await;
    cancel(&s, id).await;
    s.advance(1_000);
    let reply = retry_chain(&s, id).await;
    let job = JobSummary { job: id.first_job(), chain: id, status: Status::Pending, due_at: s.now() };
    let (job_type, chain_type) = (type_name("a"), type_name("a"));
    assert_eq!(reply, Retried::Retried { job, job_type, chain_type });
    let chain = s.chain(id).await;
    assert_eq!((chain.closed, chain.latest.closed_at), (None, None));
    assert_eq!(existing(s.start("a").key("k").created().await).chain, id);
    s.work("a", complete("1")).await;
    s.expect_status(id, Status::Completed).await;
}

async fn retried_asked(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    ask(&s, id).await;
    s.apply(&attempt, retry("no")).await;
    s.expect_status(id, Status::Cancelled).await;
    assert!(matches!(retry_chain(&s, id).await, Retried::Retried { .. }), "it was cancelled");
    let job = s.chain(id).await.latest;
    assert_eq!((job.cancel_requested, job.attempt, job.error), (false, 0, Some(ErrorText::new("no"))));
    let next = s.acquire_one("a").await;
    assert!(next.job.fence > attempt.job.fence, "fences only grow");
    let Renewed::Held { cancel_requested, .. } = s.renew(&next).await else { panic!("it is held") };
    assert!(!cancel_requested, "this attempt was not asked to stop");
    s.apply(&next, continue_with(s.start("b").next_job())).await;
    s.expect_status(id, Status::Pending).await;
}

async fn retried_blocked(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    cancel(&s, id).await;
    let reply = retry_chain(&s, id).await;
    assert!(
        matches!(reply, Retried::Retried { job: JobSummary { status: Status::Blocked, .. }, .. }),
        "{reply:?}"
    );
    cancel(&s, id).await;
    s.work("b", complete("1")).await;
    retry_chain(&s, id).await;
    assert_eq!(s.acquire_one("a").await.blockers[0].output, Some(json("1")));
}

async fn retried_dependents(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    cancel(&s, blocker).await;
    s.expect_status(id, Status::Blocked).await;
    retry_chain(&s, blocker).await;
    s.work("b", complete("1")).await;
    assert_eq!(s.acquire_one("a").await.blockers[0].output, Some(json("1")));
}

async fn retried_key_taken(s: Subject) {
    let id = s.start("a").key("k").await;
    cancel(&s, id).await;
    let successor = s.start("a").key("k").await;
    assert_eq!(retry_chain(&s, id).await, Retried::Refused(Refusal::KeyTaken(successor)));
    s.expect_status(id, Status::Cancelled).await;
}
