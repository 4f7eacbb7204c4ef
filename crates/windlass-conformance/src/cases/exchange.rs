//! Settling and acquiring in one round trip, the next due time, and pausing types.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "exchange.settles_first",
        "An exchange settles first, then acquires, including jobs that the settlement unblocked.",
        ["A8.12"],
        [Exchange],
        settles_first
    ),
    case!(
        "exchange.same_job",
        "An exchange can acquire a job again that it has just requeued.",
        ["A8.12"],
        [Exchange],
        same_job
    ),
    case!(
        "exchange.repeated",
        "A repeated exchange is already applied and returns the same jobs.",
        ["never 12"],
        [Exchange],
        repeated
    ),
    case!(
        "exchange.lost",
        "A lost settlement does not prevent the exchange from acquiring jobs.",
        ["never 11"],
        [Exchange],
        lost
    ),
    case!(
        "exchange.invalid",
        "An exchange with one invalid part writes nothing.",
        ["contract"],
        [Exchange],
        invalid
    ),
    case!(
        "next_due.ready",
        "For a due job, the next due time is its own due time, in the past or now.",
        ["SA-NX01"],
        [NextDue],
        ready
    ),
    case!(
        "next_due.future",
        "Otherwise the earliest due time in the future is returned.",
        ["SA-NX02"],
        [NextDue],
        future
    ),
    case!("next_due.none", "Without pending jobs there is no next due time.", ["SA-NX03"], [NextDue], none),
    case!(
        "next_due.lease",
        "The earliest lease expiry is returned, and changes with renewals.",
        ["contract"],
        [NextDue],
        lease
    ),
    case!("next_due.types", "Only the requested types count.", ["SA-NX03"], [NextDue], types),
    case!(
        "next_due.blocked",
        "A blocked job does not count until it is unblocked.",
        ["SA-NX03"],
        [NextDue],
        blocked
    ),
    case!(
        "pause.acquire",
        "Jobs of a paused type are not acquired until it is resumed; running jobs continue.",
        ["contract"],
        [Pause],
        paused
    ),
    case!(
        "pause.reply",
        "A pause returns for each type whether it was paused before, and pausing again changes nothing.",
        ["never 12"],
        [Pause],
        pause_reply
    ),
    case!(
        "pause.next_due",
        "For a paused type, only leases count.",
        ["contract"],
        [Pause, NextDue],
        pause_next_due
    ),
];

fn exchange(s: &Subject, settlements: Vec<Settlement>, name: &str) -> Exchange {
    Exchange { settle: Settle { settlements }, acquire: s.acquire_request(&[name], 10) }
}

async fn settles_first(s: Subject) {
    let blocker = s.start("a").await;
    let waiting = s.start("b").blocked_by([blocker]).await;
    let attempt = s.acquire_one("a").await;
    let reply = s.run(exchange(&s, vec![settlement(&attempt, complete("1"))], "b")).await;
    assert!(matches!(reply.settle.settled[0], Settled::Applied(_)), "{reply:?}");
    assert_eq!(reply.settle.ripple.unblocked.len(), 1);
    assert_eq!(chains_of(&reply.acquire.jobs), [waiting]);
    assert_eq!(reply.acquire.jobs[0].blockers[0].output, Some(json("1")));
}

async fn same_job(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let reply = s.run(exchange(&s, vec![settlement(&attempt, retry("no"))], "a")).await;
    let job = &reply.acquire.jobs[0].job;
    assert_eq!((job.id, job.attempt, &job.error), (attempt.job.id, 2, &Some(ErrorText::new("no"))));
}

