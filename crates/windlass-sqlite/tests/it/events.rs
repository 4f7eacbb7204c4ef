//! Events between processes that share a file. Two stores in one process have nothing in common but the file.

use std::time::Duration;

use windlass_core::Client;
use windlass_core::queue::QueueEvent;
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::wait_until;

const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn events_reach_another_process_while_it_subscribes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jobs.db");
    let folder = directory.path().join("jobs.db-windlass_events");
    let open = async || Client::new(SqliteStore::open(Options::new(&path)).await.unwrap());
    let (one, other) = (open().await, open().await);
    let queue = one.queue::<String, String>("texts").build().unwrap();
    queue.enqueue("before", "x".to_owned()).await.unwrap();
    assert!(!folder.exists(), "nobody subscribes");

    let mut events = other.queue::<String, String>("texts").build().unwrap().events().await.unwrap();
    assert!(folder.exists());
    let mut seen = None;
    wait_until("an event arrives", TIMEOUT, async || {
        // The other process notices the subscription within 50 ms.
        queue.enqueue(windlass_core::uuid::Uuid::now_v7().to_string(), "x".to_owned()).await.unwrap();
        seen = tokio::time::timeout(Duration::from_millis(20), events.next()).await.ok().flatten();
        seen.is_some()
    })
    .await;
    assert!(matches!(&seen, Some(QueueEvent::Queued { id }) if id != "before"), "{seen:?}");

    drop(events);
    wait_until("the mailbox is removed", TIMEOUT, async || !folder.exists()).await;
    one.close().await.unwrap();
    other.close().await.unwrap();
}
