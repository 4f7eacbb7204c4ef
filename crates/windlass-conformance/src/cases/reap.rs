//! Requeuing jobs whose lease expired, and removing chains whose retention ended.

use windlass_core::LEASE_EXPIRED;

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "reap.expired",
        "A reaped job is pending and due now, its attempt counts, and its error says that the lease expired.",
        ["SA-RP01", "A8.7", "B4.6"],
        expired
    ),
    case!("reap.not_expired", "A job whose lease has not expired is not reaped.", ["SA-RP02"], not_expired),
    case!("reap.except", "The jobs that the caller excludes are not reaped.", ["SA-RP03"], except),
    case!("reap.types", "Only jobs of the requested types are reaped.", ["SA-RP03"], types),
    case!("reap.order", "The longest expired jobs are reaped first, up to the maximum.", ["SA-RP01"], order),
    case!(
        "reap.last_attempt",
        "A job whose lease expires in its last attempt fails.",
        ["A8.11", "B4.14"],
        last_attempt
    ),
    case!(
        "reap.dependents",
        "A job that fails because its lease expired affects the dependents of its chain.",
        ["never 5"],
        dependents
    ),
    case!("reap.settled", "A settled or renewed job is not reaped.", ["B4.12", "B4.13"], settled),
    case!("reap.twice", "Each expired lease is reaped once.", ["SA-RP01"], twice),
    case!(
        "reap.other_handle",
        "Any worker can reap the jobs of a worker that has died.",
        ["never 1", "B4.21"],
        other_handle
    ),
    case!(
        "reap.repeat_request",
        "A reaped job is no longer held by the request that acquired it.",
        ["never 12"],
        repeat_request
    ),
    case!(
        "expire.retention",
        "A closed chain is removed with all its jobs when its retention ends, not earlier.",
        ["never 8", "B4.27"],
        retention
    ),
    case!(
        "expire.per_chain",
        "Each chain is removed by its own retention for its outcome.",
        ["B4.8"],
        per_chain
    ),
    case!(
        "expire.repeat_window",
        "Nothing is removed within the repeat window, whatever its retention.",
        ["never 12"],
        repeat_window
    ),
    case!("expire.open", "An open chain is never removed.", ["never 1"], open),
    case!(
        "expire.needed",
        "A chain is kept while an open or failed job waits or waited for it.",
        ["never 8"],
        needed
    ),
    case!(
        "expire.looping",
        "Completed jobs of an open chain are removed, except the first and the latest.",
        ["never 8"],
        looping
    ),
    case!(
        "expire.bounded",
        "At most the requested number of jobs is removed, and the reply says whether to call again.",
        ["never 8"],
        bounded
    ),
    case!("expire.long_chain", "A long chain is removed over several calls.", ["never 8"], long_chain),
    case!("expire.nothing", "An expire without expired chains removes nothing.", ["never 8"], nothing),
];

async fn expired(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let lease_until = s.now() + LEASE;
    s.advance(LEASE.get() + 5_000);
    let reply = s.reap().await;
    let job = JobSummary { job: attempt.job.id, chain: id, status: Status::Pending, due_at: s.now() };
    let (job_type, chain_type) = (type_name("a"), type_name("a"));
    let (worker, worker_name) = (s.worker, Some(worker_name()));
    let reaped = Reaped { job, job_type, chain_type, attempt: 1, worker, worker_name, lease_until };
    assert_eq!((reply.reaped, reply.ripple), (vec![reaped], Ripple::default()));
    let job = s.job(attempt.job.id).await;
    assert_eq!((job.status, job.lease, job.attempt), (Status::Pending, None, 1));
    assert_eq!((job.error.unwrap().as_str(), job.due_at), (LEASE_EXPIRED, s.now()));
    assert_eq!(s.acquire_one("a").await.job.attempt, 2);
}

