//! Tests of behavior that is specific to the file store.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod backup;
mod compaction;
mod crash;
mod events;
mod fixture;
mod format;
mod open;
mod process;
mod race;
mod random;
mod transaction;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_core::command::{Acquire, Acquired, Create, Created, NewChain, NewJob, Quota};
use windlass_core::{
    ChainId, ManualClock, Millis, Payload, RequestId, Store, TypeName, WorkerId, WorkerName,
};
use windlass_file::{FileStore, Options};

/// A folder in its own directory, with a manual clock.
struct Folder {
    directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Folder {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), clock: Arc::new(ManualClock::default()) }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("queue")
    }

    fn options(&self) -> Options {
        Options::new(self.path()).clock(self.clock.clone())
    }

    async fn open(&self) -> FileStore {
        FileStore::open(self.options()).await.unwrap()
    }
}

fn new_chain() -> NewChain {
    NewChain::new(ChainId::new(), NewJob::new(TypeName::new("t").unwrap(), Payload::json("1").unwrap()))
}

async fn start(store: &dyn Store, chains: Vec<NewChain>) -> Vec<Created> {
    store.create(Create { chains }).await.unwrap().chains
}

fn acquire(max: u32) -> Acquire {
    let quota = Quota { job_type: TypeName::new("t").unwrap(), max, lease: Millis::from_secs(60) };
    Acquire {
        request: RequestId::new(),
        worker: WorkerId::new(),
        worker_name: WorkerName::new("host-7").ok(),
        types: vec![quota],
        max,
    }
}

async fn take(store: &dyn Store, max: u32) -> Vec<Acquired> {
    store.acquire(acquire(max)).await.unwrap().jobs
}

/// Returns the names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}
