//! The findings of `health`.

use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqliteSynchronous};
use windlass_core::Store;
use windlass_sqlite::{SqliteStore, Sqlx};

use crate::File;

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
