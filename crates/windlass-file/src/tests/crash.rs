//! A recorded run is cut at every operation on the disk, as by a power failure.

use super::disk::{Op, TestDisk, Unsynced, power_failure};
use super::workload::{Dump, NO_ROOM, Step, Workload, create, open, open_with_room_from, run};

const MIXED: u64 = 6;

/// From which size on a journal has reserved room: always, after some records, never.
const ROOM_FROM: [u64; 3] = [0, 2_000, NO_ROOM];

/// Whatever was not synced is lost, kept or torn: everything acknowledged is there, and nothing is half applied.
#[tokio::test]
async fn everything_acknowledged_survives_a_power_failure_at_any_point() {
    for room_from in ROOM_FROM {
        let (workload, log) = record(7, 60, room_from).await;
        let mut checked = 0;
        for cut in 0..=log.len() {
            let modes = [Unsynced::Kept, Unsynced::Dropped];
            let mixed = (0..MIXED).map(|seed| Unsynced::Mixed(seed + 31 * cut as u64));
            for unsynced in modes.into_iter().chain(mixed) {
                check(&workload, &log[..cut], unsynced);
                checked += 1;
            }
        }
        println!("{checked} power failures in {} operations, room from {room_from}", log.len());
        assert!(log.iter().any(|op| matches!(op, Op::Rename(..))), "the run has compactions");
    }
}

/// After a power failure, the store is used, and the power fails again at any point.
#[tokio::test]
async fn a_second_power_failure_loses_nothing_either() {
    let mut checked = 0;
    for room_from in ROOM_FROM {
        let (_, log) = record(8, 30, room_from).await;
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
async fn record(seed: u64, steps: usize, room_from: u64) -> (Workload, Vec<Op>) {
    let workload = Workload::random(seed, steps);
    let disk = TestDisk::new();
    let store = open_with_room_from(&disk, room_from).unwrap();
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

fn check(workload: &Workload, log: &[Op], unsynced: Unsynced) {
    let disk = TestDisk::with_files(power_failure(log, unsynced));
    let store = open(&disk).unwrap_or_else(|error| {
        panic!("after {} operations, {unsynced:?}, {:?}: {error}", log.len(), disk.files().keys())
    });
    let dump = Dump::of_store(&store);
    // The step that was under way was applied or not.
    let steps = acknowledged(log);
    let possible = &workload.states[steps..workload.states.len().min(steps + 2)];
    assert!(
        possible.contains(&dump),
        "after {} operations and {steps} acknowledged steps, {unsynced:?}: {} jobs instead of {}",
        log.len(),
        dump.jobs(),
        possible[0].jobs()
    );
}
