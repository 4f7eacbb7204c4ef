//! Completing jobs from outside, without a worker.

use windlass_core::{JobRecord, Version};

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "outside.complete",
        "A pending job can be completed from outside, without a worker.",
        ["SA-CP03"],
        [Outside],
        completes
    ),
    case!("outside.fail", "A job can be failed from outside.", ["SA-CP03"], [Outside], fails),
    case!(
        "outside.continue",
        "A chain can be continued from outside, and a worker can acquire its next job.",
        ["SA-CP03"],
        [Outside],
        continues
    ),
    case!("outside.steps", "One command can apply several steps in order.", ["contract"], [Outside], steps),
    case!("outside.blocked", "A blocked job can be completed from outside.", ["client"], [Outside], blocked),
    case!(
        "outside.running",
        "A running job can be completed from outside, which displaces its worker.",
        ["client"],
        [Outside],
        running
    ),
    case!(
        "outside.unblocks",
        "A completion from outside unblocks the dependents of the chain.",
        ["never 5"],
        [Outside],
        unblocks
    ),
    case!(
        "outside.changed",
        "A job that has changed since the caller read it is not modified.",
        ["SA-GC06", "SA-GJ02"],
        [Outside],
        changed
    ),
    case!("outside.not_found", "A job that is not stored is not found.", ["SA-GJ01"], [Outside], not_found),
    case!(
        "outside.not_latest",
        "A job that is not the latest of its chain counts as changed.",
        ["contract"],
        [Outside],
        not_latest
    ),
    case!(
        "outside.renewed",
        "A renewal does not count as a change between reading and completing a job.",
        ["contract"],
        [Outside],
        renewed
    ),
    case!(
        "outside.repeated",
        "A repeated completion from outside is already applied.",
        ["never 12"],
        [Outside],
        repeated
    ),
    case!("outside.refused", "If a step is refused, none is written.", ["contract"], [Outside], refused),
    case!(
        "outside.invalid_steps",
        "A command without steps, with too many, or with a step after the last one is refused.",
        ["never 8"],
        [Outside],
        invalid_steps
    ),
    case!(
        "outside.retention",
        "A completion from outside can set another retention.",
        ["contract"],
        [Outside],
        retention
    ),
    case!(
        "outside.concurrent",
        "If a job is completed several times concurrently, one completion is applied.",
        ["SA-GC06", "SA-GJ02"],
        [Outside],
        concurrent
    ),
];

fn finish(output: &str) -> Step {
    Step::Complete { output: json(output), retention: None, create: Vec::new() }
}

fn go_on(next: NextJob) -> Step {
    Step::Continue { next, create: Vec::new() }
}

fn request(job: &JobRecord, steps: Vec<Step>) -> CompleteFromOutside {
    CompleteFromOutside { request: RequestId::new(), job: job.id, version: job.version, steps }
}

async fn apply(s: &Subject, job: &JobRecord, steps: Vec<Step>) -> OutsideApplied {
    match s.run(request(job, steps)).await {
        CompleteFromOutsideReply::Applied(applied) => applied,
        other => panic!("expected the steps to be applied, got {other:?}"),
    }
}

async fn latest(s: &Subject, chain: ChainId) -> JobRecord {
    s.chain(chain).await.latest
}

async fn completes(s: Subject) {
    let id = s.start("a").retention(HOUR).await;
    let applied = apply(&s, &latest(&s, id).await, vec![finish("1")]).await;
    assert_eq!((applied.latest.job, applied.latest.status), (id.first_job(), Status::Completed));
    assert_eq!((applied.displaced, applied.created.len()), (None, 0));
    assert_eq!(applied.ripple.closed.iter().map(|one| one.chain).collect::<Vec<_>>(), [id]);
    let chain = s.chain(id).await;
    assert_eq!((chain.output(), chain.latest.closed_by), (Some(&json("1")), None));
    assert_eq!(chain.closed.unwrap().retain_until, s.now() + millis(HOUR));
    s.expect_none_due("a").await;
}

