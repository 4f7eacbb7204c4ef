//! A recorded run is cut at every operation on the disk, as by a power failure.

use std::ops::Range;
use std::sync::{Arc, mpsc};

use windlass_testkit::is_full_run;

use super::compaction::rotate;
use super::disk::{Op, TestDisk, Unsynced, power_failure};
use super::workload::{Dump, NO_ROOM, Step, Workload, create, open, open_with_room_from, run};
use crate::folder::snapshot_name;

const MIXED: u64 = 6;

/// From which size on a journal has reserved room: always, after some records, never.
const ROOM_FROM: [u64; 3] = [0, 2_000, NO_ROOM];

/// Whatever was not synced is lost, kept or torn: everything acknowledged is there, and nothing is half applied.
#[tokio::test]
async fn everything_acknowledged_survives_a_power_failure_at_any_point() {
    for (seed, room_from) in seeds(7) {
        let (workload, log) = record(&TestDisk::new(), seed, 60, room_from).await;
        let checked = check_all(&workload, &log);
        println!("{checked} power failures in {} operations, room from {room_from}", log.len());
        assert!(log.iter().any(|op| matches!(op, Op::Rename(..))), "the run has compactions");
    }
}

/// Returns workloads, each with the size from which its journals have reserved room. A full run has more of them.
fn seeds(first: u64) -> impl Iterator<Item = (u64, u64)> {
    let count = if is_full_run() { 8 } else { 1 };
    (first..first + count).flat_map(|seed| ROOM_FROM.map(|room_from| (seed, room_from)))
}

/// Cuts the run at every operation, in every mode. Returns the number of checks.
fn check_all(workload: &Workload, log: &[Op]) -> usize {
    let mut checked = 0;
    for cut in 0..=log.len() {
        let modes = [Unsynced::Kept, Unsynced::Dropped];
        let mixed = (0..MIXED).map(|seed| Unsynced::Mixed(seed + 31 * cut as u64));
        for unsynced in modes.into_iter().chain(mixed) {
            check(workload, &log[..cut], unsynced).unwrap_or_else(|loss| panic!("{loss}"));
            checked += 1;
        }
    }
    checked
}

/// As above, but others write before each group of rows of a snapshot, and the power fails at any point of that.
#[tokio::test]
async fn everything_acknowledged_survives_a_power_failure_during_a_snapshot() {
    for (seed, room_from) in seeds(20) {
        let (workload, log) = record_snapshot(&TestDisk::new(), seed, 60, room_from).await;
        let checked = check_all(&workload, &log);
        println!("{checked} power failures in {} operations, room from {room_from}", log.len());
    }
}

/// The check itself is checked: it notices a disk that reports a sync without doing it.
#[tokio::test]
async fn a_disk_that_loses_a_sync_is_noticed() {
    // A journal with reserved room is synced after the room was cut off, and again after the seal was written. The second
    // sync covers the first.
    for (room_from, harmless) in ROOM_FROM.into_iter().zip([1, 1, 0]) {
        let (opening, syncs) = {
            let disk = TestDisk::new();
            drop(open_with_room_from(&disk, room_from).unwrap());
            let opening = disk.syncs();
            let disk = TestDisk::new();
            record_snapshot(&disk, 22, 30, room_from).await;
            (opening, disk.syncs())
        };
        let mut missed = Vec::new();
        for lost in opening..syncs {
            let disk = TestDisk::new();
            disk.lose_sync(lost);
            let (workload, log) = record_snapshot(&disk, 22, 30, room_from).await;
            let cuts = disk.lost_at()..=log.len();
            let is_lost = |cut: usize| {
                let mixed = (0..MIXED).map(|seed| Unsynced::Mixed(seed + 31 * cut as u64));
                let mut modes = mixed.chain([Unsynced::Dropped]);
                modes.any(|unsynced| check(&workload, &log[..cut], unsynced).is_err())
            };
            if !cuts.into_iter().any(is_lost) {
                missed.push(lost);
            }
        }
        println!("{} syncs, without a loss: {missed:?}, room from {room_from}", syncs - opening);
        assert!(syncs - opening > 20 && missed.len() <= harmless, "{missed:?} of {opening}..{syncs}");
    }
}

