//! Runs the client and worker suite on SQLite with the file notifier, and with in-process notifications: all cases in a
//! full run, otherwise only those that depend on the notifier.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use windlass_conformance::{BehaviorFixture, BehaviorSuite, Scene};
use windlass_core::{BoxFuture, Capabilities, InProcessNotifier, Notifier};
use windlass_sqlite::{Options, SqliteNotifier, SqliteStore, Synchronous};
use windlass_testkit::is_full_run;

struct Sqlite {
    name: &'static str,
    watches_the_file: bool,
}

impl BehaviorFixture for Sqlite {
    type Store = SqliteStore;

    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().joining()
    }

    /// The file notifier learns that the file changed, not what was written, so the cases about single hints do not
    /// apply.
    fn has_hints(&self) -> bool {
        !self.watches_the_file
    }

    fn open(&self) -> BoxFuture<'_, Scene<SqliteStore>> {
        Box::pin(async {
            let directory = tempfile::tempdir().unwrap();
            let options = Options::new(directory.path().join("jobs.db")).synchronous(Synchronous::Normal);
            let [store, other] = [options.clone(), options].map(SqliteStore::open);
            let stores = [Arc::new(store.await.unwrap()), Arc::new(other.await.unwrap())];
            let in_process = InProcessNotifier::new();
            let notifier = |store: &Arc<SqliteStore>| -> Arc<dyn Notifier> {
                match self.watches_the_file {
                    true => Arc::new(SqliteNotifier::over(in_process.clone(), store)),
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
        BehaviorSuite::new().transactional_pair(Sqlite { name: "sqlite+sqlite", watches_the_file: true });
    let in_process = Sqlite { name: "sqlite+in-process", watches_the_file: false };
    match is_full_run() {
        true => suite.transactional_pair(in_process).run(),
        false => suite.notifier_pair(in_process).run(),
    }
}
