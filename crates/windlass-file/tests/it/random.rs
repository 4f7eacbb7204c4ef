//! The store returns the same replies as the model, also if the folder is opened again now and then.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use windlass_conformance::{Erased, ErasedTransactional, ErasedTx, Fixture, Subject, Tally, random};
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Counters, ManualClock, Notifier, Result, Store, for_each_command,
};
use windlass_file::{FileStore, Options};
use windlass_testkit::is_full_run;

use crate::names;

const SEEDS: u64 = 5;

/// From this size on, a journal has reserved room.
const RESERVED_FROM_BYTES: u64 = 64 << 10;

/// The size of the journal for a compaction: often, or only when it has reserved room.
const COMPACT_AT_BYTES: [u64; 2] = [30_000, 300_000];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_get_the_replies_of_the_model() {
    let commands = if is_full_run() { 100_000 } else { 10_000 };
    let (mut tally, mut reopened) = (Tally::default(), 0);
    for (seed, compact_at_bytes) in (0..SEEDS).zip(COMPACT_AT_BYTES.into_iter().cycle()) {
        let fixture = Reopening::new(seed, compact_at_bytes);
        tally.add(&random(&fixture, seed, commands / SEEDS as usize).await);
        reopened += fixture.reopened.load(Ordering::Relaxed);
        let largest = fixture.largest_journal.load(Ordering::Relaxed);
        println!("seed {seed}: the largest journal had {largest} bytes");
        // In a full run, so much is stored that even the journals of frequent compactions become larger.
        let has_room = compact_at_bytes > RESERVED_FROM_BYTES || is_full_run();
        assert_eq!(largest > RESERVED_FROM_BYTES, has_room, "seed {seed}");
    }
    println!("{tally}\nopened again {reopened} times");
    tally.assert_thorough(Capabilities::all());
    tally.assert_rolled_back();
    assert!(reopened > commands / 200, "{reopened}");
}

/// Opens folders with stores that are opened again at random.
struct Reopening {
    compact_at_bytes: u64,
    random: Arc<Mutex<Rng>>,
    reopened: Arc<AtomicUsize>,
    /// The size of the largest journal that was found when the folder was opened again, in bytes.
    largest_journal: Arc<AtomicU64>,
}

impl Reopening {
    fn new(seed: u64, compact_at_bytes: u64) -> Self {
        let random = Arc::new(Mutex::new(Rng::with_seed(seed)));
        Self { compact_at_bytes, random, reopened: Arc::default(), largest_journal: Arc::default() }
    }
}

impl Fixture for Reopening {
    fn name(&self) -> &str {
        "file"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        Box::pin(async {
            let directory = tempfile::tempdir().unwrap();
            let clock = Arc::new(ManualClock::default());
            let options = Options::new(directory.path()).clock(clock.clone());
            let options = options.compact_at_bytes(self.compact_at_bytes);
            let open = async || {
                let store = Mutex::new(Arc::new(FileStore::open(options.clone()).await.unwrap()));
                let (reopened, largest_journal) =
                    (Arc::clone(&self.reopened), Arc::clone(&self.largest_journal));
                let random = Arc::clone(&self.random);
                Arc::new(Fresh { options: options.clone(), store, random, reopened, largest_journal })
            };
            let store = open().await;
            let subject = Subject::new(store.clone(), open().await, clock.clone());
            subject.with_transactions(store).keeping(directory)
        })
    }
}

/// A store that is closed and opened again at random.
#[derive(Debug)]
struct Fresh {
    options: Options,
    store: Mutex<Arc<FileStore>>,
    random: Arc<Mutex<Rng>>,
    reopened: Arc<AtomicUsize>,
    largest_journal: Arc<AtomicU64>,
}

impl Fresh {
    async fn get(&self) -> Arc<FileStore> {
        let store = Arc::clone(&self.store.lock().unwrap());
        if self.random.lock().unwrap().u8(..50) != 0 {
            return store;
        }
        store.close().await.unwrap();
        let fresh = Arc::new(FileStore::open(self.options.clone()).await.unwrap());
        *self.store.lock().unwrap() = Arc::clone(&fresh);
        self.reopened.fetch_add(1, Ordering::Relaxed);
        self.largest_journal.fetch_max(largest_journal(&self.options.folder()), Ordering::Relaxed);
        fresh
    }
}

fn largest_journal(folder: &Path) -> u64 {
    let journals = names(folder).into_iter().filter(|name| name.starts_with("journal-"));
    journals.map(|name| folder.join(name).metadata().map_or(0, |found| found.len())).max().unwrap_or(0)
}

impl ErasedTransactional for Fresh {
    fn begin(&self) -> BoxFuture<'_, Result<Box<dyn ErasedTx>>> {
        Box::pin(async { Erased::new(self.get().await).begin().await })
    }
}

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl Store for Fresh {
            fn capabilities(&self) -> Capabilities {
                Capabilities::all()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(async move { self.get().await.$method(request).await })
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async move { self.get().await.erase().await })
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                self.store.lock().unwrap().notifier()
            }

            fn counters(&self) -> Counters {
                self.store.lock().unwrap().counters()
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async move { self.get().await.close().await })
            }
        }
    };
}
for_each_command!(store);
