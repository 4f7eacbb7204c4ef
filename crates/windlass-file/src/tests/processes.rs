//! Two processes on one disk, one of which is killed.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use windlass_core::command::{Created, Reply};
use windlass_core::{ChainId, Hint, Signal, Store, Topic, WorkerId};

use super::disk::{Fault, Plan, TestDisk, Unsynced, power_failure};
use super::workload::{Dump, NO_ROOM, Step, create, open, open_with_room_from, run, type_name};
use crate::folder::journal_name;

const STEPS: usize = 8;

/// How long the other process may take to continue.
const PATIENCE: Duration = Duration::from_secs(1);

/// From which size on a journal has reserved room: always, after some records, never.
const ROOM_FROM: [u64; 3] = [0, 500, NO_ROOM];

/// A process is killed at each of its operations, before it or in the middle of a write. The other one continues at once,
/// and nothing that was acknowledged is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_process_continues_when_the_lock_holder_is_killed() {
    for room_from in ROOM_FROM {
        let mut kills = 0;
        for fault in [Fault::Killed, Fault::KilledWithin] {
            for at in 0.. {
                if !continues_after_kill(room_from, fault, at).await {
                    break;
                }
                kills += 1;
            }
        }
        println!("{kills} kills, room from {room_from}");
        assert!(kills > 4 * STEPS, "{kills}");
    }
}

/// Returns `false` if the process did not come to this operation.
async fn continues_after_kill(room_from: u64, fault: Fault, at: usize) -> bool {
    let disk = TestDisk::new();
    let open = |process| open_with_room_from(&disk.process(process), room_from).unwrap();
    let (one, two) = (open(1), open(2));
    disk.plan(Some(Plan { process: 1, from: at, to: at + 1, fault }));
    let mut acknowledged = 0;
    for number in 0..STEPS {
        let step = if number == STEPS / 2 { Step::Compact } else { Step::Command(create()) };
        let is_creation = usize::from(matches!(step, Step::Command(_)));
        acknowledged += run(&one, &step).await.map_or(0, |()| is_creation);
    }
    if !disk.process(1).is_dead() {
        return false;
    }
    let began_at = Instant::now();
    run(&two, &Step::Command(create())).await.unwrap();
    assert!(began_at.elapsed() < PATIENCE, "{:?} after {fault:?} at {at}", began_at.elapsed());
    acknowledged += 1;
    let dump = Dump::of_store(&two);
    // The batch that was being written was applied or not.
    assert!([acknowledged, acknowledged + 1].contains(&dump.jobs()), "{fault:?} at {at}: {}", dump.jobs());
    two.compact().await.unwrap();
    two.close().await.unwrap();
    for unsynced in [Unsynced::Dropped, Unsynced::Mixed(at as u64)] {
        let again =
            super::workload::open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
        assert_eq!(Dump::of_store(&again), dump, "{fault:?} at {at}, {unsynced:?}");
    }
    true
}

/// A process whose sync failed cannot repair its journal. Another process finds the batch and adopts it, with a sync that
/// covers it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_sync_failed_is_not_taken_over_unsynced() {
    for length in [1, 2, 3] {
        let disk = TestDisk::new();
        let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
        run(&one, &Step::Command(create())).await.unwrap();
        // The operations of a batch in reserved room are: the holder, the record, its sync; then the repair.
        let fault = Fault::Fails(std::io::ErrorKind::Other);
        disk.plan(Some(Plan { process: 1, from: 2, to: 2 + length, fault }));
        run(&one, &Step::Command(create())).await.unwrap_err();
        disk.plan(None);
        run(&two, &Step::Command(create())).await.unwrap();
        let dump = Dump::of_store(&two);
        for unsynced in [Unsynced::Kept, Unsynced::Dropped, Unsynced::Mixed(length as u64)] {
            let again = open(&TestDisk::with_files(power_failure(&disk.log(), unsynced))).unwrap();
            assert_eq!(Dump::of_store(&again), dump, "{unsynced:?} after {length} failures");
        }
        run(&one, &Step::Command(create())).await.unwrap();
        assert_eq!(Dump::of_store(&one), Dump::of_store(&two));
    }
}

