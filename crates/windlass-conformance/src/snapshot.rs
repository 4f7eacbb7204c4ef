//! Transactions that read from a snapshot: `repeatable read` and `serializable` on stores that have such levels.
//!
//! Each scenario lets a transaction take its snapshot, changes something that the snapshot does not show, and lets the
//! transaction write a decision that depends on it. A store may refuse the write with [`ErrorKind::Conflict`]; the
//! scenario then runs the transaction again, as an application does. Whatever it does, no job may stay blocked, no key
//! may lead to two chains, and no chain may wait for itself.
//!
//! The scenarios also hold where a transaction sees each commit immediately. They need two transactions that write at
//! the same time, so a store with a single writer cannot run them.

#![allow(clippy::indexing_slicing, reason = "a scenario fails by panicking")]

use std::sync::Arc;

use windlass_core::command::{
    Acquired, Cancel, CancelMode, CompleteFromOutside, Create, CreateReply, Created, Delete, GetChains,
    NewChain, Outcome, Request, Retried, Retry, RetryReply, RetryTarget, SetRetention, Settle, Settled, Step,
};
use windlass_core::{BoxFuture, ChainId, ErrorKind, KeyHold, OnBlockerFailure, RequestId, Status};

use crate::at_once::at_once;
use crate::outcome::{complete, continue_with, continue_with_chains, fail, json};
use crate::subject::{Subject, millis, settlement};
use crate::transaction::ErasedTx;

type Tx = Box<dyn ErasedTx>;

/// Runs one scenario on a fresh subject.
pub type Scenario = fn(Subject) -> BoxFuture<'static, ()>;

macro_rules! scenarios {
    ($($name:ident,)*) => {
        /// The scenarios with their names.
        pub const SCENARIOS: &[(&str, Scenario)] = &[$((stringify!($name), |s| Box::pin($name(s))),)*];
    };
}
scenarios! {
    attached_after_the_snapshot,
    ended_after_the_snapshot,
    ended_with_carried_chains_after_the_snapshot,
    two_enders,
    ended_beside_a_transaction,
    failed_after_a_dependent_attached,
    cancelled_after_a_dependent_attached,
    completed_from_outside_after_a_dependent_attached,
    continued_after_its_blocker_ended,
    retried_after_its_blocker_ended,
    rolled_back_to_a_savepoint,
    key_taken_after_the_snapshot,
    key_held_for_longer_after_the_snapshot,
    chain_retried_after_the_snapshot,
    chain_that_would_wait_for_itself,
    blocker_deleted_after_the_snapshot,
    blockers_end_in_transactions,
}

/// A job attaches to a chain after a transaction took its snapshot; the transaction completes the chain.
async fn attached_after_the_snapshot(s: Subject) {
    let blocker = s.start("b").await;
    let attempt = s.acquire_one("b").await;
    let tx = snapshot(&s, blocker).await;
    let waiting = s.through_other().start("a").blocked_by([blocker]).await;
    end(&s, tx, &attempt, complete("1")).await;
    expect_unblocked(&s, waiting).await;
}

/// A chain completes after a transaction took its snapshot; the transaction attaches a job to it.
async fn ended_after_the_snapshot(s: Subject) {
    let blocker = s.start("b").await;
    let attempt = s.acquire_one("b").await;
    let tx = snapshot(&s, blocker).await;
    s.through_other().complete(&attempt, "1").await;
    let waiting = attach(&s, tx, blocker).await;
    expect_unblocked(&s, waiting).await;
}

/// The same with a chain that is acquired after the snapshot too, and whose end carries chains: a store may lock and
/// update its row in different subtransactions.
async fn ended_with_carried_chains_after_the_snapshot(s: Subject) {
    let blocker = s.start("b").await;
    let tx = snapshot(&s, blocker).await;
    let other = s.through_other();
    let attempt = other.acquire_one("b").await;
    other
        .apply(&attempt, continue_with_chains(other.start("b").next_job(), vec![other.start("c").build()]))
        .await;
    let attempt = other.acquire_one("b").await;
    let carried = vec![other.start("c").key("k").build()];
    other.apply(&attempt, Outcome::Complete { output: json("1"), retention: None, create: carried }).await;
    let waiting = attach(&s, tx, blocker).await;
    expect_unblocked(&s, waiting).await;
}

