//! Renewing leases.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "renew.until",
        "A renewed lease expires its full duration from now.",
        ["SA-RL01", "SA-RL02", "B4.22"],
        until
    ),
    case!(
        "renew.many",
        "One command can renew many leases, each for its own duration.",
        ["A8.12", "contract"],
        many
    ),
    case!(
        "renew.expired",
        "A lease that has expired but was not reaped is still held and can be renewed.",
        ["SA-RL02"],
        expired
    ),
    case!("renew.version", "A renewal does not change a job's version.", ["contract"], version),
    case!("renew.lost.requeued", "The lease of a requeued job is lost.", ["never 2"], requeued),
    case!(
        "renew.lost.taken_over",
        "The lease of a job that another attempt holds is lost.",
        ["never 2", "B4.11"],
        taken_over
    ),
    case!(
        "renew.lost.closed",
        "The lease of a closed job is lost, and the reply says how it closed.",
        ["never 2"],
        closed
    ),
    case!("renew.lost.unknown", "The lease of a job that is not stored is lost.", ["never 2"], unknown),
    case!(
        "renew.lost.alone",
        "A lost lease affects neither other leases nor its former job.",
        ["never 11"],
        alone
    ),
    case!("renew.empty", "An empty renewal returns an empty reply.", ["contract"], empty),
];

async fn until(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    for _ in 0..3 {
        s.advance(40_000);
        let until = s.now() + LEASE;
        assert_eq!(s.renew(&attempt).await, Renewed::Held { until, cancel_requested: false });
        let lease = s.through_other().job(attempt.job.id).await.lease.unwrap();
        assert_eq!((lease.until, lease.worker), (until, s.worker));
        assert_eq!(s.reap().await.reaped, []);
    }
    s.complete(&attempt, "1").await;
}

async fn many(s: Subject) {
    s.create((0..50).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", 50).await;
    s.advance(1_000);
    let renewal = |(attempt, ms): (&Acquired, u64)| RenewLease {
        job: attempt.job.id,
        fence: attempt.job.fence,
        lease: millis(ms),
    };
    let leases: Vec<_> = attempts.iter().zip(1..).map(renewal).collect();
    let reply = s.run(Renew { leases: leases.clone() }).await;
    let expected: Vec<_> = leases
        .iter()
        .map(|renew| Renewed::Held { until: s.now() + renew.lease, cancel_requested: false })
        .collect();
    assert_eq!((reply.leases, reply.now), (expected, s.now()));
}

async fn expired(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.advance(10 * LEASE.get());
    assert!(matches!(s.renew(&attempt).await, Renewed::Held { .. }), "it was not reaped");
    assert_eq!(s.reap().await.reaped, []);
    s.complete(&attempt, "1").await;
}

async fn version(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.renew(&attempt).await;
    s.renew(&attempt).await;
    assert_eq!(s.job(attempt.job.id).await.version, attempt.job.version);
}

async fn requeued(s: Subject) {
    s.start("a").await;
    let attempt = s.work("a", retry_after(HOUR, "no")).await;
    assert_eq!(s.renew(&attempt).await, Renewed::Lost(Lost::Requeued));
    assert_eq!(s.job(attempt.job.id).await.lease, None);
    s.start("b").await;
    let attempt = s.acquire_one("b").await;
    s.advance(LEASE.get() + 1);
    s.reap().await;
    assert_eq!(s.renew(&attempt).await, Renewed::Lost(Lost::Requeued));
}

async fn taken_over(s: Subject) {
    s.start("a").await;
    let stale = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    s.reap().await;
    let other = s.through_other();
    let present = other.acquire_one("a").await;
    assert_eq!(s.renew(&stale).await, Renewed::Lost(Lost::TakenOver));
    let job = s.job(stale.job.id).await;
    assert_eq!(job.lease.clone().unwrap(), present.job.lease.clone().unwrap());
}

async fn closed(s: Subject) {
    for (outcome, closed_as) in [(complete("1"), ClosedAs::Completed), (fail("no"), ClosedAs::Failed)] {
        s.start("a").await;
        let attempt = s.work("a", outcome).await;
        assert_eq!(s.renew(&attempt).await, Renewed::Lost(Lost::Closed(closed_as)));
    }
}

async fn unknown(s: Subject) {
    let lease = RenewLease { job: JobId::new(), fence: Fence(1), lease: LEASE };
    assert_eq!(s.run(Renew { leases: vec![lease] }).await.leases, [Renewed::Lost(Lost::NotFound)]);
}

async fn alone(s: Subject) {
    s.create((0..3).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", 3).await;
    s.complete(&attempts[1], "1").await;
    s.advance(1_000);
    let leases = attempts.iter().map(|attempt| RenewLease {
        job: attempt.job.id,
        fence: attempt.job.fence,
        lease: LEASE,
    });
    let reply = s.run(Renew { leases: leases.collect() }).await;
    let held = Renewed::Held { until: s.now() + LEASE, cancel_requested: false };
    assert_eq!(reply.leases, [held, Renewed::Lost(Lost::Closed(ClosedAs::Completed)), held]);
}

async fn empty(s: Subject) {
    let reply = s.run(Renew { leases: Vec::new() }).await;
    assert_eq!((reply.leases.len(), reply.now), (0, s.now()));
}
