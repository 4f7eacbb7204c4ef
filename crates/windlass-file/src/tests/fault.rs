//! Operations on the disk that fail while the store goes on.

use std::io::ErrorKind as Io;
use std::sync::Arc;

use windlass_core::command::{Command, Create, NewChain, NewJob};
use windlass_core::{ChainId, ErrorKind, Payload, Store};

use crate::disk::Disk;
use crate::folder::journal_name;

use super::disk::{Fault, Plan, TestDisk, Unsynced, power_failure};
use super::workload::{Dump, NO_ROOM, Step, Workload, create, open, open_with_room_from, run, type_name};

const STEPS: usize = 25;

/// From which size on a journal has reserved room: always, after some records, never.
const ROOM_FROM: [u64; 3] = [0, 500, NO_ROOM];

/// Runs a workload while the operations of a plan fail. Returns the state that its acknowledged steps lead to.
///
/// A step that failed was not applied, so later steps may differ from those of the workload: only creations are compared.
async fn run_with(plan: Plan, room_from: u64) -> (TestDisk, usize, usize) {
    let disk = TestDisk::new();
    let store = open_with_room_from(&disk, room_from).unwrap();
    disk.plan(Some(plan));
    let (mut acknowledged, mut failed) = (0, 0);
    for number in 0..STEPS {
        let step = if number == STEPS / 2 { Step::Compact } else { Step::Command(create()) };
        match run(&store, &step).await {
            Ok(()) => acknowledged += usize::from(matches!(step, Step::Command(_))),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                failed += 1;
            }
        }
        assert_eq!(Dump::of_store(&store).jobs(), acknowledged, "a failed command changed nothing: {plan:?}");
    }
    disk.plan(None);
    run(&store, &Step::Command(create())).await.unwrap();
    acknowledged += 1;
    let dump = Dump::of_store(&store);
    assert_eq!(dump.jobs(), acknowledged);
    store.close().await.unwrap();
    let again = open(&TestDisk::with_files(disk.files())).unwrap();
    assert_eq!(Dump::of_store(&again), dump, "{plan:?}");
    (disk, acknowledged, failed)
}

/// After a failed sync, data may be lost although later syncs succeed.
#[tokio::test]
async fn one_failed_operation_loses_nothing_acknowledged() {
    for room_from in ROOM_FROM {
        let mut failed = 0;
        for at in 0.. {
            let plan = Plan { process: 0, from: at, to: at + 1, fault: Fault::Fails(Io::Other) };
            let (disk, acknowledged, failures) = run_with(plan, room_from).await;
            failed += failures;
            for unsynced in
                [Unsynced::Kept, Unsynced::Dropped, Unsynced::Mixed(at as u64), Unsynced::Mixed(9)]
            {
                let store = open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
                assert_eq!(Dump::of_store(&store).jobs(), acknowledged, "operation {at}, {unsynced:?}");
            }
            if failures == 0 && at > 4 * STEPS {
                break;
            }
        }
        assert!(failed > STEPS, "{failed} commands failed");
    }
}

/// As above, with several failed operations in a row: the repair fails too.
#[tokio::test]
async fn several_failed_operations_lose_nothing_acknowledged() {
    for room_from in ROOM_FROM {
        for at in (0..4 * STEPS).step_by(3) {
            for length in [2, 3, 5, 9] {
                let plan = Plan { process: 0, from: at, to: at + length, fault: Fault::Fails(Io::Other) };
                let (disk, acknowledged, _) = run_with(plan, room_from).await;
                for unsynced in [Unsynced::Kept, Unsynced::Dropped, Unsynced::Mixed(at as u64)] {
                    let store = open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
                    assert_eq!(Dump::of_store(&store).jobs(), acknowledged, "operation {at}, {unsynced:?}");
                }
            }
        }
    }
}

