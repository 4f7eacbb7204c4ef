//! A queue: callers identify jobs by their own ids, wait for results, and get earlier results from the cache.
//!
//! Run with `cargo run --release -p windlass --example queue`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::queue::{Enqueued, Executed, Item, ItemState, QueueEvent, content_id};
use windlass::{Backoff, BoxError, Client, ErrorKind, Fatal, MemoryStore};

#[derive(Serialize, Deserialize)]
struct Photo {
    name: String,
    width: u32,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
struct Thumbnail {
    url: String,
}

async fn shrink(item: Item<Photo>) -> Result<Thumbnail, BoxError> {
    let Photo { name, width } = item.payload();
    println!("{}: attempt {} at {name}", item.id(), item.attempt());
    match (width, item.attempt()) {
        (0, _) => Err(Fatal::new("a photo without width").into()),
        (_, 1) => Err("the disk is busy".into()),
        _ => Ok(Thumbnail { url: format!("/small/{name}") }),
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(MemoryStore::new());
    let thumbnails = client
        .queue::<Photo, Thumbnail>("thumbnails")
        .backoff(Backoff::NONE)
        .result_ttl(Duration::from_secs(24 * 60 * 60))
        .after_execution(|mut executed: Executed<Photo, Thumbnail>| async move {
            if executed.result.is_err() {
                executed.ttl = Duration::from_secs(60);
            }
            Ok::<_, BoxError>(executed)
        })
        .build()?;
    let mut events = thumbnails.events().await?;
    let consumer = thumbnails.consume(shrink).concurrency(4).await?;

    // Enqueue and wait. The first attempt fails and is retried; the caller does not notice.
    let cat = Photo { name: "cat.jpg".into(), width: 4_000 };
    let small = thumbnails.enqueue_and_wait("cat", &cat).await?;
    assert_eq!(small, Thumbnail { url: "/small/cat.jpg".into() });

    // Enqueueing the same id again returns the cached result and runs nothing.
    assert_eq!(thumbnails.enqueue("cat", &cat).await?, Enqueued::Completed(small));

    // Derive the id from the content, and delay the job by an hour.
    let dog = Photo { name: "dog.jpg".into(), width: 3_000 };
    let id = content_id(&dog)?;
    assert_eq!(thumbnails.enqueue(&id, &dog).after(Duration::from_secs(3_600)).await?, Enqueued::Queued);
    assert_eq!(thumbnails.enqueue(&id, &dog).await?, Enqueued::Duplicate(ItemState::Queued));
    thumbnails.cancel(&id).await?;

    // A failure is returned as an error, with its kind and the handler's own message.
    let error = thumbnails.enqueue_and_wait("void", Photo { name: "void.jpg".into(), width: 0 }).await;
    let error = error.expect_err("it has no width");
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    assert_eq!(error.job_error().map(ToString::to_string).as_deref(), Some("a photo without width"));

    consumer.stop(Duration::from_secs(10)).await;
    while let Some(event) = events.next().await {
        println!("{event:?}");
        if matches!(event, QueueEvent::Stopped { .. }) {
            break;
        }
    }
    Ok(())
}
