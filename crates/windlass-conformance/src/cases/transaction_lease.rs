//! Leases and transactions: renewals inside a transaction, and owners that cannot renew because of one.

use std::time::Duration;

use tokio::time::timeout;

use super::prelude::*;
use super::transaction::{create, run, settle};
use crate::transaction::ErasedTx;

pub(super) const CASES: &[Case] = &[
    case!(
        "tx.renew",
        "A lease can be renewed in a transaction and lasts after its commit.",
        ["never 2"],
        [Transactions],
        renewed
    ),
    case!(
        "tx.renew.rolled_back",
        "A renewal that is rolled back has no effect.",
        ["SA-TX02"],
        [Transactions],
        rolled_back
    ),
    case!(
        "tx.renew.lost",
        "A renewal in a transaction reports to a stale attempt that it has lost its job.",
        ["never 2"],
        [Transactions],
        lost
    ),
    case!(
        "tx.renew.settled",
        "A renewal in a transaction sees the transaction's own changes to the job.",
        ["never 2"],
        [Transactions],
        settled
    ),
    case!(
        "tx.renew.asked",
        "A renewal in a transaction reports that the job was asked to stop.",
        ["contract"],
        [Transactions, Cancel],
        asked
    ),
    case!(
        "tx.renew.not_reaped",
        "A job that a transaction has renewed is not reaped before the transaction ends.",
        ["never 2"],
        [Transactions],
        not_reaped
    ),
    case!(
        "tx.renew.not_settled",
        "A job that a transaction has renewed cannot be settled outside it before the transaction ends.",
        ["never 2"],
        [Transactions],
        not_settled
    ),
    case!(
        "tx.stall",
        "A long transaction does not make a worker lose its leases.",
        ["never 11"],
        [Transactions],
        stall
    ),
    case!(
        "tx.stall.grace",
        "In a store with a single writer, a reap after a long transaction leaves owners one renewal interval.",
        ["never 11"],
        [Transactions],
        grace
    ),
    case!(
        "tx.stall.short_one_after",
        "A short transaction after a long one does not shorten the owners' grace period.",
        ["never 11"],
        [Transactions],
        grace_after_a_short_one
    ),
    case!(
        "tx.stall.after_a_longer_one",
        "After a shorter second transaction, owners that renew more often get their own grace period.",
        ["never 11"],
        [Transactions],
        grace_after_a_longer_one
    ),
    case!(
        "tx.stall.ripple",
        "During the grace period, a reap still resumes deferred unblocking.",
        ["never 5", "never 11"],
        [Transactions],
        grace_ripples
    ),
];

async fn renew(tx: &mut Box<dyn ErasedTx>, attempt: &Acquired) -> Renewed {
    let lease = RenewLease { job: attempt.job.id, fence: attempt.job.fence, lease: LEASE };
    run(tx, Renew { leases: vec![lease] }).await.leases.remove(0)
}

async fn renewed(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.advance(1_000);
    let mut tx = s.begin().await;
    let until = s.now() + LEASE;
    assert_eq!(renew(&mut tx, &attempt).await, Renewed::Held { until, cancel_requested: false });
    let seen = s.job(attempt.job.id).await.lease.unwrap().until;
    assert_eq!(seen, attempt.job.lease.as_ref().unwrap().until, "it is not visible before the commit");
    tx.commit().await.unwrap();
    let job = s.job(attempt.job.id).await;
    assert_eq!((job.lease.unwrap().until, job.version), (until, attempt.job.version));
    s.complete(&attempt, "1").await;
}

async fn rolled_back(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.advance(1_000);
    let mut tx = s.begin().await;
    renew(&mut tx, &attempt).await;
    tx.rollback().await.unwrap();
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
    s.advance(LEASE.get() - 1_000);
    assert_eq!(s.reap().await.reaped.len(), 1);
}

async fn lost(s: Subject) {
    let id = s.start("a").await;
    let stale = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    s.reap().await;
    for reason in [Lost::Requeued, Lost::TakenOver] {
        let before = s.chain(id).await;
        let mut tx = s.begin().await;
        create(&mut tx, s.start("b").build()).await;
        assert_eq!(renew(&mut tx, &stale).await, Renewed::Lost(reason));
        tx.rollback().await.unwrap();
        assert_eq!(s.chain(id).await, before);
        if reason == Lost::Requeued {
            s.acquire_one("a").await;
        }
    }
    s.expect_none_due("b").await;
}

async fn settled(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let mut tx = s.begin().await;
    assert!(matches!(renew(&mut tx, &attempt).await, Renewed::Held { .. }), "it is held");
    settle(&mut tx, &attempt, complete("1")).await;
    assert_eq!(renew(&mut tx, &attempt).await, Renewed::Lost(Lost::Closed(ClosedAs::Completed)));
    tx.rollback().await.unwrap();
    assert!(matches!(s.renew(&attempt).await, Renewed::Held { .. }), "it is still held");
}

async fn asked(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.run(Cancel { chains: vec![id.into()], mode: CancelMode::Ask }).await;
    let mut tx = s.begin().await;
    let until = s.now() + LEASE;
    assert_eq!(renew(&mut tx, &attempt).await, Renewed::Held { until, cancel_requested: true });
    tx.commit().await.unwrap();
}

async fn not_reaped(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    let mut tx = s.begin().await;
    assert!(matches!(renew(&mut tx, &attempt).await, Renewed::Held { .. }), "it was not reaped yet");
    let other = s.through_other();
    // The reap skips the row, or waits for the transaction and then finds the lease renewed.
    let reaping = tokio::spawn(async move { other.reap().await.reaped });
    tokio::task::yield_now().await;
    tx.commit().await.unwrap();
    assert_eq!(reaping.await.unwrap(), []);
    s.expect_status(id, Status::Running).await;
    s.complete(&attempt, "1").await;
}

