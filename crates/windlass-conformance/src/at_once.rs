//! Many at once, through both handles of a subject.
//!
//! A row may be somebody else's for a moment (an acquire that looked at it, a reap that passes by): the store then says
//! `Busy`, which is no failure. Whoever creates or settles beside others tries again, as a client or a worker does.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use windlass_core::command::{
    Acquired, Created, NewChain, Outcome, Settle, SettleReply, Settled, Settlement,
};

use crate::subject::{Subject, settlement};

/// Runs `count` parts at once, each on its own task, through one handle or the other in turn.
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

/// Creates a chain, however often that takes.
pub(crate) async fn create(s: &Subject, chain: NewChain) -> Created {
    create_all(s, vec![chain]).await.remove(0)
}

/// Creates chains with one command, and those that were busy with more. Gives what became of each.
pub(crate) async fn create_all(s: &Subject, chains: Vec<NewChain>) -> Vec<Created> {
    let mut created = s.create(chains.clone()).await;
    while created.contains(&Created::Busy) {
        tokio::task::yield_now().await;
        // All of them: one may wait for another of them.
        let again = s.create(chains.clone()).await;
        let pairs = created.iter_mut().zip(again);
        pairs.filter(|(one, _)| **one == Created::Busy).for_each(|(one, again)| *one = again);
    }
    created
}

/// Ends an attempt, however often that takes.
pub(crate) async fn settle(s: &Subject, attempt: &Acquired, outcome: Outcome) -> SettleReply {
    settle_all(s, vec![settlement(attempt, outcome)]).await
}

/// Ends attempts with one command, and those that were busy with more. Gives what became of all of them, the busy ones
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
