//! Cancelling jobs.

use windlass_core::queue::ItemCancelled;
use windlass_core::{AbortReason, Backoff, Capability};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.cancel.queued",
            "A cancelled job never runs; its id is accepted again immediately, and only the new payload runs.",
            ["Q17", "Q19", "D07", "E07", "ST-10", "B4.17"],
            [Need::Store(Capability::Cancel)],
            queued
        ),
        behavior!(
            "queue.cancel.other",
            "A cancel reports whether the job is running, completed, failed or unknown.",
            ["Q18", "ST-11", "B4.16"],
            [Need::Store(Capability::Cancel)],
            other
        ),
        behavior!(
            "queue.cancel.failing",
            "A job that waits for a retry can be cancelled.",
            ["B4.13", "issue: a waiting retry"],
            [Need::Store(Capability::Cancel)],
            failing
        ),
        behavior!(
            "queue.cancel.ask",
            "A running job can be asked to stop through its abort signal.",
            ["issue: asked through its signal"],
            [Need::Store(Capability::Cancel)],
            ask
        ),
        behavior!(
            "queue.cancel.race",
            "A job that is cancelled while a consumer acquires it either runs or is cancelled.",
            ["B4.16"],
            [Need::Store(Capability::Cancel)],
            race
        ),
    ]
}

async fn queued<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    queue.enqueue("a", "stale".to_owned()).await.unwrap();
    assert_eq!(others(&scene).build().unwrap().cancel("a").await.unwrap(), ItemCancelled::Cancelled);
    assert_eq!(status(&queue, "a").await.state, ItemState::Cancelled);
    assert_eq!(queue.cancel("a").await.unwrap(), ItemCancelled::Cancelled, "again");
    assert_eq!(queue.enqueue("a", "fresh".to_owned()).await.unwrap(), Enqueued::Queued);
    queue.enqueue("b", "stale".to_owned()).await.unwrap();
    queue.cancel("b").await.unwrap();
    let lines = Lines::default();
    let seen = lines.clone();
    let handler = move |item: Item<String>| {
        seen.add(format!("{} {}", item.id(), item.payload()));
        async { Ok::<_, BoxError>(String::new()) }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    queue.enqueue_and_wait("last", "x".to_owned()).poll(POLL).await.unwrap();
    assert_eq!(lines.all(), ["a fresh", "last x"]);
    scene.stop_consumers([consumer]).await;
}

async fn other<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(1).build().unwrap();
    assert_eq!(queue.cancel("a").await.unwrap(), ItemCancelled::NotFound);
    let held = Held::new(&queue).await;
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    scene.soon("it begins", held.begun.pass()).await;
    assert_eq!(queue.cancel("a").await.unwrap(), ItemCancelled::Processing);
    held.go.open(1);
    let done = state(&scene, &queue, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("x", 1), "it was left alone");
    assert_eq!(queue.cancel("a").await.unwrap(), ItemCancelled::Completed);
    scene.stop_consumers([held.consumer]).await;
    let consumer = fail_before(&queue, u32::MAX).await;
    queue.enqueue("b", "x".to_owned()).await.unwrap();
    state(&scene, &queue, "b", ItemState::Failed).await;
    assert_eq!(queue.cancel("b").await.unwrap(), ItemCancelled::Failed);
    assert_eq!(status(&queue, "b").await.state, ItemState::Failed, "its error is still there");
    scene.stop_consumers([consumer]).await;
}

async fn failing<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).backoff(Backoff::default()).build().unwrap();
    let consumer = fail_before(&queue, 2).await;
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    let failing = state(&scene, &queue, "a", ItemState::Failing).await;
    assert_eq!((failing.attempts, failing.error.unwrap().as_str()), (1, "broken 1"));
    let again = queue.enqueue("a", "y".to_owned()).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate(ItemState::Failing));
    assert_eq!(queue.cancel("a").await.unwrap(), ItemCancelled::Cancelled);
    assert_eq!(queue.enqueue("a", "y".to_owned()).await.unwrap(), Enqueued::Queued);
    scene.stop_consumers([consumer]).await;
}

async fn ask<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).visibility(Duration::from_secs(4)).build().unwrap();
    let (begun, lines) = (Gate::new(), Lines::default());
    let (at, seen) = (begun.clone(), lines.clone());
    let handler = move |item: Item<String>| {
        let (at, seen) = (at.clone(), seen.clone());
        async move {
            at.open(1);
            let reason = item.aborted().wait().await;
            assert_eq!(reason, AbortReason::Cancelled);
            seen.add("asked");
            Err::<String, _>(BoxError::from("called off"))
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    scene.soon("it begins", begun.pass()).await;
    let other = others(&scene).build().unwrap();
    assert_eq!(other.cancel_or_ask("a").await.unwrap(), ItemCancelled::Asked);
    let cancelled = state(&scene, &queue, "a", ItemState::Cancelled).await;
    assert_eq!(cancelled.attempts, 1);
    assert_eq!(lines.all(), ["asked"]);
    assert_eq!(other.cancel_or_ask("unknown").await.unwrap(), ItemCancelled::NotFound);
    scene.stop_consumers([consumer]).await;
}

async fn race<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let lines = Lines::default();
    let seen = lines.clone();
    let handler = move |item: Item<String>| {
        seen.add(item.id());
        async { Ok::<_, BoxError>(String::new()) }
    };
    let consumer = queue.consume(handler).concurrency(4).poll(POLL).await.unwrap();
    let mut cancelled = Vec::new();
    for number in 0..40 {
        let id = number.to_string();
        queue.enqueue(&id, String::new()).await.unwrap();
        if unless_busy(|| queue.cancel(&id)).await == ItemCancelled::Cancelled {
            cancelled.push(id);
        }
    }
    queue.enqueue_and_wait("last", String::new()).poll(POLL).await.unwrap();
    for number in 0..40 {
        let id = number.to_string();
        let wanted = if cancelled.contains(&id) { ItemState::Cancelled } else { ItemState::Completed };
        state(&scene, &queue, &id, wanted).await;
        assert_eq!(lines.all().contains(&id), wanted == ItemState::Completed, "{id}");
    }
    scene.stop_consumers([consumer]).await;
}
