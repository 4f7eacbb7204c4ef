//! Races at full size, for use in a store's own tests. They cover more than the conformance cases can afford to run on
//! every store, and races that only a store with locks, deletion and batches can lose.
//!
//! Each race uses both handles of the subject concurrently, and panics if the store loses.

use std::collections::HashSet;
use std::sync::Arc;

use windlass_core::Status;
use windlass_core::command::{Acquired, Created, Delete, DeleteReply, Settled};

use crate::at_once::{at_once, create, settle, settle_all};
use crate::outcome::{complete, continue_with};
use crate::subject::{Subject, settlement};

/// Eight blockers of two hundred jobs complete concurrently. No job stays blocked, and each is unblocked once.
pub async fn blockers_end_at_once(s: Subject) {
    let blockers: Vec<_> = (0..8).map(|_| s.start("b").build()).collect();
    let ids: Vec<_> = blockers.iter().map(|chain| chain.id).collect();
    s.create(blockers).await;
    s.create((0..200).map(|_| s.start("a").blocked_by(ids.clone()).build()).collect()).await;
    let attempts = Arc::new(s.acquire("b", 8).await);
    at_once(&s, 8, |s, turn| {
        let attempts = Arc::clone(&attempts);
        async move { assert_applied(&complete_all(&s, attempts.get(turn)).await) }
    })
    .await;
    assert_eq!(take_all(&s, "a").await, 200, "jobs of which all blockers have completed are still blocked");
}

/// Jobs attach to a chain while it closes. None of them stays blocked.
pub async fn attached_while_closing(s: Subject) {
    const ROUNDS: usize = 20;
    for _ in 0..ROUNDS {
        let blocker = s.start("b").await;
        let attempt = Arc::new(s.acquire_one("b").await);
        at_once(&s, 16, |s, turn| {
            let attempt = Arc::clone(&attempt);
            async move {
                match turn {
                    0 => assert_applied(&complete_all(&s, [&*attempt]).await),
                    _ => drop(create(&s, s.start("a").blocked_by([blocker]).build()).await),
                }
            }
        })
        .await;
    }
    assert_eq!(
        take_all(&s, "a").await,
        15 * ROUNDS,
        "jobs that were attached to a closing chain are stranded"
    );
}

/// Sixty-four producers start a chain with the same key. One chain is created, and all producers get it.
pub async fn one_key(s: Subject) {
    let created =
        at_once(&s, 64, |s, _| async move { create(&s, s.start("a").key("k").build()).await }).await;
    let new = created.iter().filter(|one| matches!(one, Created::New { .. })).count();
    let chains: HashSet<_> = created.iter().map(Created::chain).collect();
    assert_eq!((new, chains.len()), (1, 1), "{created:?}");
}

/// The same continuation is settled twice concurrently. The chain continues once.
pub async fn continued_twice(s: Subject) {
    for _ in 0..20 {
        let chain = s.start("a").await;
        let attempt = s.acquire_one("a").await;
        let outcome = continue_with(s.start("next").next_job());
        let settled = at_once(&s, 2, |s, _| {
            let (attempt, outcome) = (attempt.clone(), outcome.clone());
            async move { settle(&s, &attempt, outcome).await.settled.remove(0) }
        })
        .await;
        let applied = settled.iter().filter(|one| matches!(one, Settled::Applied(_))).count();
        let already = settled.iter().filter(|one| matches!(one, Settled::AlreadyApplied(_))).count();
        assert_eq!((applied, already), (1, 1), "{settled:?}");
        assert_eq!(s.chain(chain).await.latest.index, 1);
        s.work("next", complete("1")).await;
    }
}

