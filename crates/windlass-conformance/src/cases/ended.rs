//! The totals of ended jobs.

use super::prelude::*;
use super::transaction::run;

pub(super) const CASES: &[Case] = &[
    case!(
        "count.ended",
        "A count reports how many jobs have ended, by outcome. Open jobs do not count, whatever their attempts.",
        ["contract"],
        [Count, Cancel],
        outcomes
    ),
    case!(
        "count.ended.expired",
        "The totals of ended jobs include those whose chain was removed by its retention.",
        ["contract"],
        [Count, Cancel],
        expired
    ),
    case!(
        "count.ended.trimmed",
        "The totals of ended jobs include the inner jobs that were removed from a long chain.",
        ["contract"],
        [Count],
        trimmed
    ),
    case!(
        "count.ended.deleted",
        "The totals of ended jobs include deleted ones. A deleted job that was open has not ended.",
        ["contract"],
        [Count, Delete],
        deleted
    ),
    case!(
        "count.ended.delete_repeated",
        "A delete that is repeated, or was refused, does not change the totals of ended jobs.",
        ["never 12"],
        [Count, Delete],
        delete_repeated
    ),
    case!(
        "count.ended.retried",
        "A retried job counts again when it ends again. A repeated retry does not change the totals.",
        ["never 12"],
        [Count, Cancel, Retry],
        retried
    ),
    case!(
        "count.ended.vanished",
        "The totals are kept while a type has no jobs, during which a count omits it unless it is paused.",
        ["contract"],
        [Count, Delete, Pause],
        vanished
    ),
    case!(
        "count.ended.rolled_back",
        "A rollback also reverts the totals of ended jobs.",
        ["contract"],
        [Count, Delete, Retry, Transactions],
        rolled_back
    ),
    case!(
        "count.ended.savepoint",
        "A rollback to a savepoint reverts what the totals counted since, and nothing else.",
        ["contract"],
        [Count, Delete, Transactions],
        savepoint
    ),
    case!(
        "count.ended.erased",
        "Erasing the store resets the totals.",
        ["contract"],
        [Count, Delete],
        erased
    ),
];

/// Returns how many jobs of a type have completed, failed and been cancelled.
async fn ended(s: &Subject, name: &str) -> [u64; 3] {
    let reply = s.through_other().run(Count { types: Types::Only(vec![type_name(name)]) }).await;
    let [count] = &reply.types[..] else { panic!("expected one type, got {reply:?}") };
    let all = s.run(Count { types: Types::All }).await;
    assert!(all.types.contains(count), "the count of all types agrees: {count:?}, {all:?}");
    [count.ended.completed, count.ended.failed, count.ended.cancelled]
}

/// Returns the names of the types in a count.
async fn counted(s: &Subject) -> Vec<String> {
    let reply = s.run(Count { types: Types::All }).await;
    reply.types.iter().map(|count| count.job_type.to_string()).collect()
}

async fn cancel(s: &Subject, chain: ChainId) {
    s.run(Cancel { chains: vec![chain.into()], mode: CancelMode::Ask }).await;
    s.expect_status(chain, Status::Cancelled).await;
}

async fn delete(s: &Subject, chains: &[ChainId], cascade: bool) -> DeleteReply {
    s.run(Delete { chains: chains.iter().map(|chain| Target::Chain(*chain)).collect(), cascade, seen: None })
        .await
}

async fn outcomes(s: Subject) {
    let cancelled = s.start("a").await;
    cancel(&s, cancelled).await;
    s.start("a").await;
    assert_eq!(ended(&s, "a").await, [0, 0, 1]);
    s.work("a", retry("once")).await;
    s.work("a", release()).await;
    assert_eq!(ended(&s, "a").await, [0, 0, 1]);
    s.work("a", continue_with(s.start("a").next_job())).await;
    s.work("a", fail("no")).await;
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.complete(&attempt, "1").await;
    s.repeat(&attempt, complete("1")).await;
    assert_eq!(ended(&s, "a").await, [2, 1, 1]);
}

