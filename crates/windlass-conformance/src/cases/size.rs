//! Size limits of commands.

use std::collections::HashSet;

use windlass_core::Payload;

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "limit.items.carried",
        "Carried chains count as items of their command.",
        ["never 8"],
        carried_items
    ),
    case!(
        "limit.blockers.command",
        "The number of blockers of all jobs in a command is limited.",
        ["never 8"],
        blockers
    ),
    case!(
        "limit.blockers.settle",
        "The number of blockers of continuations and carried chains in a command is limited.",
        ["never 8"],
        settle_blockers
    ),
    case!(
        "limit.bytes.settle",
        "The total size of outputs, continuation inputs and carried inputs in a command is limited.",
        ["never 8"],
        settle_bytes
    ),
    case!(
        "limit.bytes.acquire",
        "The total size of the inputs that an acquire returns is limited. Later acquires return the other jobs.",
        ["contract"],
        acquired_inputs
    ),
    case!(
        "limit.bytes.acquire.outputs",
        "The outputs of blockers count for the size of an acquire. A job with larger ones is returned alone.",
        ["contract"],
        acquired_outputs
    ),
    case!(
        "limit.reap",
        "A reap can exclude thousands of running jobs, and is invalid above its limits.",
        ["SA-RP03"],
        reap
    ),
    case!("limit.expire", "An expire of too many jobs is invalid.", ["never 8"], expire),
    case!(
        "limit.exchange",
        "An exchange whose settlements are too large is invalid and writes nothing.",
        ["never 8"],
        [Exchange],
        exchange
    ),
    case!(
        "limit.outside.bytes",
        "The total size of the payloads of all steps from outside is limited.",
        ["never 8"],
        [Outside],
        outside_bytes
    ),
    case!(
        "limit.outside.items",
        "The total number of steps from outside and their carried chains is limited.",
        ["never 8"],
        [Outside],
        outside_items
    ),
    case!(
        "limit.page",
        "The size of a page must be between 1 and the maximum.",
        ["SA-LC06", "SA-LJ08"],
        [Lists],
        page
    ),
];

