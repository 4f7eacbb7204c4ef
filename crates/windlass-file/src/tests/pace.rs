//! The writer waits for callers that it has just answered. In these tests, the disk counts as so slow that no wait ends by
//! itself in time.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use windlass_core::{Store, Transactional};

use super::disk::TestDisk;
use super::workload::{Step, acquire, create, options, run};
use crate::FileStore;

/// Much shorter than a wait.
const LIMIT: Duration = Duration::from_secs(60);

fn open_slow() -> FileStore {
    let mut options = options();
    options.pace_scale = u32::MAX;
    FileStore::open_on(&(Arc::new(TestDisk::new()) as _), options).unwrap()
}

/// Runs two steps in one batch: they queue while a transaction is open.
async fn run_together(store: &FileStore, step: &Step) {
    let tx = in_time(store.begin()).await.unwrap();
    let together = async { tokio::join!(run(store, step), run(store, step), store.rollback(tx)) };
    let (one, two, ended) = in_time(together).await;
    assert_eq!((one.is_ok(), two.is_ok(), ended.is_ok()), (true, true, true));
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(LIMIT, work).await.expect("the writer does not wait")
}

#[tokio::test]
async fn callers_that_return_share_each_commit() {
    let store = open_slow();
    run_together(&store, &Step::Command(create())).await;
    let before = store.counters().commits;
    let caller = async || {
        for _ in 0..20 {
            run(&store, &Step::Command(create())).await.unwrap();
        }
    };
    in_time(async { tokio::join!(caller(), caller()) }).await;
    assert_eq!(store.counters().commits - before, 20, "one for both callers");
}

/// A caller waits for another one that does not return. Work that cannot join their batch ends the wait.
#[tokio::test]
async fn other_work_ends_the_wait() {
    for work in ["begin", "compact", "erase", "close"] {
        let store = open_slow();
        run_together(&store, &Step::Command(create())).await;
        let step = Step::Command(create());
        let mut returned = pin!(run(&store, &step));
        timeout(Duration::from_millis(50), &mut returned).await.expect_err("the other caller is awaited");
        in_time(async {
            match work {
                "begin" => drop(store.begin().await.unwrap()),
                "compact" => store.compact().await.unwrap(),
                "erase" => store.erase().await.unwrap(),
                _ => store.close().await.unwrap(),
            }
            returned.await.unwrap();
        })
        .await;
    }
}

/// After a compaction, the callers of the last batch are no longer awaited.
#[tokio::test]
async fn callers_are_forgotten_when_other_work_has_run() {
    let store = open_slow();
    run_together(&store, &Step::Command(create())).await;
    in_time(store.compact()).await.unwrap();
    in_time(run(&store, &Step::Command(create()))).await.unwrap();
}

/// The sync of other work does not count for a batch that writes nothing.
#[tokio::test]
async fn a_batch_without_a_sync_makes_nobody_wait() {
    let store = open_slow();
    in_time(run(&store, &Step::Command(create()))).await.unwrap();
    in_time(store.erase()).await.unwrap();
    let before = store.counters().commits;
    run_together(&store, &Step::Command(acquire(1))).await;
    assert_eq!(store.counters().commits, before, "there was nothing to write");
    in_time(run(&store, &Step::Command(create()))).await.unwrap();
}
