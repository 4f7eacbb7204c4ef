//! Rare failures, in which a store once lost jobs or stopped working.

use std::io::ErrorKind as Io;
use std::sync::Arc;

use windlass_core::command::{Create, Created, Reply};
use windlass_core::{ErrorKind, Payload, Store, Transactional};
use windlass_testkit::logs::Warnings;

use super::disk::{Fault, Plan, Refusal, TestDisk, Unsynced, power_failure};
use super::workload::{Dump, NO_ROOM, Step, create, new_chain, open, open_with_room_from, options, run};
use crate::FileStore;
use crate::disk::Disk;
use crate::folder::{COMPACT, HEAD, HOLDER, LOCK, TURN, journal_name, snapshot_name, temporary};

const FAILS: Fault = Fault::Fails(Io::Other);

/// A process is killed, or fails, at each operation while it opens a new folder. The names that it created may not be
/// synced. What another process then acknowledges survives a power failure.
#[tokio::test]
async fn the_first_names_are_synced_by_the_process_that_relies_on_them() {
    let mut interrupted = 0;
    for fault in [Fault::Killed, Fault::KilledWithin, FAILS] {
        for at in 0.. {
            let disk = TestDisk::new();
            disk.plan(Some(Plan { process: 1, from: at, to: at + 1, fault }));
            let first = open(&disk.process(1));
            let is_complete = first.is_ok();
            disk.plan(None);
            let second = open(&disk.process(2)).unwrap();
            run(&second, &Step::Command(create())).await.unwrap();
            for unsynced in [Unsynced::Dropped, Unsynced::Mixed(at as u64), Unsynced::Kept] {
                let again = open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
                assert_eq!(Dump::of_store(&again).jobs(), 1, "{fault:?} at {at}, {unsynced:?}");
            }
            if is_complete {
                break;
            }
            interrupted += 1;
        }
    }
    assert!(interrupted > 20, "{interrupted}");
}

/// Writes and syncs of a process fail, and so does the repair. Another process finds the records and replies on the
/// strength of them, without writing anything itself. The first process must not cut them off when it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_record_that_another_process_relies_on_is_not_cut_off() {
    let mut adopted = 0;
    for at in 0..34 {
        for length in 1..5 {
            let disk = TestDisk::new();
            let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
            disk.plan(Some(Plan { process: 1, from: at, to: at + length, fault: FAILS }));
            let creations = [create(), create()];
            let first = run(&one, &Step::Command(creations[0].clone())).await;
            let _ = run(&one, &Step::Compact).await;
            let second = run(&one, &Step::Command(creations[1].clone())).await;
            disk.plan(None);
            let store: &dyn Store = &two;
            for (creation, result) in creations.iter().zip([first, second]) {
                let reply = store.execute(creation.clone()).await.unwrap();
                let Reply::Create(reply) = reply else { panic!("a creation") };
                let is_found = matches!(reply.chains[0], Created::New { repeated: true, .. });
                assert!(is_found || result.is_err(), "{length} failures from {at}: it was acknowledged");
                adopted += usize::from(is_found && result.is_err());
            }
            // Without `head`, the process cannot know whether another one has continued.
            disk.process(1).set_unreadable(Some(HEAD));
            let error = run(&one, &Step::Command(create())).await.unwrap_err();
            assert!(error.to_string().contains("cannot read the file `head`"), "{error}");
            disk.process(1).set_unreadable(None);
            run(&one, &Step::Command(create())).await.unwrap();
            let dump = Dump::of_store(&one);
            assert_eq!(dump.jobs(), 3, "{length} failures from {at}");
            assert_eq!(Dump::of_store(&two), dump, "{length} failures from {at}");
            for unsynced in [Unsynced::Dropped, Unsynced::Kept, Unsynced::Mixed(at as u64)] {
                let again = open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
                assert_eq!(Dump::of_store(&again), dump, "{length} failures from {at}, {unsynced:?}");
            }
        }
    }
    assert!(adopted > 0, "a record was adopted");
}

