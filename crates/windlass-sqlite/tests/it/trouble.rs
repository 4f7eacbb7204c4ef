//! Files that are read-only, full or damaged cause a clear error and no partial writes.

use std::os::unix::fs::FileExt;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use windlass_core::command::{Create, ListJobs, NewChain, Page};
use windlass_core::{Codec, Error, ErrorKind, Payload, Store, Transactional};
use windlass_sqlite::{Options, SqliteStore, Sqlx};

use crate::{File, new_chain, start, take};

async fn pool(options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new().max_connections(3).connect_with(options).await.unwrap()
}

fn large_chain() -> NewChain {
    let mut new = new_chain();
    new.job.input = Payload::new(Codec::new("bytes").unwrap(), vec![7; 50_000]).unwrap();
    new
}

/// Creates chains in a transaction of the driver, whose connections have a limit.
async fn create_in(store: &SqliteStore, chains: Vec<NewChain>) -> Result<(), Error> {
    let mut tx = store.begin().await?;
    let created = store.execute_in((&mut tx).into(), Create { chains }.into()).await;
    // The command failed as a whole, so the transaction may be committed without it, unless SQLite has ended it.
    let ended = store.commit(tx).await;
    created.map(drop)?;
    ended
}

async fn stored(store: &SqliteStore) -> usize {
    let page = Page { max: 1_000, ..Page::default() };
    store.list_jobs(ListJobs { page, ..ListJobs::default() }).await.unwrap().jobs.len()
}

fn check(error: &Error, kind: ErrorKind, part: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[tokio::test]
async fn a_read_only_file_is_reported() {
    let file = File::new();
    file.open().await.close().await.unwrap();
    let read_only = pool(SqliteConnectOptions::new().filename(file.path()).read_only(true)).await;
    let error = SqliteStore::over(Sqlx::from(read_only), Options::default()).await.unwrap_err();
    check(&error, ErrorKind::AccessDenied, "grant this user write permission for the file");
}

/// A full disk loses no acknowledged job and leaves no partial batch, and the store works again once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_reported_and_leaves_no_partial_writes() {
    let file = File::new();
    file.open().await.close().await.unwrap();
    let limited = SqliteConnectOptions::new().filename(file.path()).pragma("max_page_count", "100");
    let store = SqliteStore::over(Sqlx::from(pool(limited).await), Options::default()).await.unwrap();
    let mut acknowledged = 0;
    let error = loop {
        // The first chain of the batch alone would fit.
        match create_in(&store, vec![new_chain(), large_chain()]).await {
            Ok(()) => acknowledged += 2,
            Err(error) => break error,
        }
    };
    check(&error, ErrorKind::Unavailable, "free some space");
    assert!(acknowledged > 0);
    assert_eq!(stored(&store).await, acknowledged);
    create_in(&store, vec![new_chain()]).await.unwrap();
    assert_eq!(
        stored(&store).await,
        acknowledged + 1,
        "a batch that fits is stored, on the same connections"
    );

    let roomy = file.open().await;
    start(&roomy, vec![large_chain()]).await;
    assert_eq!(stored(&roomy).await, acknowledged + 2);
}

#[tokio::test]
async fn a_damaged_file_is_reported() {
    let file = File::new();
    let store = file.open().await;
    start(&store, (0..200).map(|_| new_chain()).collect()).await;
    assert_eq!(store.health().await.unwrap(), []);
    store.close().await.unwrap();
    let database = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
    let length = database.metadata().unwrap().len();
    database.write_all_at(&vec![0x5a; usize::try_from(length).unwrap() - 4_096], 4_096).unwrap();
    let error = match SqliteStore::open(file.options()).await {
        Ok(store) => store.create(Create { chains: vec![new_chain()] }).await.unwrap_err(),
        Err(error) => error,
    };
    check(&error, ErrorKind::Corrupt, "restore it from a backup");
}

/// The migrations returned as SQL create the same tables.
#[tokio::test]
async fn migrations_can_be_run_manually() {
    let file = File::new();
    let options = || file.options().prefix("by_hand_");
    let error = SqliteStore::open(options().migrate(false)).await.unwrap_err();
    check(&error, ErrorKind::Outdated, "run the migrations");
    let text = options().migrations_sql().unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut file.connect().await).await.unwrap();
    let store = SqliteStore::open(options().migrate(false)).await.unwrap();
    start(&store, vec![new_chain()]).await;
    assert_eq!(take(&store, 1).await.len(), 1);
}