/// Two transactions end the two blockers of a job; neither snapshot shows the other's end.
async fn two_enders(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let waiting = s.start("a").blocked_by([one, two]).await;
    let attempts = s.acquire("b", 2).await;
    let (mut first, mut second) = (snapshot(&s, one).await, snapshot(&s, two).await);
    settle(&s, &mut first, &attempts[0], complete("1")).await;
    settle(&s, &mut second, &attempts[1], complete("2")).await;
    for (tx, attempt) in [(first, &attempts[0]), (second, &attempts[1])] {
        commit_settled(&s, tx, attempt, complete("1")).await;
    }
    expect_unblocked(&s, waiting).await;
}

/// A transaction ends one of two blockers, and a command outside ends the other one concurrently.
async fn ended_beside_a_transaction(s: Subject) {
    let (one, two) = (s.start("b").await, s.start("b").await);
    let waiting = s.start("a").blocked_by([one, two]).await;
    let attempts = s.acquire("b", 2).await;
    let mut tx = snapshot(&s, one).await;
    settle(&s, &mut tx, &attempts[0], complete("1")).await;
    s.through_other().complete(&attempts[1], "2").await;
    commit_settled(&s, tx, &attempts[0], complete("1")).await;
    expect_unblocked(&s, waiting).await;
}

/// Jobs with each policy attach after the snapshot; the transaction lets the chain fail.
async fn failed_after_a_dependent_attached(s: Subject) {
    let blocker = s.start("b").await;
    let attempt = s.acquire_one("b").await;
    let tx = snapshot(&s, blocker).await;
    let policies = attach_with_policies(&s, blocker).await;
    end(&s, tx, &attempt, fail("no")).await;
    expect_policies(&s, policies).await;
}

/// The same with a transaction that cancels the chain.
async fn cancelled_after_a_dependent_attached(s: Subject) {
    let blocker = s.start("b").await;
    let tx = snapshot(&s, blocker).await;
    let policies = attach_with_policies(&s, blocker).await;
    let cancel = Cancel { chains: vec![blocker.into()], mode: CancelMode::UnlessRunning };
    commit(&s, tx, cancel).await;
    s.expect_status(blocker, Status::Cancelled).await;
    expect_policies(&s, policies).await;
}

/// A job attaches after the snapshot; the transaction completes the chain without a worker.
async fn completed_from_outside_after_a_dependent_attached(s: Subject) {
    let blocker = s.start("b").await;
    let tx = snapshot(&s, blocker).await;
    let waiting = s.through_other().start("a").blocked_by([blocker]).await;
    let latest = s.chain(blocker).await.latest;
    let step = Step::Complete { output: json("1"), retention: None, create: Vec::new() };
    let complete = CompleteFromOutside {
        request: RequestId::new(),
        job: latest.id,
        version: latest.version,
        steps: vec![step],
    };
    commit(&s, tx, complete).await;
    s.expect_status(blocker, Status::Completed).await;
    expect_unblocked(&s, waiting).await;
}

/// A chain ends after the snapshot; the transaction continues another chain with a job that waits for it.
async fn continued_after_its_blocker_ended(s: Subject) {
    let (blocker, chain) = (s.start("b").await, s.start("c").await);
    let (blocking, attempt) = (s.acquire_one("b").await, s.acquire_one("c").await);
    let tx = snapshot(&s, blocker).await;
    s.through_other().complete(&blocking, "1").await;
    let next = continue_with(s.start("a").blocked_by([blocker]).next_job());
    let settled = commit(&s, tx, Settle { settlements: vec![settlement(&attempt, next)] }).await.settled;
    assert!(matches!(settled[0], Settled::Applied(_)), "{settled:?}");
    expect_unblocked(&s, chain).await;
}

/// A cancelled job is retried by a transaction whose snapshot shows its blocker open, after the blocker has completed.
async fn retried_after_its_blocker_ended(s: Subject) {
    let blocker = s.start("b").await;
    let waiting = s.start("a").blocked_by([blocker]).await;
    s.run(Cancel { chains: vec![waiting.into()], mode: CancelMode::UnlessRunning }).await;
    let job = s.chain(waiting).await.latest;
    let attempt = s.acquire_one("b").await;
    let tx = snapshot(&s, blocker).await;
    s.through_other().complete(&attempt, "1").await;
    let target = RetryTarget { job: job.id, version: job.version };
    let RetryReply { chains, .. } = commit(&s, tx, Retry { chains: vec![target] }).await;
    assert!(matches!(chains[0], Retried::Retried { .. }), "{chains:?}");
    expect_unblocked(&s, waiting).await;
}

