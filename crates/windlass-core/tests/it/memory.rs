//! The memory store's lock.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::command::{Count, GetChains, Types};
use windlass_core::command::{Create, NewChain, NewJob, Target};
use windlass_core::{ChainId, ErrorKind, ManualClock, MemoryStore, Payload, Store, Transactional, TypeName};

#[tokio::test(start_paused = true)]
async fn a_write_during_an_open_transaction_times_out_with_the_cause() {
    let store = store();
    let tx = store.begin().await.unwrap();
    let error = store.create(chain(ChainId::new())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("`tx.start(…)` after `client.begin()`"), "{error}");
    store.commit(tx).await.unwrap();
    store.create(chain(ChainId::new())).await.unwrap();
}

#[tokio::test]
async fn a_dropped_transaction_leaves_no_trace_and_frees_the_writer() {
    let store = store();
    let id = ChainId::new();
    let mut tx = store.begin().await.unwrap();
    store.run_in(&mut tx, chain(id)).await.unwrap();
    drop(tx);
    store.create(chain(ChainId::new())).await.unwrap();
    let found = store.get_chains(GetChains { chains: vec![Target::Chain(id)] }).await.unwrap();
    assert_eq!(found.chains, [None]);
    let count = store.count(Count { types: Types::All }).await.unwrap();
    assert_eq!(count.types.iter().map(|count| count.pending).sum::<u64>(), 1);
}

fn store() -> MemoryStore {
    MemoryStore::with_clock_and_busy_timeout(Arc::new(ManualClock::default()), Duration::from_secs(5))
}

fn chain(id: ChainId) -> Create {
    let job = NewJob::new(TypeName::new("mail").unwrap(), Payload::json("{}").unwrap());
    Create { chains: vec![NewChain::new(id, job)] }
}
