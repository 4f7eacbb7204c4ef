//! Opening folders.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::command::{Create, Durability, GetJobs};
use windlass_core::{ErrorKind, Millis, Store, Timestamp};
use windlass_file::{FileStore, Options};

use crate::{Folder, names, new_chain, start, take};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_open_a_new_folder_at_once() {
    for _ in 0..10 {
        let folder = Arc::new(Folder::new());
        let open = |_| {
            let folder = Arc::clone(&folder);
            tokio::spawn(async move { folder.open().await })
        };
        let opening: Vec<_> = (0..8).map(open).collect();
        let mut stores = Vec::new();
        for opened in opening {
            stores.push(opened.await.unwrap());
        }
        for store in &stores {
            start(store, vec![new_chain()]).await;
        }
        assert_eq!(take(&stores[0], 100).await.len(), 8, "all have opened the same store");
    }
}

#[tokio::test]
async fn jobs_are_there_after_a_restart() {
    let folder = Folder::new();
    let store = folder.open().await;
    let chain = new_chain();
    let reply = store.create(Create { chains: vec![chain.clone()] }).await.unwrap();
    assert_eq!(reply.durability, Durability::Synced);
    let before = store.get_jobs(GetJobs { jobs: vec![chain.id.first_job()] }).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(store.get_jobs(GetJobs { jobs: Vec::new() }).await.unwrap_err().kind(), ErrorKind::Closed);
    let store = folder.open().await;
    assert_eq!(store.get_jobs(GetJobs { jobs: vec![chain.id.first_job()] }).await.unwrap(), before);
}

#[tokio::test]
async fn a_failed_open_reports_the_reason() {
    let folder = Folder::new();
    let base = folder.directory.path();
    check(Options::new(""), ErrorKind::Invalid, "needs a folder").await;
    std::fs::write(base.join("file"), "text").unwrap();
    check(Options::new(base.join("file")), ErrorKind::Invalid, "choose a folder").await;
    // For example, a home directory.
    check(Options::new(base), ErrorKind::Invalid, "contains other files (`file`)").await;
    assert_eq!(names(base), ["file"], "nothing was created");
}

#[tokio::test]
async fn namespaces_are_separate_stores() {
    let folder = Folder::new();
    let [one, two] = ["one", "two_2"].map(|name| FileStore::open(folder.options().namespace(name)));
    let (one, two, own) = (one.await.unwrap(), two.await.unwrap(), folder.open().await);
    start(&one, vec![new_chain()]).await;
    start(&two, vec![new_chain()]).await;
    two.erase().await.unwrap();
    let counts = (take(&one, 5).await.len(), take(&two, 5).await.len(), take(&own, 5).await.len());
    assert_eq!(counts, (1, 0, 0));
    assert_eq!(own.health().await.unwrap(), []);
    for name in ["", "Upper", "a-b", "..", "a/b", &"x".repeat(41)] {
        check(folder.options().namespace(name), ErrorKind::Invalid, "namespace").await;
    }
}

#[tokio::test]
async fn foreign_files_beside_a_store_are_left_alone_and_reported() {
    let folder = Folder::new();
    folder.open().await.close().await.unwrap();
    std::fs::write(folder.path().join("notes.txt"), "text").unwrap();
    let store = folder.open().await;
    start(&store, vec![new_chain()]).await;
    store.compact().await.unwrap();
    assert!(names(&folder.path()).contains(&"notes.txt".to_owned()));
    let findings = store.health().await.unwrap();
    assert!(findings[0].problem.contains("notes.txt"), "{findings:?}");
}

#[tokio::test]
async fn missing_journals_are_not_replaced_by_an_empty_store() {
    let folder = Folder::new();
    let store = folder.open().await;
    start(&store, vec![new_chain()]).await;
    store.close().await.unwrap();
    std::fs::remove_file(folder.path().join("journal-0000000001")).unwrap();
    check(folder.options(), ErrorKind::Corrupt, "restore the folder from a backup").await;
    std::fs::remove_file(folder.path().join("head")).unwrap();
    assert_eq!(take(&folder.open().await, 5).await.len(), 0);
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let folder = Folder::new();
    folder.open().await.close().await.unwrap();
    let path = folder.path().join("journal-0000000001");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[12] = 2;
    let sum = crc32fast::hash(&bytes[..60]).to_le_bytes();
    bytes[60..64].copy_from_slice(&sum);
    std::fs::write(&path, bytes).unwrap();
    check(folder.options(), ErrorKind::Incompatible, "update this program").await;
}

#[tokio::test]
async fn a_file_that_is_not_ours_is_not_read_as_a_journal() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path()).unwrap();
    std::fs::write(folder.path().join("journal-0000000001"), "x".repeat(500)).unwrap();
    check(folder.options(), ErrorKind::Corrupt, "is not a file of Windlass").await;
}

#[tokio::test]
async fn a_folder_that_is_replaced_is_noticed() {
    let folder = Folder::new();
    let store = folder.open().await;
    std::fs::remove_dir_all(folder.path()).unwrap();
    let error = store.create(Create { chains: vec![new_chain()] }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
    let other = folder.open().await;
    start(&other, vec![new_chain()]).await;
    assert!(store.create(Create { chains: vec![new_chain()] }).await.is_err());
}

/// A clock that was set back does not move the store back: fences and due times depend on it.
#[tokio::test]
async fn time_never_goes_back() {
    let folder = Folder::new();
    let store = folder.open().await;
    folder.clock.set(Timestamp::from_millis(2_000_000_000_000).unwrap());
    let [early, late] = [new_chain(), new_chain()];
    start(&store, vec![early.clone()]).await;
    folder.clock.set(Timestamp::from_millis(1_000_000_000_000).unwrap());
    let other = folder.open().await;
    start(&other, vec![late.clone()]).await;
    let jobs = vec![early.id.first_job(), late.id.first_job()];
    let jobs = store.get_jobs(GetJobs { jobs }).await.unwrap().jobs;
    let [early, late] = [0, 1].map(|at| jobs[at].as_ref().unwrap().created_at);
    assert_eq!(early, late);
    folder.clock.set(early + Millis::from_secs(1));
    start(&store, vec![new_chain()]).await;
}

/// A process that is stopped with the lock is named, and the command is not executed later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_holder_is_named() {
    let folder = Folder::new();
    let holder = folder.open().await;
    let tx = windlass_core::Transactional::begin(&holder).await.unwrap();
    let options = folder.options().busy_timeout(Duration::from_millis(50));
    check(options, ErrorKind::Busy, &format!("process {} (", std::process::id())).await;
    windlass_core::Transactional::rollback(&holder, tx).await.unwrap();
    folder.open().await;
}

async fn check(options: Options, kind: ErrorKind, part: &str) {
    let error = FileStore::open(options).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}
