//! Waiting for chains.

use windlass_core::BLOCKER_FAILED;

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!("blocker.open", "A job is blocked while a blocker chain has not completed.", ["SA-AB01"], open),
    case!(
        "blocker.completed",
        "A job whose blockers have all completed is pending immediately.",
        ["SA-AB02"],
        completed
    ),
    case!("blocker.batch", "Each job of a batch waits for its own blockers.", ["SA-AB03", "SA-AB04"], batch),
    case!(
        "blocker.resolved",
        "A job becomes pending when its last blocker completes.",
        ["SA-UB01", "SA-UB02", "never 5"],
        resolved
    ),
    case!("blocker.no_dependents", "A chain without dependents unblocks no job.", ["SA-UB03"], no_dependents),
    case!(
        "blocker.traces",
        "The reply includes the trace contexts of an unblocked job's waits, in order.",
        ["SA-UB04", "SA-BT01", "SA-BT02"],
        traces
    ),
    case!(
        "blocker.traces.none",
        "A wait without a trace context is reported without one.",
        ["SA-UB05", "SA-UB09"],
        traces_none
    ),
    case!(
        "blocker.due.past",
        "An unblocked job whose due time has passed is due now.",
        ["SA-UB06"],
        due_past
    ),
    case!("blocker.due.future", "An unblocked job keeps a due time in the future.", ["SA-UB07"], due_future),
    case!(
        "blocker.due.order",
        "An unblocked job does not overtake jobs that were already due.",
        ["SA-UB08"],
        due_order
    ),
    case!(
        "blocker.outputs",
        "An acquired job includes the outputs of its blockers, in the order in which they were declared.",
        ["SA-GB01"],
        outputs
    ),
    case!(
        "blocker.outputs.continued",
        "The output of a continued blocker chain has the value and type of its last job.",
        ["SA-GB02"],
        outputs_continued
    ),
    case!(
        "blocker.outputs.none",
        "An acquired job without blockers has no blocker outputs.",
        ["SA-GB03"],
        outputs_none
    ),
    case!(
        "blocker.continued",
        "A blocker chain that continues has not completed.",
        ["A8.3", "never 5"],
        continued
    ),
    case!(
        "blocker.retried",
        "A blocker whose attempt fails keeps its dependents waiting until it completes.",
        ["never 5"],
        retried
    ),
    case!(
        "blocker.missing",
        "A chain with a blocker that is not stored is refused.",
        ["SA-AB01", "contract"],
        missing
    ),
    case!("blocker.itself", "A chain cannot wait for itself.", ["contract"], itself),
    case!(
        "blocker.same_batch",
        "A blocker may be an earlier chain of the same command.",
        ["SA-AB03"],
        same_batch
    ),
    case!(
        "blocker.same_batch.existing",
        "A blocker of the same command that already exists under its key refers to the existing chain.",
        ["SA-AB03"],
        same_batch_existing
    ),
    case!(
        "blocker.shared",
        "All jobs that wait for a chain are unblocked in their order of creation.",
        ["SA-UB01"],
        shared
    ),
    case!(
        "blocker.other_handle",
        "Completing a chain through one handle unblocks jobs that were created through the other.",
        ["never 5"],
        other_handle
    ),
    case!("blocker.many", "A job may wait for a thousand chains.", ["never 5"], many),
    case!(
        "blocker.policy.wait",
        "By default, a job keeps waiting when a blocker fails.",
        ["contract"],
        policy_wait
    ),
    case!(
        "blocker.policy.fail",
        "With policy `Fail`, a job and its chain fail when a blocker fails.",
        ["contract"],
        policy_fail
    ),
    case!(
        "blocker.policy.receive",
        "With policy `Receive`, a job runs and receives the failure of its blocker.",
        ["contract"],
        policy_receive
    ),
    case!(
        "blocker.policy.cascade",
        "A failure propagates through all dependents that fail with their blocker.",
        ["never 5"],
        policy_cascade
    ),
    case!(
        "blocker.policy.at_creation",
        "The same policies apply to a blocker that failed before the job was created.",
        ["contract"],
        policy_at_creation
    ),
    case!(
        "blocker.twice",
        "A blocker that is listed twice is waited for once, and its output appears in both places.",
        ["SA-GB01"],
        twice
    ),
];

/// Returns the ids of the unblocked jobs.
fn unblocked(ripple: &Ripple) -> Vec<JobId> {
    ripple.unblocked.iter().map(|unblocked| unblocked.job.job).collect()
}

async fn open(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let created = s.start("a").blocked_by([one, two]).created().await;
    assert_eq!(summary(&created).status, Status::Blocked);
    s.expect_none_due("a").await;
    let job = s.job(summary(&created).job).await;
    assert_eq!(job.status, Status::Blocked);
    let waits: Vec<_> = job.blockers.iter().map(|blocker| (blocker.chain, blocker.resolved)).collect();
    assert_eq!(waits, [(one, false), (two, false)]);
}