/// A file system or volume that allocates space late accepts the zeros of the room, and then the sync fails. The records
/// that follow are written without room, as long as there is space for them.
#[tokio::test]
async fn room_that_does_not_fit_fails_at_most_one_record() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    let size: usize = disk.files().values().map(Vec::len).sum();
    disk.limit_syncs(Some(size + 3_000));
    let mut results = Vec::new();
    for _ in 0..50 {
        results.push(run(&store, &Step::Command(create())).await.map_err(|error| error.kind()));
    }
    let written = results.iter().filter(|result| result.is_ok()).count();
    assert!(written > 10, "{results:?}");
    assert_eq!(results[0], Err(ErrorKind::Unavailable), "the first record shares the sync of the room");
    assert!(results[1..=written].iter().all(Result::is_ok), "{results:?}");
    assert!(results[written + 1..].iter().all(Result::is_err), "the disk is full: {results:?}");
    assert_eq!(Dump::of_store(&store).jobs(), written);
    // There is space again. After some records, room is reserved again.
    disk.limit_syncs(None);
    for _ in 0..40 {
        run(&store, &Step::Command(create())).await.unwrap();
    }
    assert_eq!(disk.files()[&journal_name(1)].len() % 4_096, 0, "it ends with room");
    for unsynced in [Unsynced::Kept, Unsynced::Dropped, Unsynced::Mixed(5)] {
        let again = open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
        assert_eq!(Dump::of_store(&again), Dump::of_store(&store), "{unsynced:?}");
    }
    assert_eq!(Dump::of_store(&store).jobs(), written + 40);
}

/// The disk stays as full as that: there is always space for a record, and never for room. Fewer and fewer records fail.
#[tokio::test]
async fn room_that_never_fits_fails_few_records() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    let large = || -> Command {
        let input = Payload::json(format!("\"{}\"", "x".repeat(20_000))).unwrap();
        Create { chains: vec![NewChain::new(ChainId::new(), NewJob::new(type_name("t"), input))] }.into()
    };
    let mut failures = Vec::new();
    for number in 0..400 {
        // Without the room that is left after an attempt to repair the journal.
        let size: usize = disk.files().values().map(Vec::len).sum();
        disk.limit_syncs(Some(size + 22_000));
        if run(&store, &Step::Command(large())).await.is_err() {
            failures.push(number);
        }
    }
    assert!((2..=8).contains(&failures.len()), "{failures:?}");
    assert_eq!(Dump::of_store(&store).jobs(), 400 - failures.len());
    disk.limit_syncs(None);
    for _ in 0..400 {
        run(&store, &Step::Command(create())).await.unwrap();
    }
}

#[tokio::test]
async fn a_full_disk_fails_commands_until_there_is_room() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    disk.limit(Some(8_000));
    let mut acknowledged = 0;
    let error = loop {
        match run(&store, &Step::Command(create())).await {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("free some space"), "{error}");
    assert!(acknowledged > 10, "{acknowledged}");
    assert_eq!(Dump::of_store(&store).jobs(), acknowledged);
    assert!(run(&store, &Step::Command(create())).await.is_err(), "the disk is still full");
    assert!(store.compact().await.is_err(), "there is no room for a snapshot");
    assert!(disk.files().keys().all(|name| !name.starts_with("snapshot")), "the incomplete one is removed");
    disk.limit(None);
    run(&store, &Step::Command(create())).await.unwrap();
    store.compact().await.unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    drop(store);
    let again = open(&TestDisk::with_files(disk.files())).unwrap();
    assert_eq!(Dump::of_store(&again).jobs(), acknowledged + 2);
}

