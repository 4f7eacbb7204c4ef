//! How long results and errors are kept, and how long ids are held.

use windlass_core::queue::TtlUpdated;
use windlass_core::{Backoff, Capability, Timestamp};

use super::prelude::*;

/// Short enough to wait until it ends. Nothing is read before.
const SHORT: Duration = Duration::from_secs(1);
/// Long enough for a slow machine to read what is kept. No case waits until it ends.
const READABLE: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.ttl.result",
            "A result is kept for its own TTL; then it is unknown and its id is accepted again. Others are kept.",
            [
                "Q24", "D09", "D10", "D12", "D13", "ST-08", "ST-09", "ST-17", "ST-18", "ST-19", "ST-43",
                "ST-44", "B4.8"
            ],
            result
        ),
        behavior!(
            "queue.ttl.error",
            "An error is kept for its own TTL, and its id is held that long if the queue is configured so.",
            ["D06", "D11", "RR09", "RR10", "ST-20", "ST-21", "ST-22"],
            error
        ),
        behavior!(
            "queue.ttl.failed_again",
            "A failed id is accepted again immediately, unless the queue holds it.",
            ["issue: a failed one immediately"],
            failed_again
        ),
        behavior!(
            "queue.ttl.first_wins",
            "The TTL of the accepted job applies, whatever duplicates and consumers specify.",
            ["Q25", "Q26"],
            first_wins
        ),
        behavior!(
            "queue.ttl.invalid",
            "A TTL of zero or above the maximum is refused.",
            ["Q27", "Q36"],
            invalid
        ),
        behavior!(
            "queue.ttl.update",
            "The TTL of a result or error can be changed after the job has ended and while it is kept.",
            ["Q31", "Q32", "Q33", "Q34", "Q35", "B4.8"],
            [Need::Store(Capability::SetRetention), Need::Store(Capability::Cancel)],
            update
        ),
    ]
}

async fn result<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let consumer = echo(&queue).await;
    assert!(queue.result("short").await.unwrap().is_none());
    queue.enqueue("long", "x".to_owned()).await.unwrap();
    queue.enqueue("short", "x".to_owned()).result_ttl(SHORT).await.unwrap();
    queue.enqueue("own", "x".to_owned()).result_ttl(READABLE).await.unwrap();
    let own = state(&scene, &queue, "own", ItemState::Completed).await;
    let long = state(&scene, &queue, "long", ItemState::Completed).await;
    assert!(own.kept_until.unwrap() < long.kept_until.unwrap(), "{own:?} {long:?}");
    scene.sees("all complete", 3, |event| matches!(event, Event::JobCompleted(..))).await;
    gone(&scene, &queue, "short").await;
    assert!(queue.result("short").await.unwrap().is_none());
    assert_eq!(queue.enqueue("short", "y".to_owned()).await.unwrap(), Enqueued::Queued);
    let done = state(&scene, &queue, "short", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("y", 1));
    let kept = queue.enqueue("long", "y".to_owned()).await.unwrap();
    assert_eq!(kept, Enqueued::Completed(echoed("x", 1)), "a short TTL ends no other");
    scene.stop_consumers([consumer]).await;
}

async fn error<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(1).hold_failed().build().unwrap();
    let consumer = fail_before(&queue, u32::MAX).await;
    queue.enqueue("long", "x".to_owned()).await.unwrap();
    queue.enqueue("short", "x".to_owned()).error_ttl(SHORT).await.unwrap();
    let wait = queue.enqueue("own", "x".to_owned()).error_ttl(READABLE).and_wait().poll(POLL);
    assert_eq!(wait.await.unwrap_err().job_error().unwrap().as_str(), "broken 1");
    let own = state(&scene, &queue, "own", ItemState::Failed).await;
    let long = state(&scene, &queue, "long", ItemState::Failed).await;
    assert!(own.kept_until.unwrap() < long.kept_until.unwrap(), "{own:?} {long:?}");
    scene.sees("all fail", 3, |event| matches!(event, Event::JobFailed(..))).await;
    scene.stop_consumers([consumer]).await;

    let again = queue.enqueue("long", "y".to_owned()).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate(ItemState::Failed));
    let waits = queue.enqueue_and_wait("long", "y".to_owned()).await.unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::AttemptsExhausted, "returned immediately, although no consumer runs");
    gone(&scene, &queue, "short").await;
    assert_eq!(queue.enqueue("short", "y".to_owned()).await.unwrap(), Enqueued::Queued);
    assert_eq!(
        status(&queue, "short").await.error,
        None,
        "the earlier error is not reported for the new job"
    );
    assert_eq!(status(&queue, "long").await.error.unwrap().as_str(), "broken 1");
}

