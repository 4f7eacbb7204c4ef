//! Decorators of stores. The conformance suite runs its cases on decorated stores.

use std::sync::Arc;

use windlass_core::command::{Command, Create, GetChains, GetJobs, NewChain, NewJob, Reply};
use windlass_core::{
    BoxFuture, ChainId, Decorator, ErrorKind, MemoryStore, Payload, Result, Store, TransactionDecorator,
    Transactional, TypeName,
};

/// Forwards everything.
#[derive(Debug)]
struct Forwarding<S: ?Sized>(Arc<S>);

impl<S: Store + ?Sized> Decorator for Forwarding<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.0
    }
}

impl<S: Transactional> TransactionDecorator for Forwarding<S> {}

fn create(id: ChainId) -> Create {
    let job = NewJob::new(TypeName::new("mail").unwrap(), Payload::json("{}").unwrap());
    Create { chains: vec![NewChain::new(id, job)] }
}

async fn is_stored(store: &dyn Store, chain: ChainId) -> bool {
    let found = store.get_chains(GetChains { chains: vec![chain.into()] }).await.unwrap();
    found.chains.iter().any(Option::is_some)
}

#[tokio::test]
async fn decorators_nest_and_share_the_inner_store() {
    let memory = Arc::new(MemoryStore::new());
    let erased: Arc<dyn Store> = memory.clone();
    let store = Forwarding(Arc::new(Forwarding(erased)));
    let chain = ChainId::new();
    store.create(create(chain)).await.unwrap();
    assert!(is_stored(&*memory, chain).await);
    assert_eq!(store.counters(), memory.counters());
    assert_eq!(store.capabilities(), memory.capabilities());
    store.erase().await.unwrap();
    assert!(!is_stored(&*memory, chain).await);
    store.close().await.unwrap();
    assert_eq!(memory.create(create(chain)).await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn transactions_are_those_of_the_inner_store() {
    let store = Forwarding(Arc::new(MemoryStore::new()));
    let [kept, undone, rolled_back] = [ChainId::new(), ChainId::new(), ChainId::new()];
    let mut tx = store.begin().await.unwrap();
    store.run_in(&mut tx, create(kept)).await.unwrap();
    store.savepoint(&mut tx).await.unwrap();
    store.run_in(&mut tx, create(undone)).await.unwrap();
    store.rollback_to(&mut tx).await.unwrap();
    store.commit(tx).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    store.run_in(&mut tx, create(rolled_back)).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert!(is_stored(&store, kept).await);
    assert!(!is_stored(&store, undone).await && !is_stored(&store, rolled_back).await);
}

/// Returns the reply of another command.
#[derive(Debug)]
struct Confused(MemoryStore);

impl Decorator for Confused {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn call(&self, _: Command) -> BoxFuture<'_, Result<Reply>> {
        self.forward(GetJobs { jobs: Vec::new() }.into())
    }
}

#[tokio::test]
async fn a_reply_of_another_command_is_an_error() {
    let error = Confused(MemoryStore::new()).create(create(ChainId::new())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