/// A process is killed after it has written a batch, before it reserves room or before the sync. The other one finds the batch and replies on the
/// strength of it, without its own write. So it must have synced the batch before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_never_depends_on_a_batch_that_is_not_synced() {
    // The operations of the first batch are: the holder, the record, the room, their sync.
    for (at, opens_late) in [(2, false), (2, true), (3, false), (3, true)] {
        let disk = TestDisk::new();
        let one = open(&disk.process(1)).unwrap();
        let early = (!opens_late).then(|| open(&disk.process(2)).unwrap());
        let create = create();
        disk.plan(Some(Plan { process: 1, from: at, to: at + 1, fault: Fault::Killed }));
        run(&one, &Step::Command(create.clone())).await.unwrap_err();
        let has_room = disk.files()[&journal_name(1)].len() == 4_096;
        assert!(disk.process(1).is_dead() && has_room == (at == 3), "operation {at}");
        let two = early.unwrap_or_else(|| open(&disk.process(2)).unwrap());
        let store: &dyn Store = &two;
        let Reply::Create(reply) = store.execute(create).await.unwrap() else { panic!("a creation") };
        assert!(matches!(reply.chains[0], Created::New { repeated: true, .. }), "{reply:?}");
        let again = open(&TestDisk::with_files(power_failure(&disk.log(), Unsynced::Dropped))).unwrap();
        assert_eq!(Dump::of_store(&again).jobs(), 1);
    }
}

/// A process that was stopped while it was next in the queue does not keep the others waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_stopped_before_its_turn_stops_nobody() {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    let turn = crate::disk::Disk::open(&disk.process(2), crate::folder::TURN).unwrap();
    assert!(turn.try_lock().unwrap());
    let began_at = Instant::now();
    run(&store, &Step::Command(create())).await.unwrap();
    assert!(began_at.elapsed() < 5 * PATIENCE, "{:?}", began_at.elapsed());
}

/// A process that was idle during two compactions finds neither its journal nor the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_far_behind_loads_the_snapshot() {
    let disk = TestDisk::new();
    let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
    for _ in 0..3 {
        run(&one, &Step::Command(create())).await.unwrap();
        one.compact().await.unwrap();
    }
    run(&one, &Step::Command(create())).await.unwrap();
    assert_eq!(Dump::of_store(&two), Dump::of_store(&one));
    run(&two, &Step::Command(create())).await.unwrap();
    assert_eq!(Dump::of_store(&one).jobs(), 5);
}

/// The files of this disk are not real, so the system cannot report changes of them. The notifier polls instead. A process
/// that is far behind notifies everybody who waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::await_holding_lock, reason = "the other store is to be kept waiting")]
async fn changes_are_noticed_without_reports_of_the_system() {
    let disk = TestDisk::new();
    let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
    let (notifier, chain) = (two.notifier(), ChainId::new());
    let topics = vec![Topic::Scheduled(type_name("t")), Topic::ChainClosed(chain)];
    let mut subscription = notifier.subscribe(topics).await.unwrap();
    let mut hint = async || match timeout(Duration::from_secs(60), subscription.next()).await.unwrap() {
        Some(Signal::Hint(hint)) => hint,
        other => panic!("no hint: {other:?}"),
    };
    run(&one, &Step::Command(create())).await.unwrap();
    assert!(matches!(hint().await, Hint::Scheduled { count: 1, .. }));
    // Keep the other store from following, so that it misses two generations.
    let state = two.shared().state().unwrap();
    for _ in 0..2 {
        one.compact().await.unwrap();
        run(&one, &Step::Command(super::workload::acquire(1))).await.unwrap();
    }
    drop(state);
    let signal = timeout(Duration::from_secs(60), subscription.next()).await.unwrap();
    assert!(matches!(signal, Some(Signal::Gap { .. })), "anything may have happened: {signal:?}");
}

/// A process that is far behind, or whose jobs were all erased by another one, does not know what has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::await_holding_lock, reason = "the other store is to be kept waiting")]
async fn a_gap_wakes_the_subscribers_of_every_topic() {
    let disk = TestDisk::new();
    let (one, two) = (open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap());
    let topics = [
        Topic::Scheduled(type_name("t")),
        Topic::ChainClosed(ChainId::new()),
        Topic::OwnershipLost(WorkerId::new()),
        Topic::Schedules,
    ];
    let mut subscriptions = Vec::new();
    for topic in topics {
        subscriptions.push((topic.clone(), two.notifier().subscribe(vec![topic]).await.unwrap()));
    }
    for is_erased in [false, true] {
        if is_erased {
            one.erase().await.unwrap();
        } else {
            // Keep the other store from following, so that it misses two generations.
            let state = two.shared().state().unwrap();
            for _ in 0..2 {
                run(&one, &Step::Command(super::workload::acquire(1))).await.unwrap();
                run(&one, &Step::Command(create())).await.unwrap();
                one.compact().await.unwrap();
            }
            drop(state);
        }
        for (topic, subscription) in &mut subscriptions {
            let gap = async {
                while !matches!(subscription.next().await.expect("it is open"), Signal::Gap { .. }) {}
            };
            let woken = timeout(Duration::from_secs(10), gap).await;
            woken.unwrap_or_else(|_| panic!("{topic:?} was not woken, erased: {is_erased}"));
        }
    }
}
