//! Acquiring due jobs.

use windlass_core::Lease;

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "acquire.order.due",
        "Jobs are acquired by due time, then by order of creation.",
        ["SA-AQ01"],
        order_due
    ),
    case!(
        "acquire.order.creation",
        "The order of creation is the order in which the store received the jobs, regardless of their ids.",
        ["SA-AQ01"],
        order_creation
    ),
    case!(
        "acquire.order.priority",
        "A job with a higher priority is acquired first, regardless of due times.",
        ["contract"],
        order_priority
    ),
    case!("acquire.order.types", "One order applies across all requested types.", ["contract"], order_types),
    case!(
        "acquire.order.batch",
        "A batch is acquired in the same order as single jobs would be.",
        ["A8.12"],
        order_batch
    ),
    case!(
        "acquire.max",
        "An acquire returns as many jobs as requested if that many are due.",
        ["SA-AQ02"],
        max
    ),
    case!(
        "acquire.short",
        "A reply has fewer jobs than requested exactly when no more jobs are due.",
        ["SA-AQ02", "A8.5"],
        short
    ),
    case!("acquire.none", "An acquire returns no jobs if none is due.", ["SA-AQ03"], none),
    case!(
        "acquire.empty",
        "An acquire of no types, or of at most 0 jobs, returns no jobs.",
        ["SA-AQ03"],
        empty
    ),
    case!("acquire.future", "A job can be acquired from its due time on, not earlier.", ["SA-AQ04"], future),
    case!("acquire.types", "Only jobs of the requested types are acquired.", ["SA-AQ03"], types),
    case!("acquire.quota", "An acquire returns at most the quota of each type.", ["contract"], quota),
    case!(
        "acquire.lease",
        "An acquire writes the attempt, the fence and the lease of a running job.",
        ["never 7", "A8.7", "B4.1", "SA-RL01"],
        lease
    ),
    case!("acquire.lease.per_type", "Each type has its own lease duration.", ["contract"], lease_per_type),
    case!("acquire.once", "A running job is not acquired again.", ["SA-CC04"], once),
    case!(
        "acquire.continuation",
        "A continuation is acquired under its own type.",
        ["SA-GC02"],
        continuation
    ),
    case!(
        "acquire.key",
        "An acquired job includes the key of its chain, even if it is a continuation.",
        ["contract"],
        chain_key
    ),
    case!("acquire.fence_grows", "Each acquire of a job increases its fence.", ["never 2"], fence_grows),
    case!(
        "acquire.repeated",
        "A repeated acquire returns the same jobs and acquires no others.",
        ["never 12"],
        repeated
    ),
    case!(
        "acquire.repeated.settled",
        "A repeated acquire omits jobs that the request no longer holds.",
        ["never 12"],
        repeated_settled
    ),
    case!(
        "acquire.repeated.anew",
        "A repeated acquire whose request holds no job acquires new jobs.",
        ["never 12"],
        repeated_anew
    ),
    case!(
        "acquire.repeated.outputs",
        "A repeated acquire returns the blockers' outputs again.",
        ["never 12"],
        repeated_outputs
    ),
];

async fn order_due(s: Subject) {
    let late = s.start("a").after(3_000).await;
    let middle = s.start("a").after(2_000).await;
    let also_middle = s.start("a").after(2_000).await;
    let early = s.start("a").after(1_000).await;
    s.advance(3_000);
    assert_eq!(chains_of(&s.acquire("a", 10).await), [early, middle, also_middle, late]);
}

async fn order_creation(s: Subject) {
    let mut ids: Vec<_> = (0..10).map(|_| ChainId::new()).collect();
    ids.reverse();
    s.create(ids[..5].iter().map(|id| s.start("a").id(*id).build()).collect()).await;
    for id in &ids[5..] {
        s.start("a").id(*id).await;
    }
    assert_eq!(chains_of(&s.acquire("a", 100).await), ids);
}

async fn order_priority(s: Subject) {
    let mut expected = Vec::new();
    for priority in [i8::MIN, -1, 0, 1, i8::MAX] {
        expected.push(s.start("a").priority(priority).await);
        s.advance(1_000);
    }
    let future = s.start("a").priority(i8::MAX).after(1_000).await;
    expected.reverse();
    assert_eq!(chains_of(&s.acquire("a", 10).await), expected);
    s.advance(1_000);
    assert_eq!(chains_of(&s.acquire("a", 10).await), [future]);
}

