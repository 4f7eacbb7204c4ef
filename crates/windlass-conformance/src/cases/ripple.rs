//! Consequences of a chain's end when there are many dependents: one command resolves a bounded number of them.

use std::collections::HashSet;

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "blocker.ripple.acquire",
        "Later acquires unblock the dependents above the limit of one command.",
        ["contract"],
        acquire
    ),
    case!(
        "blocker.ripple.reap",
        "Later reaps unblock the dependents above the limit of one command.",
        ["contract"],
        reap
    ),
    case!(
        "blocker.ripple.settle",
        "All chains that one settlement closes share its limit.",
        ["contract"],
        settle
    ),
    case!(
        "blocker.ripple.reap.once",
        "In a reap, deferred unblocking and the consequences of its own jobs share one limit.",
        ["contract"],
        reap_once
    ),
    case!(
        "blocker.ripple.fail",
        "Chains that fail with a blocker count towards the limit too, and all of them fail eventually.",
        ["contract"],
        fail_too
    ),
    case!(
        "blocker.ripple.last",
        "Consequences are processed after all items of a command.",
        ["contract"],
        comes_last
    ),
    case!(
        "blocker.ripple.front",
        "A chain without unresolved dependents does not delay a later chain with very many.",
        ["contract"],
        front
    ),
    case!(
        "blocker.ripple.wide",
        "If many chains fail with a blocker and each fails several more, all fail eventually.",
        ["contract"],
        wide
    ),
    case!(
        "blocker.ripple.exchange",
        "Both parts of an exchange share one limit.",
        ["contract"],
        [Exchange],
        exchange
    ),
    case!(
        "blocker.ripple.cancel",
        "Consequences of cancelled chains are limited too, and are processed after all items.",
        ["contract"],
        [Cancel],
        cancel
    ),
    case!(
        "blocker.ripple.outside",
        "Consequences of a completion from outside are limited too.",
        ["contract"],
        [Outside],
        outside
    ),
];

/// Number of dependents above the limit of one command.
const LEFT: usize = 200;

/// Starts `count` chains of type `a` that wait for this one.
async fn dependents(s: &Subject, chain: ChainId, count: usize, policy: OnBlockerFailure) {
    let mut left = count;
    while left > 0 {
        let size = left.min(limit::BATCH_MAX_ITEMS);
        let waiting = || s.start("a").blocked_by([chain]).on_failure(policy).build();
        s.create((0..size).map(|_| waiting()).collect()).await;
        left -= size;
    }
}

/// Returns the jobs of type `a` that a command unblocked or failed.
#[track_caller]
fn resolved(ripple: &Ripple) -> Vec<JobId> {
    let failed = ripple.closed.iter().filter(|closed| closed.chain_type.as_str() == "a");
    let unblocked = ripple.unblocked.iter().map(|unblocked| unblocked.job.job);
    let jobs: Vec<_> = unblocked.chain(failed.map(|closed| closed.job)).collect();
    assert!(jobs.len() <= limit::RIPPLE_MAX, "one command resolved {} jobs", jobs.len());
    jobs
}

/// Repeats `next`, alternating between the handles, until `all` jobs are resolved. Each must be resolved once.
async fn go_on(s: &Subject, done: Vec<JobId>, all: usize, next: impl AsyncFn(&Subject) -> Ripple) {
    let mut jobs: HashSet<_> = done.iter().copied().collect();
    assert_eq!(jobs.len(), done.len(), "each job is resolved once");
    for turn in 0..10 {
        for job in resolved(&next(&s.turn(turn)).await) {
            assert!(jobs.insert(job), "{job} was resolved before");
        }
        if jobs.len() == all {
            return;
        }
    }
    panic!("only {} of {all} jobs were resolved", jobs.len());
}

async fn acquire_nothing(s: &Subject) -> Ripple {
    s.run(s.acquire_request(&["nothing"], 1)).await.ripple
}

/// Completes a chain with more dependents than one command unblocks. Returns the jobs that it unblocked.
async fn overflow(s: &Subject) -> Vec<JobId> {
    let blocker = s.start("b").await;
    dependents(s, blocker, limit::RIPPLE_MAX + LEFT, OnBlockerFailure::Wait).await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, complete("1")).await;
    assert_eq!(reply.ripple.closed.len(), 1);
    resolved(&reply.ripple)
}

async fn acquire(s: Subject) {
    let done = overflow(&s).await;
    go_on(&s, done, limit::RIPPLE_MAX + LEFT, acquire_nothing).await;
    let taken = s.acquire("a", 1_000).await.len() + s.acquire("a", 1_000).await.len();
    assert_eq!(taken, limit::RIPPLE_MAX + LEFT);
}

async fn reap(s: Subject) {
    let done = overflow(&s).await;
    go_on(&s, done, limit::RIPPLE_MAX + LEFT, async |s| s.reap().await.ripple).await;
    let taken = s.acquire("a", 1_000).await.len() + s.acquire("a", 1_000).await.len();
    assert_eq!(taken, limit::RIPPLE_MAX + LEFT);
}

async fn settle(s: Subject) {
    for _ in 0..2 {
        let blocker = s.start("b").await;
        dependents(&s, blocker, 600, OnBlockerFailure::Wait).await;
    }
    let attempts = s.acquire("b", 2).await;
    let settlements = attempts.iter().map(|attempt| settlement(attempt, complete("1"))).collect();
    let reply = s.run(Settle { settlements }).await;
    assert_eq!(reply.ripple.closed.len(), 2);
    go_on(&s, resolved(&reply.ripple), 1_200, acquire_nothing).await;
}

