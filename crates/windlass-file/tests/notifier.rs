//! Runs the notifier conformance suite on the notifier of the file store.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use windlass_conformance::{NotifierFixture, NotifierSubject};
use windlass_core::{BoxFuture, InProcessNotifier};
use windlass_file::{FileNotifier, FileStore, Options};

struct Folder;

impl NotifierFixture for Folder {
    fn name(&self) -> &str {
        "file"
    }

    fn has_wake_budget(&self) -> bool {
        true
    }

    fn open(&self) -> BoxFuture<'_, NotifierSubject> {
        Box::pin(async {
            let directory = tempfile::tempdir().unwrap();
            let store = FileStore::open(Options::new(directory.path())).await.unwrap();
            let inside = InProcessNotifier::new();
            let notifier = || Arc::new(FileNotifier::over(inside.clone(), &store));
            let subject = NotifierSubject::new(notifier(), notifier());
            subject.keeping((directory, store))
        })
    }
}

fn main() {
    windlass_conformance::notifier_main(Folder)
}
