//! Events between processes that share a folder. Two stores in one process have nothing in common but the folder.

use std::time::Duration;

use windlass_core::queue::QueueEvent;
use windlass_core::{Client, uuid::Uuid};
use windlass_testkit::wait_until;

use crate::Folder;

const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn events_reach_another_process_while_it_subscribes() {
    let folder = Folder::new();
    let (one, other) = (Client::new(folder.open().await), Client::new(folder.open().await));
    let mut mailboxes = folder.path().into_os_string();
    mailboxes.push("-events");
    let has_mailbox = || std::path::Path::new(&mailboxes).exists();
    let queue = one.queue::<String, String>("texts").build().unwrap();
    queue.enqueue("before", "x".to_owned()).await.unwrap();
    assert!(!has_mailbox(), "there are no subscribers");

    let mut events = other.queue::<String, String>("texts").build().unwrap().events().await.unwrap();
    assert!(has_mailbox());
    let mut seen = None;
    wait_until("an event arrives", TIMEOUT, async || {
        // The other process notices the subscription within 50 ms.
        queue.enqueue(Uuid::now_v7().to_string(), "x".to_owned()).await.unwrap();
        seen = tokio::time::timeout(Duration::from_millis(20), events.next()).await.ok().flatten();
        seen.is_some()
    })
    .await;
    assert!(matches!(&seen, Some(QueueEvent::Queued { id }) if id != "before"), "{seen:?}");

    drop(events);
    wait_until("the mailbox is removed", TIMEOUT, async || !has_mailbox()).await;
    one.close().await.unwrap();
    other.close().await.unwrap();
}
