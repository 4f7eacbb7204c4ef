//! The fixture of the conformance suite: a folder, opened twice.

use std::sync::Arc;

use windlass_conformance::{Erased, Fixture, Subject};
use windlass_core::{BoxFuture, Capabilities, ManualClock};
use windlass_file::{FileStore, Options};

pub(crate) struct Folder;

impl Fixture for Folder {
    fn name(&self) -> &str {
        "file"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().exchanges_in_flight(2).joining()
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        Box::pin(async {
            let directory = tempfile::tempdir().expect("a temporary directory can be created");
            let clock = Arc::new(ManualClock::default());
            let open = || async {
                // So small that the cases meet compactions.
                let options = Options::new(directory.path()).clock(clock.clone()).compact_at_bytes(4_096);
                Arc::new(FileStore::open(options).await.expect("a new folder can be opened"))
            };
            let store = open().await;
            let subject = Subject::new(store.clone(), open().await, clock.clone());
            subject.with_transactions(Arc::new(Erased::new(store))).keeping(directory)
        })
    }
}
