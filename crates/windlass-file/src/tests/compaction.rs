//! Snapshots that are written while others write.

use std::sync::mpsc;
use std::time::Duration;

use tokio::time::timeout;
use windlass_core::Store;

use super::disk::TestDisk;
use super::workload::{Dump, Step, Workload, open, run};
use crate::FileStore;
use crate::folder::{HEAD, journal_name, snapshot_name, temporary};
use crate::queue::Work;

/// Starts a new generation, as a compaction does before it writes the snapshot.
pub(crate) fn rotate(store: &FileStore, generation: u64) -> u64 {
    let shared = store.shared();
    shared.folder.prepare_journal(generation).unwrap();
    let (reply, rotated) = mpsc::channel();
    shared.push(Work::Rotate(generation, reply)).unwrap();
    rotated.recv().unwrap().unwrap()
}

/// Between the start of a generation and its snapshot, others create, change and delete jobs. So the snapshot contains
/// changes of the journal that is replayed after it, and lacks jobs that the journal updates.
#[tokio::test]
async fn a_snapshot_may_be_later_than_the_start_of_its_journal() {
    for seed in 0..20 {
        let workload = Workload::random(seed, 60);
        let disk = TestDisk::new();
        let store = open(&disk).unwrap();
        let steps: Vec<_> = workload.steps.iter().filter(|step| !matches!(step, Step::Compact)).collect();
        let (before, rest) = steps.split_at(15);
        let (between, after) = rest.split_at(20);
        for step in before {
            run(&store, step).await.unwrap();
        }
        let first = rotate(&store, 2);
        for step in between {
            run(&store, step).await.unwrap();
        }
        store.erase().await.unwrap();
        run(&store, &Step::Command(super::workload::create())).await.unwrap();
        run(&store, &Step::Command(super::workload::acquire(1))).await.unwrap();
        let held = Dump::of_store(&store);
        let chains = held.chain_ids().map(windlass_core::command::Target::Chain).collect();
        let delete = windlass_core::command::Delete { chains, cascade: true, seen: None };
        run(&store, &Step::Command(delete.into())).await.unwrap();
        store.shared().write_snapshot(2, first).unwrap();
        store.shared().folder.install(&snapshot_name(2)).unwrap();
        let dump = Dump::of_store(&store);
        assert_eq!(dump.jobs(), 0);
        let again = open(&TestDisk::with_files(disk.files())).unwrap();
        assert_eq!(Dump::of_store(&again), dump, "seed {seed}");
        for step in after {
            let _ = run(&store, step).await;
        }
        let again = open(&TestDisk::with_files(disk.files())).unwrap();
        assert_eq!(Dump::of_store(&again), Dump::of_store(&store), "seed {seed}");
        store.close().await.unwrap();
        // The journal up to the end of the snapshot is part of it.
        let mut files = disk.files();
        files.remove(HEAD);
        files.get_mut(&journal_name(2)).unwrap().truncate(64);
        let error = open(&TestDisk::with_files(files)).unwrap_err();
        assert!(
            error.to_string().contains("the snapshot of this generation contains later changes"),
            "{error}"
        );
    }
}

/// After a power failure, `head` may be so old that it is at the end of a journal that was sealed. The journals after it
/// are read too.
#[tokio::test]
async fn a_head_at_the_end_of_a_sealed_journal_hides_nothing() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(super::workload::create())).await.unwrap();
    for generation in [2, 3] {
        let number = rotate(&store, generation);
        run(&store, &Step::Command(super::workload::create())).await.unwrap();
        let sealed = generation - 1;
        let offset = disk.files()[&journal_name(sealed)].len() as u64;
        let (folder, current) = (&store.shared().folder, store.shared().state().unwrap().position);
        folder.publish(crate::folder::Position { generation: sealed, offset, number }).unwrap();
        let old = TestDisk::with_files(disk.files());
        folder.publish(current).unwrap();
        let again = open(&old).unwrap();
        assert_eq!(Dump::of_store(&again), Dump::of_store(&store), "generation {generation}");
        run(&again, &Step::Command(super::workload::create())).await.unwrap();
        assert_eq!(Dump::of_store(&again).jobs(), Dump::of_store(&store).jobs() + 1);
    }
}

/// Numbers in the order of creation are not used again, even if their jobs are gone.
#[tokio::test]
async fn used_numbers_survive_compaction_and_restart() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    for _ in 0..3 {
        run(&store, &Step::Command(super::workload::create())).await.unwrap();
    }
    store.erase().await.unwrap();
    let last = |store: &FileStore| store.shared().state().unwrap().model.last_seq();
    assert_eq!(last(&store), 3);
    assert_eq!(last(&open(&TestDisk::with_files(disk.files())).unwrap()), 3, "from the journal");
    store.compact().await.unwrap();
    assert_eq!(last(&open(&TestDisk::with_files(disk.files())).unwrap()), 3, "from the snapshot");
}

/// The caller may remove the folder after the close. Dropping the future of a compaction does not stop it.
#[tokio::test]
async fn closing_waits_for_a_requested_compaction_whose_caller_has_gone() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(super::workload::create())).await.unwrap();
    let (reached, release) = disk.hold(&temporary(&snapshot_name(2)));
    tokio::select! {
        compacted = store.compact() => panic!("the disk holds it: {compacted:?}"),
        reached = reached => reached.unwrap(),
    }
    let mut closing = store.close();
    timeout(Duration::from_millis(100), &mut closing).await.expect_err("the compaction still writes");
    drop(release);
    closing.await.unwrap();
    assert_eq!(store.compaction().completed, 1);
}
