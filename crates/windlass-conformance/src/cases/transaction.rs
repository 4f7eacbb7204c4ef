//! Commands inside an application's transaction.

use super::prelude::*;
use crate::at_once;
use crate::transaction::ErasedTx;

pub(super) const CASES: &[Case] = &[
    case!(
        "tx.commit",
        "The writes of a transaction are visible to everyone after its commit.",
        ["SA-TX01"],
        [Transactions],
        commit
    ),
    case!("tx.own_writes", "A transaction sees its own writes.", ["SA-TX01"], [Transactions], own_writes),
    case!(
        "tx.rollback.created",
        "A rollback leaves no trace of chains, jobs and keys.",
        ["SA-TX01", "SA-TX06"],
        [Transactions],
        rollback_created
    ),
    case!(
        "tx.rollback.settled",
        "A rollback restores a settled job, its chain and its dependents.",
        ["SA-TX02", "SA-TX04"],
        [Transactions],
        rollback_settled
    ),
    case!(
        "tx.rollback.deleted",
        "A rollback restores deleted chains.",
        ["SA-TX03"],
        [Transactions, Delete],
        rollback_deleted
    ),
    case!(
        "tx.rollback.mixed",
        "Mixed changes are rolled back together, and all queries agree afterwards.",
        ["SA-TX06"],
        [Transactions, Lists, Count, NextDue],
        rollback_mixed
    ),
    case!(
        "tx.dropped",
        "A transaction that is dropped is rolled back.",
        ["SA-TX02"],
        [Transactions],
        dropped
    ),
    case!(
        "tx.concurrent_write",
        "A write outside a transaction is not undone by the transaction's rollback.",
        ["SA-TX05"],
        [Transactions],
        concurrent_write
    ),
    case!("tx.parallel", "Concurrent transactions all commit.", ["SA-CC01"], [Transactions], parallel),
    case!(
        "tx.parallel_with_reads",
        "Concurrent transactions and reads do not deadlock, and readers see complete commits.",
        ["SA-CC02", "SA-CC03"],
        [Transactions],
        parallel_with_reads
    ),
    case!(
        "tx.key",
        "Concurrent transactions that create the same key agree on one chain.",
        ["A8.2"],
        [Transactions],
        one_key
    ),
    case!(
        "tx.key.rolled_back",
        "A key that was taken in a transaction is free after its rollback.",
        ["A8.2", "never 6"],
        [Transactions],
        key_rolled_back
    ),
    case!(
        "tx.settle.fence",
        "A settlement in a transaction is fenced.",
        ["never 2"],
        [Transactions],
        settle_fence
    ),
    case!(
        "tx.time",
        "A command in a transaction uses the time at which it runs.",
        ["contract"],
        [Transactions],
        time
    ),
    case!(
        "tx.worker_commands",
        "Commands reserved for workers are invalid in a transaction, which stays usable.",
        ["contract"],
        [Transactions],
        worker_commands
    ),
    case!(
        "tx.invalid",
        "An invalid command writes nothing, and its transaction stays usable.",
        ["SA-SP06"],
        [Transactions],
        invalid
    ),
    case!(
        "tx.refused",
        "A refused item does not invalidate its transaction.",
        ["SA-SP06"],
        [Transactions],
        refused
    ),
    case!(
        "tx.serialized",
        "If two transactions settle the same attempt, one of them applies it.",
        ["SA-GC06", "SA-GJ02", "SA-RI08"],
        [Transactions],
        serialized
    ),
    case!(
        "tx.neighbors",
        "A row locked by an open transaction does not block the other items of a command.",
        ["never 11"],
        [Transactions],
        neighbors
    ),
];

pub(super) async fn run<R: Request>(tx: &mut Box<dyn ErasedTx>, request: R) -> R::Reply {
    tx.run(request).await.expect("the command succeeds in the transaction")
}

pub(super) async fn create(tx: &mut Box<dyn ErasedTx>, chain: NewChain) -> Created {
    run(tx, Create { chains: vec![chain] }).await.chains.remove(0)
}

pub(super) async fn settle(tx: &mut Box<dyn ErasedTx>, attempt: &Acquired, outcome: Outcome) -> Settled {
    run(tx, Settle { settlements: vec![settlement(attempt, outcome)] }).await.settled.remove(0)
}

pub(super) async fn is_stored(tx: &mut Box<dyn ErasedTx>, chain: ChainId) -> bool {
    run(tx, GetChains { chains: vec![chain.into()] }).await.chains[0].is_some()
}

