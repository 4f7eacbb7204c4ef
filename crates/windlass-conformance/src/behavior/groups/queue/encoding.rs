//! Encodings keep bytes exact, and consumers reject jobs in another encoding.

use windlass_core::Codec;
use windlass_core::queue::Encoding;

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.encoding.bytes",
            "Payloads and results of any encoding are returned byte for byte.",
            ["B4.30", "issue: bytes stay exact"],
            bytes
        ),
        behavior!(
            "queue.encoding.other",
            "A job in another encoding fails immediately with a clear error, and does not affect others.",
            ["issue: a consumer with another codec"],
            other
        ),
    ]
}

/// An encoding that stores bytes unchanged.
#[derive(Clone, Copy)]
struct Raw;

impl Encoding<Vec<u8>> for Raw {
    fn codec(&self) -> Codec {
        Codec::new("raw").unwrap()
    }

    fn encode(&self, value: &Vec<u8>) -> Result<Vec<u8>> {
        Ok(value.clone())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        Ok(bytes.to_vec())
    }
}

async fn bytes<S: Store>(scene: Scene<S>) {
    let builder = scene.client.queue_with::<Vec<u8>, Vec<u8>>("raw", Raw);
    let queue = builder.backoff(QUICK_BACKOFF).build().unwrap();
    let reverse = |item: Item<Vec<u8>>| async move {
        let mut bytes = item.payload().clone();
        bytes.reverse();
        if item.attempt() == 1 { Err(BoxError::from("once more")) } else { Ok(bytes) }
    };
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let consumer = queue.consume(reverse).poll(POLL).await.unwrap();
    for (id, payload) in [("all", all), ("none", Vec::new()), ("no text", vec![0xff, 0xfe, 0x00])] {
        let result = queue.enqueue_and_wait(id, &payload).poll(POLL).await.unwrap();
        let reversed: Vec<u8> = payload.into_iter().rev().collect();
        assert_eq!(result, reversed);
        assert_eq!(queue.enqueue(id, Vec::new()).await.unwrap(), Enqueued::Completed(reversed));
    }
    scene.stop_consumers([consumer]).await;
}

async fn other<S: Store>(scene: Scene<S>) {
    let raw = scene.other.queue_with::<Vec<u8>, Vec<u8>>("mixed", Raw).build().unwrap();
    let json = scene.client.queue::<Vec<u8>, Vec<u8>>("mixed").build().unwrap();
    raw.enqueue("raw", vec![1, 2]).await.unwrap();
    json.enqueue("json", vec![1, 2]).await.unwrap();
    let echo = |item: Item<Vec<u8>>| async move { Ok::<_, BoxError>(item.payload().clone()) };
    let consumer = json.consume(echo).poll(POLL).await.unwrap();
    let wait = json.enqueue_and_wait("json", Vec::new()).poll(POLL);
    assert_eq!(wait.await.unwrap(), [1, 2], "the other job does not affect it");
    let failed = scene
        .soon("it fails", async {
            loop {
                match raw.status("raw").await.unwrap() {
                    Some(status) if status.state.is_terminal() => return status,
                    _ => rest().await,
                }
            }
        })
        .await;
    assert_eq!((failed.state, failed.attempts), (ItemState::Failed, 1));
    let error = failed.error.as_ref().unwrap().as_str();
    assert!(error.contains("`raw`") && error.contains("`json`"), "{error}");
    let unreadable = raw.result("json").await.unwrap_err();
    assert_eq!(unreadable.kind(), ErrorKind::Invalid, "{unreadable}");
    scene.stop_consumers([consumer]).await;
}
