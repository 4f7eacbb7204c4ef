//! Opening files.

use std::sync::Arc;

use windlass_core::command::{Create, Durability, GetJobs};
use windlass_core::{ErrorKind, Store};
use windlass_sqlite::{Options, SqliteStore, Synchronous};

use crate::{File, new_chain, start, take};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_open_a_new_file_at_once() {
    for _ in 0..10 {
        let file = Arc::new(File::new());
        let open = |_| {
            let file = Arc::clone(&file);
            tokio::spawn(async move { file.open().await })
        };
        let opening: Vec<_> = (0..16).map(open).collect();
        let mut stores = Vec::new();
        for store in opening {
            stores.push(store.await.unwrap());
        }
        start(&stores[0], vec![new_chain()]).await;
        assert_eq!(take(&stores[15], 1).await.len(), 1);
    }
}

#[tokio::test]
async fn jobs_are_still_there_when_the_file_is_opened_again() {
    let file = File::new();
    let new = new_chain();
    let store = file.open().await;
    start(&store, vec![new.clone()]).await;
    store.close().await.unwrap();
    let reply = file.open().await.get_jobs(GetJobs { jobs: vec![new.id.first_job()] }).await.unwrap();
    assert_eq!(reply.jobs[0].as_ref().unwrap().input, new.job.input);
}

#[tokio::test]
async fn a_prefix_is_a_namespace() {
    let file = File::new();
    let [one, two] = ["one_", "two_"].map(|prefix| SqliteStore::open(file.options().prefix(prefix)));
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    start(&one, vec![new_chain()]).await;
    start(&two, vec![new_chain()]).await;
    two.erase().await.unwrap();
    assert_eq!((take(&one, 5).await.len(), take(&two, 5).await.len()), (1, 0));
}

#[tokio::test]
async fn a_failed_open_reports_the_reason() {
    let file = File::new();
    for prefix in ["", "Upper", "1st", "a-b", "a;drop", "sqlite_", "sqlite_x", &"x".repeat(41)] {
        check(file.options().prefix(prefix), ErrorKind::Invalid, "prefix").await;
    }
    check(Options::new(":memory:"), ErrorKind::Invalid, "needs a file").await;
    let missing = file.directory.path().join("no/such/directory.db");
    let text = format!(
        "SQLite: `{}`: unable to open database file (14): check that the directory",
        missing.display()
    );
    check(Options::new(missing), ErrorKind::AccessDenied, &text).await;

    let not_a_database = file.directory.path().join("text.db");
    std::fs::write(&not_a_database, "no database at all, but long enough to be read as one".repeat(99))
        .unwrap();
    let text = format!(
        "SQLite: `{}`: file is not a database (26): the file is not a database, or damaged; check the path",
        not_a_database.display()
    );
    check(Options::new(not_a_database), ErrorKind::Corrupt, &text).await;
}

#[tokio::test]
async fn tables_of_a_newer_version_are_refused() {
    let file = File::new();
    file.open().await.close().await.unwrap();
    let later = "insert into windlass_migration values (99, 'later', 0)";
    sqlx::query(later).execute(&mut file.connect().await).await.unwrap();
    check(file.options(), ErrorKind::Incompatible, "update this program").await;
}

#[tokio::test]
async fn durability_follows_the_options() {
    let file = File::new();
    for (synchronous, durability) in
        [(Synchronous::Full, Durability::Synced), (Synchronous::Normal, Durability::Buffered)]
    {
        let store = SqliteStore::open(file.options().synchronous(synchronous)).await.unwrap();
        let reply = store.create(Create { chains: vec![new_chain()] }).await.unwrap();
        assert_eq!(reply.durability, durability);
    }
}

async fn check(options: Options, kind: ErrorKind, part: &str) {
    let error = SqliteStore::open(options).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}
