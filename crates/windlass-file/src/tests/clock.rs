//! Clocks that were wrong.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::command::{DueTime, Reap, Types};
use windlass_core::{Clock, ManualClock, Millis, Store};
use windlass_testkit::logs::Warnings;

use super::disk::TestDisk;
use super::workload::{NO_ROOM, Step, acquire, create, new_chain, options_with_room_from, run};
use crate::FileStore;
use crate::disk::Disk;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn open(disk: &TestDisk, clock: &Arc<ManualClock>) -> FileStore {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    FileStore::open_on(&disk, options_with_room_from(NO_ROOM).clock(clock.clone())).unwrap()
}

fn reap() -> Reap {
    Reap { types: Types::All, max: 10, except: Vec::new(), renewal_interval: Millis::from_secs(20) }
}

/// Writes once while the clock is 30 years ahead.
async fn write_in_the_future(store: &FileStore, clock: &ManualClock) {
    let right = clock.now();
    clock.advance(10_950 * DAY);
    run(store, &Step::Command(create())).await.unwrap();
    clock.set(right);
}

/// The time continues from the wrong one at nearly the right pace: leases end, delayed jobs become due.
#[tokio::test]
async fn a_clock_that_was_wrong_for_a_moment_does_not_stop_the_time() {
    let (disk, clock) = (TestDisk::new(), super::workload::clock());
    let (store, other) = (open(&disk, &clock), open(&disk.process(1), &clock));
    write_in_the_future(&store, &clock).await;
    assert_eq!(store.acquire(acquire_request(1)).await.unwrap().jobs.len(), 1);
    let mut later = new_chain();
    later.job.schedule = DueTime::After(Millis::from_secs(30));
    store.create(windlass_core::command::Create { chains: vec![later] }).await.unwrap();
    assert_eq!(other.acquire(acquire_request(1)).await.unwrap().jobs, [], "it is not due yet");
    clock.advance(Millis::from_secs(33));
    assert_eq!(other.acquire(acquire_request(1)).await.unwrap().jobs.len(), 1, "it is due");
    clock.advance(Millis::from_secs(32));
    assert_eq!(store.reap(reap()).await.unwrap().reaped.len(), 1, "the first lease has expired");
    // A store that is opened later continues too.
    let third = open(&disk.process(2), &clock);
    clock.advance(Millis::from_secs(65));
    assert_eq!(third.reap(reap()).await.unwrap().reaped.len(), 1, "the second lease has expired");
}

fn acquire_request(max: u32) -> windlass_core::command::Acquire {
    match acquire(max) {
        windlass_core::command::Command::Acquire(acquire) => acquire,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn opening_warns_about_a_time_that_is_ahead() {
    let (disk, clock) = (TestDisk::new(), super::workload::clock());
    write_in_the_future(&open(&disk, &clock), &clock).await;
    let warnings = Warnings::capture("windlass_file");
    let store = open(&disk.process(1), &clock);
    let count = || warnings.lines().iter().filter(|line| line.contains("ahead of this machine")).count();
    assert_eq!(count(), 1);
    store.shared().store_time(&mut store.shared().state().unwrap());
    assert_eq!(count(), 1, "once");
}

#[tokio::test]
async fn health_reports_a_time_that_is_ahead_until_the_store_is_erased() {
    let (disk, clock) = (TestDisk::new(), super::workload::clock());
    let store = open(&disk, &clock);
    write_in_the_future(&store, &clock).await;
    store.compact().await.unwrap();
    let other = open(&disk.process(1), &clock);
    for store in [&store, &other] {
        let findings = store.health().await.unwrap();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].problem.contains("ahead of this machine's clock"), "{findings:?}");
        assert!(findings[0].remedy.contains("use a new folder"), "{findings:?}");
    }
    store.erase().await.unwrap();
    run(&store, &Step::Command(create())).await.unwrap();
    for _ in 0..2 {
        for store in [&store, &other, &open(&disk.process(2), &clock)] {
            assert_eq!(store.health().await.unwrap(), []);
        }
        other.compact().await.unwrap();
    }
    let job = store.acquire(acquire_request(1)).await.unwrap().jobs.remove(0).job;
    assert_eq!(job.created_at, clock.now());
}

/// Stalls are measured with the clock, so they also protect leases while the store's time is ahead.
#[tokio::test]
async fn no_job_is_reaped_after_a_stall_while_the_time_is_ahead() {
    let (disk, clock) = (TestDisk::new(), super::workload::clock());
    let store = open(&disk, &clock);
    write_in_the_future(&store, &clock).await;
    assert_eq!(store.acquire(acquire_request(1)).await.unwrap().jobs.len(), 1);
    disk.limit(Some(0));
    run(&store, &Step::Command(create())).await.unwrap_err();
    clock.advance(Millis::from_secs(300));
    run(&store, &Step::Command(create())).await.unwrap_err();
    disk.limit(None);
    run(&store, &Step::Command(create())).await.unwrap();
    assert_eq!(store.reap(reap()).await.unwrap().reaped, []);
    clock.advance(Millis::from_secs(20));
    assert_eq!(store.reap(reap()).await.unwrap().reaped.len(), 1);
}