async fn order_types(s: Subject) {
    let mut expected = Vec::new();
    for name in ["a", "b", "c", "a", "c", "b"] {
        expected.push(s.start(name).await);
    }
    let urgent = s.start("b").priority(1).await;
    expected.insert(0, urgent);
    let reply = s.run(s.acquire_request(&["c", "b", "a"], 10)).await;
    assert_eq!(chains_of(&reply.jobs), expected);
}

async fn order_batch(s: Subject) {
    for (priority, delay) in [(0, 5), (1, 9), (0, 1), (2, 3), (1, 0), (0, 1)] {
        for name in ["a", "b"] {
            s.start(name).priority(priority).after(delay).await;
            s.start(name).id(ChainId::new()).priority(priority).after(delay).await;
        }
    }
    s.advance(10);
    let all = s.run(s.acquire_request(&["a", "b"], 100)).await.jobs;
    for attempt in &all {
        s.apply(attempt, release()).await;
    }
    let mut singles = Vec::new();
    for _ in &all {
        singles.extend(s.run(s.acquire_request(&["b", "a"], 1)).await.jobs);
    }
    assert_eq!((all.len(), chains_of(&all)), (24, chains_of(&singles)));
}

async fn max(s: Subject) {
    let ids = [s.start("a").await, s.start("a").await, s.start("a").await];
    assert_eq!(chains_of(&s.acquire("a", 2).await), ids[..2]);
    assert_eq!(chains_of(&s.acquire("a", 2).await), ids[2..]);
}

async fn short(s: Subject) {
    s.create((0..3).map(|_| s.start("a").build()).collect()).await;
    assert_eq!(s.acquire("a", 2).await.len(), 2);
    assert_eq!(s.acquire("a", 2).await.len(), 1);
    s.expect_none_due("a").await;
}

async fn none(s: Subject) {
    let reply = s.run(s.acquire_request(&["a"], 5)).await;
    assert_eq!((reply.jobs.len(), reply.ripple, reply.now), (0, Ripple::default(), s.now()));
}

async fn empty(s: Subject) {
    s.start("a").await;
    assert_eq!(s.run(s.acquire_request(&[], 5)).await.jobs, []);
    assert_eq!(s.run(s.acquire_request(&["a"], 0)).await.jobs, []);
    let mut no_quota = s.acquire_request(&["a"], 5);
    no_quota.types[0].max = 0;
    assert_eq!(s.run(no_quota).await.jobs, []);
    s.acquire_one("a").await;
}

async fn future(s: Subject) {
    s.start("a").after(1_000).await;
    s.advance(999);
    s.expect_none_due("a").await;
    s.advance(1);
    s.acquire_one("a").await;
}

async fn types(s: Subject) {
    let names = ["a", "A", "a ", "ab", "a:b", "a%", "_"];
    for name in names {
        s.start(name).await;
    }
    for name in names {
        let jobs = s.acquire(name, 10).await;
        assert_eq!((jobs.len(), &jobs[0].job.job_type), (1, &type_name(name)));
    }
}

async fn quota(s: Subject) {
    for name in ["a", "b"] {
        s.create((0..5).map(|_| s.start(name).build()).collect()).await;
    }
    let mut request = s.acquire_request(&["a", "b"], 10);
    request.types[0].max = 2;
    request.max = 6;
    let jobs = s.run(request).await.jobs;
    let of_a = jobs.iter().filter(|attempt| attempt.job.job_type == type_name("a")).count();
    assert_eq!((of_a, jobs.len()), (2, 6));
}

async fn lease(s: Subject) {
    let id = s.start("a").await;
    s.advance(1_000);
    let request = s.acquire_request(&["a"], 1);
    let reply = s.run(request.clone()).await;
    assert_eq!(reply.now, s.now());
    let job = &reply.jobs[0].job;
    let expected = Lease {
        worker: s.worker,
        worker_name: request.worker_name.clone(),
        request: request.request,
        until: s.now() + LEASE,
    };
    assert_eq!((job.status, &job.lease, job.attempt), (Status::Running, &Some(expected), 1));
    assert_eq!((job.started_at, job.closed_at), (Some(s.now()), None));
    assert!(job.fence > Fence(0), "the fence has grown: {:?}", job.fence);
    assert_eq!(s.through_other().job(id.first_job()).await, *job);
}

