//! Hooks that run after the end of a transaction.

use std::sync::{Arc, Mutex};

use windlass_core::{Client, Error, ErrorKind, MemoryStore, Transactional, Tx};

use super::{Seen, client, mail};

/// The hooks that ran, in order.
#[derive(Clone, Default)]
struct Done(Arc<Mutex<Vec<&'static str>>>);

impl Done {
    fn note(&self, what: &'static str) -> impl FnOnce() + Send + use<> {
        let done = Arc::clone(&self.0);
        move || done.lock().unwrap().push(what)
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn begin(client: &Client<MemoryStore>, done: &Done) -> Tx<MemoryStore> {
    let mut tx = client.begin().await.unwrap();
    tx.after_commit(done.note("committed"));
    tx.after_rollback(done.note("rolled back"));
    tx
}

#[tokio::test]
async fn hooks_follow_the_end_of_the_transaction() {
    let (client, done) = (client(), Done::default());
    let tx = begin(&client, &done).await;
    assert!(done.take().is_empty(), "not before the end");
    tx.commit().await.unwrap();
    assert_eq!(done.take(), ["committed"]);
    begin(&client, &done).await.rollback().await.unwrap();
    assert_eq!(done.take(), ["rolled back"]);
    drop(begin(&client, &done).await);
    assert_eq!(done.take(), ["rolled back"]);
}

#[tokio::test]
async fn a_panicking_hook_does_not_affect_the_others() {
    let (client, done) = (client(), Done::default());
    let mut tx = client.begin().await.unwrap();
    let chain = tx.start(mail()).await.unwrap();
    tx.after_commit(done.note("first"));
    tx.after_commit(|| panic!("a hook"));
    tx.after_commit(done.note("last"));
    tx.commit().await.unwrap();
    assert_eq!(done.take(), ["first", "last"]);
    assert!(client.chain(chain).await.unwrap().is_some());
}

/// Savepoints nest: a rollback undoes everything since its savepoint, including released savepoints.
#[tokio::test]
async fn savepoints_nest() {
    let (done, seen) = (Done::default(), Seen::default());
    let client = Client::builder(MemoryStore::new()).observer(seen.clone()).build();
    let mut tx = client.begin().await.unwrap();
    let kept = tx.start(mail()).await.unwrap();
    tx.after_commit(done.note("outermost"));

    tx.savepoint().await.unwrap();
    tx.after_commit(done.note("outer"));
    tx.after_rollback(done.note("outer rolled back"));
    tx.savepoint().await.unwrap();
    let lost = tx.start(mail()).await.unwrap();
    tx.after_rollback(done.note("inner rolled back"));
    tx.release().await.unwrap();
    assert!(done.take().is_empty(), "a release changes nothing");
    tx.rollback_to().await.unwrap();
    assert_eq!(done.take(), ["outer rolled back", "inner rolled back"]);

    tx.savepoint().await.unwrap();
    tx.after_commit(done.note("second outer"));
    tx.savepoint().await.unwrap();
    tx.after_commit(done.note("second inner"));
    tx.after_rollback(done.note("second inner rolled back"));
    tx.rollback_to().await.unwrap();
    assert_eq!(done.take(), ["second inner rolled back"]);
    tx.release().await.unwrap();

    let error = tx.rollback_to().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "there is no savepoint left");
    tx.commit().await.unwrap();
    assert_eq!(done.take(), ["outermost", "second outer"]);
    assert_eq!(seen.take(), ["ChainCreated", "JobCreated"]);
    assert!(client.chain(kept).await.unwrap().is_some());
    assert!(client.chain(lost).await.unwrap().is_none());
}

#[tokio::test]
async fn hooks_run_after_the_commit_of_a_borrowed_transaction() {
    let (client, done) = (client(), Done::default());
    for (fails, expected) in [(false, "committed"), (true, "rolled back")] {
        let mut tx = client.store().begin().await.unwrap();
        let mut inside = client.in_tx(&mut tx);
        inside.after_commit(done.note("committed"));
        inside.after_rollback(done.note("rolled back"));
        let announcements = inside.announcements();
        let commit = async {
            if fails {
                return Err(Error::new(ErrorKind::Unavailable, "the connection was lost"));
            }
            client.store().commit(tx).await
        };
        assert_eq!(announcements.announce_after(commit).await.is_err(), fails);
        assert_eq!(done.take(), [expected]);
    }
}
