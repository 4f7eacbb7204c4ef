//! The store cases on the memory store.

use std::sync::Arc;

use windlass_conformance::{Erased, Fixture, Subject};
use windlass_core::{BoxFuture, Capabilities, ManualClock, MemoryStore};

struct Memory;

impl Fixture for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(MemoryStore::with_clock(clock.clone()));
        let other = Arc::new(MemoryStore::clone(&store));
        let subject =
            Subject::new(store.clone(), other, clock).with_transactions(Arc::new(Erased::new(store)));
        Box::pin(async { subject })
    }
}

fn main() {
    windlass_conformance::main(Memory)
}