/// A compaction is killed or fails at each of its operations. The next one completes, and leaves only its own files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_that_was_aborted_leaves_nothing_behind() {
    let mut aborted = 0;
    for fault in [Fault::Killed, Fault::KilledWithin, FAILS] {
        for at in 0.. {
            let disk = TestDisk::new();
            let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
            for _ in 0..5 {
                run(&one, &Step::Command(create())).await.unwrap();
            }
            disk.plan(Some(Plan { process: 1, from: at, to: at + 1, fault }));
            let compacted = one.compact().await;
            let was_hit = disk.process(1).is_dead() || compacted.is_err();
            disk.plan(None);
            if fault == FAILS {
                run(&one, &Step::Command(create())).await.unwrap();
                one.compact().await.unwrap();
            }
            run(&two, &Step::Command(create())).await.unwrap();
            two.compact().await.unwrap();
            let dump = Dump::of_store(&two);
            let names: Vec<_> = disk.files().into_keys().collect();
            assert_eq!(names.len(), 7, "{fault:?} at {at}: {names:?}");
            assert!(names.iter().all(|name| !name.ends_with(".tmp")), "{fault:?} at {at}: {names:?}");
            assert_eq!(Dump::of_store(&open(&TestDisk::with_files(disk.files())).unwrap()), dump);
            if !was_hit && at > 12 {
                break;
            }
            aborted += usize::from(was_hit);
        }
    }
    assert!(aborted > 20, "{aborted}");
}

/// While a disk is full, every command fails and nothing changes: neither the files nor the jobs. Opening works.
#[tokio::test]
async fn a_disk_that_stays_full_changes_nothing() {
    let disk = TestDisk::new();
    let store = open_with_room_from(&disk, NO_ROOM).unwrap();
    for _ in 0..10 {
        run(&store, &Step::Command(create())).await.unwrap();
    }
    let (files, dump) = (disk.files(), Dump::of_store(&store));
    disk.limit(Some(0));
    for _ in 0..20 {
        let error = run(&store, &Step::Command(create())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(store.compact().await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(store.begin().await.is_ok(), "a transaction fails only when it writes");
    }
    assert_eq!(Dump::of_store(&store), dump);
    assert_eq!(disk.files()[&journal_name(1)], files[&journal_name(1)]);
    let size =
        |files: &std::collections::BTreeMap<String, Vec<u8>>| -> usize { files.values().map(Vec::len).sum() };
    assert!(size(&disk.files()) < size(&files) + 200, "{} bytes", size(&disk.files()));
    let other = open_with_room_from(&disk.process(1), NO_ROOM).unwrap();
    assert_eq!(Dump::of_store(&other), dump);
    run(&other, &Step::Command(create())).await.unwrap_err();
    // There is room for a while, then none, then room again.
    disk.limit(None);
    run(&other, &Step::Command(create())).await.unwrap();
    disk.limit(Some(0));
    run(&store, &Step::Command(create())).await.unwrap_err();
    disk.limit(None);
    run(&store, &Step::Command(create())).await.unwrap();
    store.compact().await.unwrap();
    assert_eq!(Dump::of_store(&other).jobs(), dump.jobs() + 2);
    assert_eq!(other.health().await.unwrap(), []);
}

/// A journal with reserved room is written until the room is used up, also while the disk is full. If a record fits on the
/// disk but new room does not, the record is written.
#[tokio::test]
async fn a_full_disk_stops_writes_only_when_the_room_is_used_up() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    let size = || -> usize { disk.files().values().map(Vec::len).sum() };
    let (full, mut written) = (size(), 1);
    disk.limit(Some(full));
    while run(&store, &Step::Command(create())).await.is_ok() {
        written += 1;
    }
    assert!(written > 10, "{written}");
    assert_eq!(Dump::of_store(&store).jobs(), written);
    // There is space for a record, but not for new room.
    disk.limit(Some(size() + 400));
    run(&store, &Step::Command(create())).await.unwrap();
    disk.limit(None);
    for _ in 0..20 {
        run(&store, &Step::Command(create())).await.unwrap();
    }
    for unsynced in [Unsynced::Dropped, Unsynced::Kept, Unsynced::Mixed(1)] {
        let again = open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
        assert_eq!(Dump::of_store(&again), Dump::of_store(&store), "{unsynced:?}");
    }
    assert_eq!(Dump::of_store(&store).jobs(), written + 21);
}

/// Another process has started a new generation, and this one fails to open its journal, for example because it has too
/// many open files. Once that is over, it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_cannot_open_the_next_generation_continues_later() {
    for error in [Io::PermissionDenied, Io::Other] {
        let disk = TestDisk::new();
        let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
        run(&two, &Step::Command(create())).await.unwrap();
        one.compact().await.unwrap();
        run(&one, &Step::Command(create())).await.unwrap();
        disk.refuse(Some(Refusal { process: 2, name: journal_name(2), error, times: usize::MAX }));
        for _ in 0..3 {
            assert!(two.shared().state().and_then(|mut state| two.shared().follow(&mut state)).is_err());
            run(&two, &Step::Command(create())).await.unwrap_err();
        }
        disk.refuse(None);
        assert_eq!(Dump::of_store(&two), Dump::of_store(&one));
        run(&two, &Step::Command(create())).await.unwrap();
        assert_eq!(Dump::of_store(&one).jobs(), 3);
    }
}