async fn commit(s: Subject) {
    let chain = s.start("a").key("k").build();
    let mut tx = s.begin().await;
    summary(&create(&mut tx, chain.clone()).await);
    tx.commit().await.unwrap();
    let other = s.through_other();
    assert_eq!(other.by_key("a", "k").await, Some(chain.id));
    assert_eq!(chains_of(&other.acquire("a", 10).await), [chain.id]);
}

async fn own_writes(s: Subject) {
    let mut tx = s.begin().await;
    let chain = s.start("a").key("k").build();
    create(&mut tx, chain.clone()).await;
    assert!(is_stored(&mut tx, chain.id).await, "it sees the chain");
    assert_eq!(create(&mut tx, s.start("a").key("k").build()).await.chain(), Some(chain.id));
    let waiting = create(&mut tx, s.start("b").blocked_by([chain.id]).build()).await;
    assert_eq!(summary(&waiting).status, Status::Blocked);
    tx.commit().await.unwrap();
    s.work("a", complete("1")).await;
    s.acquire_one("b").await;
}

async fn rollback_created(s: Subject) {
    let chain = s.start("a").key("k").build();
    let mut tx = s.begin().await;
    create(&mut tx, chain.clone()).await;
    tx.rollback().await.unwrap();
    assert_eq!((s.find_chain(chain.id).await, s.by_key("a", "k").await), (None, None));
    assert_eq!(s.find_job(chain.id.first_job()).await, None);
    s.expect_none_due("a").await;
    summary(&s.create(vec![chain]).await[0]);
}

async fn rollback_settled(s: Subject) {
    let id = s.start("a").key("k").await;
    let waiting = s.start("b").blocked_by([id]).await;
    let attempt = s.acquire_one("a").await;
    let before = (s.chain(id).await, s.chain(waiting).await);
    let carried = s.start("c").build();
    for outcome in
        [complete_with_chains("1", vec![carried.clone()]), continue_with(s.start("d").next_job()), fail("no")]
    {
        let mut tx = s.begin().await;
        assert!(
            matches!(settle(&mut tx, &attempt, outcome).await, Settled::Applied(_)),
            "the attempt is held"
        );
        tx.rollback().await.unwrap();
        assert_eq!((s.chain(id).await, s.chain(waiting).await), before);
        assert_eq!((s.find_chain(carried.id).await, s.by_key("a", "k").await), (None, Some(id)));
    }
    s.expect_none_due("b").await;
    s.complete(&attempt, "2").await;
    assert_eq!(s.acquire_one("b").await.blockers[0].output, Some(json("2")));
}

async fn rollback_deleted(s: Subject) {
    let blocker = s.start("b").await;
    let id = s.start("a").key("k").blocked_by([blocker]).await;
    let before = s.chain(id).await;
    let mut tx = s.begin().await;
    let reply = run(&mut tx, Delete { chains: vec![id.into()], cascade: true, seen: None }).await;
    assert!(matches!(reply, DeleteReply::Deleted(_)), "{reply:?}");
    assert!(!is_stored(&mut tx, blocker).await, "it is not found in the transaction");
    tx.rollback().await.unwrap();
    assert_eq!((s.chain(id).await, s.by_key("a", "k").await), (before, Some(id)));
    s.work("b", complete("1")).await;
    s.acquire_one("a").await;
}

async fn rollback_mixed(s: Subject) {
    let (one, two) = (s.start("a").key("k").await, s.start("a").await);
    let attempts = s.acquire("a", 2).await;
    let view = async || {
        let listed = s.run(ListJobs::default()).await;
        (listed, s.run(Count { types: Types::All }).await, s.run(NextDue { types: Types::All }).await)
    };
    let before = view().await;
    let mut tx = s.begin().await;
    settle(&mut tx, &attempts[0], complete("1")).await;
    settle(&mut tx, &attempts[1], continue_with(s.start("b").blocked_by([one]).next_job())).await;
    create(&mut tx, s.start("a").key("k").build()).await;
    create(&mut tx, s.start("c").after(5).blocked_by([two]).build()).await;
    tx.rollback().await.unwrap();
    assert_eq!(view().await, before);
    assert_eq!(s.by_key("a", "k").await, Some(one));
    for attempt in &attempts {
        s.complete(attempt, "1").await;
    }
}