async fn expired(s: Subject) {
    for _ in 0..3 {
        s.start("a").retention(HOUR).await;
        s.work("a", complete("1")).await;
    }
    s.start("a").retention(HOUR).await;
    s.work("a", fail("no")).await;
    cancel(&s, s.start("a").retention(HOUR).await).await;
    s.start("a").await;
    assert_eq!(ended(&s, "a").await, [3, 1, 1]);
    s.advance(2 * HOUR);
    // A job that ends between two counts, while others are removed, is not missed.
    s.work("a", complete("1")).await;
    s.start("a").await;
    assert_eq!(s.run(Expire { max: 2 }).await.jobs, 2);
    assert_eq!(ended(&s, "a").await, [4, 1, 1]);
    assert_eq!((s.expire().await.jobs, s.expire().await.jobs), (3, 0));
    assert_eq!(ended(&s, "a").await, [4, 1, 1]);
}

async fn trimmed(s: Subject) {
    s.start("a").retention(HOUR).await;
    for _ in 0..4 {
        s.work("a", continue_with(s.start("a").next_job())).await;
    }
    s.advance(2 * HOUR);
    assert_eq!(s.expire().await.jobs, 3);
    assert_eq!(ended(&s, "a").await, [4, 0, 0]);
    s.work("a", continue_with(s.start("a").next_job())).await;
    s.work("a", continue_with(s.start("a").next_job())).await;
    s.work("a", fail("no")).await;
    s.advance(2 * HOUR);
    // The closed chain is too long for one call, so its inner jobs leave first.
    assert_eq!(s.run(Expire { max: 2 }).await.jobs, 2);
    assert_eq!(ended(&s, "a").await, [6, 1, 0]);
    s.start("a").await;
    assert_eq!(s.expire().await.jobs, 2);
    assert_eq!(ended(&s, "a").await, [6, 1, 0]);
}

async fn deleted(s: Subject) {
    let (good, bad) = (s.start("b").await, s.start("b").await);
    s.work("b", complete("1")).await;
    s.work("b", fail("no")).await;
    let policy = OnBlockerFailure::Receive;
    let top = s.start("a").blocked_by([good, bad]).on_failure(policy).await;
    s.work("a", continue_with(s.start("a").next_job())).await;
    let (staying, open) = (s.start("b").await, s.start("b").await);
    assert_eq!((ended(&s, "a").await, ended(&s, "b").await), ([1, 0, 0], [1, 1, 0]));
    // The first job of the chain has completed; its latest is still open.
    let DeleteReply::Deleted(gone) = delete(&s, &[top, open], true).await else { panic!("no job needs it") };
    assert_eq!(gone.chains.len(), 4);
    s.start("a").await;
    assert_eq!((ended(&s, "a").await, ended(&s, "b").await), ([1, 0, 0], [1, 1, 0]));
    assert_eq!(s.work("b", complete("1")).await.job.chain, staying);
    assert_eq!(ended(&s, "b").await, [2, 1, 0]);
}

async fn delete_repeated(s: Subject) {
    let (needed, free) = (s.start("a").await, s.start("a").await);
    s.work("a", complete("1")).await;
    s.work("a", complete("1")).await;
    let waiting = s.start("b").blocked_by([needed]).await;
    let refused = delete(&s, &[needed, free], false).await;
    assert!(matches!(refused, DeleteReply::Refused(_)), "a job needs it: {refused:?}");
    assert_eq!(ended(&s, "a").await, [2, 0, 0]);
    for _ in 0..3 {
        delete(&s, &[free, free], false).await;
    }
    assert_eq!(ended(&s, "a").await, [2, 0, 0]);
    delete(&s, &[waiting, needed], false).await;
    s.start("a").await;
    assert_eq!(ended(&s, "a").await, [2, 0, 0]);
}