async fn not_settled(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let mut tx = s.begin().await;
    renew(&mut tx, &attempt).await;
    let (other, same) = (s.through_other(), attempt.clone());
    let settling = tokio::spawn(async move { other.settle(&same, complete("other")).await });
    tokio::task::yield_now().await;
    let own = settle(&mut tx, &attempt, complete("own")).await;
    assert!(matches!(own, Settled::Applied(_)), "the transaction has the job: {own:?}");
    tx.commit().await.unwrap();
    let theirs = settling.await.unwrap();
    assert!(matches!(theirs, Settled::Busy | Settled::AlreadyApplied(_)), "{theirs:?}");
    assert_eq!(s.chain(id).await.output(), Some(&json("own")));
}

/// Time limit for a concurrent writer. A writer that takes longer is blocked by the transaction.
const BESIDE: Duration = Duration::from_secs(2);

async fn stall(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.advance(LEASE.get() / 2);
    let mut tx = s.begin().await;
    create(&mut tx, s.start("b").build()).await;
    // The owner renews in time. On a store with a single writer, the renewal waits for the transaction.
    let (other, held) = (s.through_other(), attempt.clone());
    let mut renewing = tokio::spawn(async move { other.renew(&held).await });
    let in_time = timeout(BESIDE, &mut renewing).await.is_ok();
    s.advance(LEASE.get() - 1);
    tx.commit().await.unwrap();
    let reap = Reap { renewal_interval: millis(LEASE.get() / 2), ..reap_request(Types::All) };
    assert_eq!(s.run(reap).await.reaped, [], "the owner has had no time to renew");
    if !in_time {
        assert!(matches!(renewing.await.unwrap(), Renewed::Held { .. }), "the renewal that waited is good");
    }
    s.complete(&attempt, "1").await;
}

/// Renewal interval of owners.
const INTERVAL: u64 = LEASE.get() / 2;

fn reap_sparing_owners() -> Reap {
    Reap { renewal_interval: millis(INTERVAL), ..reap_request(Types::All) }
}

/// Keeps a transaction open until every lease has expired. Returns whether it blocked all other writers.
async fn long_transaction(s: &Subject) -> bool {
    transaction_of(s, LEASE.get() + 1).await
}

/// Keeps a transaction open for this many milliseconds. Returns whether it blocked all other writers.
async fn transaction_of(s: &Subject, ms: u64) -> bool {
    let mut tx = s.begin().await;
    create(&mut tx, s.start("long").build()).await;
    let other = s.through_other();
    let mut writing = tokio::spawn(async move { other.start("beside").await });
    let stopped = timeout(BESIDE, &mut writing).await.is_err();
    s.advance(ms);
    tx.commit().await.unwrap();
    if stopped {
        writing.await.unwrap();
    }
    stopped
}

async fn short_transaction(s: &Subject) {
    let mut tx = s.begin().await;
    create(&mut tx, s.start("short").build()).await;
    s.advance(1);
    tx.commit().await.unwrap();
}

/// Checks that the owner keeps its job for a renewal interval after a long transaction, with a step in between.
async fn check_grace(s: &Subject, between: impl AsyncFn(&Subject)) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    if !long_transaction(s).await {
        // The transaction blocked no renewal, so the owner is entitled to no grace.
        return;
    }
    let ended_at = s.now();
    between(s).await;
    assert_eq!(s.run(reap_sparing_owners()).await.reaped, [], "the owner has had no time to renew");
    s.clock.advance(millis(INTERVAL - 1 - u64::try_from(s.now().since(ended_at).as_millis()).unwrap()));
    assert_eq!(s.run(reap_sparing_owners()).await.reaped, [], "the interval is not over");
    s.advance(INTERVAL);
    let reaped = s.run(reap_sparing_owners()).await.reaped;
    assert_eq!(reaped.iter().map(|one| one.job.job).collect::<Vec<_>>(), [attempt.job.id]);
}

async fn grace(s: Subject) {
    check_grace(&s, async |_| {}).await;
}

async fn grace_after_a_short_one(s: Subject) {
    check_grace(&s, short_transaction).await;
}

async fn grace_after_a_longer_one(s: Subject) {
    if !transaction_of(&s, 8_000).await {
        return;
    }
    s.advance(10_000);
    s.start("a").await;
    let mut acquire = s.acquire_request(&["a"], 1);
    acquire.types[0].lease = millis(1_500);
    let attempt = s.run(acquire).await.jobs.remove(0);
    transaction_of(&s, 2_000).await;
    let reap = || Reap { renewal_interval: millis(1_000), ..reap_request(Types::All) };
    assert_eq!(s.run(reap()).await.reaped, [], "no owner could renew for two seconds");
    s.advance(1_000);
    let reaped = s.run(reap()).await.reaped;
    assert_eq!(reaped.iter().map(|one| one.job.job).collect::<Vec<_>>(), [attempt.job.id]);
}

async fn grace_ripples(s: Subject) {
    const LEFT: usize = 100;
    let blocker = s.start("b").await;
    for size in [limit::RIPPLE_MAX, LEFT] {
        s.create((0..size).map(|_| s.start("a").blocked_by([blocker]).build()).collect()).await;
    }
    let attempt = s.acquire_one("b").await;
    let mut unblocked = s.settle_reply(&attempt, complete("1")).await.ripple.unblocked.len();
    long_transaction(&s).await;
    for _ in 0..10 {
        unblocked += s.run(reap_sparing_owners()).await.ripple.unblocked.len();
    }
    assert_eq!(unblocked, limit::RIPPLE_MAX + LEFT);
}