/// A record that is too large to be read again is refused before it is written, and its transaction is undone.
#[tokio::test]
async fn a_record_that_could_not_be_read_is_not_written() {
    let disk = TestDisk::new();
    let mut options = options();
    options.record_max_bytes = 100_000;
    let store = FileStore::open_on(&(Arc::new(disk.clone()) as Arc<dyn Disk>), options).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    let (journal, dump) = (disk.files()[&journal_name(1)].clone(), Dump::of_store(&store));
    let mut tx = store.begin().await.unwrap();
    for _ in 0..3 {
        let mut chain = new_chain();
        chain.job.input = Payload::json(vec![b'1'; 50_000]).unwrap();
        tx.execute(&Create { chains: vec![chain] }.into()).unwrap();
    }
    let error = store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("use several transactions"), "{error}");
    assert_eq!(disk.files()[&journal_name(1)], journal);
    assert_eq!(Dump::of_store(&store), dump);
    run(&store, &Step::Command(create())).await.unwrap();
    let again = open(&TestDisk::with_files(disk.files())).unwrap();
    assert_eq!(Dump::of_store(&again), Dump::of_store(&store));
}

/// A file that a compaction of another process has removed since the files were listed is no damage.
#[tokio::test]
async fn health_is_not_confused_by_a_compaction() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    let missing = |times| Some(Refusal { process: 0, name: journal_name(1), error: Io::NotFound, times });
    disk.refuse(missing(3));
    assert_eq!(store.health().await.unwrap(), []);
    disk.refuse(missing(usize::MAX));
    let error = store.health().await.unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
}

/// A process that cannot lock the folder does not keep its place in the queue.
#[tokio::test]
async fn a_process_that_fails_to_lock_returns_its_turn() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    disk.refuse(Some(Refusal { process: 0, name: LOCK.to_owned(), error: Io::Other, times: 1 }));
    run(&store, &Step::Command(create())).await.unwrap_err();
    let turn = Disk::open(&disk.process(1), TURN).unwrap();
    assert!(turn.try_lock().unwrap());
}

