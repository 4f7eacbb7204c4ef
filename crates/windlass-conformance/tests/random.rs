//! The random generator is thorough, and the memory store agrees with the model that it is built on.

use std::sync::Arc;

use windlass_conformance::{Fixture, Subject, random};
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
        let store = MemoryStore::with_clock(clock.clone());
        Box::pin(async { Subject::new(Arc::new(store.clone()), Arc::new(store), clock) })
    }
}

#[tokio::test]
async fn memory_agrees_with_the_model() {
    let tally = random(&Memory, 1, 10_000).await;
    println!("{tally}");
    tally.assert_thorough(Capabilities::all());
}

/// A run is also thorough with only the commands that every store supports.
#[tokio::test]
async fn core_commands_cover_every_kind_of_reply() {
    struct Core;
    impl Fixture for Core {
        fn name(&self) -> &str {
            "core"
        }
        fn capabilities(&self) -> Capabilities {
            Capabilities::CORE
        }
        fn open(&self) -> BoxFuture<'_, Subject> {
            Memory.open()
        }
    }
    let tally = random(&Core, 2, 5_000).await;
    println!("{tally}");
    tally.assert_thorough(Capabilities::CORE);
}