async fn failed_again<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(1).build().unwrap();
    let consumer = fail_before(&queue, u32::MAX).await;
    for (id, holds) in [("free", false), ("held", true)] {
        queue.enqueue(id, "x".to_owned()).hold_failed(holds).await.unwrap();
        state(&scene, &queue, id, ItemState::Failed).await;
    }
    scene.stop_consumers([consumer]).await;
    let consumer = echo(&queue).await;
    assert_eq!(queue.enqueue("free", "y".to_owned()).await.unwrap(), Enqueued::Queued);
    let done = state(&scene, &queue, "free", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("y", 1), "with its own attempts");
    let held = queue.enqueue("held", "y".to_owned()).await.unwrap();
    assert_eq!(held, Enqueued::Duplicate(ItemState::Failed));
    scene.stop_consumers([consumer]).await;
}

async fn first_wins<S: Store>(scene: Scene<S>) {
    let producer = texts(&scene).result_ttl(2 * HOUR).build().unwrap();
    let impatient = others(&scene).result_ttl(SHORT).build().unwrap();
    producer.enqueue("default", "x".to_owned()).await.unwrap();
    producer.enqueue("own", "x".to_owned()).result_ttl(3 * HOUR).await.unwrap();
    for id in ["default", "own"] {
        let again = impatient.enqueue(id, "x".to_owned()).await.unwrap();
        assert_eq!(again, Enqueued::Duplicate(ItemState::Queued));
    }
    let lines = Lines::default();
    let seen = lines.clone();
    let handler = move |item: Item<String>| {
        seen.add(format!("{} {:?}", item.id(), item.result_ttl()));
        async { Ok::<_, BoxError>(String::new()) }
    };
    let consumer = impatient.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    for (id, ttl) in [("default", 2 * HOUR), ("own", 3 * HOUR)] {
        let done = state(&scene, &producer, id, ItemState::Completed).await;
        assert!(done.kept_until.unwrap() >= done.created_at + ttl, "{done:?}");
    }
    assert_eq!(lines.all(), ["default 7200s", "own 10800s"], "it is the TTL of the accepted job");
    scene.stop_consumers([consumer]).await;
}

async fn invalid<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    for ttl in [Duration::ZERO, Duration::MAX] {
        let refused = [
            texts(&scene).result_ttl(ttl).build().unwrap_err(),
            texts(&scene).error_ttl(ttl).build().unwrap_err(),
            queue.enqueue("a", String::new()).result_ttl(ttl).await.unwrap_err(),
            queue.enqueue("a", String::new()).error_ttl(ttl).await.unwrap_err(),
            queue.update_result_ttl("a", ttl).await.unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.kind() == ErrorKind::Invalid), "{refused:?}");
    }
    assert_eq!(texts(&scene).attempts(0).build().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(queue.status("a").await.unwrap().is_none(), "nothing was written");
}

async fn update<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(1).backoff(Backoff::NONE).build().unwrap();
    let handler = |item: Item<String>| async move {
        if item.id() == "fails" { Err(BoxError::from("broken")) } else { Ok(String::new()) }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    for (id, ended) in [("done", ItemState::Completed), ("fails", ItemState::Failed)] {
        queue.enqueue(id, String::new()).await.unwrap();
        let before = state(&scene, &queue, id, ended).await.kept_until.unwrap();
        let TtlUpdated::Updated(until) = queue.update_result_ttl(id, 9 * HOUR).await.unwrap() else {
            panic!("{id} has ended");
        };
        assert!(until > before + 7 * HOUR);
        assert_eq!(status(&queue, id).await.kept_until, Some(until));
    }
    let TtlUpdated::Updated(_) = queue.update_result_ttl("done", Duration::from_millis(1)).await.unwrap()
    else {
        panic!("it can be shortened too");
    };
    gone(&scene, &queue, "done").await;
    assert_eq!(queue.update_result_ttl("done", HOUR).await.unwrap(), TtlUpdated::NotFound);
    assert_eq!(queue.update_result_ttl("unknown", HOUR).await.unwrap(), TtlUpdated::NotFound);
    scene.stop_consumers([consumer]).await;

    queue.enqueue("open", String::new()).after(HOUR).await.unwrap();
    assert_eq!(queue.update_result_ttl("open", HOUR).await.unwrap(), TtlUpdated::NotTerminal);
    queue.cancel("open").await.unwrap();
    assert_eq!(queue.update_result_ttl("open", HOUR).await.unwrap(), TtlUpdated::NoPayload);
    assert!(status(&queue, "fails").await.kept_until > Some(Timestamp::default()));
}
