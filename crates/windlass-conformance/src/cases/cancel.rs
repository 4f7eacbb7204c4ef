//! Cancelling chains, and triggering jobs so that they are due immediately.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "cancel.pending",
        "A chain whose latest job is pending is cancelled permanently.",
        ["B4.16", "B4.17"],
        [Cancel],
        pending
    ),
    case!(
        "cancel.blocked",
        "A chain whose latest job is blocked is cancelled.",
        ["contract"],
        [Cancel],
        blocked
    ),
    case!(
        "cancel.running",
        "A running chain is not affected unless the mode is to ask it to stop.",
        ["B4.16"],
        [Cancel],
        running
    ),
    case!(
        "cancel.ask",
        "A running job that is asked to stop learns of it when it renews, and its chain stays open.",
        ["contract"],
        [Cancel],
        ask
    ),
    case!(
        "cancel.ask.goes_on",
        "If a job was asked to stop, an outcome that would continue its chain cancels it instead.",
        ["contract"],
        [Cancel],
        ask_goes_on
    ),
    case!(
        "cancel.ask.ends",
        "A job that was asked to stop can still complete or fail.",
        ["contract"],
        [Cancel],
        ask_ends
    ),
    case!(
        "cancel.ask.reaped",
        "A job that was asked to stop is cancelled when its lease expires.",
        ["contract"],
        [Cancel],
        ask_reaped
    ),
    case!(
        "cancel.ask.repeated",
        "A settlement that resulted in a cancellation is recognized when repeated.",
        ["never 12"],
        [Cancel],
        ask_repeated
    ),
    case!("cancel.closed", "A cancel does not change a closed chain.", ["contract"], [Cancel], closed),
    case!(
        "cancel.many",
        "One command can cancel many chains, by id, job or key.",
        ["contract"],
        [Cancel],
        many
    ),
    case!(
        "cancel.dependents",
        "Dependents of a cancelled chain follow their policy.",
        ["contract"],
        [Cancel],
        dependents
    ),
    case!(
        "cancel.key",
        "A cancelled chain holds its key only if every outcome holds it.",
        ["B4.17", "contract"],
        [Cancel],
        cancelled_key
    ),
    case!(
        "cancel.retention",
        "A cancelled chain is removed when its retention ends.",
        ["never 8"],
        [Cancel],
        retention
    ),
    case!("cancel.race", "A job is either cancelled or acquired, never both.", ["B4.16"], [Cancel], race),
    case!(
        "trigger.now",
        "A triggered job is due now, is otherwise unchanged, and can be acquired.",
        ["SA-TJ01", "SA-TJ02", "SA-TJ03"],
        [Trigger],
        now
    ),
    case!(
        "trigger.many",
        "One command can trigger many jobs and returns them in order.",
        ["SA-TJ04", "SA-TJ05"],
        [Trigger],
        trigger_many
    ),
    case!(
        "trigger.missing",
        "If one job is not stored, none is triggered, and the reply names the missing one.",
        ["SA-TJ06"],
        [Trigger],
        missing
    ),
    case!(
        "trigger.not_pending",
        "If one job is not pending, none is triggered, and the reply names that job.",
        ["SA-TJ07"],
        [Trigger],
        not_pending
    ),
    case!("trigger.twice", "A job that is listed twice is triggered once.", ["SA-TJ04"], [Trigger], twice),
];

fn cancel(chains: Vec<Target>, mode: CancelMode) -> Cancel {
    Cancel { chains, mode }
}

async fn cancel_one(s: &Subject, chain: ChainId, mode: CancelMode) -> Cancelled {
    s.run(cancel(vec![chain.into()], mode)).await.chains.remove(0)
}

/// Returns a running attempt with a cancel request.
async fn asked(s: &Subject) -> (ChainId, Acquired) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let reply = cancel_one(s, id, CancelMode::Ask).await;
    assert_eq!(reply, Cancelled::Asked { chain: id, job: attempt.job.id, worker: s.worker });
    (id, attempt)
}

