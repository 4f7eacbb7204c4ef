//! Concurrent commands through both handles.

use std::collections::HashSet;
use std::sync::Arc;

use super::prelude::*;
use crate::at_once::{at_once, create, create_all, settle, settle_all};

pub(super) const CASES: &[Case] = &[
    case!(
        "race.key",
        "If many callers create one key concurrently, one creates the chain and all get it.",
        ["A8.2", "B4.18", "never 6"],
        one_key
    ),
    case!(
        "race.keys",
        "Concurrent batches with the same keys in different orders all finish.",
        ["A8.2", "SA-CC03"],
        many_keys
    ),
    case!(
        "race.key_after_close",
        "Concurrent creators of a key that was just released agree on one chain.",
        ["A8.2"],
        key_after_close
    ),
    case!(
        "race.successor",
        "If many successors compete for a key, one takes it over.",
        ["never 6"],
        successor
    ),
    case!("race.create", "Concurrent creations are all stored.", ["SA-CC01", "SA-CC02"], creations),
    case!(
        "race.create_repeated",
        "A creation that is sent twice concurrently is stored once.",
        ["never 12"],
        create_repeated
    ),
    case!("race.acquire", "Concurrent acquires return each job once.", ["SA-CC04"], acquires),
    case!(
        "race.acquire_repeated",
        "An acquire that is sent twice concurrently acquires one set of jobs.",
        ["never 12"],
        acquire_repeated
    ),
    case!(
        "race.settle",
        "If an attempt is settled several times concurrently, one settlement is applied.",
        ["SA-CJ09", "never 2"],
        settle_once
    ),
    case!(
        "race.settle_kinds",
        "If an attempt is settled concurrently with different outcomes, one is applied completely.",
        ["SA-CJ09", "B4.16"],
        settle_kinds
    ),
    case!(
        "race.fan_in",
        "Blockers that complete concurrently leave no job blocked, however they overlap.",
        ["A8.1", "never 5"],
        fan_in
    ),
    case!(
        "race.attach",
        "A job that is attached to a blocker while it completes does not stay blocked.",
        ["SA-CC05", "never 5"],
        attach
    ),
    case!("race.reap", "Concurrent reapers reap each job once.", ["B4.13"], reap),
    case!("race.reap_settle", "A job is either settled or reaped, never both.", ["B4.12"], reap_or_settle),
    case!(
        "race.mixed",
        "Concurrent workers, creators and readers do not deadlock, and each job completes once.",
        ["SA-CC03", "never 1"],
        mixed
    ),
];

/// Returns the one chain that all creators got. Fails unless exactly one of them created it.
fn agreed(created: &[Created]) -> ChainId {
    let chains: HashSet<_> = created.iter().map(Created::chain).collect();
    assert_eq!(chains.len(), 1, "all creators get the same chain: {created:?}");
    let new = created.iter().filter(|one| matches!(one, Created::New { repeated: false, .. })).count();
    assert_eq!(new, 1, "one of them created it: {created:?}");
    created[0].chain().unwrap()
}

async fn one_key(s: Subject) {
    let created =
        at_once(&s, 64, |s, _| async move { create(&s, s.start("a").key("k").build()).await }).await;
    let id = agreed(&created);
    assert_eq!(chains_of(&s.acquire("a", 100).await), [id]);
}

async fn many_keys(s: Subject) {
    let replies = at_once(&s, 8, |s, turn| async move {
        let mut chains: Vec<_> = (0..30).map(|n| s.start("a").key(&n.to_string()).build()).collect();
        chains.rotate_left(turn * 4);
        if turn % 2 == 1 {
            chains.reverse();
        }
        let keys = chains.iter().map(|chain| chain.key.as_ref().unwrap().key.clone()).collect::<Vec<_>>();
        keys.into_iter().zip(create_all(&s, chains).await).collect::<Vec<_>>()
    })
    .await;
    let all: Vec<_> = replies.into_iter().flatten().collect();
    for number in 0..30 {
        let of_key = all.iter().filter(|(text, _)| *text == key(&number.to_string()));
        agreed(&of_key.map(|(_, created)| created.clone()).collect::<Vec<_>>());
    }
    assert_eq!(s.acquire("a", 100).await.len(), 30);
}

async fn key_after_close(s: Subject) {
    for _ in 0..5 {
        s.start("a").key("k").await;
        s.work("a", complete("1")).await;
        agreed(&at_once(&s, 16, |s, _| async move { create(&s, s.start("a").key("k").build()).await }).await);
        s.work("a", complete("2")).await;
    }
}

