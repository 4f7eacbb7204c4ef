//! Runs the client and worker suite on the memory store, with notifications over NATS: all cases in a full run, otherwise only
//! those that depend on the notifier.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "other tests use the rest")]
mod fixture;

use std::sync::Arc;

use windlass_conformance::{BehaviorFixture, BehaviorSuite, Scene};
use windlass_core::{BoxFuture, Capabilities, MemoryStore};
use windlass_testkit::is_full_run;

struct Memory;

impl BehaviorFixture for Memory {
    type Store = MemoryStore;

    fn name(&self) -> &str {
        "memory+nats"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn open(&self) -> BoxFuture<'_, Scene<MemoryStore>> {
        Box::pin(async {
            let store = MemoryStore::new();
            let notifiers = fixture::notifiers(true).await;
            Scene::new([Arc::new(store.clone()), Arc::new(store)], notifiers)
        })
    }
}

fn main() {
    let suite = BehaviorSuite::new();
    let suite = if is_full_run() { suite.transactional_pair(Memory) } else { suite.notifier_pair(Memory) };
    suite.run()
}