/// Sixteen workers share a thousand jobs. Each job is acquired once.
pub async fn sixteen_workers(s: Subject) {
    s.create((0..1_000).map(|_| s.start("a").build()).collect()).await;
    let taken = at_once(&s, 16, |s, _| async move {
        let (mut taken, mut idle) = (Vec::new(), 0);
        while idle < 20 {
            let jobs = s.acquire("a", 10).await;
            idle = if jobs.is_empty() { idle + 1 } else { 0 };
            taken.extend(jobs.iter().map(|acquired| (acquired.job.id, acquired.job.fence)));
        }
        taken
    })
    .await;
    let taken: Vec<_> = taken.into_iter().flatten().collect();
    assert_eq!((taken.len(), taken.iter().collect::<HashSet<_>>().len()), (1_000, 1_000));
}

/// A chain is deleted while its job is running and continuing. Nothing is left of the chain, and its key is free.
pub async fn deleted_while_running(s: Subject) {
    for _ in 0..20 {
        let chain = s.start("a").key("k").await;
        let attempt = s.acquire_one("a").await;
        let next = s.start("next").next_job();
        let settled = at_once(&s, 2, |s, turn| {
            let (attempt, outcome) = (attempt.clone(), continue_with(next.clone()));
            async move {
                if turn == 0 {
                    return Some(settle(&s, &attempt, outcome).await.settled.remove(0));
                }
                loop {
                    match s.run(Delete { chains: vec![chain.into()], cascade: false, seen: None }).await {
                        DeleteReply::Busy => tokio::task::yield_now().await,
                        DeleteReply::Deleted(_) => return None,
                        refused => panic!("a running job is not deleted: {refused:?}"),
                    }
                }
            }
        })
        .await;
        let settled: Vec<_> = settled.into_iter().flatten().collect();
        let ended = |one: &Settled| matches!(one, Settled::Applied(_) | Settled::Lost(_));
        assert!(settled.iter().all(ended), "{settled:?}");
        assert!(s.find_chain(chain).await.is_none(), "a deleted chain is still there");
        assert!(s.find_job(next.id).await.is_none(), "a deleted chain continued");
        assert!(s.by_key("a", "k").await.is_none(), "the key of a deleted chain is not free");
    }
}

/// Two batches complete blockers of the same jobs, in opposite order. Both are applied in full, without a deadlock, and
/// all jobs are unblocked.
pub async fn batches_in_opposite_order(s: Subject) {
    for _ in 0..10 {
        let blockers: Vec<_> = (0..20).map(|_| s.start("b").build()).collect();
        let ids: Vec<_> = blockers.iter().map(|chain| chain.id).collect();
        s.create(blockers).await;
        s.create((0..40).map(|_| s.start("a").blocked_by(ids.clone()).build()).collect()).await;
        let attempts = Arc::new(s.acquire("b", 20).await);
        at_once(&s, 2, |s, turn| {
            let attempts = Arc::clone(&attempts);
            async move {
                let (left, right) = attempts.split_at(10);
                match turn {
                    0 => assert_applied(&complete_all(&s, left).await),
                    _ => assert_applied(&complete_all(&s, right.iter().rev()).await),
                }
            }
        })
        .await;
        assert_eq!(
            take_all(&s, "a").await,
            40,
            "jobs of which all blockers have completed are still blocked"
        );
    }
}

/// Completes attempts in one command and returns each result.
async fn complete_all<'a>(s: &Subject, attempts: impl IntoIterator<Item = &'a Acquired>) -> Vec<Settled> {
    let settlements = attempts.into_iter().map(|attempt| settlement(attempt, complete("1"))).collect();
    settle_all(s, settlements).await.settled
}

fn assert_applied(settled: &[Settled]) {
    assert!(settled.iter().all(|one| matches!(one, Settled::Applied(_))), "{settled:?}");
}

/// Acquires all due jobs and returns how many. Repeats until none is left, because unblocking may be deferred to a
/// later acquire.
async fn take_all(s: &Subject, job_type: &str) -> usize {
    let mut taken = 0;
    loop {
        match s.acquire(job_type, 1_000).await {
            jobs if jobs.is_empty() => return taken,
            jobs => {
                assert!(jobs.iter().all(|attempt| attempt.job.status == Status::Running));
                taken += jobs.len();
            }
        }
    }
}