/// The folder becomes read-only while the store is open. Commands fail, and queries go on.
#[tokio::test]
async fn a_folder_that_becomes_read_only_changes_nothing() {
    use windlass_core::command::{Count, Types};
    for kind in [Io::ReadOnlyFilesystem, Io::PermissionDenied] {
        for room_from in ROOM_FROM {
            let disk = TestDisk::new();
            let store = open_with_room_from(&disk, room_from).unwrap();
            for _ in 0..5 {
                run(&store, &Step::Command(create())).await.unwrap();
            }
            let dump = Dump::of_store(&store);
            disk.plan(Some(Plan { process: 0, from: 0, to: usize::MAX, fault: Fault::Fails(kind) }));
            for step in [Step::Command(create()), Step::Together(vec![create()]), Step::Compact, Step::Erase]
            {
                for _ in 0..2 {
                    let error = run(&store, &step).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{step:?}: {error}");
                }
            }
            assert_eq!(store.count(Count { types: Types::All }).await.unwrap().types[0].pending, 5);
            assert_eq!(Dump::of_store(&store), dump);
            disk.plan(None);
            run(&store, &Step::Command(create())).await.unwrap();
            let again = open(&TestDisk::with_files(power_failure(&disk.log(), Unsynced::Dropped))).unwrap();
            assert_eq!(Dump::of_store(&again), Dump::of_store(&store));
            assert_eq!(Dump::of_store(&store).jobs(), 6);
        }
    }
}

fn on(disk: &TestDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

/// Leases could not be renewed while the disk was full. Afterwards, their owners get time to renew them.
#[tokio::test]
async fn no_job_is_reaped_right_after_the_disk_was_full() {
    use windlass_core::command::{Reap, Types};
    use windlass_core::{Clock, Millis};
    let (disk, clock) = (TestDisk::new(), super::workload::clock());
    let options = super::workload::options_with_room_from(NO_ROOM).clock(clock.clone());
    let store = crate::FileStore::open_on(&on(&disk), options).unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    run(&store, &Step::Command(super::workload::acquire(1))).await.unwrap();
    disk.limit(Some(0));
    run(&store, &Step::Command(create())).await.unwrap_err();
    clock.advance(Millis::from_secs(300));
    run(&store, &Step::Command(create())).await.unwrap_err();
    disk.limit(None);
    let interval = Millis::from_secs(20);
    let reap = || Reap { types: Types::All, max: 10, except: Vec::new(), renewal_interval: interval };
    run(&store, &Step::Command(create())).await.unwrap();
    assert_eq!(store.reap(reap()).await.unwrap().reaped, []);
    clock.advance(interval);
    assert!(Clock::now(&*clock) > Clock::now(&*super::workload::clock()));
    assert_eq!(store.reap(reap()).await.unwrap().reaped.len(), 1);
}

#[tokio::test]
async fn errors_of_the_folder_name_their_cure() {
    let check = |disk: &TestDisk, kind: ErrorKind, part: &str| {
        let error = open(disk).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    let disk = TestDisk::new();
    disk.set_file_system("nfs4");
    check(&disk, ErrorKind::Incompatible, "(nfs4)");
    let allowed = super::workload::options().allow_network_file_system(true);
    let store = crate::FileStore::open_on(&on(&disk), allowed).unwrap();
    let findings = store.health().await.unwrap();
    assert!(findings.iter().any(|finding| finding.problem.contains("nfs4")), "{findings:?}");

    for (kind, expected, part) in [
        (Io::PermissionDenied, ErrorKind::AccessDenied, "grant this user permission"),
        (Io::ReadOnlyFilesystem, ErrorKind::AccessDenied, "mount the file system for writing"),
        (Io::StorageFull, ErrorKind::Unavailable, "free some space"),
    ] {
        let disk = TestDisk::new();
        disk.plan(Some(Plan { process: 0, from: 0, to: 1, fault: Fault::Fails(kind) }));
        check(&disk, expected, part);
        // The cause is gone, and what was left behind does no harm.
        disk.plan(None);
        open(&disk).unwrap();
    }
}

/// The replies of a random workload do not depend on how often the store is opened.
#[tokio::test]
async fn a_store_that_is_opened_again_after_each_step_has_the_same_state() {
    let workload = Workload::random(21, 60);
    let disk = TestDisk::new();
    for (step, state) in workload.steps.iter().zip(&workload.states[1..]) {
        let store = open(&disk).unwrap();
        run(&store, step).await.unwrap();
        assert_eq!(Dump::of_store(&store), *state, "{step:?}");
        store.close().await.unwrap();
    }
}