async fn pending(s: Subject) {
    let id = s.start("a").await;
    s.work("a", retry("no")).await;
    let reply = s.run(cancel(vec![id.into()], CancelMode::UnlessRunning)).await;
    assert_eq!(reply.chains, [Cancelled::Cancelled { chain: id, job: id.first_job() }]);
    assert_eq!(
        reply.ripple.closed.iter().map(|one| one.closed_as).collect::<Vec<_>>(),
        [ClosedAs::Cancelled]
    );
    let chain = s.chain(id).await;
    assert_eq!((chain.status(), chain.closed.unwrap().closed_as), (Status::Cancelled, ClosedAs::Cancelled));
    assert_eq!((chain.latest.closed_at, chain.latest.closed_by), (Some(s.now()), None));
    s.advance(HOUR);
    s.expect_none_due("a").await;
}

async fn blocked(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    cancel_one(&s, id, CancelMode::Ask).await;
    s.expect_status(id, Status::Cancelled).await;
    s.work("b", complete("1")).await;
    s.expect_status(id, Status::Cancelled).await;
    s.expect_none_due("a").await;
}

async fn running(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    assert_eq!(cancel_one(&s, id, CancelMode::UnlessRunning).await, Cancelled::Running { chain: id });
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
    let Renewed::Held { cancel_requested, .. } = s.renew(&attempt).await else { panic!("the lease is held") };
    assert!(!cancel_requested, "it was left alone");
    s.complete(&attempt, "1").await;
}

async fn ask(s: Subject) {
    let (id, attempt) = asked(&s).await;
    let job = s.chain(id).await.latest;
    assert_eq!((job.status, job.cancel_requested), (Status::Running, true));
    let until = s.now() + LEASE;
    assert_eq!(s.renew(&attempt).await, Renewed::Held { until, cancel_requested: true });
    assert!(
        matches!(cancel_one(&s, id, CancelMode::Ask).await, Cancelled::Asked { .. }),
        "asking again is the same"
    );
}

async fn ask_goes_on(s: Subject) {
    let carried = s.start("carried").build();
    let next = s.start("next").next_job();
    let outcomes = [
        continue_with_chains(next.clone(), vec![carried.clone()]),
        retry("no"),
        reschedule_after(0),
        release(),
    ];
    for outcome in outcomes {
        let (id, attempt) = asked(&s).await;
        let reply = s.settle_reply(&attempt, outcome).await;
        let Settled::Applied(applied) = &reply.settled[0] else {
            panic!("expected it to be applied: {reply:?}")
        };
        assert_eq!((applied.job.status, applied.next, applied.created.len()), (Status::Cancelled, None, 0));
        assert_eq!(
            reply.ripple.closed.iter().map(|one| one.closed_as).collect::<Vec<_>>(),
            [ClosedAs::Cancelled]
        );
        s.expect_status(id, Status::Cancelled).await;
    }
    assert_eq!((s.find_chain(carried.id).await, s.find_job(next.id).await), (None, None));
    s.expect_none_due("a").await;
}

async fn ask_ends(s: Subject) {
    for (outcome, expected) in [(complete("1"), Status::Completed), (fail("no"), Status::Failed)] {
        let (id, attempt) = asked(&s).await;
        s.apply(&attempt, outcome).await;
        s.expect_status(id, expected).await;
    }
}

async fn ask_reaped(s: Subject) {
    let (id, _) = asked(&s).await;
    s.advance(LEASE.get() + 1);
    let reply = s.reap().await;
    assert_eq!(reply.reaped[0].job.status, Status::Cancelled);
    assert_eq!(
        reply.ripple.closed.iter().map(|one| one.closed_as).collect::<Vec<_>>(),
        [ClosedAs::Cancelled]
    );
    s.expect_status(id, Status::Cancelled).await;
}

