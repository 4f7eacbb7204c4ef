//! Nothing grows without bound: once all chains are removed, no key of theirs remains.

use windlass_conformance::{complete, continue_with, fail, retry};
use windlass_core::command::{Create, Delete, DeleteReply, Expire, JobFilter, ListJobs, Order, Page};
use windlass_core::{KeyHold, OnBlockerFailure};

use crate::database::subject;

const HUNDRED_DAYS: u64 = 100 * 24 * 60 * 60 * 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn only_the_counters_remain_when_all_chains_are_removed() {
    let (subject, mut database) = subject().await;

    // A key that is held after its chain closes, one that is not, and priorities.
    subject.start("a").key("any").hold(KeyHold::Any).priority(5).await;
    subject.start("a").key("open").priority(-5).await;
    subject.work("a", retry("once more")).await;
    for _ in 0..2 {
        subject.work("a", complete("1")).await;
    }
    // A chain of many jobs, and one whose lease expires.
    subject.start("b").await;
    for _ in 0..5 {
        subject.work("b", continue_with(subject.start("b").next_job())).await;
    }
    subject.acquire_one("b").await;
    subject.advance(60_000);
    subject.reap().await;
    subject.work("b", complete("2")).await;
    // Jobs with several blockers, of which one completes and one fails.
    let (good, bad) = (subject.start("good").await, subject.start("bad").await);
    subject.start("c").blocked_by([good, bad]).on_failure(OnBlockerFailure::Receive).await;
    subject.start("d").blocked_by([good, bad]).on_failure(OnBlockerFailure::Fail).await;
    subject.work("good", complete("3")).await;
    subject.work("bad", fail("no")).await;
    subject.work("c", complete("4")).await;
    assert!(subject.acquire("d", 1).await.is_empty());

    // Failed jobs still need their blockers, so the blockers are removed in a second round.
    for _ in 0..2 {
        subject.advance(HUNDRED_DAYS);
        while subject.run(Expire { max: 2 }).await.more {}
    }
    assert_eq!(database.names().await, [database.key("former"), database.key("meta")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_chain_is_removed_at_the_maximum_rate() {
    let (subject, mut database) = subject().await;
    subject.start("a").await;
    for _ in 0..9 {
        subject.work("a", continue_with(subject.start("a").next_job())).await;
    }
    subject.work("a", complete("1")).await;
    subject.advance(HUNDRED_DAYS);

    let mut removed = Vec::new();
    loop {
        let reply = subject.run(Expire { max: 2 }).await;
        removed.push(reply.jobs);
        if !reply.more {
            break;
        }
    }
    assert_eq!(removed, [2; 5]);
    assert_eq!(database.names().await, [database.key("former"), database.key("meta")]);
}

/// Jobs that stay for long among many that leave do not keep the space of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_few_jobs_that_stay_keep_little_of_the_order_of_creation() {
    let (subject, mut database) = subject().await;
    let mut staying = Vec::new();
    for number in 0..90 {
        match number % 30 {
            7 => staying.push(subject.start("later").after(2 * HUNDRED_DAYS).await),
            _ => drop(subject.start("a").await),
        }
    }
    for attempt in subject.acquire("a", 100).await {
        subject.complete(&attempt, "1").await;
    }
    subject.advance(HUNDRED_DAYS);
    while subject.run(Expire { max: 10 }).await.more {}

    let key = database.key("order:00000000000000");
    let bytes: usize = redis::AsyncCommands::strlen(&mut database.connection, key).await.unwrap();
    assert!((3 * 52..4 * 3 * 52).contains(&bytes), "{bytes}");
    let listed = subject
        .run(ListJobs {
            filter: JobFilter::default(),
            page: Page { order: Order::Oldest, ..Page::default() },
        })
        .await
        .jobs;
    assert_eq!(listed.iter().map(|job| job.chain).collect::<Vec<_>>(), staying);
}

/// A failed job needs its blocker. A blocker that was deleted and created again does not count that dependent, so the
/// dependent's removal must not decrease its count.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocker_that_was_deleted_and_created_again_is_removed() {
    let (subject, mut database) = subject().await;
    let blocker = subject.start("a").build();
    let create = Create { chains: vec![blocker.clone()] };
    subject.run(create.clone()).await;
    subject.work("a", complete("1")).await;
    let dependent = subject.start("b").blocked_by([blocker.id]).await;
    subject.work("b", fail("no")).await;

    let delete = async |chain| {
        let reply = subject.run(Delete { chains: vec![chain], cascade: false, seen: None }).await;
        assert!(matches!(reply, DeleteReply::Deleted(deleted) if deleted.chains.len() == 1));
    };
    delete(blocker.id.into()).await;
    subject.run(create).await;
    subject.work("a", complete("2")).await;
    delete(dependent.into()).await;

    subject.advance(HUNDRED_DAYS);
    while subject.run(Expire { max: 2 }).await.more {}
    assert_eq!(database.names().await, [database.key("former"), database.key("meta")]);
}