async fn successor(s: Subject) {
    let first = s.start("a").key("k").await;
    let created = at_once(&s, 16, move |s, _| async move {
        create(&s, s.start("a").key("k").replaces(first).build()).await
    })
    .await;
    let second = agreed(&created);
    assert_eq!(s.by_key("a", "k").await, Some(second));
    assert!(!s.chain(first).await.key.unwrap().held, "the former holder no longer holds the key");
}

async fn creations(s: Subject) {
    at_once(&s, 20, |s, _| async move {
        for _ in 0..5 {
            let id = s.start("a").await;
            assert_eq!(s.chain(id).await.status(), Status::Pending);
        }
    })
    .await;
    assert_eq!(s.acquire("a", 1_000).await.len(), 100);
}

async fn create_repeated(s: Subject) {
    let chain = s.start("a").build();
    let created = at_once(&s, 16, |s, _| {
        let chain = chain.clone();
        async move { s.create(vec![chain]).await.remove(0) }
    })
    .await;
    assert_eq!(agreed(&created), chain.id);
    assert_eq!(s.acquire("a", 100).await.len(), 1);
}

async fn acquires(s: Subject) {
    s.create((0..200).map(|_| s.start("a").build()).collect()).await;
    let taken = at_once(&s, 20, |s, turn| async move {
        let mut chains = Vec::new();
        loop {
            let jobs = s.acquire("a", 1 + u32::try_from(turn % 4).unwrap()).await;
            if jobs.is_empty() {
                return chains;
            }
            chains.extend(chains_of(&jobs));
        }
    })
    .await;
    let mut taken: Vec<_> = taken.into_iter().flatten().collect();
    // An acquire skips a row that another command holds. Acquire the skipped jobs now.
    taken.extend(chains_of(&s.acquire("a", 200).await));
    assert_eq!((taken.len(), taken.iter().collect::<HashSet<_>>().len()), (200, 200));
}

async fn acquire_repeated(s: Subject) {
    s.create((0..50).map(|_| s.start("a").build()).collect()).await;
    let request = s.acquire_request(&["a"], 5);
    let replies = at_once(&s, 8, |s, _| {
        let request = request.clone();
        async move { s.run(request).await.jobs }
    })
    .await;
    assert!(replies.iter().all(|jobs| *jobs == replies[0] && jobs.len() == 5), "{replies:?}");
    assert_eq!(s.acquire("a", 100).await.len(), 45);
}

async fn settle_once(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let settled = at_once(&s, 16, |s, _| {
        let attempt = attempt.clone();
        async move { settle(&s, &attempt, continue_with(s.start("b").next_job())).await.settled.remove(0) }
    })
    .await;
    let applied = settled.iter().filter(|one| matches!(one, Settled::Applied(_))).count();
    let already = settled.iter().filter(|one| matches!(one, Settled::AlreadyApplied(_))).count();
    assert_eq!((applied, already), (1, 15), "{settled:?}");
    assert_eq!((s.chain(id).await.latest.index, s.acquire("b", 100).await.len()), (1, 1));
}

async fn settle_kinds(s: Subject) {
    for _ in 0..10 {
        let id = s.start("a").await;
        let attempt = s.acquire_one("a").await;
        let settled = at_once(&s, 4, |s, turn| {
            let attempt = attempt.clone();
            async move {
                let carried = vec![s.start("carried").build()];
                let outcome = match turn {
                    0 => complete_with_chains("1", carried),
                    1 => fail("no"),
                    2 => continue_with_chains(s.start("b").next_job(), carried),
                    _ => retry_after(HOUR, "later"),
                };
                (turn, settle(&s, &attempt, outcome).await.settled.remove(0))
            }
        })
        .await;
        let applied: Vec<_> = settled
            .iter()
            .filter(|(_, one)| matches!(one, Settled::Applied(_)))
            .map(|(turn, _)| *turn)
            .collect();
        let expected = [Status::Completed, Status::Failed, Status::Pending, Status::Pending];
        assert_eq!(applied.len(), 1, "{settled:?}");
        s.expect_status(id, expected[applied[0]]).await;
        let carried = usize::from(applied[0] % 2 == 0);
        assert_eq!(s.acquire("carried", 10).await.len(), carried, "{settled:?}");
    }
}

