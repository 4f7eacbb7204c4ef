//! Backups from and to a disk that fails and forgets.

use std::collections::BTreeMap;
use std::io::ErrorKind as Io;
use std::path::Path;

use windlass_core::{ErrorKind, Store};

use super::disk::{Fault, Plan, Refusal, TestDisk, Unsynced, power_failure};
use super::workload::{Dump, Step, Workload, create, open, run};
use crate::FileStore;
use crate::backup::copy_files;
use crate::disk::Disk;
use crate::folder::{HEAD, journal_name};

fn back_up(store: &FileStore, to: &TestDisk) -> windlass_core::Result<()> {
    copy_files(store.shared(), to, Path::new("backup"))
}

/// A backup is taken after each step of a workload, by a store that only follows. It has the committed records and nothing
/// else, and survives a power failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_has_everything_committed_and_is_synced() {
    let workload = Workload::random(4, 40);
    let disk = TestDisk::new();
    let (writer, other) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
    for (step, state) in workload.steps.iter().zip(&workload.states[1..]) {
        run(&writer, step).await.unwrap();
        let to = TestDisk::new();
        back_up(&other, &to).unwrap();
        let files = power_failure(&to.log(), Unsynced::Dropped);
        assert_eq!(files, to.files(), "everything is synced");
        let names: Vec<_> = files.keys().map(String::as_str).collect();
        assert!(names.iter().all(|name| *name == HEAD || name.contains("-0")), "{names:?}");
        let last = names.iter().rfind(|name| name.starts_with("journal-")).unwrap();
        let end = writer.shared().state().unwrap().position.offset;
        assert_eq!(files[*last].len() as u64, end, "without the reserved room");
        assert_eq!(Dump::of_store(&open(&TestDisk::with_files(files.clone())).unwrap()), *state, "{step:?}");
        check_truncated(&files, last);
    }
}

/// A backup that was truncated later is no shorter store, but an error.
fn check_truncated(files: &BTreeMap<String, Vec<u8>>, journal: &str) {
    let mut files = files.clone();
    files.get_mut(journal).unwrap().pop();
    let error = open(&TestDisk::with_files(files)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// What a process was writing when it was killed is not committed, and not in the backup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_not_committed_is_left_out() {
    for fault in [Fault::Killed, Fault::KilledWithin] {
        for at in 1..4 {
            let disk = TestDisk::new();
            let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
            disk.plan(Some(Plan { process: 1, from: at, to: at + 1, fault }));
            run(&one, &Step::Command(create())).await.unwrap_err();
            let to = TestDisk::new();
            back_up(&two, &to).unwrap();
            assert_eq!(Dump::of_store(&open(&to).unwrap()).jobs(), 0, "{fault:?} at {at}");
        }
    }
}

/// A compaction of another process removes a file after the files were listed.
#[tokio::test]
async fn a_backup_starts_again_if_a_compaction_removes_a_file() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    let missing = |times| Some(Refusal { process: 0, name: journal_name(1), error: Io::NotFound, times });
    disk.refuse(missing(3));
    let to = TestDisk::new();
    back_up(&store, &to).unwrap();
    assert_eq!(Dump::of_store(&open(&to).unwrap()), Dump::of_store(&store));
    disk.refuse(missing(usize::MAX));
    let error = back_up(&store, &TestDisk::new()).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
}

/// Without `head`, a process does not know what others have committed, so it makes no backup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_needs_the_end_of_the_journal() {
    let disk = TestDisk::new();
    let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
    run(&one, &Step::Command(create())).await.unwrap();
    disk.process(2).set_unreadable(Some(HEAD));
    for _ in 0..2 {
        let error = back_up(&two, &TestDisk::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("head` is invalid"), "{error}");
        one.compact().await.unwrap();
    }
    disk.process(2).set_unreadable(None);
    let to = TestDisk::new();
    back_up(&two, &to).unwrap();
    assert_eq!(Dump::of_store(&open(&to).unwrap()), Dump::of_store(&one));
}

/// A damaged store is not copied, and each operation on the destination may fail.
#[tokio::test]
async fn errors_name_the_side_that_failed() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    for at in 0.. {
        let to = TestDisk::new();
        to.plan(Some(Plan { process: 0, from: at, to: at + 1, fault: Fault::Fails(Io::StorageFull) }));
        let Err(error) = back_up(&store, &to) else {
            assert!(at > 6, "only {at} operations");
            break;
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("cannot write the backup `backup`"), "{error}");
    }
    Disk::open(&disk, &journal_name(1)).unwrap().write_at(b"damage", 100).unwrap();
    let error = back_up(&store, &TestDisk::new()).unwrap_err();
    assert!(error.to_string().contains("journal-0000000001` is damaged at offset 64"), "{error}");
    store.close().await.unwrap();
}
