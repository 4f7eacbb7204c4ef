//! Concurrent parts of a case, through both handles of a subject.
//!
//! Another command may hold a row for a moment, such as an acquire or a reap that inspects it. The store then replies
//! `Busy`, which is not a failure. The functions here repeat a busy create or settle, as clients and workers do.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use windlass_core::command::{
    Acquired, Created, NewChain, Outcome, Settle, SettleReply, Settled, Settlement,
};

use crate::subject::{Subject, settlement};

/// Runs `count` parts concurrently, each on its own task, alternating between the two handles.
pub(crate) async fn at_once<T, F>(s: &Subject, count: usize, part: impl Fn(Subject, usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(count));
    let mut tasks = JoinSet::new();
    for turn in 0..count {
        let (part, barrier) = (part(s.turn(turn), turn), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            part.await
        });
    }
    tasks.join_all().await
}

/// Creates a chain, and repeats the command while it is busy.
pub(crate) async fn create(s: &Subject, chain: NewChain) -> Created {
    create_all(s, vec![chain]).await.remove(0)
}

/// Creates chains with one command, repeats it while one of them is busy, and returns the reply for each chain.
pub(crate) async fn create_all(s: &Subject, chains: Vec<NewChain>) -> Vec<Created> {
    let mut created = s.create(chains.clone()).await;
    while created.contains(&Created::Busy) {
        tokio::task::yield_now().await;
        // Repeat the whole batch: a chain may be blocked by another chain of the same batch.
        let again = s.create(chains.clone()).await;
        let pairs = created.iter_mut().zip(again);
        pairs.filter(|(one, _)| **one == Created::Busy).for_each(|(one, again)| *one = again);
    }
    created
}

/// Settles an attempt, and repeats the command while it is busy.
pub(crate) async fn settle(s: &Subject, attempt: &Acquired, outcome: Outcome) -> SettleReply {
    settle_all(s, vec![settlement(attempt, outcome)]).await
}

/// Settles attempts with one command, and repeats those that were busy. Returns all results, with the repeated ones
/// last.
pub(crate) async fn settle_all(s: &Subject, settlements: Vec<Settlement>) -> SettleReply {
    let mut all = s.run(Settle { settlements: settlements.clone() }).await;
    let mut left = busy(settlements, &all.settled);
    while !left.is_empty() {
        tokio::task::yield_now().await;
        all.settled.retain(|one| *one != Settled::Busy);
        let reply = s.run(Settle { settlements: left.clone() }).await;
        left = busy(left, &reply.settled);
        all.settled.extend(reply.settled);
        all.ripple.closed.extend(reply.ripple.closed);
        all.ripple.unblocked.extend(reply.ripple.unblocked);
    }
    all
}

fn busy(settlements: Vec<Settlement>, settled: &[Settled]) -> Vec<Settlement> {
    assert_eq!(settlements.len(), settled.len(), "each settlement has its reply");
    let busy = |(settlement, one): (Settlement, &Settled)| (*one == Settled::Busy).then_some(settlement);
    settlements.into_iter().zip(settled).filter_map(busy).collect()
}