async fn repeated(s: Subject) {
    s.create((0..3).map(|_| s.start("a").build()).collect()).await;
    let attempt = s.acquire_one("a").await;
    let mut request = exchange(&s, vec![settlement(&attempt, complete("1"))], "a");
    request.acquire.max = 1;
    let first = s.run(request.clone()).await;
    let again = s.through_other().run(request).await;
    assert!(matches!(again.settle.settled[..], [Settled::AlreadyApplied(_)]), "{again:?}");
    assert_eq!(again.acquire.jobs, first.acquire.jobs);
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn lost(s: Subject) {
    let id = s.start("a").await;
    let unknown = Settlement { job: JobId::new(), fence: Fence(1), outcome: complete("1") };
    let reply = s.run(exchange(&s, vec![unknown], "a")).await;
    assert_eq!(reply.settle.settled, [Settled::Lost(Lost::NotFound)]);
    assert_eq!(chains_of(&reply.acquire.jobs), [id]);
}

async fn invalid(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let mut request = exchange(&s, vec![settlement(&attempt, complete("1"))], "a");
    request.acquire.types[0].lease = Millis::ZERO;
    assert_eq!(s.error(request).await, ErrorKind::Invalid);
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
}

async fn next_due(s: &Subject, names: &[&str]) -> NextDueReply {
    let reply =
        s.run(NextDue { types: Types::Only(names.iter().map(|name| type_name(name)).collect()) }).await;
    assert_eq!(reply.now, s.now());
    reply
}

async fn ready(s: Subject) {
    s.start("a").await;
    let due = s.now();
    assert_eq!(next_due(&s, &["a"]).await.due_at, Some(due));
    s.advance(1_000);
    assert_eq!(s.run(NextDue { types: Types::All }).await.due_at, Some(due));
}

async fn future(s: Subject) {
    s.start("a").after(9_000).await;
    s.start("a").after(5_000).priority(-1).await;
    s.start("b").after(7_000).priority(1).await;
    assert_eq!(next_due(&s, &["a", "b"]).await.due_at, Some(s.now() + millis(5_000)));
    assert_eq!(next_due(&s, &["b"]).await.due_at, Some(s.now() + millis(7_000)));
}

async fn none(s: Subject) {
    let nothing = NextDueReply { now: s.now(), due_at: None, lease_until: None };
    assert_eq!(s.run(NextDue { types: Types::All }).await, nothing);
    s.start("a").await;
    s.work("a", complete("1")).await;
    assert_eq!(next_due(&s, &["a"]).await, nothing);
    assert_eq!(next_due(&s, &[]).await, nothing);
}

async fn lease(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    assert_eq!(next_due(&s, &["a"]).await.lease_until, Some(s.now() + LEASE));
    s.advance(1_000);
    s.renew(&attempt).await;
    let reply = next_due(&s, &["a"]).await;
    assert_eq!((reply.due_at, reply.lease_until), (None, Some(s.now() + LEASE)));
    s.complete(&attempt, "1").await;
    assert_eq!(next_due(&s, &["a"]).await.lease_until, None);
}

async fn types(s: Subject) {
    s.start("a").await;
    s.start("b").await;
    s.acquire_one("b").await;
    let reply = next_due(&s, &["c"]).await;
    assert_eq!((reply.due_at, reply.lease_until), (None, None));
    let reply = next_due(&s, &["b", "a"]).await;
    assert_eq!((reply.due_at, reply.lease_until), (Some(s.now()), Some(s.now() + LEASE)));
}

async fn blocked(s: Subject) {
    let blocker = s.start("b").await;
    s.start("a").blocked_by([blocker]).await;
    assert_eq!(next_due(&s, &["a"]).await.due_at, None);
    s.work("b", complete("1")).await;
    assert_eq!(next_due(&s, &["a"]).await.due_at, Some(s.now()));
}

fn pause(names: &[&str], paused: bool) -> Pause {
    Pause { types: names.iter().map(|name| type_name(name)).collect(), paused }
}

async fn paused(s: Subject) {
    s.create(vec![s.start("a").build(), s.start("a").build(), s.start("b").build()]).await;
    let attempt = s.acquire_one("a").await;
    s.run(pause(&["a"], true)).await;
    let other = s.through_other();
    let jobs = other.run(other.acquire_request(&["a", "b"], 10)).await.jobs;
    assert_eq!(jobs.iter().map(|one| one.job.job_type.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(matches!(s.renew(&attempt).await, Renewed::Held { .. }), "a running job continues");
    s.complete(&attempt, "1").await;
    s.start("a").await;
    s.expect_none_due("a").await;
    other.run(pause(&["a"], false)).await;
    assert_eq!(s.acquire("a", 10).await.len(), 2);
}

async fn pause_reply(s: Subject) {
    assert_eq!(s.run(pause(&["a"], true)).await.were_paused, [false]);
    assert_eq!(s.run(pause(&["b", "a", "b"], true)).await.were_paused, [false, true, true]);
    assert_eq!(s.run(pause(&["a", "c"], false)).await.were_paused, [true, false]);
    assert!(s.run(pause(&[], false)).await.were_paused.is_empty());
}

async fn pause_next_due(s: Subject) {
    s.start("a").await;
    s.start("a").await;
    s.acquire_one("a").await;
    s.run(pause(&["a"], true)).await;
    let reply = s.run(NextDue { types: Types::All }).await;
    assert_eq!((reply.due_at, reply.lease_until), (None, Some(s.now() + LEASE)));
}
