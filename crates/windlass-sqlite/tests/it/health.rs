//! The findings of `health`.

use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqliteSynchronous};
use windlass_core::Store;
use windlass_core::command::{Create, ListJobs};
use windlass_sqlite::{SqliteStore, Sqlx, Synchronous};

use crate::{File, new_chain};

#[tokio::test]
async fn a_large_log_is_a_finding() {
    let file = File::new();
    let store = file.open().await;
    assert_eq!(store.health().await.unwrap(), []);
    let log =
        std::fs::OpenOptions::new().write(true).open(file.directory.path().join("jobs.db-wal")).unwrap();
    log.set_len(65 << 20).unwrap();
    check(&store, "the write-ahead log is 65 MiB", "wal_checkpoint").await;
}

/// Each commit adds a few pages to the log, about 60 MB in all. Queries run beside the writes, so checkpoints rarely find a
/// moment when nobody reads.
#[tokio::test]
async fn the_log_stays_small_under_load() {
    let file = File::new();
    let store = SqliteStore::open(file.options().synchronous(Synchronous::Normal)).await.unwrap();
    let log = file.directory.path().join("jobs.db-wal");
    let mut largest = 0;
    for _ in 0..3_000 {
        let create = store.create(Create { chains: vec![new_chain()] });
        let (created, listed) = tokio::join!(create, store.list_jobs(ListJobs::default()));
        created.unwrap();
        listed.unwrap();
        largest = largest.max(log.metadata().unwrap().len());
    }
    assert!(largest < 24 << 20, "the log had {} MiB", largest >> 20);
}

#[tokio::test]
async fn a_file_of_free_pages_is_a_finding() {
    let file = File::new();
    let store = file.open().await;
    let mut other = file.connect().await;
    for text in ["create table ballast as select zeroblob(20 << 20) as room", "drop table ballast"] {
        sqlx::query(text).execute(&mut other).await.unwrap();
    }
    check(&store, "MiB are free", "vacuum").await;
}

#[tokio::test]
async fn synchronous_off_is_a_finding() {
    let file = File::new();
    let options = SqliteConnectOptions::new().filename(file.path()).create_if_missing(true);
    let pool = SqlitePool::connect_with(options.synchronous(SqliteSynchronous::Off)).await.unwrap();
    let store = SqliteStore::over(Sqlx::from(pool), file.options()).await.unwrap();
    check(&store, "never waits for the disk", "full").await;
}

async fn check(store: &SqliteStore, problem: &str, remedy: &str) {
    let findings = store.health().await.unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].problem.contains(problem) && findings[0].remedy.contains(remedy), "{findings:?}");
}
