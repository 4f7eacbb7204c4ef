//! Transactions of the file store.

use std::time::Duration;

use windlass_core::command::Create;
use windlass_core::{ErrorKind, Store, Transactional};
use windlass_file::FileStore;

use crate::{Folder, new_chain, start, take};

fn create() -> Create {
    Create { chains: vec![new_chain()] }
}

#[tokio::test]
async fn a_committed_transaction_survives_a_restart_and_a_dropped_one_leaves_nothing() {
    let folder = Folder::new();
    let store = folder.open().await;
    let mut tx = store.begin().await.unwrap();
    store.execute_in(&mut tx, create().into()).await.unwrap();
    store.execute_in(&mut tx, create().into()).await.unwrap();
    store.commit(tx).await.unwrap();
    let mut dropped = store.begin().await.unwrap();
    store.execute_in(&mut dropped, create().into()).await.unwrap();
    drop(dropped);
    assert_eq!(take(&folder.open().await, 10).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_wait_for_a_transaction_and_time_out() {
    let folder = Folder::new();
    let options = folder.options().busy_timeout(Duration::from_millis(200));
    let [own, other] = [options.clone(), options].map(FileStore::open);
    let (own, other) = (own.await.unwrap(), other.await.unwrap());
    let tx = own.begin().await.unwrap();
    for store in [&own, &other] {
        let error = store.create(create()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let cures = ["end the transaction", "through it: `tx.start(…)` after `client.begin()`"];
        assert!(cures.iter().all(|cure| error.to_string().contains(cure)), "{error}");
    }
    own.commit(tx).await.unwrap();
    start(&other, vec![new_chain()]).await;
    assert_eq!(take(&own, 10).await.len(), 1, "the commands that timed out were not executed");
}

#[tokio::test]
async fn a_transaction_of_another_folder_is_refused() {
    let (one, two) = (Folder::new(), Folder::new());
    let (one, two) = (one.open().await, two.open().await);
    let mut tx = one.begin().await.unwrap();
    let error = two.execute_in(&mut tx, create().into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("belongs to another folder"), "{error}");
}

#[tokio::test]
async fn a_transaction_ends_with_its_store() {
    let folder = Folder::new();
    let store = folder.open().await;
    let mut tx = store.begin().await.unwrap();
    store.execute_in(&mut tx, create().into()).await.unwrap();
    let closing = tokio::time::timeout(Duration::from_millis(100), store.close()).await;
    assert!(closing.is_err(), "closing waits for the transaction");
    assert_eq!(store.commit(tx).await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(take(&folder.open().await, 10).await.is_empty());
}