async fn dropped(s: Subject) {
    let chain = s.start("a").key("k").build();
    let mut tx = s.begin().await;
    create(&mut tx, chain.clone()).await;
    drop(tx);
    // Some drivers roll a dropped transaction back later, so the create may be busy at first.
    let created = at_once::create(&s, s.start("a").key("k").build()).await;
    assert!(matches!(created, Created::New { .. }), "{created:?}");
    assert_eq!(s.find_chain(chain.id).await, None);
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn concurrent_write(s: Subject) {
    let mut tx = s.begin().await;
    create(&mut tx, s.start("a").build()).await;
    let other = s.through_other();
    // On a store with a single writer, this waits for the rollback.
    let writing = tokio::spawn(async move { other.start("b").await });
    tx.rollback().await.unwrap();
    let id = writing.await.unwrap();
    s.expect_status(id, Status::Pending).await;
    s.expect_none_due("a").await;
}

async fn parallel(s: Subject) {
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let s = s.clone();
            tokio::spawn(async move {
                let mut tx = s.begin().await;
                create(&mut tx, s.start("a").build()).await;
                tokio::task::yield_now().await;
                create(&mut tx, s.start("a").build()).await;
                tx.commit().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(s.acquire("a", 100).await.len(), 40);
}

async fn parallel_with_reads(s: Subject) {
    let pairs: Vec<_> = (0..10).map(|_| [s.start("a").build(), s.start("a").build()]).collect();
    let writers: Vec<_> = pairs
        .iter()
        .cloned()
        .map(|[one, two]| {
            let s = s.clone();
            tokio::spawn(async move {
                let mut tx = s.begin().await;
                create(&mut tx, one).await;
                create(&mut tx, two).await;
                tx.commit().await.unwrap();
            })
        })
        .collect();
    let targets: Vec<_> = pairs.iter().flatten().map(|chain| Target::Chain(chain.id)).collect();
    let readers: Vec<_> = (0..6)
        .map(|turn| {
            let (s, chains) = (s.turn(turn), targets.clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    let found = s.run(GetChains { chains: chains.clone() }).await.chains;
                    let halves = found.chunks(2).any(|pair| pair[0].is_some() != pair[1].is_some());
                    assert!(!halves, "a reader saw half of a transaction");
                }
            })
        })
        .collect();
    for task in writers.into_iter().chain(readers) {
        task.await.unwrap();
    }
    assert_eq!(s.acquire("a", 100).await.len(), 20);
}

async fn one_key(s: Subject) {
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let s = s.clone();
            tokio::spawn(async move {
                let (mut tx, chain) = (s.begin().await, s.start("a").key("k").build());
                let mut created = create(&mut tx, chain.clone()).await;
                while created == Created::Busy {
                    created = create(&mut tx, chain.clone()).await;
                }
                tokio::task::yield_now().await;
                tx.commit().await.unwrap();
                created
            })
        })
        .collect();
    let mut created = Vec::new();
    for task in tasks {
        created.push(task.await.unwrap());
    }
    let new = created.iter().filter(|one| matches!(one, Created::New { .. })).count();
    assert_eq!(new, 1, "{created:?}");
    assert!(created.iter().all(|one| one.chain() == created[0].chain()), "{created:?}");
    assert_eq!(s.acquire("a", 100).await.len(), 1);
}

async fn key_rolled_back(s: Subject) {
    let first = s.start("a").key("k").await;
    let mut tx = s.begin().await;
    summary(&create(&mut tx, s.start("a").key("k").replaces(first).build()).await);
    summary(&create(&mut tx, s.start("a").key("l").build()).await);
    tx.rollback().await.unwrap();
    assert_eq!((s.by_key("a", "k").await, s.by_key("a", "l").await), (Some(first), None));
    assert_eq!(existing(s.start("a").key("k").created().await).chain, first);
    s.start("a").key("l").await;
}

async fn settle_fence(s: Subject) {
    let id = s.start("a").await;
    let stale = s.acquire_one("a").await;
    s.advance(LEASE.get() + 1);
    s.reap().await;
    let mut tx = s.begin().await;
    assert_eq!(settle(&mut tx, &stale, complete("1")).await, Settled::Lost(Lost::Requeued));
    tx.commit().await.unwrap();
    s.expect_status(id, Status::Pending).await;
    let attempt = s.acquire_one("a").await;
    let mut tx = s.begin().await;
    assert!(
        matches!(settle(&mut tx, &attempt, complete("1")).await, Settled::Applied(_)),
        "it holds the job"
    );
    assert!(
        matches!(settle(&mut tx, &attempt, complete("1")).await, Settled::AlreadyApplied(_)),
        "it did so"
    );
    tx.commit().await.unwrap();
    s.expect_status(id, Status::Completed).await;
}