async fn reap_once(s: Subject) {
    let expiring = s.start("c").max_attempts(1).await;
    dependents(&s, expiring, limit::RIPPLE_MAX, OnBlockerFailure::Receive).await;
    s.acquire_one("c").await;
    s.advance(LEASE.get() + 1);
    let done = overflow(&s).await;
    let first = s.reap().await;
    assert_eq!(first.reaped.len(), 1);
    let jobs = [done, resolved(&first.ripple)].concat();
    go_on(&s, jobs, 2 * limit::RIPPLE_MAX + LEFT, async |s| s.reap().await.ripple).await;
}

async fn fail_too(s: Subject) {
    let blocker = s.start("b").await;
    dependents(&s, blocker, limit::RIPPLE_MAX + LEFT, OnBlockerFailure::Fail).await;
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, fail("no")).await;
    go_on(&s, resolved(&reply.ripple), limit::RIPPLE_MAX + LEFT, acquire_nothing).await;
    s.expect_none_due("a").await;
}

async fn comes_last(s: Subject) {
    let failing = s.start("a").await;
    let between = s.start("b").blocked_by([failing]).on_failure(OnBlockerFailure::Fail).await;
    let going_on = s.start("a").await;
    let attempts = s.acquire("a", 2).await;
    let next = s.start("c").blocked_by([between]).on_failure(OnBlockerFailure::Fail).next_job();
    let settlements =
        vec![settlement(&attempts[0], fail("no")), settlement(&attempts[1], continue_with(next))];
    let reply = s.run(Settle { settlements }).await;
    let Settled::Applied(applied) = &reply.settled[1] else { panic!("{reply:?}") };
    let seen = applied.next.map(|next| next.status);
    assert_eq!(seen, Some(Status::Blocked), "the chain between them had not failed yet");
    let mut closed: Vec<_> = reply.ripple.closed.iter().map(|closed| closed.chain).collect();
    closed.sort_unstable();
    assert_eq!(closed, [failing, between, going_on]);
    s.expect_status(going_on, Status::Failed).await;
}

async fn front(s: Subject) {
    let many = 5 * limit::RIPPLE_MAX;
    let (first, second) = (s.start("b").await, s.start("b").await);
    dependents(&s, first, 1, OnBlockerFailure::Wait).await;
    dependents(&s, second, many, OnBlockerFailure::Wait).await;
    let attempts = s.acquire("b", 2).await;
    let settlements = attempts.iter().map(|attempt| settlement(attempt, complete("1"))).collect();
    let reply = s.run(Settle { settlements }).await;
    assert_eq!(reply.ripple.closed.len(), 2);
    go_on(&s, resolved(&reply.ripple), many + 1, acquire_nothing).await;
}

async fn wide(s: Subject) {
    let blocker = s.start("b").await;
    let waiting = |chain| s.start("a").blocked_by([chain]).on_failure(OnBlockerFailure::Fail).build();
    let middle: Vec<_> = (0..limit::RIPPLE_MAX + 3).map(|_| waiting(blocker)).collect();
    let outer = middle.iter().skip(3).flat_map(|chain| [chain.id; 4]).map(waiting);
    let all: Vec<_> = middle.iter().cloned().chain(outer).collect();
    for batch in all.chunks(limit::BATCH_MAX_ITEMS) {
        s.create(batch.to_vec()).await;
    }
    let attempt = s.acquire_one("b").await;
    let reply = s.settle_reply(&attempt, fail("no")).await;
    go_on(&s, resolved(&reply.ripple), all.len(), acquire_nothing).await;
}

async fn exchange(s: Subject) {
    let blocker = s.start("c").await;
    dependents(&s, blocker, limit::RIPPLE_MAX, OnBlockerFailure::Wait).await;
    let attempt = s.acquire_one("c").await;
    let done = overflow(&s).await;
    let settle = Settle { settlements: vec![settlement(&attempt, complete("1"))] };
    let reply = s.run(Exchange { settle, acquire: s.acquire_request(&["nothing"], 1) }).await;
    let both = [resolved(&reply.settle.ripple), resolved(&reply.acquire.ripple)].concat();
    assert!(both.len() <= limit::RIPPLE_MAX, "one exchange resolved {} jobs", both.len());
    let jobs = [done, both].concat();
    go_on(&s, jobs, 2 * limit::RIPPLE_MAX + LEFT, acquire_nothing).await;
}

async fn cancel(s: Subject) {
    let blocker = s.start("b").await;
    let first = s.start("c").blocked_by([blocker]).on_failure(OnBlockerFailure::Fail).await;
    dependents(&s, blocker, limit::RIPPLE_MAX + LEFT, OnBlockerFailure::Receive).await;
    let chains = vec![blocker.into(), first.into()];
    let reply = s.run(Cancel { chains, mode: CancelMode::UnlessRunning }).await;
    let cancelled = |chain: ChainId| Cancelled::Cancelled { chain, job: chain.first_job() };
    assert_eq!(reply.chains, [cancelled(blocker), cancelled(first)]);
    go_on(&s, resolved(&reply.ripple), limit::RIPPLE_MAX + LEFT, acquire_nothing).await;
}

async fn outside(s: Subject) {
    let blocker = s.start("b").await;
    dependents(&s, blocker, limit::RIPPLE_MAX + LEFT, OnBlockerFailure::Wait).await;
    let job = s.chain(blocker).await.latest;
    let steps = vec![Step::Complete { output: json("1"), retention: None, create: Vec::new() }];
    let request = RequestId::new();
    let reply = s.run(CompleteFromOutside { request, job: job.id, version: job.version, steps }).await;
    let CompleteFromOutsideReply::Applied(applied) = reply else { panic!("it is pending: {reply:?}") };
    go_on(&s, resolved(&applied.ripple), limit::RIPPLE_MAX + LEFT, acquire_nothing).await;
}
