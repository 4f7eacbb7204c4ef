//! Guarantees of the memory store and the in-process notifier beyond the shared contracts.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

use std::sync::Arc;

use windlass_conformance::{json, type_name};
use windlass_core::command::{Create, Created, GetChains, NewChain, NewJob};
use windlass_core::{
    ChainId, ErrorKind, Hint, InProcessNotifier, ManualClock, MemoryStore, Notifier, Signal, Store, Topic,
    Transactional,
};

fn store() -> MemoryStore {
    MemoryStore::with_clock(Arc::new(ManualClock::default()))
}

fn create() -> Create {
    Create { chains: vec![NewChain::new(ChainId::new(), NewJob::new(type_name("a"), json("{}")))] }
}

async fn is_stored(store: &MemoryStore, create: &Create) -> bool {
    let chains = vec![create.chains[0].id.into()];
    store.get_chains(GetChains { chains }).await.unwrap().chains[0].is_some()
}

#[tokio::test]
async fn a_transaction_of_another_store_is_refused() {
    let (one, two) = (store(), store());
    let (mine, theirs) = (create(), create());
    let mut tx = one.begin().await.unwrap();
    one.run_in(&mut tx, mine.clone()).await.unwrap();
    let refused = two.run_in(&mut tx, theirs.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    for refused in [two.savepoint(&mut tx).await, two.release(&mut tx).await, two.rollback_to(&mut tx).await]
    {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    }
    // A clone is the same store.
    one.clone().commit(tx).await.unwrap();
    assert!(is_stored(&one, &mine).await, "its own store keeps it");
    assert!(
        !is_stored(&one, &theirs).await && !is_stored(&two, &theirs).await,
        "the other store does not have it"
    );
}

#[tokio::test]
async fn a_transaction_passed_to_another_store_is_rolled_back() {
    let (one, two) = (store(), store());
    let chain = create();
    let mut tx = one.begin().await.unwrap();
    one.run_in(&mut tx, chain.clone()).await.unwrap();
    assert_eq!(two.commit(tx).await.unwrap_err().kind(), ErrorKind::Invalid);
    let tx = one.begin().await.unwrap();
    assert_eq!(two.rollback(tx).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(!is_stored(&one, &chain).await, "the transaction was dropped");
    let reply = one.create(chain).await.unwrap();
    assert!(matches!(reply.chains[0], Created::New { repeated: false, .. }), "the writer is free");
}

#[tokio::test]
async fn a_savepoint_whose_future_was_dropped_is_not_set() {
    let store = store();
    let mut tx = store.begin().await.unwrap();
    drop(store.savepoint(&mut tx));
    assert_eq!(store.release(&mut tx).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(store.rollback_to(&mut tx).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_gap_reports_the_number_of_missed_hints() {
    const HINTS: u64 = 1_000;
    let notifier = InProcessNotifier::new();
    let mut subscription = notifier.subscribe(vec![Topic::Events]).await.unwrap();
    for _ in 0..HINTS {
        notifier.publish(Hint::Event(vec![1].into())).await.unwrap();
    }
    let (mut seen, mut missed) = (0, 0);
    while let Some(signal) = subscription.try_next() {
        match signal {
            Signal::Hint(_) => seen += 1,
            Signal::Gap { missed: more } => missed += more,
        }
    }
    assert_eq!(seen + missed, HINTS);
    assert!(missed > 0, "the reader was too slow for {HINTS} hints");
}