async fn retried(s: Subject) {
    let failed = s.start("a").await;
    s.work("a", fail("no")).await;
    let cancelled = s.start("a").await;
    cancel(&s, cancelled).await;
    let mut targets = Vec::new();
    for chain in [failed, cancelled] {
        let latest = s.chain(chain).await.latest;
        targets.push(RetryTarget { job: latest.id, version: latest.version });
    }
    let reply = s.run(Retry { chains: targets.clone() }).await.chains;
    assert!(reply.iter().all(|one| matches!(one, Retried::Retried { .. })), "{reply:?}");
    assert_eq!(ended(&s, "a").await, [0, 1, 1]);
    let reply = s.run(Retry { chains: targets }).await.chains;
    assert_eq!(reply, [Retried::AlreadyRetried, Retried::AlreadyRetried]);
    assert_eq!(ended(&s, "a").await, [0, 1, 1]);
    s.work("a", fail("again")).await;
    s.work("a", complete("1")).await;
    assert_eq!(ended(&s, "a").await, [1, 2, 1]);
}

async fn vanished(s: Subject) {
    let chain = s.start("a").await;
    s.work("a", complete("1")).await;
    delete(&s, &[chain], false).await;
    s.start("b").await;
    assert_eq!(counted(&s).await, ["b"]);
    assert_eq!(s.run(Count { types: Types::Only(vec![type_name("a")]) }).await.types, []);
    s.run(Pause { types: vec![type_name("a")], paused: true }).await;
    assert_eq!(ended(&s, "a").await, [1, 0, 0]);
    s.run(Pause { types: vec![type_name("a")], paused: false }).await;
    assert_eq!(counted(&s).await, ["b"]);
    s.start("a").await;
    assert_eq!(ended(&s, "a").await, [1, 0, 0]);
    s.work("a", complete("1")).await;
    assert_eq!(ended(&s, "a").await, [2, 0, 0]);
}

async fn rolled_back(s: Subject) {
    let (gone, failed) = (s.start("a").await, s.start("a").await);
    s.work("a", complete("1")).await;
    s.work("a", fail("no")).await;
    let latest = s.chain(failed).await.latest;
    let retry = Retry { chains: vec![RetryTarget { job: latest.id, version: latest.version }] };
    for commits in [false, true] {
        let mut tx = s.begin().await;
        run(&mut tx, Delete { chains: vec![gone.into()], cascade: false, seen: None }).await;
        run(&mut tx, retry.clone()).await;
        let inside = run(&mut tx, Count { types: Types::All }).await.types;
        assert_eq!((inside[0].ended.completed, inside[0].ended.failed), (1, 1));
        assert_eq!(ended(&s, "a").await, [1, 1, 0]);
        if commits {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        assert_eq!(ended(&s, "a").await, [1, 1, 0]);
    }
    s.work("a", fail("again")).await;
    assert_eq!(ended(&s, "a").await, [1, 2, 0]);
}

async fn savepoint(s: Subject) {
    let (one, two) = (s.start("a").await, s.start("a").await);
    s.work("a", complete("1")).await;
    s.work("a", complete("1")).await;
    let mut tx = s.begin().await;
    run(&mut tx, Delete { chains: vec![one.into()], cascade: false, seen: None }).await;
    tx.savepoint().await.unwrap();
    run(&mut tx, Delete { chains: vec![two.into()], cascade: false, seen: None }).await;
    tx.rollback_to().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((s.find_chain(one).await, ended(&s, "a").await), (None, [2, 0, 0]));
}

async fn erased(s: Subject) {
    let chain = s.start("a").await;
    s.work("a", complete("1")).await;
    delete(&s, &[chain], false).await;
    s.store.erase().await.unwrap();
    s.start("a").await;
    assert_eq!(ended(&s, "a").await, [0, 0, 0]);
}