async fn fan_in(s: Subject) {
    const ROUNDS: usize = 12;
    for round in 0..ROUNDS {
        let blockers: Vec<_> = (0..8).map(|_| s.start("b").build()).collect();
        let ids: Vec<_> = blockers.iter().map(|chain| chain.id).collect();
        s.create(blockers).await;
        let waiting: Vec<_> = (0..5).map(|_| s.start("a").blocked_by(ids.clone()).build()).collect();
        s.create(waiting.clone()).await;
        let attempts = Arc::new(s.acquire("b", 8).await);
        let replies = at_once(&s, 8, |s, turn| {
            let attempts = Arc::clone(&attempts);
            async move { settle(&s, &attempts[turn], complete("1")).await }
        })
        .await;
        let unblocked: usize = replies.iter().map(|reply| reply.ripple.unblocked.len()).sum();
        assert_eq!(unblocked, waiting.len(), "round {round}: each job is unblocked once");
        for chain in &waiting {
            s.expect_status(chain.id, Status::Pending).await;
        }
    }
    assert_eq!(s.acquire("a", 1_000).await.len(), 5 * ROUNDS);
}

async fn attach(s: Subject) {
    for _ in 0..20 {
        let blocker = s.start("b").await;
        let attempt = Arc::new(s.acquire_one("b").await);
        let started = at_once(&s, 6, |s, turn| {
            let attempt = Arc::clone(&attempt);
            async move {
                if turn == 0 {
                    settle(&s, &attempt, complete("1")).await;
                    return None;
                }
                create(&s, s.start("a").blocked_by([blocker]).build()).await.chain()
            }
        })
        .await;
        for chain in started.into_iter().flatten() {
            s.expect_status(chain, Status::Pending).await;
        }
    }
    assert_eq!(s.acquire("a", 1_000).await.len(), 100);
}

async fn reap(s: Subject) {
    s.create((0..60).map(|_| s.start("a").build()).collect()).await;
    s.acquire("a", 60).await;
    s.advance(LEASE.get() + 1);
    let replies = at_once(&s, 8, |s, _| async move { s.reap().await.reaped }).await;
    let jobs: Vec<_> = replies.into_iter().flatten().map(|reaped| reaped.job.job).collect();
    let rest = s.reap().await.reaped.len();
    assert_eq!((jobs.len() + rest, jobs.iter().collect::<HashSet<_>>().len()), (60, jobs.len()));
    assert!(
        s.acquire("a", 100).await.iter().all(|attempt| attempt.job.attempt == 2),
        "each attempt counts once"
    );
}

async fn reap_or_settle(s: Subject) {
    for _ in 0..20 {
        let id = s.start("a").await;
        let attempt = Arc::new(s.acquire_one("a").await);
        s.advance(LEASE.get() + 1);
        let won = at_once(&s, 2, |s, turn| {
            let attempt = Arc::clone(&attempt);
            async move {
                match turn {
                    0 => matches!(settle(&s, &attempt, complete("1")).await.settled[0], Settled::Applied(_)),
                    _ => !s.reap().await.reaped.is_empty(),
                }
            }
        })
        .await;
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "one of them has it: {won:?}");
        if s.chain(id).await.status() == Status::Pending {
            s.work("a", complete("2")).await;
        }
    }
}

async fn mixed(s: Subject) {
    const CHAINS: usize = 60;
    let outputs = at_once(&s, 9, |s, turn| async move {
        match turn {
            0..3 => {
                for number in 0..CHAINS / 3 {
                    s.start("a").key(&format!("{turn}-{number}")).await;
                }
                0
            }
            3..7 => work_until_idle(&s).await,
            _ => {
                for _ in 0..40 {
                    s.by_key("a", "0-0").await;
                    s.reap().await;
                    s.expire().await;
                }
                0
            }
        }
    })
    .await;
    let left = work_until_idle(&s).await;
    assert_eq!(outputs.iter().sum::<usize>() + left, CHAINS, "each chain is completed once");
}

/// Works on chains of two jobs until ten acquires in a row return nothing. Returns the number of chains it completed.
async fn work_until_idle(s: &Subject) -> usize {
    let (mut completed, mut idle) = (0, 0);
    while idle < 10 {
        let jobs = s.run(s.acquire_request(&["a", "b"], 5)).await.jobs;
        idle = if jobs.is_empty() { idle + 1 } else { 0 };
        let (first, second): (Vec<_>, Vec<_>) = jobs.iter().partition(|attempt| attempt.job.index == 0);
        let mut settlements: Vec<_> =
            first.iter().map(|attempt| settlement(attempt, continue_with(s.start("b").next_job()))).collect();
        settlements.extend(second.iter().map(|attempt| settlement(attempt, complete("1"))));
        let reply = settle_all(s, settlements).await;
        assert!(reply.settled.iter().all(|one| matches!(one, Settled::Applied(_))), "{reply:?}");
        completed += reply.ripple.closed.len();
        tokio::task::yield_now().await;
    }
    completed
}
