//! Stopping consumers, and pausing and draining queues.

use windlass_core::{AbortReason, Capability, Event};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.stop.finishes",
            "A stopping consumer lets its jobs finish and takes no others; another consumer runs the rest.",
            ["Q01", "Q05", "E12", "B4.3"],
            finishes
        ),
        behavior!(
            "queue.stop.gives_back",
            "A job that is unfinished at the deadline is requeued without counting the attempt, and is not lost.",
            ["B4.2", "B4.3", "never 10"],
            gives_back
        ),
        behavior!(
            "queue.pause",
            "A paused queue accepts jobs, and no process runs them until it is resumed.",
            ["gaps: pause"],
            [Need::Store(Capability::Pause)],
            pause
        ),
        behavior!(
            "queue.drain",
            "A queue that is being drained accepts no jobs, and all stored jobs are finished.",
            ["gaps: drain"],
            [Need::Store(Capability::Count), Need::Store(Capability::Pause)],
            drain
        ),
    ]
}

async fn finishes<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let held = Held::new(&queue).await;
    for id in ["a", "b"] {
        queue.enqueue(id, "x".to_owned()).await.unwrap();
    }
    scene.soon("the first begins", held.begun.pass()).await;
    let stopping = tokio::spawn(held.consumer.stop(Duration::from_secs(60)));
    scene.sees("it is stopping", 1, |event| matches!(event, Event::WorkerStopping(_))).await;
    held.go.open(1);
    scene.soon("it stops", stopping).await.unwrap();
    assert_eq!(status(&queue, "a").await.result().unwrap().unwrap(), echoed("x", 1));
    assert_eq!(status(&queue, "b").await.state, ItemState::Queued, "it took no more");
    let consumer = echo(&queue).await;
    state(&scene, &queue, "b", ItemState::Completed).await;
    scene.stop_consumers([consumer]).await;
}

async fn gives_back<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let (begun, lines) = (Gate::new(), Lines::default());
    let (at, seen) = (begun.clone(), lines.clone());
    let handler = move |item: Item<String>| {
        let (at, seen) = (at.clone(), seen.clone());
        async move {
            at.open(1);
            assert_eq!(item.aborted().wait().await, AbortReason::WorkerStopping);
            seen.add("aborted");
            hang::<Result<String>>().await
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    queue.enqueue("a", "x".to_owned()).attempts(1).await.unwrap();
    scene.soon("it begins", begun.pass()).await;
    // The handler must receive the signal before the deadline, even on a slow machine.
    scene.soon("it stops", consumer.stop_now(Duration::from_secs(10))).await;
    assert_eq!(lines.all(), ["aborted"]);
    let back = status(&queue, "a").await;
    assert_eq!((back.state, back.attempts), (ItemState::Queued, 0));
    let consumer = echo(&queue).await;
    let done = state(&scene, &queue, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("x", 1));
    scene.stop_consumers([consumer]).await;
}

async fn pause<S: Store>(scene: Scene<S>) {
    let (queue, other) = (texts(&scene).build().unwrap(), others(&scene).build().unwrap());
    let unpaused = scene.client.queue::<String, String>("unpaused").build().unwrap();
    let held = Held::new(&other).await;
    queue.enqueue("running", "x".to_owned()).await.unwrap();
    scene.soon("it begins", held.begun.pass()).await;
    queue.pause().await.unwrap();
    held.go.open(2);
    state(&scene, &queue, "running", ItemState::Completed).await;
    assert_eq!(queue.enqueue("waits", "x".to_owned()).await.unwrap(), Enqueued::Queued);
    // The paused job must not start while another queue processes several jobs.
    let consumer = echo(&unpaused).await;
    for number in 0..5 {
        unpaused.enqueue_and_wait(number.to_string(), String::new()).poll(POLL).await.unwrap();
    }
    assert_eq!(status(&queue, "waits").await.state, ItemState::Queued);
    assert_eq!(held.runs(), 1);
    other.resume().await.unwrap();
    state(&scene, &queue, "waits", ItemState::Completed).await;
    scene.stop_consumers([held.consumer, consumer]).await;
}

async fn drain<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    for id in ["a", "b", "c"] {
        queue.enqueue(id, "x".to_owned()).await.unwrap();
    }
    let late = queue.drain(Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut, "no job runs: {late}");
    let refused = [
        queue.enqueue("d", String::new()).await.unwrap_err(),
        queue.enqueue_and_wait("d", String::new()).await.unwrap_err(),
        queue.enqueue_many([queue.enqueue("d", String::new())]).await.unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::Closed), "{refused:?}");
    let consumer = fail_before(&queue, 2).await;
    scene.soon("it is drained", queue.drain(Duration::from_secs(30))).await.unwrap();
    for id in ["a", "b", "c"] {
        assert_eq!(status(&queue, id).await.state, ItemState::Completed);
    }
    queue.resume().await.unwrap();
    assert_eq!(queue.enqueue_and_wait("d", "x".to_owned()).poll(POLL).await.unwrap(), echoed("x", 2));
    scene.stop_consumers([consumer]).await;
}