/// A completion that is rolled back to a savepoint leaves the chain open and its dependent blocked.
async fn rolled_back_to_a_savepoint(s: Subject) {
    let blocker = s.start("b").await;
    let attempt = s.acquire_one("b").await;
    let mut tx = snapshot(&s, blocker).await;
    tx.savepoint().await.expect("a savepoint");
    settle(&s, &mut tx, &attempt, complete("1")).await;
    tx.rollback_to().await.expect("back to the savepoint");
    tx.commit().await.expect("it commits");
    let waiting = s.start("a").blocked_by([blocker]).await;
    s.reap().await;
    s.expect_status(waiting, Status::Blocked).await;
    s.complete(&attempt, "1").await;
    expect_unblocked(&s, waiting).await;
}

/// Another process takes a key after the snapshot: the transaction does not take it again.
async fn key_taken_after_the_snapshot(s: Subject) {
    let unrelated = s.start("b").await;
    let tx = snapshot(&s, unrelated).await;
    let holder = s.through_other().start("a").key("k").await;
    let created = create(&s, tx, s.start("a").key("k").build()).await;
    assert_eq!(created.chain(), Some(holder), "{created:?}");
}

/// A closed chain holds its key for longer than the snapshot shows: the key is not free.
async fn key_held_for_longer_after_the_snapshot(s: Subject) {
    let start = || s.start("a").key("k").hold(KeyHold::Completed).retention(1_000);
    let holder = start().await;
    s.work("a", complete("1")).await;
    let tx = snapshot(&s, holder).await;
    s.through_other().run(SetRetention { chains: vec![holder.into()], retention: millis(60_000) }).await;
    s.advance(2_000);
    let created = create(&s, tx, start().build()).await;
    assert_eq!(created.chain(), Some(holder), "the key is held: {created:?}");
    assert_eq!(s.by_key("a", "k").await, Some(holder));
}

/// A failed chain is retried after the snapshot and holds its key again: the key is not free.
async fn chain_retried_after_the_snapshot(s: Subject) {
    let holder = s.start("a").key("k").await;
    s.work("a", fail("no")).await;
    let job = s.chain(holder).await.latest;
    let tx = snapshot(&s, holder).await;
    let target = RetryTarget { job: job.id, version: job.version };
    s.through_other().run(Retry { chains: vec![target] }).await;
    let created = create(&s, tx, s.start("a").key("k").build()).await;
    assert_eq!(created.chain(), Some(holder), "the key is held: {created:?}");
}

/// `one` continues with a job that waits for `two`, which waits for `three`, which has come to wait for `one` since the
/// snapshot. One of the continuations must be refused.
async fn chain_that_would_wait_for_itself(s: Subject) {
    let (one, three) = (s.start("b").await, s.start("c").await);
    let two = s.start("d").blocked_by([three]).await;
    let (first, third) = (s.acquire_one("b").await, s.acquire_one("c").await);
    let tx = snapshot(&s, two).await;
    s.through_other().apply(&third, continue_with(s.start("c").blocked_by([one]).next_job())).await;
    let next = continue_with(s.start("b").blocked_by([two]).next_job());
    let settled = commit(&s, tx, Settle { settlements: vec![settlement(&first, next)] }).await.settled;
    assert!(matches!(settled[0], Settled::Refused(_)), "the chains wait for each other: {settled:?}");
}

/// A chain is deleted after the snapshot: nothing attaches to it.
async fn blocker_deleted_after_the_snapshot(s: Subject) {
    let blocker = s.start("b").await;
    let tx = snapshot(&s, blocker).await;
    s.through_other().run(Delete { chains: vec![blocker.into()], cascade: false, seen: None }).await;
    let created = create(&s, tx, s.start("a").blocked_by([blocker]).build()).await;
    assert!(matches!(created, Created::Refused(_)), "{created:?}");
}

/// Blockers end and jobs attach to them, all at the same time and each in its own transaction: no job stays blocked.
async fn blockers_end_in_transactions(s: Subject) {
    const BLOCKERS: usize = 6;
    const ROUNDS: usize = 5;
    for _ in 0..ROUNDS {
        let blockers: Vec<_> = (0..BLOCKERS).map(|_| s.start("b").build()).collect();
        let ids: Arc<[ChainId]> = blockers.iter().map(|chain| chain.id).collect();
        s.create(blockers).await;
        s.create((0..20).map(|_| s.start("a").blocked_by(ids.to_vec()).build()).collect()).await;
        let attempts = Arc::new(s.acquire("b", 10).await);
        at_once(&s, 2 * BLOCKERS, |s, turn| {
            let (ids, attempts) = (Arc::clone(&ids), Arc::clone(&attempts));
            async move {
                let tx = snapshot(&s, ids[0]).await;
                if turn < BLOCKERS {
                    let settlements = vec![settlement(&attempts[turn], complete("1"))];
                    commit(&s, tx, Settle { settlements }).await;
                } else {
                    create(&s, tx, s.start("a").blocked_by(ids.to_vec()).build()).await;
                }
            }
        })
        .await;
        s.reap().await;
        let taken = s.acquire("a", 1_000).await;
        assert_eq!(taken.len(), 20 + BLOCKERS, "jobs of which all blockers have completed are still blocked");
    }
}

