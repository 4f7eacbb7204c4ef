//! Times of the standard library and of `jiff` in the API.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use windlass_core::{BoxError, Client, Ctx, Entry, Job, MemoryStore, Next, Timestamp, Worker};

#[derive(Serialize, Deserialize)]
struct Mail;

impl Job for Mail {
    const NAME: &'static str = "mail";
    type Output = ();
    type Next = ();
    type Blockers = ();
}
impl Entry for Mail {}

/// A time to come, in whole milliseconds.
fn tomorrow() -> SystemTime {
    SystemTime::from(Timestamp::now()) + Duration::from_secs(24 * 60 * 60)
}

#[tokio::test]
async fn a_job_is_scheduled_at_a_system_time() {
    let client = Client::new(MemoryStore::new());
    let at = tomorrow();
    let chain = client.start(Mail).at(at).await.unwrap();
    let due_at = client.chain(chain).await.unwrap().unwrap().latest.due_at;
    assert_eq!(SystemTime::from(due_at), at);

    let mails = client.queue::<String, ()>("mails").build().unwrap();
    mails.enqueue("a", String::new()).at(at).await.unwrap();
    assert_eq!(SystemTime::from(mails.status("a").await.unwrap().unwrap().due_at), at);
}

#[tokio::test]
async fn a_job_is_rescheduled_at_a_system_time() {
    let client = Client::new(MemoryStore::new());
    let at = tomorrow();
    let handler = move |_: Ctx<Mail>| async move { Ok::<Next<Mail>, BoxError>(Next::reschedule_at(at)) };
    let chain = client.start(Mail).await.unwrap();
    let worker = Worker::new(&client).handle(handler).start().await.unwrap();
    let rescheduled = async {
        while SystemTime::from(client.chain(chain).await.unwrap().unwrap().latest.due_at) != at {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), rescheduled).await.expect("it is due at that time");
    worker.stop(Duration::from_secs(10)).await;
}

#[cfg(feature = "jiff")]
#[tokio::test]
async fn a_job_is_scheduled_at_a_time_of_jiff() {
    let client = Client::new(MemoryStore::new());
    let at: jiff::Timestamp = "2099-12-31T23:00:00Z".parse().unwrap();
    let chain = client.start(Mail).at(at).await.unwrap();
    let due_at = client.chain(chain).await.unwrap().unwrap().latest.due_at;
    assert_eq!(jiff::Timestamp::from(due_at), at);
}
