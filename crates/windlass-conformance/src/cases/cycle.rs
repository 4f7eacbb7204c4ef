//! Chains that would wait for themselves.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "cycle.failed",
        "A continuation cannot wait for a failed chain that waited for it and could be retried.",
        ["never 1"],
        failed
    ),
    case!(
        "cycle.failed.far",
        "The cycle search follows failed and blocked chains alike.",
        ["never 1"],
        failed_far
    ),
    case!(
        "cycle.failed.free",
        "A failed chain that does not lead back is allowed as a blocker.",
        ["contract"],
        failed_free
    ),
    case!(
        "cycle.carried",
        "A continuation cannot wait for a carried chain that waits for its own chain.",
        ["never 1"],
        carried
    ),
    case!(
        "cycle.first",
        "A refusal names the first blocker that leads back to the chain.",
        ["contract"],
        names_the_first
    ),
    case!("cycle.long", "A cycle through hundreds of chains is found.", ["never 1"], long),
    case!("cycle.shared", "Several paths to the same chain are not a cycle.", ["never 1"], shared),
    case!(
        "cycle.resolved",
        "The search follows only the blockers that a blocked chain still waits for.",
        ["contract"],
        [Retry],
        resolved
    ),
    case!(
        "cycle.cancelled",
        "A continuation cannot wait for a cancelled chain that waited for its own chain.",
        ["never 1"],
        [Cancel],
        cancelled
    ),
    case!(
        "cycle.outside",
        "A continuation from outside cannot make its chain wait for itself.",
        ["never 1"],
        [Outside],
        outside
    ),
    case!(
        "cycle.received",
        "The search follows all blockers of a failed chain, including those whose failure it received.",
        ["never 1"],
        [Retry],
        received
    ),
];

/// Tries to continue the attempt's chain with a job that waits for these blockers. Checks that the store refuses it
/// and names `back` as the blocker that leads back to the chain.
async fn expect_cycle(s: &Subject, attempt: &Acquired, blockers: &[ChainId], back: ChainId) {
    let next = s.start("next").blocked_by(blockers.iter().copied()).next_job();
    let settled = s.settle(attempt, continue_with(next.clone())).await;
    assert_eq!(settled, Settled::Refused(Refusal::WaitsForItself(back)));
    assert_eq!((s.find_job(next.id).await, s.job(attempt.job.id).await), (None, attempt.job.clone()));
}

/// Returns a failed chain that still waited for `chain` when another of its blockers failed.
async fn failed_waiting_for(s: &Subject, chain: ChainId) -> ChainId {
    let other = s.start("other").await;
    let id = s.start("failing").blocked_by([chain, other]).on_failure(OnBlockerFailure::Fail).await;
    s.work("other", fail("no")).await;
    s.expect_status(id, Status::Failed).await;
    id
}

async fn failed(s: Subject) {
    let id = s.start("a").await;
    let failed = failed_waiting_for(&s, id).await;
    let attempt = s.acquire_one("a").await;
    expect_cycle(&s, &attempt, &[failed], failed).await;
    for policy in [OnBlockerFailure::Fail, OnBlockerFailure::Receive] {
        let next = s.start("next").blocked_by([failed]).on_failure(policy).next_job();
        let settled = s.settle(&attempt, continue_with(next)).await;
        assert_eq!(settled, Settled::Refused(Refusal::WaitsForItself(failed)), "{policy:?}");
    }
    s.complete(&attempt, "1").await;
}

async fn failed_far(s: Subject) {
    let id = s.start("a").await;
    let near = s.start("b").blocked_by([id]).await;
    let failed = failed_waiting_for(&s, near).await;
    let far = s.start("b").blocked_by([failed]).await;
    let attempt = s.acquire_one("a").await;
    expect_cycle(&s, &attempt, &[far], far).await;
}

async fn failed_free(s: Subject) {
    let id = s.start("a").await;
    let stranger = s.start("b").await;
    let failed = failed_waiting_for(&s, stranger).await;
    let attempt = s.acquire_one("a").await;
    let applied = s.apply(&attempt, continue_with(s.start("c").blocked_by([failed]).next_job())).await;
    assert_eq!(applied.next.unwrap().status, Status::Blocked);
    s.expect_status(id, Status::Blocked).await;
}

async fn carried(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let waits_back = s.start("b").blocked_by([id]).build();
    let next = s.start("c").blocked_by([waits_back.id]).next_job();
    let settled = s.settle(&attempt, continue_with_chains(next, vec![waits_back.clone()])).await;
    assert_eq!(settled, Settled::Refused(Refusal::WaitsForItself(waits_back.id)));
    assert_eq!(s.find_chain(waits_back.id).await, None);
    s.apply(&attempt, complete_with_chains("1", vec![waits_back])).await;
    s.acquire_one("b").await;
}