/// Reserved room is no incomplete batch: opening keeps it, without a warning, and the next records are written into it. A
/// journal that is sealed has none.
#[tokio::test]
async fn reserved_room_is_used_by_the_next_process() {
    let warnings = Warnings::capture("windlass_file");
    let disk = TestDisk::new();
    run(&open(&disk).unwrap(), &Step::Command(create())).await.unwrap();
    let size = disk.files()[&journal_name(1)].len();
    assert_eq!(size, 4_096);
    let store = open(&disk.process(1)).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    assert_eq!(disk.files()[&journal_name(1)].len(), size);
    let mut files = disk.files();
    files.remove(HEAD);
    let again = open(&TestDisk::with_files(files)).unwrap();
    assert_eq!(Dump::of_store(&again), Dump::of_store(&store));
    let (reached, release) = disk.hold(&temporary(&snapshot_name(2)));
    tokio::select! {
        compacted = store.compact() => panic!("the disk holds it: {compacted:?}"),
        reached = reached => reached.unwrap(),
    }
    assert!(disk.files()[&journal_name(1)].len() < 1_000, "the sealed journal has no room");
    drop(release);
    assert_eq!(store.health().await.unwrap(), []);
    assert_eq!(warnings.take(), [""; 0]);
}

/// The user of an existing store has lost the permission for one of its files.
#[tokio::test]
async fn a_file_that_may_not_be_opened_is_reported_with_the_cure() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    store.compact().await.unwrap();
    store.close().await.unwrap();
    let files = disk.files();
    for name in files.keys().filter(|name| *name != COMPACT) {
        for (error, cure) in [
            (Io::PermissionDenied, "grant this user permission to read and write the folder"),
            (Io::ReadOnlyFilesystem, "mount the file system for writing"),
        ] {
            let disk = TestDisk::with_files(files.clone());
            disk.refuse(Some(Refusal { process: 0, name: name.clone(), error, times: usize::MAX }));
            let refused = open(&disk).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AccessDenied, "{name}: {refused}");
            assert!(refused.to_string().contains(cure), "{name}: {refused}");
            let mut left = disk.files();
            left.insert(HOLDER.to_owned(), files[HOLDER].clone());
            assert!(left == files, "{name}: nothing was created or replaced");
            disk.refuse(None);
            assert_eq!(Dump::of_store(&open(&disk).unwrap()).jobs(), 1, "{name}");
        }
    }
}

/// Each attempt needs a new journal only if something was written since the last one.
#[tokio::test]
async fn compactions_that_fail_do_not_add_journals() {
    let disk = TestDisk::new();
    let store = open_with_room_from(&disk, NO_ROOM).unwrap();
    for _ in 0..50 {
        run(&store, &Step::Command(create())).await.unwrap();
    }
    let size: usize = disk.files().values().map(Vec::len).sum();
    disk.limit(Some(size + 1_000));
    for _ in 0..5 {
        store.compact().await.unwrap_err();
    }
    let journals = || disk.files().keys().filter(|name| name.starts_with("journal-")).count();
    assert_eq!(journals(), 2);
    disk.limit(None);
    // Another process, which has not seen these attempts, continues in the new journal.
    let other = open_with_room_from(&disk.process(1), NO_ROOM).unwrap();
    other.compact().await.unwrap();
    assert!(disk.files().contains_key(&snapshot_name(2)) && journals() == 1, "{:?}", disk.files().keys());
    run(&store, &Step::Command(create())).await.unwrap();
    store.compact().await.unwrap();
    assert!(disk.files().contains_key(&snapshot_name(3)), "the journal was not empty");
    for unsynced in [Unsynced::Kept, Unsynced::Dropped, Unsynced::Mixed(3)] {
        let again = open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
        assert_eq!(Dump::of_store(&again), Dump::of_store(&other), "{unsynced:?}");
    }
    assert_eq!(Dump::of_store(&other).jobs(), 51);
}

/// The process changes its current directory while the store is open.
#[tokio::test]
async fn a_relative_path_is_resolved_once() {
    let directory = tempfile::tempdir().unwrap();
    let depth = std::env::current_dir().unwrap().components().count() - 1;
    let relative = std::iter::repeat_n("..", depth).collect::<std::path::PathBuf>();
    let relative = relative.join(directory.path().strip_prefix("/").unwrap()).join("queue");
    let store = FileStore::open(crate::Options::new(&relative)).await.unwrap();
    assert!(relative.is_relative() && store.shared().folder.path().is_absolute());
    assert!(directory.path().join("queue/lock").exists());
}