async fn ask_repeated(s: Subject) {
    let (_, attempt) = asked(&s).await;
    s.apply(&attempt, retry("no")).await;
    s.repeat(&attempt, retry("no")).await;
}

async fn closed(s: Subject) {
    for (outcome, closed_as) in [(complete("1"), ClosedAs::Completed), (fail("no"), ClosedAs::Failed)] {
        let id = s.start("a").await;
        s.work("a", outcome).await;
        let before = s.chain(id).await;
        let reply = s.run(cancel(vec![id.into()], CancelMode::Ask)).await;
        assert_eq!(
            (reply.chains, reply.ripple),
            (vec![Cancelled::Closed { chain: id, closed_as }], Ripple::default())
        );
        assert_eq!(s.chain(id).await, before);
    }
}

async fn many(s: Subject) {
    let (one, two, three) = (s.start("a").await, s.start("a").await, s.start("a").key("k").await);
    let targets = vec![
        two.into(),
        Target::Chain(ChainId::new()),
        Target::Job(one.first_job()),
        Target::Key(type_name("a"), key("k")),
        Target::Key(type_name("a"), key("unknown")),
        two.into(),
    ];
    let reply = s.run(cancel(targets, CancelMode::UnlessRunning)).await;
    let cancelled = |chain: ChainId| Cancelled::Cancelled { chain, job: chain.first_job() };
    let again = Cancelled::Closed { chain: two, closed_as: ClosedAs::Cancelled };
    let missing = Cancelled::NotFound;
    assert_eq!(reply.chains, [cancelled(two), missing, cancelled(one), cancelled(three), missing, again]);
    assert_eq!(s.run(cancel(Vec::new(), CancelMode::Ask)).await.chains, []);
}

async fn dependents(s: Subject) {
    let blocker = s.start("b").await;
    let policies = [
        (OnBlockerFailure::Wait, Status::Blocked),
        (OnBlockerFailure::Fail, Status::Failed),
        (OnBlockerFailure::Receive, Status::Pending),
    ];
    let mut waiting = Vec::new();
    for (policy, expected) in policies {
        waiting.push((s.start("a").blocked_by([blocker]).on_failure(policy).await, expected));
    }
    let reply = s.run(cancel(vec![blocker.into()], CancelMode::Ask)).await;
    assert_eq!((reply.ripple.closed.len(), reply.ripple.unblocked.len()), (2, 1));
    for (chain, expected) in waiting {
        s.expect_status(chain, expected).await;
    }
    assert_eq!(s.acquire_one("a").await.blockers[0].status, Status::Cancelled);
}

async fn cancelled_key(s: Subject) {
    for hold in [KeyHold::Open, KeyHold::Completed, KeyHold::CompletedOrFailed, KeyHold::Any] {
        let name = format!("{hold:?}");
        let id = s.start(&name).key("k").hold(hold).input("1").await;
        cancel_one(&s, id, CancelMode::Ask).await;
        let created = s.start(&name).key("k").input("2").created().await;
        assert_eq!(created.chain() == Some(id), hold == KeyHold::Any, "{hold:?}: {created:?}");
        let inputs: Vec<_> = s.acquire(&name, 10).await.into_iter().map(|one| one.job.input).collect();
        let expected = if hold == KeyHold::Any { Vec::new() } else { vec![json("2")] };
        assert_eq!(inputs, expected, "a cancelled job is not run, its successor is");
    }
}

async fn retention(s: Subject) {
    let spans = Retention { completed: millis(9 * HOUR), failed: millis(9 * HOUR), cancelled: millis(HOUR) };
    let id = s.start("a").retentions(spans).await;
    cancel_one(&s, id, CancelMode::Ask).await;
    assert_eq!(s.chain(id).await.closed.unwrap().retain_until, s.now() + millis(HOUR));
    s.advance(HOUR + 1);
    assert_eq!(s.expire().await.chains[0].closed_as, ClosedAs::Cancelled);
}