/// Begins a transaction and lets it take its snapshot.
async fn snapshot(s: &Subject, chain: ChainId) -> Tx {
    loop {
        let mut tx = s.begin().await;
        match tx.run(GetChains { chains: vec![chain.into()] }).await {
            Ok(_) => return tx,
            // A serializable transaction may conflict by what it reads.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
    }
}

/// Runs a command in the transaction and commits. If the transaction conflicts with another one, or a row is
/// busy, repeats both in a new transaction.
async fn commit<R: Request<Reply: Answer> + Clone>(s: &Subject, mut tx: Tx, request: R) -> R::Reply {
    loop {
        match tx.run(request.clone()).await {
            Ok(reply) if reply.is_busy() => drop(tx.rollback().await),
            Ok(reply) => match tx.commit().await {
                Ok(()) => return reply,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
            },
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                drop(tx.rollback().await);
            }
        }
        tokio::task::yield_now().await;
        tx = s.begin().await;
    }
}

/// A reply that may say that a row was busy.
trait Answer {
    fn is_busy(&self) -> bool {
        false
    }
}

impl Answer for CreateReply {
    fn is_busy(&self) -> bool {
        self.chains.contains(&Created::Busy)
    }
}

impl Answer for windlass_core::command::SettleReply {
    fn is_busy(&self) -> bool {
        self.settled.contains(&Settled::Busy)
    }
}

impl Answer for RetryReply {}
impl Answer for windlass_core::command::CancelReply {}
impl Answer for windlass_core::command::CompleteFromOutsideReply {}

async fn create(s: &Subject, tx: Tx, chain: NewChain) -> Created {
    commit(s, tx, Create { chains: vec![chain] }).await.chains.remove(0)
}

async fn attach(s: &Subject, tx: Tx, blocker: ChainId) -> ChainId {
    let waiting = s.start("a").blocked_by([blocker]).build();
    let created = create(s, tx, waiting.clone()).await;
    assert!(matches!(created, Created::New { .. }), "{created:?}");
    waiting.id
}

/// Settles an attempt in a transaction that stays open.
async fn settle(s: &Subject, tx: &mut Tx, attempt: &Acquired, outcome: Outcome) {
    let settle = Settle { settlements: vec![settlement(attempt, outcome)] };
    loop {
        match tx.run(settle.clone()).await {
            Ok(reply) => {
                assert!(matches!(reply.settled[0], Settled::Applied(_)), "{reply:?}");
                return;
            }
            // Serializable transactions may conflict by what they read. Another one takes its place.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                drop(std::mem::replace(tx, s.begin().await).rollback().await);
            }
        }
    }
}

/// Commits a transaction in which an attempt was settled, or runs it again.
async fn commit_settled(s: &Subject, tx: Tx, attempt: &Acquired, outcome: Outcome) {
    if let Err(error) = tx.commit().await {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        commit(s, s.begin().await, Settle { settlements: vec![settlement(attempt, outcome)] }).await;
    }
}

/// Settles an attempt in a transaction and commits it.
async fn end(s: &Subject, mut tx: Tx, attempt: &Acquired, outcome: Outcome) {
    settle(s, &mut tx, attempt, outcome.clone()).await;
    commit_settled(s, tx, attempt, outcome).await;
}

/// Panics unless the chain's job can be acquired after later commands have resolved its waits.
async fn expect_unblocked(s: &Subject, chain: ChainId) {
    s.reap().await;
    s.expect_status(chain, Status::Pending).await;
}

async fn attach_with_policies(s: &Subject, blocker: ChainId) -> [ChainId; 3] {
    let other = s.through_other();
    let start = |policy| other.start("a").blocked_by([blocker]).on_failure(policy);
    [
        start(OnBlockerFailure::Wait).await,
        start(OnBlockerFailure::Fail).await,
        start(OnBlockerFailure::Receive).await,
    ]
}

async fn expect_policies(s: &Subject, [wait, fail, receive]: [ChainId; 3]) {
    s.reap().await;
    s.expect_status(wait, Status::Blocked).await;
    s.expect_status(fail, Status::Failed).await;
    s.expect_status(receive, Status::Pending).await;
}