async fn completed(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    s.work("b", complete("1")).await;
    s.work("b", complete("2")).await;
    let created = s.start("a").blocked_by([one, two]).created().await;
    assert_eq!(summary(&created).status, Status::Pending);
    let attempt = s.acquire_one("a").await;
    assert!(attempt.job.blockers.iter().all(|blocker| blocker.resolved), "{:?}", attempt.job.blockers);
}

async fn batch(s: Subject) {
    let done = s.start("b").await;
    s.work("b", complete("1")).await;
    let open = s.start("b").await;
    let blocked_by = |chains: &[ChainId]| s.start("a").blocked_by(chains.iter().copied()).build();
    let created = s
        .create(vec![blocked_by(&[done]), blocked_by(&[open]), blocked_by(&[]), blocked_by(&[done, open])])
        .await;
    let statuses: Vec<_> = created.iter().map(|one| summary(one).status).collect();
    assert_eq!(statuses, [Status::Pending, Status::Blocked, Status::Pending, Status::Blocked]);
}

async fn resolved(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let id = s.start("a").blocked_by([one, two]).await;
    let first = s.acquire_one("b").await;
    let reply = s.settle_reply(&first, complete("1")).await;
    assert_eq!(reply.ripple.unblocked, []);
    s.expect_status(id, Status::Blocked).await;
    let waits = s.job(id.first_job()).await.blockers;
    assert_eq!((waits[0].resolved, waits[1].resolved), (true, false));
    let second = s.acquire_one("b").await;
    let reply = s.settle_reply(&second, complete("2")).await;
    let job = JobSummary { job: id.first_job(), chain: id, status: Status::Pending, due_at: s.now() };
    let (job_type, chain_type) = (type_name("a"), type_name("a"));
    assert_eq!(reply.ripple.unblocked, [Unblocked { job, job_type, chain_type, traces: vec![None, None] }]);
    s.acquire_one("a").await;
}

async fn no_dependents(s: Subject) {
    let id = s.start("b").await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, complete("1")).await;
    assert_eq!(reply.ripple.unblocked, []);
    let closed = ClosedChain {
        chain: id,
        chain_type: type_name("b"),
        job: id.first_job(),
        job_type: type_name("b"),
        closed_as: ClosedAs::Completed,
        error: None,
        created_at: s.now(),
        trace: None,
    };
    assert_eq!(reply.ripple.closed, [closed]);
}

async fn traces(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let id = s.start("a").blocked_by_traced(two, "00-two-01").blocked_by_traced(one, "00-one-01").await;
    s.work("b", complete("1")).await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, complete("2")).await;
    assert_eq!(unblocked(&reply.ripple), [id.first_job()]);
    let trace = |trace: &Option<TraceContext>| trace.as_ref().map(|trace| trace.as_str().to_owned());
    let traces: Vec<_> = reply.ripple.unblocked[0].traces.iter().map(trace).collect();
    assert_eq!(traces, [Some("00-two-01".to_owned()), Some("00-one-01".to_owned())]);
    let stored = s.job(id.first_job()).await.blockers;
    assert_eq!(stored[0].trace.as_ref().unwrap().as_str(), "00-two-01");
}

async fn traces_none(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, complete("1")).await;
    assert_eq!(unblocked(&reply.ripple), [id.first_job()]);
    assert_eq!(reply.ripple.unblocked[0].traces, [None]);
    assert_eq!(s.job(id.first_job()).await.blockers[0].trace, None);
}

async fn due_past(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").after(1_000).blocked_by([blocker]).await;
    s.advance(5_000);
    s.work("b", complete("1")).await;
    assert_eq!(s.job(id.first_job()).await.due_at, s.now());
}

async fn due_future(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").after(5_000).blocked_by([blocker]).await;
    let due_at = s.now() + millis(5_000);
    s.advance(1_000);
    s.work("b", complete("1")).await;
    assert_eq!((s.job(id.first_job()).await.due_at, s.chain(id).await.status()), (due_at, Status::Pending));
    s.expect_none_due("a").await;
    s.advance(4_000);
    s.acquire_one("a").await;
}

async fn due_order(s: Subject) {
    let blocker = s.start("b").await;
    let stale = s.start("a").blocked_by([blocker]).await;
    s.advance(1_000);
    let ready = s.start("a").await;
    s.advance(1_000);
    s.work("b", complete("1")).await;
    assert_eq!(chains_of(&s.acquire("a", 10).await), [ready, stale]);
}