async fn not_expired(s: Subject) {
    let id = s.start("a").await;
    s.start("a").after(HOUR).await;
    s.acquire_one("a").await;
    s.advance(LEASE.get() - 1);
    assert_eq!(s.reap().await.reaped, []);
    s.expect_status(id, Status::Running).await;
}

async fn except(s: Subject) {
    s.create((0..3).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", 3).await;
    s.advance(LEASE.get() + 1);
    let own = vec![attempts[0].job.id, attempts[2].job.id];
    let reply = s.run(Reap { except: own, ..reap_request(Types::All) }).await;
    assert_eq!(reply.reaped.iter().map(|reaped| reaped.job.job).collect::<Vec<_>>(), [attempts[1].job.id]);
    s.complete(&attempts[0], "1").await;
}

async fn types(s: Subject) {
    for name in ["a", "b", "c"] {
        s.start(name).await;
        s.acquire_one(name).await;
    }
    s.advance(LEASE.get() + 1);
    let reaped =
        |reply: ReapReply| reply.reaped.iter().map(|reaped| reaped.job_type.to_string()).collect::<Vec<_>>();
    assert_eq!(reaped(s.run(reap_request(Types::Only(Vec::new()))).await), [""; 0]);
    assert_eq!(reaped(s.run(reap_request(Types::Only(vec![type_name("b"), type_name("z")]))).await), ["b"]);
    assert_eq!(reaped(s.run(reap_request(Types::All)).await), ["a", "c"]);
}

async fn order(s: Subject) {
    let mut expected = Vec::new();
    for name in ["b", "a", "b", "a"] {
        expected.push(s.start(name).await);
        s.acquire_one(name).await;
        s.advance(1_000);
    }
    s.advance(LEASE.get() + 1);
    let mut chains = Vec::new();
    for _ in 0..2 {
        let reply = s.run(Reap { max: 2, ..reap_request(Types::All) }).await;
        assert_eq!(reply.reaped.len(), 2);
        chains.extend(reply.reaped.iter().map(|reaped| reaped.job.chain));
    }
    assert_eq!(chains, expected);
}

async fn last_attempt(s: Subject) {
    let id = s.start("a").max_attempts(2).await;
    for expected in [Status::Pending, Status::Failed] {
        s.acquire_one("a").await;
        s.advance(LEASE.get() + 1);
        assert_eq!(s.reap().await.reaped[0].job.status, expected);
    }
    let chain = s.chain(id).await;
    assert_eq!(chain.closed.unwrap().closed_as, ClosedAs::Failed);
    assert_eq!((chain.latest.attempt, chain.latest.error.unwrap().as_str()), (2, LEASE_EXPIRED));
    s.expect_none_due("a").await;
}

async fn dependents(s: Subject) {
    let blocker = s.start("a").max_attempts(1).await;
    let id = s.start("b").blocked_by([blocker]).on_failure(OnBlockerFailure::Receive).await;
    s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    let ripple = s.reap().await.ripple;
    assert_eq!(ripple.unblocked.iter().map(|one| one.job.chain).collect::<Vec<_>>(), [id]);
    assert_eq!(ripple.closed.iter().map(|one| one.chain).collect::<Vec<_>>(), [blocker]);
    assert_eq!(s.acquire_one("b").await.blockers[0].status, Status::Failed);
}

async fn settled(s: Subject) {
    s.create((0..3).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", 3).await;
    s.complete(&attempts[0], "1").await;
    s.apply(&attempts[1], retry_after(HOUR, "no")).await;
    s.advance(LEASE.get() + 1);
    s.renew(&attempts[2]).await;
    assert_eq!(s.reap().await.reaped, []);
    assert_eq!(s.job(attempts[0].job.id).await.output, Some(json("1")));
    assert_eq!(s.job(attempts[1].job.id).await.error, Some(ErrorText::new("no")));
}

async fn twice(s: Subject) {
    s.start("a").await;
    s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    assert_eq!((s.reap().await.reaped.len(), s.through_other().reap().await.reaped.len()), (1, 0));
}

async fn other_handle(s: Subject) {
    s.start("a").await;
    let worker = s.worker;
    s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    let other = s.through_other();
    assert_eq!(other.reap().await.reaped[0].worker, worker);
    let attempt = other.acquire_one("a").await;
    other.complete(&attempt, "1").await;
}

async fn repeat_request(s: Subject) {
    s.start("a").await;
    let request = s.acquire_request(&["a"], 1);
    let first = s.run(request.clone()).await.jobs;
    s.advance(LEASE.get() + 1);
    s.reap().await;
    let again = s.run(request).await.jobs;
    assert_eq!((again[0].job.attempt, again[0].job.fence > first[0].job.fence), (2, true));
}

async fn retention(s: Subject) {
    let id = s.start("a").retention(HOUR).await;
    let next = s.start("b").next_job();
    s.work("a", continue_with(next.clone())).await;
    s.work("b", complete("1")).await;
    s.advance(HOUR - 1);
    assert_eq!(s.expire().await, ExpireReply { chains: Vec::new(), jobs: 0, more: false });
    assert_eq!(s.chain(id).await.output(), Some(&json("1")));
    s.advance(2);
    let expired = Expired { chain: id, chain_type: type_name("a"), closed_as: ClosedAs::Completed };
    assert_eq!(s.expire().await, ExpireReply { chains: vec![expired], jobs: 2, more: false });
    assert_eq!(s.through_other().find_chain(id).await, None);
    assert_eq!((s.find_job(id.first_job()).await, s.find_job(next.id).await), (None, None));
}

async fn per_chain(s: Subject) {
    let hours = |completed, failed| Retention {
        completed: millis(completed * HOUR),
        failed: millis(failed * HOUR),
        cancelled: millis(HOUR),
    };
    let long = s.start("a").retentions(hours(9, 1)).await;
    s.work("a", complete("1")).await;
    let failed = s.start("a").retentions(hours(9, 2)).await;
    s.work("a", fail("no")).await;
    let short = s.start("a").retentions(hours(1, 9)).await;
    s.work("a", complete("3")).await;
    s.advance(HOUR + 1);
    assert_eq!(s.expire().await.chains.iter().map(|one| one.chain).collect::<Vec<_>>(), [short]);
    s.advance(HOUR);
    assert_eq!(s.expire().await.chains.iter().map(|one| one.chain).collect::<Vec<_>>(), [failed]);
    assert_eq!(s.chain(long).await.output(), Some(&json("1")));
    s.advance(7 * HOUR);
    assert_eq!(s.expire().await.chains.iter().map(|one| one.chain).collect::<Vec<_>>(), [long]);
}

async fn repeat_window(s: Subject) {
    let id = s.start("a").retention(0).await;
    s.work("a", complete("1")).await;
    s.start("b").retention(0).await;
    s.work("b", continue_with(s.start("b").next_job())).await;
    let inner = s.work("b", continue_with(s.start("b").next_job())).await.job.id;
    s.advance(limit::REPEAT_WINDOW_MS - 1);
    assert_eq!((s.expire().await.jobs, s.find_job(inner).await.is_some()), (0, true));
    assert_eq!(s.chain(id).await.output(), Some(&json("1")));
    s.advance(2);
    let reply = s.expire().await;
    assert_eq!((reply.chains.len(), reply.jobs, s.find_job(inner).await), (1, 2, None));
}

async fn open(s: Subject) {
    let (pending, blocker) = (s.start("a").retention(0).await, s.start("b").retention(0).await);
    let blocked = s.start("c").retention(0).blocked_by([blocker]).await;
    let running = s.start("d").retention(0).await;
    s.acquire_one("d").await;
    s.advance(1_000 * HOUR);
    assert_eq!(s.expire().await, ExpireReply { chains: Vec::new(), jobs: 0, more: false });
    for chain in [pending, blocker, blocked, running] {
        assert_eq!(s.chain(chain).await.closed, None);
    }
}

async fn needed(s: Subject) {
    let first = s.start("b").retention(0).await;
    s.work("b", complete("1")).await;
    let second = s.start("b").retention(0).await;
    let waiting = s.start("a").retention(0).blocked_by([first, second]).await;
    s.advance(HOUR);
    assert_eq!(s.expire().await.chains, [], "a blocked job waited for it");
    s.work("b", complete("2")).await;
    s.advance(HOUR);
    assert_eq!(s.expire().await.chains, [], "a pending job has not read it yet");
    s.work("a", fail("no")).await;
    s.advance(limit::REPEAT_WINDOW_MS - 1);
    assert_eq!(s.expire().await.chains, [], "a failed job may be retried");
    s.advance(2);
    let mut left = Vec::new();
    for _ in 0..3 {
        left.extend(s.expire().await.chains.iter().map(|one| one.chain));
    }
    left.sort_unstable();
    assert_eq!(left, [first, second, waiting], "without the failed job, no job needs them");
}

async fn looping(s: Subject) {
    let id = s.start("a").retention(HOUR).await;
    let mut jobs = vec![id.first_job()];
    for _ in 0..4 {
        let next = s.start("a").next_job();
        jobs.push(next.id);
        s.work("a", continue_with(next)).await;
    }
    s.advance(HOUR - 1);
    assert_eq!(s.expire().await.jobs, 0);
    s.advance(2);
    assert_eq!(s.expire().await, ExpireReply { chains: Vec::new(), jobs: 3, more: false });
    let reply = s.run(GetJobs { jobs: jobs.clone() }).await;
    assert_eq!(reply.jobs.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, false, true]);
    let chain = s.chain(id).await;
    assert_eq!((chain.first.id, chain.latest.id, chain.latest.index), (jobs[0], jobs[4], 4));
    s.work("a", complete("1")).await;
}

async fn bounded(s: Subject) {
    s.create((0..10).map(|_| s.start("a").retention(HOUR).build()).collect()).await;
    for attempt in s.acquire("a", 10).await {
        s.complete(&attempt, "1").await;
    }
    s.advance(2 * HOUR);
    let mut counts = Vec::new();
    loop {
        let reply = s.run(Expire { max: 4 }).await;
        assert_eq!(reply.chains.len(), reply.jobs as usize);
        counts.push(reply.jobs);
        if !reply.more {
            break;
        }
        assert!(counts.len() < 10, "the removal does not end: {counts:?}");
    }
    assert_eq!(
        (counts.iter().sum::<u32>(), counts.iter().all(|count| *count <= 4)),
        (10, true),
        "{counts:?}"
    );
}

async fn long_chain(s: Subject) {
    let id = s.start("a").retention(24 * HOUR).await;
    for _ in 0..9 {
        s.work("a", continue_with(s.start("a").next_job())).await;
    }
    s.work("a", complete("1")).await;
    s.advance(25 * HOUR);
    let (mut jobs, mut calls) = (0, 0);
    while s.find_chain(id).await.is_some() {
        let reply = s.run(Expire { max: 4 }).await;
        assert!(reply.jobs <= 4, "at most four were asked for: {reply:?}");
        (jobs, calls) = (jobs + reply.jobs, calls + 1);
        assert!(calls < 10, "the removal does not end: {jobs} jobs were removed");
        if let Some(chain) = s.find_chain(id).await {
            assert_eq!((chain.first.id, chain.output()), (id.first_job(), Some(&json("1"))));
            assert!(reply.more, "there is more to remove");
        }
    }
    assert_eq!(jobs, 10);
}

async fn nothing(s: Subject) {
    assert_eq!(s.expire().await, ExpireReply { chains: Vec::new(), jobs: 0, more: false });
    // A chain of two jobs is removed as a whole, so the minimum is two.
    assert_eq!(s.error(Expire { max: 1 }).await, ErrorKind::Invalid);
}