async fn fails(s: Subject) {
    let id = s.start("a").await;
    let step = Step::Fail { error: ErrorText::new("no"), retention: None };
    apply(&s, &latest(&s, id).await, vec![step]).await;
    let job = latest(&s, id).await;
    assert_eq!((job.status, job.error, job.closed_by), (Status::Failed, Some(ErrorText::new("no")), None));
}

async fn continues(s: Subject) {
    let id = s.start("a").await;
    let next = s.start("b").next_job();
    let applied = apply(&s, &latest(&s, id).await, vec![go_on(next.clone())]).await;
    assert_eq!((applied.latest.job, applied.latest.status), (next.id, Status::Pending));
    let first = s.job(id.first_job()).await;
    assert_eq!((first.status, first.output, first.closed_by), (Status::Completed, None, None));
    let attempt = s.work("b", complete("1")).await;
    assert_eq!((attempt.job.id, attempt.job.index), (next.id, 1));
}

async fn steps(s: Subject) {
    let id = s.start("a").await;
    let carried = s.start("x").build();
    let (second, third) = (s.start("b").next_job(), s.start("c").next_job());
    let steps = vec![
        Step::Continue { next: second.clone(), create: vec![carried.clone()] },
        go_on(third.clone()),
        finish("1"),
    ];
    let applied = apply(&s, &latest(&s, id).await, steps).await;
    assert_eq!((applied.latest.job, applied.latest.status), (third.id, Status::Completed));
    assert_eq!(applied.created.iter().map(|one| summary(one).chain).collect::<Vec<_>>(), [carried.id]);
    let chain = s.chain(id).await;
    assert_eq!((chain.latest.index, chain.output()), (2, Some(&json("1"))));
    assert_eq!(s.job(second.id).await.status, Status::Completed);
    s.expect_none_due("b").await;
}

async fn blocked(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").blocked_by([blocker]).await;
    apply(&s, &latest(&s, id).await, vec![finish("1")]).await;
    s.expect_status(id, Status::Completed).await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, complete("2")).await;
    assert_eq!(reply.ripple.unblocked, [], "the job that waited has ended");
    s.expect_status(id, Status::Completed).await;
}

async fn running(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let applied = apply(&s, &attempt.job, vec![finish("1")]).await;
    assert_eq!(applied.displaced, Some(s.worker));
    assert_eq!(s.renew(&attempt).await, Renewed::Lost(Lost::Closed(ClosedAs::Completed)));
    let settled = s.settle(&attempt, complete("2")).await;
    assert_eq!(settled, Settled::Lost(Lost::Closed(ClosedAs::Completed)));
    let job = latest(&s, id).await;
    assert_eq!((job.output, job.lease, job.closed_by), (Some(json("1")), None, None));
}

async fn unblocks(s: Subject) {
    let id = s.start("a").await;
    let waiting = s.start("b").blocked_by([id]).await;
    let applied = apply(&s, &latest(&s, id).await, vec![finish("1")]).await;
    assert_eq!(applied.ripple.unblocked.iter().map(|one| one.job.chain).collect::<Vec<_>>(), [waiting]);
    assert_eq!(s.acquire_one("b").await.blockers[0].output, Some(json("1")));
}

async fn changed(s: Subject) {
    let id = s.start("a").await;
    let looked_at = latest(&s, id).await;
    let attempt = s.acquire_one("a").await;
    let expected =
        |job: &JobRecord| CompleteFromOutsideReply::Changed { status: job.status, version: job.version };
    assert_eq!(s.run(request(&looked_at, vec![finish("1")])).await, expected(&attempt.job));
    s.complete(&attempt, "2").await;
    let closed = latest(&s, id).await;
    assert_eq!(s.run(request(&attempt.job, vec![finish("1")])).await, expected(&closed));
    assert_eq!(
        s.run(request(&closed, vec![finish("1")])).await,
        expected(&closed),
        "a closed job is not ended again"
    );
    assert_eq!(latest(&s, id).await, closed);
}