async fn names_the_first(s: Subject) {
    let id = s.start("a").await;
    let free = s.start("b").await;
    let near = s.start("b").blocked_by([id, free]).await;
    let far = s.start("b").blocked_by([near]).await;
    let attempt = s.acquire_one("a").await;
    expect_cycle(&s, &attempt, &[free, far, near, id], far).await;
    expect_cycle(&s, &attempt, &[free, free, near, far], near).await;
    expect_cycle(&s, &attempt, &[id, near], id).await;
}

async fn long(s: Subject) {
    const LENGTH: usize = 900;
    let id = s.start("a").await;
    let mut line: Vec<NewChain> = Vec::new();
    for _ in 0..LENGTH {
        let before = line.last().map_or(id, |chain| chain.id);
        line.push(s.start("b").blocked_by([before]).build());
    }
    let last = line[LENGTH - 1].id;
    s.create(line).await;
    let attempt = s.acquire_one("a").await;
    expect_cycle(&s, &attempt, &[last], last).await;
}

async fn shared(s: Subject) {
    const WIDTH: usize = 10;
    let root = s.start("root").await;
    let mut layer = vec![root];
    for _ in 0..6 {
        let chains: Vec<_> =
            (0..WIDTH).map(|_| s.start("b").blocked_by(layer.iter().copied()).build()).collect();
        layer = chains.iter().map(|chain| chain.id).collect();
        s.create(chains).await;
    }
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let applied = s.apply(&attempt, continue_with(s.start("c").blocked_by(layer).next_job())).await;
    assert_eq!(applied.next.unwrap().status, Status::Blocked);
    let attempt = s.acquire_one("root").await;
    let next = s.start("next").blocked_by([applied.job.chain]).next_job();
    let settled = s.settle(&attempt, continue_with(next)).await;
    assert_eq!(settled, Settled::Refused(Refusal::WaitsForItself(applied.job.chain)));
}

async fn resolved(s: Subject) {
    let (one, two) = (s.start("a").await, s.start("b").await);
    let waiting = s.start("c").blocked_by([one, two]).on_failure(OnBlockerFailure::Receive).await;
    s.work("a", fail("no")).await;
    retry_chain(&s, one).await;
    let attempt = s.acquire_one("a").await;
    let applied = s.apply(&attempt, continue_with(s.start("d").blocked_by([waiting]).next_job())).await;
    assert_eq!(applied.next.unwrap().status, Status::Blocked);
    for name in ["b", "c", "d"] {
        s.work(name, complete("1")).await;
    }
    s.expect_status(one, Status::Completed).await;
}

async fn cancelled(s: Subject) {
    let id = s.start("a").await;
    let waiting = s.start("b").blocked_by([id]).await;
    s.run(Cancel { chains: vec![waiting.into()], mode: CancelMode::UnlessRunning }).await;
    s.expect_status(waiting, Status::Cancelled).await;
    let attempt = s.acquire_one("a").await;
    expect_cycle(&s, &attempt, &[waiting], waiting).await;
}

async fn outside(s: Subject) {
    let id = s.start("a").await;
    let waiting = s.start("b").blocked_by([id]).await;
    let job = s.chain(id).await.latest;
    let go_on = |blocker: Option<ChainId>| Step::Continue {
        next: s.start("c").blocked_by(blocker).next_job(),
        create: Vec::new(),
    };
    let steps = vec![go_on(None), go_on(Some(waiting))];
    let request = RequestId::new();
    let reply = s.run(CompleteFromOutside { request, job: job.id, version: job.version, steps }).await;
    assert_eq!(reply, CompleteFromOutsideReply::Refused(Refusal::WaitsForItself(waiting)));
    assert_eq!(s.chain(id).await.latest, job);
}

async fn received(s: Subject) {
    let id = s.start("a").await;
    let receiver = s.start("b").blocked_by([id]).on_failure(OnBlockerFailure::Receive).await;
    s.work("a", fail("no")).await;
    s.work("b", fail("no")).await;
    retry_chain(&s, id).await;
    let attempt = s.acquire_one("a").await;
    expect_cycle(&s, &attempt, &[receiver], receiver).await;
}

async fn retry_chain(s: &Subject, chain: ChainId) {
    let job = s.chain(chain).await.latest;
    let reply = s.run(Retry { chains: vec![RetryTarget { job: job.id, version: job.version }] }).await;
    assert!(matches!(reply.chains[0], Retried::Retried { .. }), "{reply:?}");
}