/// Like [`record`], with one compaction, during which others write.
async fn record_snapshot(disk: &TestDisk, seed: u64, count: usize, room_from: u64) -> (Workload, Vec<Op>) {
    let workload = Workload::random(seed, count);
    let store = Arc::new(open_with_room_from(disk, room_from).unwrap());
    let steps = async |steps: Range<usize>| {
        for number in steps {
            // This function compacts the folder itself.
            let step = &workload.steps[number];
            if !matches!(step, Step::Compact) {
                run(&store, step).await.unwrap();
            }
            disk.acknowledge(number + 1);
        }
    };
    disk.acknowledge(0);
    steps(0..count / 4).await;
    let first = rotate(&store, 2);
    let (ready, waiting) = mpsc::channel();
    let (released, release) = mpsc::channel::<()>();
    let shared = Arc::clone(store.shared());
    let writing = std::thread::spawn(move || {
        shared.write_snapshot_in_groups(2, first, 3, || {
            ready.send(()).unwrap();
            let _ = release.recv();
        })
    });
    let (mut next, last) = (count / 4, count - 4);
    // The channel is closed when the snapshot is written.
    while waiting.recv().is_ok() {
        let from = next;
        next = (next + 2).min(last);
        steps(from..next).await;
        let _ = released.send(());
    }
    writing.join().unwrap().unwrap();
    assert!(next >= count / 4 + 6, "{} steps during the snapshot", next - count / 4);
    steps(next..next + 1).await;
    store.shared().folder.install(&snapshot_name(2)).unwrap();
    steps(next + 1..next + 2).await;
    store.shared().remove_before(2).unwrap();
    steps(next + 2..count).await;
    assert_eq!(Dump::of_store(&store), *workload.states.last().unwrap());
    windlass_core::Store::close(&*store).await.unwrap();
    (workload, disk.log())
}

/// After a power failure, the store is used, and the power fails again at any point.
#[tokio::test]
async fn a_second_power_failure_loses_nothing_either() {
    let mut checked = 0;
    for (seed, room_from) in seeds(8) {
        let (_, log) = record(&TestDisk::new(), seed, 30, room_from).await;
        for cut in (0..=log.len()).step_by(9) {
            let disk = TestDisk::with_files(power_failure(&log[..cut], Unsynced::Mixed(cut as u64)));
            let first = disk.log().len();
            let store = open_with_room_from(&disk, room_from).unwrap();
            let before = Dump::of_store(&store).jobs();
            for (steps, step) in
                [Step::Command(create()), Step::Compact, Step::Command(create())].iter().enumerate()
            {
                run(&store, step).await.unwrap();
                disk.acknowledge(steps + 1);
            }
            windlass_core::Store::close(&store).await.unwrap();
            let again = disk.log();
            for second in first..=again.len() {
                let created = [0, 1, 1, 2][acknowledged(&again[first..second])];
                for unsynced in [Unsynced::Dropped, Unsynced::Mixed(second as u64)] {
                    let files = power_failure(&again[..second], unsynced);
                    let jobs = Dump::of_store(&open(&TestDisk::with_files(files)).unwrap()).jobs();
                    let possible = before + created..=before + (created + 1).min(2);
                    assert!(
                        possible.contains(&jobs),
                        "{cut}, {second}, {unsynced:?}: {jobs}, not {possible:?}"
                    );
                    checked += 1;
                }
            }
        }
    }
    println!("{checked} second power failures");
}

/// Runs a workload and returns the recorded operations, with a note after each step that was acknowledged.
async fn record(disk: &TestDisk, seed: u64, steps: usize, room_from: u64) -> (Workload, Vec<Op>) {
    let workload = Workload::random(seed, steps);
    let store = open_with_room_from(disk, room_from).unwrap();
    disk.acknowledge(0);
    for (number, step) in (1..).zip(&workload.steps) {
        run(&store, step).await.unwrap();
        disk.acknowledge(number);
    }
    assert_eq!(Dump::of_store(&store), *workload.states.last().unwrap());
    windlass_core::Store::close(&store).await.unwrap();
    (workload, disk.log())
}

/// Returns how many steps were acknowledged.
fn acknowledged(log: &[Op]) -> usize {
    let steps = log.iter().rev().find_map(|op| match op {
        Op::Acknowledged(steps) => Some(*steps),
        _ => None,
    });
    steps.unwrap_or(0)
}

/// Checks that everything acknowledged is there, and that nothing is half applied.
fn check(workload: &Workload, log: &[Op], unsynced: Unsynced) -> Result<(), String> {
    let disk = TestDisk::with_files(power_failure(log, unsynced));
    let steps = acknowledged(log);
    let at = format!("after {} operations and {steps} acknowledged steps, {unsynced:?}", log.len());
    let store = open(&disk).map_err(|error| format!("{at}, {:?}: {error}", disk.files().keys()))?;
    let dump = Dump::of_store(&store);
    // The step that was under way was applied or not.
    let possible = &workload.states[steps..workload.states.len().min(steps + 2)];
    if possible.contains(&dump) {
        return Ok(());
    }
    Err(format!("{at}: {} jobs instead of {}", dump.jobs(), possible[0].jobs()))
}