async fn time(s: Subject) {
    let mut tx = s.begin().await;
    let early = create(&mut tx, s.start("a").build()).await;
    s.advance(5_000);
    let late = create(&mut tx, s.start("a").build()).await;
    tx.commit().await.unwrap();
    assert_eq!((summary(&early).due_at + millis(5_000), summary(&late).due_at), (s.now(), s.now()));
    assert_eq!(s.chain(summary(&late).chain).await.created_at, s.now());
}

async fn worker_commands(s: Subject) {
    s.start("a").await;
    let mut tx = s.begin().await;
    let commands: Vec<Command> =
        vec![s.acquire_request(&["a"], 1).into(), reap_request(Types::All).into(), Expire { max: 10 }.into()];
    for command in commands {
        let name = command.name();
        assert_eq!(tx.execute(command).await.unwrap_err().kind(), ErrorKind::Invalid, "{name}");
    }
    create(&mut tx, s.start("a").build()).await;
    tx.commit().await.unwrap();
    assert_eq!(s.acquire("a", 10).await.len(), 2);
}

async fn invalid(s: Subject) {
    let mut tx = s.begin().await;
    let chains: Vec<_> = (0..=limit::BATCH_MAX_ITEMS).map(|_| s.start("a").build()).collect();
    assert_eq!(tx.run(Create { chains }).await.unwrap_err().kind(), ErrorKind::Invalid);
    create(&mut tx, s.start("a").build()).await;
    tx.commit().await.unwrap();
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn refused(s: Subject) {
    let taken = s.start("b").await;
    let mut tx = s.begin().await;
    for bad in [s.start("a").id(taken).build(), s.start("a").blocked_by([ChainId::new()]).build()] {
        let created = create(&mut tx, bad).await;
        assert!(matches!(created, Created::Refused(_)), "{created:?}");
    }
    let good = create(&mut tx, s.start("a").build()).await;
    tx.commit().await.unwrap();
    assert_eq!(chains_of(&s.acquire("a", 10).await), [summary(&good).chain]);
}

/// Settles an attempt in its own transaction. Tries again while another transaction holds the row.
async fn settle_alone(s: &Subject, attempt: &Acquired, outcome: Outcome) -> Settled {
    loop {
        let mut tx = s.begin().await;
        let settled = settle(&mut tx, attempt, outcome.clone()).await;
        tokio::task::yield_now().await;
        if settled == Settled::Busy {
            tx.rollback().await.unwrap();
            tokio::task::yield_now().await;
            continue;
        }
        tx.commit().await.unwrap();
        return settled;
    }
}

async fn serialized(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (s, attempt) = (s.clone(), attempt.clone());
            tokio::spawn(
                async move { settle_alone(&s, &attempt, continue_with(s.start("b").next_job())).await },
            )
        })
        .collect();
    let mut applied = 0;
    for task in tasks {
        match task.await.unwrap() {
            Settled::Applied(_) => applied += 1,
            other => assert!(matches!(other, Settled::AlreadyApplied(_)), "{other:?}"),
        }
    }
    assert_eq!((applied, s.chain(id).await.latest.index), (1, 1));
}

async fn neighbors(s: Subject) {
    s.create((0..3).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", 3).await;
    let mut tx = s.begin().await;
    settle(&mut tx, &attempts[0], complete("1")).await;
    let (other, all) = (s.through_other(), attempts.clone());
    let settling = tokio::spawn(async move {
        let settlements = all.iter().map(|attempt| settlement(attempt, complete("2"))).collect();
        other.run(Settle { settlements }).await.settled
    });
    tokio::task::yield_now().await;
    tx.commit().await.unwrap();
    let settled = settling.await.unwrap();
    assert!(matches!(settled[0], Settled::Busy | Settled::AlreadyApplied(_)), "{settled:?}");
    assert!(settled[1..].iter().all(|one| matches!(one, Settled::Applied(_))), "{settled:?}");
    s.repeat(&attempts[0], complete("2")).await;
    assert_eq!(s.job(attempts[0].job.id).await.output, Some(json("1")));
}