async fn not_found(s: Subject) {
    let (request, job, version) = (RequestId::new(), JobId::new(), Version(0));
    let reply = s.run(CompleteFromOutside { request, job, version, steps: vec![finish("1")] }).await;
    assert_eq!(reply, CompleteFromOutsideReply::NotFound);
}

async fn not_latest(s: Subject) {
    let id = s.start("a").await;
    s.work("a", continue_with(s.start("b").next_job())).await;
    let first = s.job(id.first_job()).await;
    let reply = s.run(request(&first, vec![finish("1")])).await;
    assert!(
        matches!(reply, CompleteFromOutsideReply::Changed { status: Status::Completed, .. }),
        "{reply:?}"
    );
    s.expect_status(id, Status::Pending).await;
}

async fn renewed(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let looked_at = latest(&s, id).await;
    s.renew(&attempt).await;
    apply(&s, &looked_at, vec![finish("1")]).await;
}

async fn repeated(s: Subject) {
    let id = s.start("a").await;
    let next = s.start("b").next_job();
    let request = request(&latest(&s, id).await, vec![go_on(next)]);
    s.run(request.clone()).await;
    let again = s.through_other().run(request.clone()).await;
    assert_eq!(again, CompleteFromOutsideReply::AlreadyApplied);
    s.work("b", complete("1")).await;
    assert_eq!(s.run(request).await, CompleteFromOutsideReply::AlreadyApplied);
    assert_eq!(s.chain(id).await.latest.index, 1);
}

async fn refused(s: Subject) {
    let id = s.start("a").await;
    let before = s.chain(id).await;
    let (missing, carried) = (ChainId::new(), s.start("x").build());
    let next = s.start("b").next_job();
    let steps = vec![
        Step::Continue { next: next.clone(), create: vec![carried.clone()] },
        go_on(s.start("c").blocked_by([missing]).next_job()),
    ];
    let reply = s.run(request(&before.latest, steps)).await;
    assert_eq!(reply, CompleteFromOutsideReply::Refused(Refusal::BlockerNotFound(missing)));
    assert_eq!((s.chain(id).await, s.find_job(next.id).await), (before, None));
    assert_eq!(s.find_chain(carried.id).await, None);
}

async fn invalid_steps(s: Subject) {
    let id = s.start("a").await;
    let before = s.chain(id).await;
    let many = (0..=limit::STEPS_MAX).map(|_| go_on(s.start("b").next_job())).collect();
    for steps in [Vec::new(), many, vec![finish("1"), finish("2")]] {
        let reply = s.run(request(&before.latest, steps)).await;
        assert_eq!(reply, CompleteFromOutsideReply::Refused(Refusal::StepsInvalid));
    }
    assert_eq!(s.chain(id).await, before);
}

async fn retention(s: Subject) {
    let id = s.start("a").retention(HOUR).await;
    let step = Step::Complete { output: json("1"), retention: Some(millis(3 * HOUR)), create: Vec::new() };
    apply(&s, &latest(&s, id).await, vec![step]).await;
    assert_eq!(s.chain(id).await.closed.unwrap().retain_until, s.now() + millis(3 * HOUR));
}

async fn concurrent(s: Subject) {
    let id = s.start("a").await;
    let job = latest(&s, id).await;
    let tasks: Vec<_> = (0..8)
        .map(|turn| {
            let (s, job) = (s.turn(turn), job.clone());
            tokio::spawn(async move {
                let next = s.start("b").next_job();
                loop {
                    // Another call may hold the row at the moment; try again.
                    match s.run(request(&job, vec![go_on(next.clone())])).await {
                        CompleteFromOutsideReply::Busy => tokio::task::yield_now().await,
                        reply => return matches!(reply, CompleteFromOutsideReply::Applied(_)),
                    }
                }
            })
        })
        .collect();
    let mut applied = 0;
    for task in tasks {
        applied += u32::from(task.await.unwrap());
    }
    assert_eq!((applied, s.chain(id).await.latest.index), (1, 1));
    assert_eq!(s.acquire("b", 10).await.len(), 1);
}