/// Starts and acquires `count` jobs of type `a`.
async fn attempts(s: &Subject, count: u32) -> Vec<Acquired> {
    s.create((0..count).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", count).await;
    assert_eq!(attempts.len(), count as usize);
    attempts
}

/// Returns a payload of the maximum size.
fn largest() -> Payload {
    Payload::json(vec![b' '; limit::PAYLOAD_MAX_BYTES]).unwrap()
}

fn carrying(s: &Subject, attempts: &[Acquired], each: usize) -> Settle {
    let outcome = || complete_with_chains("1", (0..each).map(|_| s.start("b").build()).collect());
    Settle { settlements: attempts.iter().map(|attempt| settlement(attempt, outcome())).collect() }
}

#[track_caller]
fn expect_applied(reply: &SettleReply) {
    assert!(
        reply.settled.iter().all(|settled| matches!(settled, Settled::Applied(_))),
        "expected all to be applied: {reply:?}"
    );
}

async fn carried_items(s: Subject) {
    let attempts = attempts(&s, 10).await;
    assert_eq!(s.error(carrying(&s, &attempts, limit::CARRIED_MAX)).await, ErrorKind::Invalid);
    assert_eq!(s.job(attempts[0].job.id).await, attempts[0].job);
    s.expect_none_due("b").await;
    expect_applied(&s.run(carrying(&s, &attempts, limit::CARRIED_MAX - 1)).await);
    assert_eq!(s.acquire("b", 1_000).await.len(), 10 * (limit::CARRIED_MAX - 1));
}

async fn blockers(s: Subject) {
    let blocker = s.start("b").await;
    let waiting = |count| s.start("a").blocked_by(vec![blocker; count]).build();
    let most = limit::BATCH_MAX_BLOCKERS / limit::BLOCKERS_MAX;
    let mut chains: Vec<_> = (0..most).map(|_| waiting(limit::BLOCKERS_MAX)).collect();
    chains.push(waiting(1));
    assert_eq!(s.error(Create { chains: chains.clone() }).await, ErrorKind::Invalid);
    assert_eq!(s.find_chain(chains[0].id).await, None);
    chains.pop();
    for created in s.create(chains).await {
        assert_eq!(summary(&created).status, Status::Blocked);
    }
}

async fn settle_blockers(s: Subject) {
    let blocker = s.start("x").await;
    let attempts = attempts(&s, 5).await;
    let settle = |each: usize| {
        let waiting = |count: usize| s.start("b").blocked_by(vec![blocker; count]);
        let outcome =
            || continue_with_chains(waiting(each).next_job(), vec![waiting(limit::BLOCKERS_MAX).build()]);
        Settle { settlements: attempts.iter().map(|attempt| settlement(attempt, outcome())).collect() }
    };
    let mut over = settle(limit::BLOCKERS_MAX);
    let one_more = s.start("c").blocked_by([blocker]).build();
    let Outcome::Continue { create, .. } = &mut over.settlements[0].outcome else { panic!("it continues") };
    create.push(one_more);
    assert_eq!(s.error(over).await, ErrorKind::Invalid);
    assert_eq!(s.job(attempts[0].job.id).await, attempts[0].job);
    expect_applied(&s.run(settle(limit::BLOCKERS_MAX)).await);
}

async fn settle_bytes(s: Subject) {
    let attempts = attempts(&s, 3).await;
    let largest = largest();
    let outcomes = |input: Payload| {
        let output = largest.clone();
        let carried = vec![s.start("b").payload(largest.clone()).build()];
        [
            Outcome::Complete { output, retention: None, create: carried },
            continue_with(s.start("b").payload(largest.clone()).next_job()),
            continue_with(s.start("b").payload(input).next_job()),
        ]
    };
    let settle = |outcomes: [Outcome; 3]| Settle {
        settlements: attempts.iter().zip(outcomes).map(|(one, outcome)| settlement(one, outcome)).collect(),
    };
    let most = limit::BATCH_MAX_BYTES - 3 * limit::PAYLOAD_MAX_BYTES;
    assert_eq!(most, limit::PAYLOAD_MAX_BYTES, "four of the largest payloads fit");
    let mut over = settle(outcomes(largest.clone()));
    over.settlements.push(settlement(&attempts[0], complete("1")));
    assert_eq!(s.error(over).await, ErrorKind::Invalid);
    assert_eq!(s.job(attempts[0].job.id).await, attempts[0].job);
    expect_applied(&s.run(settle(outcomes(largest.clone()))).await);
}

async fn acquired_inputs(s: Subject) {
    // One command may not have that many bytes.
    let large = |s: &Subject| s.start("a").payload(largest()).build();
    s.create((0..3).map(|_| large(&s)).collect()).await;
    s.start("a").await;
    s.create((0..3).map(|_| large(&s)).collect()).await;
    let mut acquired = Vec::new();
    while acquired.len() < 7 {
        let request = s.acquire_request(&["a"], 10);
        let jobs = s.run(request.clone()).await.jobs;
        let bytes: usize = jobs.iter().map(|one| one.job.input.bytes().len()).sum();
        assert!(!jobs.is_empty() && bytes <= limit::ACQUIRE_MAX_BYTES, "{} jobs, {bytes} bytes", jobs.len());
        assert_eq!(s.run(request).await.jobs, jobs);
        acquired.extend(jobs);
    }
    let chains: HashSet<_> = acquired.iter().map(|one| one.job.chain).collect();
    assert_eq!((acquired.len(), chains.len()), (7, 7), "each job once");
    assert_eq!(acquired.iter().position(|one| one.job.input.bytes().len() < 100), Some(3), "in order");
}

async fn acquired_outputs(s: Subject) {
    let mut blockers = Vec::new();
    for _ in 0..5 {
        blockers.push(s.start("b").await);
        let output = Outcome::Complete { output: largest(), retention: None, create: Vec::new() };
        s.work("b", output).await;
    }
    let first = s.start("a").await;
    let large = s.start("a").blocked_by(blockers).await;
    let last = s.start("a").await;
    for expected in [first, large, last] {
        let jobs = s.acquire("a", 10).await;
        assert_eq!(jobs.iter().map(|one| one.job.chain).collect::<Vec<_>>(), [expected]);
        let outputs = jobs.iter().flat_map(|one| &one.blockers).filter(|blocker| blocker.output.is_some());
        assert_eq!(outputs.count(), if expected == large { 5 } else { 0 });
    }
}

async fn reap(s: Subject) {
    let attempts = attempts(&s, 3).await;
    s.advance(LEASE.get() + 1);
    let strangers = |count: usize| (0..count).map(|_| JobId::new());
    let except: Vec<_> = strangers(limit::REAP_EXCEPT_MAX + 1).collect();
    assert_eq!(s.error(Reap { except, ..reap_request(Types::All) }).await, ErrorKind::Invalid);
    let too_many = u32::try_from(limit::BATCH_MAX_ITEMS).unwrap() + 1;
    assert_eq!(s.error(Reap { max: too_many, ..reap_request(Types::All) }).await, ErrorKind::Invalid);
    assert_eq!(s.job(attempts[0].job.id).await, attempts[0].job);
    let own = [attempts[0].job.id, attempts[2].job.id];
    let except = strangers(limit::REAP_EXCEPT_MAX - 2).chain(own).collect();
    let reply = s.run(Reap { except, ..reap_request(Types::All) }).await;
    assert_eq!(reply.reaped.iter().map(|one| one.job.job).collect::<Vec<_>>(), [attempts[1].job.id]);
}

async fn expire(s: Subject) {
    let most = u32::try_from(limit::BATCH_MAX_ITEMS).unwrap();
    for max in [0, 1, most + 1] {
        assert_eq!(s.error(Expire { max }).await, ErrorKind::Invalid, "{max}");
    }
    for max in [2, most] {
        assert_eq!(s.run(Expire { max }).await.jobs, 0);
    }
}

async fn exchange(s: Subject) {
    let attempts = attempts(&s, 10).await;
    s.start("c").await;
    let settle = carrying(&s, &attempts, limit::CARRIED_MAX);
    let request = Exchange { settle, acquire: s.acquire_request(&["c"], 1) };
    assert_eq!(s.error(request).await, ErrorKind::Invalid);
    assert_eq!(s.job(attempts[0].job.id).await, attempts[0].job);
    assert_eq!((s.acquire("b", 1).await.len(), s.acquire("c", 1).await.len()), (0, 1));
}

fn outside(job: &windlass_core::JobRecord, steps: Vec<Step>) -> CompleteFromOutside {
    CompleteFromOutside { request: RequestId::new(), job: job.id, version: job.version, steps }
}

async fn outside_bytes(s: Subject) {
    let id = s.start("a").await;
    let job = s.chain(id).await.latest;
    let largest = largest();
    let steps = |count: usize| {
        let next = || s.start("b").payload(largest.clone()).next_job();
        (0..count).map(|_| Step::Continue { next: next(), create: Vec::new() }).collect::<Vec<_>>()
    };
    assert_eq!(s.error(outside(&job, steps(5))).await, ErrorKind::Invalid);
    let mut carrying = steps(4);
    let Step::Continue { create, .. } = &mut carrying[0] else { panic!("it continues") };
    create.push(s.start("c").build());
    assert_eq!(s.error(outside(&job, carrying)).await, ErrorKind::Invalid);
    assert_eq!(s.chain(id).await.latest, job);
    let reply = s.run(outside(&job, steps(4))).await;
    assert!(matches!(reply, CompleteFromOutsideReply::Applied(_)), "four of the largest payloads fit");
}

async fn outside_items(s: Subject) {
    let id = s.start("a").await;
    let job = s.chain(id).await.latest;
    let step = |each: usize| Step::Continue {
        next: s.start("b").next_job(),
        create: (0..each).map(|_| s.start("c").build()).collect(),
    };
    let steps = |each: usize| (0..10).map(|_| step(each)).collect::<Vec<_>>();
    assert_eq!(s.error(outside(&job, steps(limit::CARRIED_MAX))).await, ErrorKind::Invalid);
    assert_eq!(s.chain(id).await.latest, job);
    let reply = s.run(outside(&job, steps(limit::CARRIED_MAX - 1))).await;
    let CompleteFromOutsideReply::Applied(applied) = reply else { panic!("they fit: {reply:?}") };
    assert_eq!(applied.created.len(), 10 * (limit::CARRIED_MAX - 1));
}

async fn page(s: Subject) {
    let chain = s.start("a").await;
    let most = u32::try_from(limit::PAGE_MAX).unwrap();
    let page = |max| Page { max, ..Page::default() };
    let lists = |max| -> [Command; 3] {
        [
            ListChains { filter: ChainFilter::default(), page: page(max) }.into(),
            ListJobs { filter: JobFilter::default(), page: page(max) }.into(),
            ListDependents { chain, page: page(max) }.into(),
        ]
    };
    for max in [0, most + 1, u32::MAX] {
        for list in lists(max) {
            let name = list.name();
            assert_eq!(s.error(list).await, ErrorKind::Invalid, "{name} of {max}");
        }
    }
    for max in [1, most] {
        for list in lists(max) {
            s.store.execute(list).await.unwrap();
        }
    }
}