async fn race(s: Subject) {
    for _ in 0..20 {
        let id = s.start("a").await;
        let (one, two) = (s.clone(), s.through_other());
        let cancelling = tokio::spawn(async move {
            matches!(cancel_one(&one, id, CancelMode::UnlessRunning).await, Cancelled::Cancelled { .. })
        });
        let acquiring = tokio::spawn(async move { two.acquire("a", 1).await });
        let (cancelled, acquired) = (cancelling.await.unwrap(), acquiring.await.unwrap());
        assert!(!cancelled || acquired.is_empty(), "the job was cancelled and acquired");
        for attempt in &acquired {
            s.complete(attempt, "1").await;
        }
        if !cancelled && acquired.is_empty() {
            // Each command met the other's lock and left the job alone. The job is still pending.
            s.work("a", complete("1")).await;
        }
    }
}

async fn now(s: Subject) {
    let id = s.start("a").after(HOUR).priority(3).input("1").key("k").await;
    let before = s.chain(id).await.latest;
    s.advance(1_000);
    let reply = s.run(Trigger { jobs: vec![id.into()] }).await;
    let job = JobSummary { job: id.first_job(), chain: id, status: Status::Pending, due_at: s.now() };
    assert_eq!(
        reply,
        TriggerReply::Triggered(vec![Triggered {
            job,
            job_type: type_name("a"),
            chain_type: type_name("a")
        }])
    );
    let mut after = s.chain(id).await.latest;
    assert_eq!(after.due_at, s.now());
    (after.due_at, after.version) = (before.due_at, before.version);
    assert_eq!(after, before);
    s.acquire_one("a").await;
}

async fn trigger_many(s: Subject) {
    let (one, two, three) =
        (s.start("a").after(HOUR).await, s.start("b").await, s.start("a").key("k").after(HOUR).await);
    let jobs =
        vec![three.into(), Target::Job(one.first_job()), two.into(), Target::Key(type_name("a"), key("k"))];
    let TriggerReply::Triggered(triggered) = s.run(Trigger { jobs }).await else { panic!("all are pending") };
    let chains: Vec<_> = triggered.iter().map(|one| one.job.chain).collect();
    assert_eq!(chains, [three, one, two, three]);
    assert_eq!(s.acquire("a", 10).await.len(), 2);
    assert_eq!(s.run(Trigger { jobs: Vec::new() }).await, TriggerReply::Triggered(Vec::new()));
}

async fn missing(s: Subject) {
    let id = s.start("a").after(HOUR).await;
    let reply = s.run(Trigger { jobs: vec![id.into(), Target::Job(JobId::new())] }).await;
    assert_eq!(reply, TriggerReply::Refused(vec![None, Some(Untriggerable::NotFound)]));
    s.expect_none_due("a").await;
}

async fn not_pending(s: Subject) {
    let id = s.start("a").after(HOUR).await;
    let running = s.start("b").await;
    s.acquire_one("b").await;
    let blocked = s.start("c").blocked_by([id]).await;
    let done = s.start("d").await;
    s.work("d", complete("1")).await;
    let jobs = vec![running.into(), id.into(), blocked.into(), done.into()];
    let reply = s.run(Trigger { jobs }).await;
    let because = |status| Some(Untriggerable::NotPending(status));
    let expected = vec![because(Status::Running), None, because(Status::Blocked), because(Status::Completed)];
    assert_eq!(reply, TriggerReply::Refused(expected));
    s.expect_none_due("a").await;
}

async fn twice(s: Subject) {
    let id = s.start("a").after(HOUR).await;
    let before = s.chain(id).await.latest.version;
    let reply = s.run(Trigger { jobs: vec![id.into(), id.into()] }).await;
    assert!(
        matches!(&reply, TriggerReply::Triggered(two) if two.len() == 2 && two[0] == two[1]),
        "{reply:?}"
    );
    assert_eq!(s.chain(id).await.latest.version, before.next());
}