async fn lease_per_type(s: Subject) {
    s.start("a").await;
    s.start("b").await;
    let mut request = s.acquire_request(&["a", "b"], 5);
    request.types[1].lease = millis(1);
    let jobs = s.run(request).await.jobs;
    let untils: Vec<_> = jobs.iter().map(|attempt| attempt.job.lease.as_ref().unwrap().until).collect();
    assert_eq!(untils, [s.now() + LEASE, s.now() + millis(1)]);
}

async fn once(s: Subject) {
    s.start("a").await;
    s.acquire_one("a").await;
    s.expect_none_due("a").await;
    s.through_other().expect_none_due("a").await;
    s.advance(2 * LEASE.get());
    // An expired job becomes available only through a reap.
    s.expect_none_due("a").await;
}

async fn continuation(s: Subject) {
    let id = s.start("a").await;
    let next = s.start("b").input("2").next_job();
    s.work("a", continue_with(next.clone())).await;
    s.expect_none_due("a").await;
    let job = s.acquire_one("b").await.job;
    assert_eq!((job.id, job.chain, job.index, job.input), (next.id, id, 1, json("2")));
    assert_eq!((job.job_type, job.chain_type), (type_name("b"), type_name("a")));
}

async fn chain_key(s: Subject) {
    s.start("a").key("k").await;
    let attempt = s.acquire_one("a").await;
    assert_eq!(attempt.key, Some(key("k")));
    s.apply(&attempt, continue_with(s.start("b").next_job())).await;
    assert_eq!(s.acquire_one("b").await.key, Some(key("k")));
    s.start("c").await;
    assert_eq!(s.acquire_one("c").await.key, None);
}

async fn fence_grows(s: Subject) {
    s.start("a").await;
    let mut last = Fence(0);
    for outcome in [retry("no"), reschedule_after(0), release(), retry("no")] {
        let attempt = s.work("a", outcome).await;
        assert!(attempt.job.fence > last, "{:?} after {last:?}", attempt.job.fence);
        last = attempt.job.fence;
    }
    let attempt = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    s.reap().await;
    assert!(s.acquire_one("a").await.job.fence > attempt.job.fence, "a reaped job's fence grows too");
}

async fn repeated(s: Subject) {
    s.create((0..5).map(|_| s.start("a").build()).collect()).await;
    let request = s.acquire_request(&["a"], 2);
    let first = s.run(request.clone()).await.jobs;
    s.advance(1_000);
    let again = s.through_other().run(request).await.jobs;
    assert_eq!(again, first);
    assert_eq!(s.acquire("a", 10).await.len(), 3);
}

async fn repeated_settled(s: Subject) {
    s.create((0..4).map(|_| s.start("a").build()).collect()).await;
    let request = s.acquire_request(&["a"], 3);
    let jobs = s.run(request.clone()).await.jobs;
    s.complete(&jobs[1], "1").await;
    let again = s.run(request).await.jobs;
    assert_eq!(chains_of(&again), [jobs[0].job.chain, jobs[2].job.chain]);
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn repeated_anew(s: Subject) {
    let request = s.acquire_request(&["a"], 5);
    assert_eq!(s.run(request.clone()).await.jobs, []);
    let first = s.start("a").await;
    let jobs = s.run(request.clone()).await.jobs;
    assert_eq!(chains_of(&jobs), [first]);
    s.complete(&jobs[0], "1").await;
    let second = s.start("a").await;
    assert_eq!(chains_of(&s.run(request).await.jobs), [second]);
}

async fn repeated_outputs(s: Subject) {
    let blocker = s.start("b").await;
    s.start("a").key("k").blocked_by([blocker]).await;
    s.work("b", complete("1")).await;
    let request = s.acquire_request(&["a"], 5);
    let first = s.run(request.clone()).await.jobs;
    assert_eq!((s.run(request).await.jobs, first[0].blockers.len()), (first.clone(), 1));
}
