//! The behavior cases on the memory store: with the in-process notifier, and without hints.

use std::sync::Arc;

use windlass_conformance::{BehaviorFixture, BehaviorSuite, MuteNotifier, Scene};
use windlass_core::{BoxFuture, Capabilities, InProcessNotifier, MemoryStore, Notifier};

struct Memory {
    name: &'static str,
    notifier: fn() -> Arc<dyn Notifier>,
}

impl BehaviorFixture for Memory {
    type Store = MemoryStore;

    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn has_hints(&self) -> bool {
        self.name == "memory+in-process"
    }

    fn open(&self) -> BoxFuture<'_, Scene<MemoryStore>> {
        let (store, notifier) = (MemoryStore::new(), (self.notifier)());
        let stores = [Arc::new(store.clone()), Arc::new(store)];
        Box::pin(async { Scene::new(stores, [Arc::clone(&notifier), notifier]) })
    }
}

fn main() {
    BehaviorSuite::new()
        .transactional_pair(Memory {
            name: "memory+in-process",
            notifier: || Arc::new(InProcessNotifier::new()),
        })
        .transactional_pair(Memory { name: "memory+none", notifier: || Arc::new(MuteNotifier::default()) })
        .run()
}