async fn outputs(s: Subject) {
    let (one, two) = (s.start("b").input("1").await, s.start("c").await);
    s.start("a").blocked_by([two, one]).await;
    s.work("b", complete(r#""one""#)).await;
    s.work("c", complete(r#""two""#)).await;
    let attempt = s.acquire_one("a").await;
    let output = |chain, name, text| BlockerOutput {
        chain,
        chain_type: type_name(name),
        job_type: type_name(name),
        status: Status::Completed,
        output: Some(json(text)),
        error: None,
    };
    assert_eq!(attempt.blockers, [output(two, "c", r#""two""#), output(one, "b", r#""one""#)]);
}

async fn outputs_continued(s: Subject) {
    let blocker = s.start("b").await;
    s.start("a").blocked_by([blocker]).await;
    s.work("b", continue_with(s.start("c").next_job())).await;
    s.work("c", complete("2")).await;
    let attempt = s.acquire_one("a").await;
    let output = &attempt.blockers[0];
    assert_eq!((&output.chain_type, &output.job_type), (&type_name("b"), &type_name("c")));
    assert_eq!((output.chain, &output.output), (blocker, &Some(json("2"))));
}

async fn outputs_none(s: Subject) {
    s.start("a").await;
    assert_eq!(s.acquire_one("a").await.blockers, []);
}

async fn continued(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    s.work("b", continue_with(s.start("c").next_job())).await;
    s.expect_status(id, Status::Blocked).await;
    let late = s.start("a").blocked_by([blocker]).created().await;
    assert_eq!(summary(&late).status, Status::Blocked);
    s.work("c", complete("1")).await;
    assert_eq!(s.acquire("a", 10).await.len(), 2);
}

async fn retried(s: Subject) {
    let blocker = s.start("b").await;
    let policy = OnBlockerFailure::Fail;
    let id = s.start("a").blocked_by([blocker]).on_failure(policy).await;
    s.work("b", retry("no")).await;
    s.expect_status(id, Status::Blocked).await;
    s.work("b", complete("1")).await;
    s.expect_status(id, Status::Pending).await;
}

async fn missing(s: Subject) {
    let (known, unknown) = (s.start("b").await, ChainId::new());
    let created = s.start("a").blocked_by([known, unknown]).created().await;
    assert_eq!(created, Created::Refused(Refusal::BlockerNotFound(unknown)));
    let next = s.start("c").next_job();
    s.work("b", continue_with(next.clone())).await;
    let not_a_chain = ChainId::from_uuid(*next.id.as_uuid());
    let created = s.start("a").blocked_by([not_a_chain]).created().await;
    assert_eq!(created, Created::Refused(Refusal::BlockerNotFound(not_a_chain)));
}

async fn itself(s: Subject) {
    let id = ChainId::new();
    let created = s.start("a").id(id).blocked_by([id]).created().await;
    assert_eq!(created, Created::Refused(Refusal::WaitsForItself(id)));
    assert_eq!(s.find_chain(id).await, None);
}

async fn same_batch(s: Subject) {
    let blocker = s.start("b").build();
    let waiting = s.start("a").blocked_by([blocker.id]).build();
    let created = s.create(vec![blocker.clone(), waiting.clone()]).await;
    assert_eq!(summary(&created[1]).status, Status::Blocked);
    let early = s.start("a").blocked_by([ChainId::new()]).build();
    let created = s.create(vec![early.clone(), s.start("b").id(early.job.blockers[0].chain).build()]).await;
    assert_eq!(created[0], Created::Refused(Refusal::BlockerNotFound(early.job.blockers[0].chain)));
    summary(&created[1]);
    s.work("b", complete("1")).await;
    assert_eq!(s.acquire_one("a").await.blockers[0].chain, blocker.id);
}

async fn same_batch_existing(s: Subject) {
    let first = s.start("b").key("k").await;
    let second = s.start("b").key("k").build();
    let waiting = s.start("a").blocked_by([second.id]).build();
    let created = s.create(vec![second, waiting.clone()]).await;
    assert_eq!((created[0].chain(), summary(&created[1]).status), (Some(first), Status::Blocked));
    assert_eq!(s.job(waiting.id.first_job()).await.blockers[0].chain, first);
    s.work("b", complete("7")).await;
    let attempt = s.acquire_one("a").await;
    assert_eq!((attempt.blockers[0].chain, &attempt.blockers[0].output), (first, &Some(json("7"))));
}

async fn shared(s: Subject) {
    let blocker = s.start("b").await;
    let waiting: Vec<_> = (0..20).map(|_| s.start("a").blocked_by([blocker]).build()).collect();
    s.create(waiting.clone()).await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, complete("1")).await;
    let expected: Vec<_> = waiting.iter().map(|chain| chain.id.first_job()).collect();
    assert_eq!(unblocked(&reply.ripple), expected);
    let ids: Vec<_> = waiting.iter().map(|chain| chain.id).collect();
    assert_eq!(chains_of(&s.acquire("a", 100).await), ids);
}

async fn other_handle(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    s.through_other().work("b", complete("1")).await;
    s.expect_status(id, Status::Pending).await;
    assert_eq!(s.acquire_one("a").await.blockers[0].output, Some(json("1")));
}

async fn many(s: Subject) {
    let blockers: Vec<_> = (0..limit::BLOCKERS_MAX).map(|_| s.start("b").build()).collect();
    let ids: Vec<_> = blockers.iter().map(|chain| chain.id).collect();
    s.create(blockers).await;
    let id = s.start("a").blocked_by(ids.clone()).await;
    for expected in [Status::Blocked, Status::Pending] {
        let attempts = s.acquire("b", 500).await;
        let settlements = attempts.iter().map(|attempt| settlement(attempt, complete("1"))).collect();
        s.run(Settle { settlements }).await;
        s.expect_status(id, expected).await;
    }
    let outputs = s.acquire_one("a").await.blockers;
    assert_eq!(outputs.iter().map(|output| output.chain).collect::<Vec<_>>(), ids);
}

async fn policy_wait(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let id = s.start("a").blocked_by([one, two]).await;
    s.work("b", fail("no")).await;
    s.work("b", complete("1")).await;
    s.expect_status(id, Status::Blocked).await;
    let waits = s.job(id.first_job()).await.blockers;
    assert_eq!((waits[0].resolved, waits[1].resolved), (false, true));
}

async fn policy_fail(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let id = s.start("a").blocked_by([two, one]).on_failure(OnBlockerFailure::Fail).await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, fail("no")).await;
    let closed: Vec<_> = reply.ripple.closed.iter().map(|closed| (closed.chain, closed.closed_as)).collect();
    assert_eq!(closed, [(one, ClosedAs::Failed), (id, ClosedAs::Failed)]);
    assert_eq!(reply.ripple.unblocked, []);
    let chain = s.chain(id).await;
    assert_eq!(chain.closed.unwrap().closed_as, ClosedAs::Failed);
    assert_eq!(chain.latest.error.unwrap().as_str(), format!("{BLOCKER_FAILED}{one}"));
}

async fn policy_receive(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let id = s.start("a").blocked_by([one, two]).on_failure(OnBlockerFailure::Receive).await;
    s.work("b", fail("no")).await;
    s.expect_status(id, Status::Blocked).await;
    s.work("b", complete("2")).await;
    let attempt = s.acquire_one("a").await;
    let [failed, completed] = &attempt.blockers[..] else {
        panic!("two blockers, so two outputs: {attempt:?}")
    };
    assert_eq!((failed.status, &failed.output), (Status::Failed, &None));
    assert_eq!(failed.error, Some(ErrorText::new("no")));
    assert_eq!((completed.status, &completed.output), (Status::Completed, &Some(json("2"))));
}

async fn policy_cascade(s: Subject) {
    let root = s.start("b").await;
    let (fail_too, receive) = (OnBlockerFailure::Fail, OnBlockerFailure::Receive);
    let second = s.start("a").blocked_by([root]).on_failure(fail_too).await;
    let third = s.start("a").blocked_by([second]).on_failure(fail_too).await;
    let last = s.start("a").blocked_by([third]).on_failure(receive).await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, fail("no")).await;
    let closed: Vec<_> = reply.ripple.closed.iter().map(|closed| closed.chain).collect();
    assert_eq!((closed, unblocked(&reply.ripple)), (vec![root, second, third], vec![last.first_job()]));
    assert_eq!(s.acquire_one("a").await.blockers[0].status, Status::Failed);
}

async fn policy_at_creation(s: Subject) {
    let blocker = s.start("b").await;
    s.work("b", fail("no")).await;
    let policies = [
        (OnBlockerFailure::Wait, Status::Blocked),
        (OnBlockerFailure::Fail, Status::Failed),
        (OnBlockerFailure::Receive, Status::Pending),
    ];
    for (policy, expected) in policies {
        let created = s.start("a").blocked_by([blocker]).on_failure(policy).created().await;
        assert_eq!(summary(&created).status, expected, "{policy:?}");
        s.expect_status(summary(&created).chain, expected).await;
    }
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn twice(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let id = s.start("a").blocked_by([one, two, one]).await;
    s.work("b", complete("1")).await;
    s.expect_status(id, Status::Blocked).await;
    s.work("b", complete("2")).await;
    let outputs: Vec<_> =
        s.acquire_one("a").await.blockers.into_iter().map(|one| one.output.unwrap()).collect();
    assert_eq!(outputs, [json("1"), json("2"), json("1")]);
}
