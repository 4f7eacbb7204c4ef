//! The SQLite fixture of the conformance suite: a file in its own directory, opened twice.

use std::sync::Arc;

use windlass_conformance::{Erased, Fixture, Subject};
use windlass_core::{BoxFuture, Capabilities, ManualClock};
use windlass_sqlite::{Options, SqliteStore};

#[derive(Default)]
pub(crate) struct Sqlite {
    #[cfg(feature = "known-bad")]
    pub(crate) known_bad: Option<windlass_sqlite::known_bad::KnownBad>,
}

impl Sqlite {
    fn options(&self, directory: &tempfile::TempDir, clock: &Arc<ManualClock>) -> Options {
        let options = Options::new(directory.path().join("jobs.db")).clock(clock.clone());
        #[cfg(feature = "known-bad")]
        if let Some(known_bad) = self.known_bad {
            return options.known_bad(known_bad);
        }
        options
    }
}

impl Fixture for Sqlite {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().joining()
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        Box::pin(async {
            let directory = tempfile::tempdir().expect("a temporary directory can be created");
            let clock = Arc::new(ManualClock::default());
            let open = || async {
                let store = SqliteStore::open(self.options(&directory, &clock)).await;
                Arc::new(store.expect("a new file can be opened"))
            };
            let store = open().await;
            let subject = Subject::new(store.clone(), open().await, clock.clone());
            subject.with_transactions(Arc::new(Erased::new(store))).keeping(directory)
        })
    }
}
