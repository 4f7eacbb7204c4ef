//! Backups from and to a disk that fails and forgets.

use std::collections::BTreeMap;
use std::io::ErrorKind as Io;
use std::path::Path;
use std::sync::Arc;

use windlass_core::{ErrorKind, Store, Timestamp};

use super::disk::{Fault, Plan, Refusal, TestDisk, Unsynced, power_failure};
use super::workload::{Dump, Step, Workload, create, open, run};
use crate::FileStore;
use crate::backup::{BackupStats, copy_files, create_private, install};
use crate::disk::{Disk, sync_parent};
use crate::folder::{HEAD, journal_name, snapshot_name};
use crate::record::Stamp;
use crate::snapshot::Writer;

fn back_up(store: &FileStore, to: &TestDisk) -> windlass_core::Result<BackupStats> {
    copy_files(store.shared(), &(Arc::new(to.clone()) as Arc<dyn Disk>), Path::new("backup"))
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

/// Opening a truncated backup fails.
fn check_truncated(files: &BTreeMap<String, Vec<u8>>, journal: &str) {
    let mut files = files.clone();
    files.get_mut(journal).unwrap().pop();
    let error = open(&TestDisk::with_files(files)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// A process was killed while it wrote a record. The backup contains the record if it is complete, as if the folder had
/// been opened, and nothing of it otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_contained_as_a_whole_or_not_at_all() {
    for fault in [Fault::Killed, Fault::KilledWithin] {
        for at in 1..4 {
            let disk = TestDisk::new();
            let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
            disk.plan(Some(Plan { process: 1, from: at, to: at + 1, fault }));
            run(&one, &Step::Command(create())).await.unwrap_err();
            let to = TestDisk::new();
            let stats = back_up(&two, &to).unwrap();
            assert_eq!(stats.jobs, usize::from(at > 1), "{fault:?} at {at}");
            let third = open(&disk.process(3)).unwrap();
            assert_eq!(Dump::of_store(&open(&to).unwrap()), Dump::of_store(&third), "{fault:?} at {at}");
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

/// A process that cannot write `head` goes on. What it writes is committed, although other processes do not see it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_contains_what_head_does_not_state() {
    for (compactions, creations) in [(0, 1), (1, 0), (1, 1), (3, 2)] {
        let disk = TestDisk::new();
        let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
        run(&one, &Step::Command(create())).await.unwrap();
        assert_eq!(Dump::of_store(&two).jobs(), 1, "it has followed");
        disk.process(1).set_unwritable(Some(HEAD));
        for _ in 0..compactions {
            one.compact().await.unwrap();
        }
        for _ in 0..creations {
            run(&one, &Step::Command(create())).await.unwrap();
        }
        let to = TestDisk::new();
        let stats = back_up(&two, &to).unwrap();
        assert_eq!(stats.jobs, 1 + creations, "{compactions} compactions");
        assert_eq!(Dump::of_store(&open(&to).unwrap()), Dump::of_store(&one), "{compactions} compactions");
        disk.process(1).set_unwritable(None);
        for store in [&two, &one] {
            run(store, &Step::Command(create())).await.unwrap();
        }
        assert_eq!(Dump::of_store(&two).jobs(), 3 + creations);
    }
}

/// Other processes write although the journal that they know was removed, and `head` does not state a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_finds_a_generation_that_head_does_not_state() {
    let disk = TestDisk::new();
    let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
    disk.process(1).set_unwritable(Some(HEAD));
    for _ in 0..2 {
        run(&one, &Step::Command(create())).await.unwrap();
        one.compact().await.unwrap();
    }
    run(&two, &Step::Command(create())).await.unwrap();
    assert_eq!(Dump::of_store(&two).jobs(), 3);
    assert_eq!(Dump::of_store(&one), Dump::of_store(&two));
}

/// `head` is torn: a process was killed while it wrote it, or could write only a part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_repairs_head() {
    let disk = TestDisk::new();
    let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
    run(&one, &Step::Command(create())).await.unwrap();
    Disk::open(&disk, HEAD).unwrap().write_at(b"torn", 30).unwrap();
    let to = TestDisk::new();
    assert_eq!(back_up(&two, &to).unwrap().jobs, 1);
    assert_eq!(Dump::of_store(&open(&to).unwrap()), Dump::of_store(&one));
}

/// A snapshot that ends after a valid record, but without the record that ends it.
#[tokio::test]
async fn a_snapshot_that_was_cut_off_is_not_copied() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    store.compact().await.unwrap();
    assert_eq!(store.health().await.unwrap(), []);
    let name = snapshot_name(2);
    let length = crate::frame::u32_at(&disk.files()[&name], 64 + 4);
    let first = 64 + 20 + u64::from(length);
    assert!(first < disk.files()[&name].len() as u64);
    Disk::open(&disk, &name).unwrap().set_size(first).unwrap();
    let error = back_up(&store, &TestDisk::new()).unwrap_err();
    let expected = format!("`disk/snapshot-0000000002` is damaged at offset {first}: its end is missing");
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(&expected), "{error}");
    let findings = store.health().await.unwrap();
    assert!(findings[0].problem.contains(&expected), "{findings:?}");
}

/// Every record is valid, but one of the files does not belong to the others.
#[tokio::test]
async fn a_copy_that_cannot_be_opened_is_an_error() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    // A snapshot of nothing, whose journal has other records.
    let folder = &store.shared().folder;
    let stamp = Stamp { time: Timestamp::default(), last_seq: 0 };
    Writer::create(folder, 1, 1).unwrap().finish(stamp, u64::MAX >> 2).unwrap();
    folder.install(&snapshot_name(1)).unwrap();
    let error = back_up(&store, &TestDisk::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(
        error.to_string().contains("the folder `disk` is damaged, so its backup cannot be opened"),
        "{error}"
    );
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
        assert!(error.to_string().contains("cannot read the file `head`"), "{error}");
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

/// An incomplete copy does not yet have the mode of the folder.
#[cfg(unix)]
#[test]
fn an_incomplete_copy_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("copy");
    create_private(&folder).unwrap();
    assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o7777, 0o700);
}

/// Something else creates the destination after it was checked. It is not replaced.
#[test]
fn a_destination_that_appears_meanwhile_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let [copy, file, folder] = ["copy", "file", "folder"].map(|name| directory.path().join(name));
    for folder in [&copy, &folder] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("content"), "text").unwrap();
    }
    std::fs::write(&file, "mine").unwrap();
    for destination in [&file, &folder] {
        let error = install(&copy, destination, sync_parent).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("exists: choose a name that does not exist"), "{error}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let new = directory.path().join("new");
    let error = install(&copy, &new, |_| Err(Io::Other.into())).unwrap_err();
    assert!(
        error.to_string().contains("new` is complete, but a power failure may still remove it"),
        "{error}"
    );
    assert!(new.join("content").exists());
}
