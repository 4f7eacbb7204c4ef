//! Compaction, while others write.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use windlass_core::command::{Count, Expire, ListJobs, Page, Types};
use windlass_core::command::{Outcome, Settle, Settlement};
use windlass_core::{ErrorKind, Millis, Payload, Store};
use windlass_file::FileStore;
use windlass_testkit::{is_full_run, print_figure};

use crate::{Folder, names, new_chain, start, take};

fn size(folder: &Path) -> u64 {
    names(folder).iter().map(|name| folder.join(name).metadata().map_or(0, |found| found.len())).sum()
}

async fn jobs(store: &FileStore) -> Vec<windlass_core::JobRecord> {
    let mut found = Vec::new();
    let mut page = Page { max: 1_000, ..Page::default() };
    loop {
        let reply = store.list_jobs(ListJobs { page, ..ListJobs::default() }).await.unwrap();
        found.extend(reply.jobs);
        match reply.next {
            Some(next) => page = Page { max: 1_000, after: Some(next), ..Page::default() },
            None => return found,
        }
    }
}

pub(crate) async fn complete(store: &FileStore, max: u32) -> usize {
    let held = take(store, max).await;
    let settlements = held.iter().map(|held| Settlement {
        job: held.job.id,
        fence: held.job.fence,
        outcome: Outcome::Complete {
            output: Payload::json("1").unwrap(),
            retention: None,
            create: Vec::new(),
        },
    });
    store.settle(Settle { settlements: settlements.collect() }).await.unwrap();
    held.len()
}

/// A program like the command line opens the folder, writes a little and closes it.
#[tokio::test]
async fn short_lived_programs_compact_the_folder() {
    let folder = Folder::new();
    for _ in 0..60 {
        let store = FileStore::open(folder.options().compact_at_bytes(20_000)).await.unwrap();
        start(&store, (0..10).map(|_| new_chain()).collect()).await;
        complete(&store, 10).await;
        folder.clock.advance(Millis::from_days(8));
        store.expire(Expire { max: 100 }).await.unwrap();
        store.close().await.unwrap();
    }
    assert!(size(&folder.path()) < 100_000, "{} bytes", size(&folder.path()));
}

/// Two stores write and remove jobs while both compact the folder again and again. Both, and one that is opened
/// afterwards, have the same jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_go_on_during_compactions() {
    let folder = Folder::new();
    let options = || folder.options().compact_at_bytes(20_000);
    let stores =
        [FileStore::open(options()).await.unwrap(), FileStore::open(options()).await.unwrap()].map(Arc::new);
    let writers = stores.iter().cloned().map(|store| {
        let clock = folder.clock.clone();
        tokio::spawn(async move {
            for _ in 0..60 {
                start(&*store, (0..20).map(|_| new_chain()).collect()).await;
                complete(&store, 15).await;
                clock.advance(Millis::from_days(1));
                store.expire(Expire { max: 100 }).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let expected = jobs(&stores[0]).await;
    assert!(expected.len() >= 600, "{}", expected.len());
    assert_eq!(jobs(&stores[1]).await, expected);
    let completed: u64 = stores.iter().map(|store| store.compaction().completed).sum();
    assert!(completed > 3, "{completed} compactions");
    let again = folder.open().await;
    assert_eq!(jobs(&again).await, expected);
    assert_eq!(again.health().await.unwrap(), []);
}

/// The folder's size is proportional to what is stored, however much went through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_folder_stays_small() {
    let (total, at_bytes) = if is_full_run() { (1_000_000, 16 << 20) } else { (20_000, 100_000) };
    let folder = Folder::new();
    let store = FileStore::open(folder.options().compact_at_bytes(at_bytes)).await.unwrap();
    let (mut done, mut largest, began_at) = (0, 0, Instant::now());
    while done < total {
        start(&store, (0..1_000).map(|_| new_chain()).collect()).await;
        done += complete(&store, 1_000).await;
        folder.clock.advance(Millis::from_days(8));
        while store.expire(Expire { max: 1_000 }).await.unwrap().more {}
        largest = largest.max(size(&folder.path()));
    }
    let stats = store.compaction();
    let figure = format!(
        "{done} jobs in {:?}: at most {largest} bytes, now {}; {} compactions, longest pause of writers {:?}",
        began_at.elapsed(),
        size(&folder.path()),
        stats.completed,
        stats.longest_pause
    );
    print_figure("file store, size of the folder", figure);
    assert!(stats.completed > 3, "{stats:?}");
    let stored = store.count(Count { types: Types::All }).await.unwrap().types.len();
    assert_eq!(stored, 0, "all jobs have left");
    // The journal from which it is compacted, twice, and what is added while it is compacted. The snapshot has few rows.
    assert!(largest < 3 * at_bytes.max(1 << 20), "{largest} bytes");
}

/// A folder takes about the same number of bytes per stored job, however many jobs it stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_is_proportional_to_what_is_stored() {
    let folder = Folder::new();
    let store = FileStore::open(folder.options().compact_at_bytes(100_000)).await.unwrap();
    let per_job = async |jobs: u64| {
        for _ in 0..jobs / 1_000 {
            start(&store, (0..1_000).map(|_| new_chain()).collect()).await;
            complete(&store, 1_000).await;
        }
        store.compact().await.unwrap();
        size(&folder.path())
    };
    let few = per_job(2_000).await;
    let many = per_job(18_000).await;
    println!("2,000 jobs: {few} bytes; 20,000 jobs: {many} bytes");
    assert!(many < 11 * few && many > 9 * few, "{few} bytes for 2,000 jobs, {many} for 20,000");
}

/// The application requests a compaction while another store is compacting the folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_requested_compaction_waits_for_another() {
    let folder = Folder::new();
    let patient = async |limit| FileStore::open(folder.options().busy_timeout(limit)).await.unwrap();
    let store = patient(Duration::from_millis(100)).await;
    start(&store, vec![new_chain()]).await;
    let other = std::fs::File::create(folder.path().join("compact")).unwrap();
    other.lock().unwrap();
    let error = store.compact().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("another process has been compacting the folder"), "{error}");
    assert_eq!(store.compaction().completed, 0);
    let store = patient(Duration::from_secs(60)).await;
    let mut compacting = pin!(store.compact());
    timeout(Duration::from_millis(100), &mut compacting).await.expect_err("the other one has not ended");
    other.unlock().unwrap();
    compacting.await.unwrap();
    assert_eq!(store.compaction().completed, 1);
}

/// A file that a killed compaction left behind is removed by the next one.
#[tokio::test]
async fn leftovers_are_removed() {
    let folder = Folder::new();
    let store = folder.open().await;
    std::fs::write(folder.path().join("snapshot-0000000009.tmp"), "incomplete").unwrap();
    std::fs::write(folder.path().join("journal-0000000002"), "left before it was used").unwrap();
    start(&store, vec![new_chain()]).await;
    store.compact().await.unwrap();
    let expected = ["compact", "head", "holder", "journal-0000000002", "lock", "snapshot-0000000002", "turn"];
    assert_eq!(names(&folder.path()), expected);
    store.close().await.unwrap();
    let store = tokio::time::timeout(Duration::from_secs(60), folder.open()).await.unwrap();
    assert_eq!(take(&store, 10).await.len(), 1);
}
