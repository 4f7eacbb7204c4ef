//! A recorded run is cut at every operation on the disk, as by a power failure.

use super::disk::{Op, TestDisk, Unsynced, power_failure};
use super::workload::{Dump, Step, Workload, open, run};

const MIXED: u64 = 6;

/// Whatever was not synced is lost, kept or torn: everything acknowledged is there, and nothing is half applied.
#[tokio::test]
async fn everything_acknowledged_survives_a_power_failure_at_any_point() {
    let (workload, log) = record(7, 60).await;
    let mut checked = 0;
    for cut in 0..=log.len() {
        let modes = [Unsynced::Kept, Unsynced::Dropped];
        let mixed = (0..MIXED).map(|seed| Unsynced::Mixed(seed + 31 * cut as u64));
        for unsynced in modes.into_iter().chain(mixed) {
            check(&workload, &log[..cut], unsynced);
            checked += 1;
        }
    }
    println!("{checked} power failures in {} operations", log.len());
    assert!(log.iter().any(|op| matches!(op, Op::Rename(..))), "the run has compactions");
}

/// After a power failure, the store is used and fails again.
#[tokio::test]
async fn a_second_power_failure_loses_nothing_either() {
    let (workload, log) = record(8, 30).await;
    for cut in (0..=log.len()).step_by(3) {
        let disk = TestDisk::with_files(power_failure(&log[..cut], Unsynced::Mixed(cut as u64)));
        let store = open(&disk).unwrap();
        let before = Dump::of_store(&store).jobs();
        // Files without a recorded history are on the disk from the beginning.
        let first = disk.files();
        run(&store, &Step::Command(super::workload::create())).await.unwrap();
        drop(store);
        let again = open(&TestDisk::with_files(disk.files())).unwrap();
        assert_eq!(Dump::of_store(&again).jobs(), before + 1, "cut {cut}, {} files", first.len());
    }
    assert!(workload.states.len() > 30);
}

/// Runs a workload and returns the recorded operations, with a note after each step that was acknowledged.
async fn record(seed: u64, steps: usize) -> (Workload, Vec<Op>) {
    let workload = Workload::random(seed, steps);
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    disk.acknowledge(0);
    for (number, step) in (1..).zip(&workload.steps) {
        run(&store, step).await.unwrap();
        disk.acknowledge(number);
    }
    assert_eq!(Dump::of_store(&store), *workload.states.last().unwrap());
    windlass_core::Store::close(&store).await.unwrap();
    (workload, disk.log())
}

fn check(workload: &Workload, log: &[Op], unsynced: Unsynced) {
    let acknowledged = log.iter().rev().find_map(|op| match op {
        Op::Acknowledged(steps) => Some(*steps),
        _ => None,
    });
    let disk = TestDisk::with_files(power_failure(log, unsynced));
    let store = open(&disk).unwrap_or_else(|error| {
        panic!("after {} operations, {unsynced:?}, {:?}: {error}", log.len(), disk.files().keys())
    });
    let dump = Dump::of_store(&store);
    // The step that was under way was applied or not.
    let steps = acknowledged.unwrap_or(0);
    let possible = &workload.states[steps..workload.states.len().min(steps + 2)];
    assert!(
        possible.contains(&dump),
        "after {} operations and {steps} acknowledged steps, {unsynced:?}: {} jobs instead of {}",
        log.len(),
        dump.jobs(),
        possible[0].jobs()
    );
}
