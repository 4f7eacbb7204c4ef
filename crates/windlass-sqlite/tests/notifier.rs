//! Runs the notifier conformance suite on the SQLite notifier.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use windlass_conformance::{NotifierFixture, NotifierSubject};
use windlass_core::{BoxFuture, InProcessNotifier};
use windlass_sqlite::{Options, SqliteNotifier, SqliteStore};

struct Sqlite;

impl NotifierFixture for Sqlite {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn has_wake_budget(&self) -> bool {
        true
    }

    fn open(&self) -> BoxFuture<'_, NotifierSubject> {
        Box::pin(async {
            let directory = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(Options::new(directory.path().join("jobs.db"))).await.unwrap();
            let (store, inside) = (Arc::new(store), InProcessNotifier::new());
            let notifier = || Arc::new(SqliteNotifier::over(inside.clone(), &store));
            NotifierSubject::new(notifier(), notifier()).keeping(directory)
        })
    }
}

fn main() {
    windlass_conformance::notifier_main(Sqlite)
}
