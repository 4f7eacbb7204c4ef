//! Runs the client and worker suite on the file store with its own notifier, and with in-process notifications: all cases
//! in a full run, otherwise only those that depend on the notifier.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use windlass_conformance::{BehaviorFixture, BehaviorSuite, Scene};
use windlass_core::{BoxFuture, Capabilities, InProcessNotifier, Notifier};
use windlass_file::{FileNotifier, FileStore, Options};
use windlass_testkit::is_full_run;

struct Folder {
    name: &'static str,
    watches_the_folder: bool,
}

impl BehaviorFixture for Folder {
    type Store = FileStore;

    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().exchanges_in_flight(2).joining()
    }

    /// The notifier also derives hints from what the other store wrote, so the cases that count single hints do not apply.
    fn has_hints(&self) -> bool {
        !self.watches_the_folder
    }

    fn open(&self) -> BoxFuture<'_, Scene<FileStore>> {
        Box::pin(async {
            let directory = tempfile::tempdir().unwrap();
            let options = Options::new(directory.path());
            let [store, other] = [options.clone(), options].map(FileStore::open);
            let stores = [Arc::new(store.await.unwrap()), Arc::new(other.await.unwrap())];
            let in_process = InProcessNotifier::new();
            let notifier = |store: &Arc<FileStore>| -> Arc<dyn Notifier> {
                match self.watches_the_folder {
                    true => Arc::new(FileNotifier::over(in_process.clone(), store)),
                    false => Arc::new(in_process.clone()),
                }
            };
            let notifiers = stores.each_ref().map(notifier);
            Scene::new(stores, notifiers).keeping(directory)
        })
    }
}

fn main() {
    let suite =
        BehaviorSuite::new().transactional_pair(Folder { name: "file+file", watches_the_folder: true });
    let in_process = Folder { name: "file+in-process", watches_the_folder: false };
    match is_full_run() {
        true => suite.transactional_pair(in_process).run(),
        false => suite.notifier_pair(in_process).run(),
    }
}
