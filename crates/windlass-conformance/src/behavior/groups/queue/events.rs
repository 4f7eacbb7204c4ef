//! Events of queues.

use windlass_core::queue::{Events, Executed, FailureKind, QueueEvent};
use windlass_core::{Capability, Client, Fatal, Payload};

use super::prelude::*;
use crate::behavior::scene::Shared;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.events.life",
            "Events of jobs and consumers are delivered in order, with the callers' ids.",
            ["Q09", "Q16", "ST-30", "ST-31", "B4.25", "B4.31"],
            [Need::Hints, Need::Store(Capability::Cancel)],
            life
        ),
        behavior!(
            "queue.events.stalled",
            "A job whose worker died is reported as stalled, and a released job as requeued.",
            ["RE06", "issue: stalled, requeued"],
            [Need::Hints],
            stalled
        ),
        behavior!(
            "queue.events.failures",
            "The event of a failed job says why there is no further attempt.",
            ["issue: the kind of a failure"],
            [Need::Hints],
            failures
        ),
        behavior!(
            "queue.events.trouble",
            "Failures that do not belong to a job are reported as errors.",
            ["Q30", "issue: error"],
            [Need::Hints],
            trouble
        ),
        behavior!(
            "queue.events.across",
            "Events that another process publishes are received; those of other queues are not.",
            ["issue: across processes"],
            [Need::Hints],
            across
        ),
        behavior!(
            "queue.events.later",
            "A process that has learned of no subscribers publishes events once another process subscribes.",
            ["issue: across processes, without a flag"],
            [Need::Hints],
            later
        ),
        behavior!(
            "queue.events.slow",
            "A slow reader loses events, learns how many, and does not delay consumers.",
            ["issue: a slow reader"],
            [Need::Hints],
            slow
        ),
    ]
}

/// Returns the next `count` events that are not about consumers.
async fn next<S: Store>(scene: &Scene<S>, events: &mut Events, count: usize) -> Vec<QueueEvent> {
    let mut reported = Vec::new();
    while reported.len() < count {
        let event = scene.soon("an event arrives", events.next()).await.unwrap();
        if !matches!(event, QueueEvent::Started { .. } | QueueEvent::Stopped { .. }) {
            reported.push(event);
        }
    }
    reported
}

async fn life<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(2).build().unwrap();
    let mut events = queue.events().await.unwrap();
    let (id, attempt) = ("a:b/c:exp".to_owned(), 1);
    let handler = |item: Item<String>| async move {
        match (item.id(), item.attempt()) {
            ("fails", _) | (_, 1) => Err(BoxError::from("broken")),
            _ => Ok(String::new()),
        }
    };
    queue.enqueue(&id, "x".to_owned()).await.unwrap();
    assert_eq!(next(&scene, &mut events, 1).await, [QueueEvent::Queued { id: id.clone() }]);
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    let worker = consumer.id();
    assert_eq!(events.next().await, Some(QueueEvent::Started { worker }));
    let error = "broken".to_owned();
    let expected = [
        QueueEvent::Processing { id: id.clone(), attempt },
        QueueEvent::Failing { id: id.clone(), attempt, error: error.clone() },
        QueueEvent::Processing { id: id.clone(), attempt: 2 },
        QueueEvent::Completed { id, result: text("") },
    ];
    assert_eq!(next(&scene, &mut events, 4).await, expected);
    queue.enqueue("fails", "x".to_owned()).await.unwrap();
    let reported = next(&scene, &mut events, 5).await;
    let (id, kind, payload) = ("fails".to_owned(), FailureKind::Exhausted, text("x"));
    assert_eq!(reported.last(), Some(&QueueEvent::Failed { id, error, kind, payload }));
    queue.enqueue("off", "x".to_owned()).after(Duration::from_secs(60)).await.unwrap();
    queue.cancel("off").await.unwrap();
    let reported = next(&scene, &mut events, 2).await;
    assert_eq!(reported.last(), Some(&QueueEvent::Cancelled { id: "off".to_owned() }));
    scene.stop_consumers([consumer]).await;
    assert_eq!(scene.soon("the stop is reported", events.next()).await, Some(QueueEvent::Stopped { worker }));
}

async fn stalled<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let mut events = queue.events().await.unwrap();
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    take_and_die(&scene, &queue, Duration::from_millis(50)).await;
    let begun = Gate::new();
    let at = begun.clone();
    let hangs = move |_: Item<String>| {
        at.open(1);
        hang::<Result<String>>()
    };
    let consumer = queue.consume(hangs).concurrency(1).poll(POLL).await.unwrap();
    scene.soon("it begins", begun.pass()).await;
    scene.soon("it stops", consumer.stop(Duration::from_millis(10))).await;
    let id = "a".to_owned();
    let expected = [
        QueueEvent::Queued { id: id.clone() },
        QueueEvent::Stalled { id: id.clone(), attempt: 1 },
        QueueEvent::Processing { id: id.clone(), attempt: 2 },
        QueueEvent::Requeued { id },
    ];
    assert_eq!(next(&scene, &mut events, 4).await, expected);
}

async fn failures<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(1).build().unwrap();
    let mut events = queue.events().await.unwrap();
    queue.enqueue("expired", "x".to_owned()).await.unwrap();
    take_and_die(&scene, &queue, Duration::from_millis(50)).await;
    let handler = |item: Item<String>| async move {
        match item.id() {
            "fatal" => Err(BoxError::from(Fatal::new("broken"))),
            "exhausted" => Err("broken".into()),
            _ => Ok(String::new()),
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    let mut failed = async || loop {
        let event = scene.soon("a job fails", events.next()).await.unwrap();
        if let QueueEvent::Failed { id, kind, payload, .. } = event {
            return (id, kind, payload);
        }
    };
    assert_eq!(failed().await, ("expired".to_owned(), FailureKind::Expired, text("x")));
    // Both fail in the only allowed attempt.
    for (id, kind) in [("fatal", FailureKind::Fatal), ("exhausted", FailureKind::Exhausted)] {
        queue.enqueue(id, "x".to_owned()).await.unwrap();
        assert_eq!(failed().await, (id.to_owned(), kind, text("x")));
    }
    scene.stop_consumers([consumer]).await;
}

async fn trouble<S: Store>(scene: Scene<S>) {
    let broken = |_| async { Err::<Executed<String, String>, _>(BoxError::from("the hook is broken")) };
    let queue = texts(&scene).after_execution(broken).build().unwrap();
    let mut events = queue.events().await.unwrap();
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    let consumer = echo(&queue).await;
    let id = "a".to_owned();
    let expected = [
        QueueEvent::Queued { id: id.clone() },
        QueueEvent::Processing { id: id.clone(), attempt: 1 },
        QueueEvent::Error { error: "the hook is broken".to_owned() },
        QueueEvent::Completed { id, result: text(&echoed("x", 1)) },
    ];
    assert_eq!(next(&scene, &mut events, 4).await, expected);
    scene.stop_consumers([consumer]).await;
}

async fn across<S: Store>(scene: Scene<S>) {
    let mut events = texts(&scene).build().unwrap().events().await.unwrap();
    let other = other_client(&scene);
    let noise = other.queue::<String, String>("noise").build().unwrap();
    let queue = other.queue::<String, String>("texts").build().unwrap();
    noise.enqueue("noise", "x".to_owned()).await.unwrap();
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    let consumer = echo(&queue).await;
    let id = "a".to_owned();
    let expected = [
        QueueEvent::Queued { id: id.clone() },
        QueueEvent::Processing { id: id.clone(), attempt: 1 },
        QueueEvent::Completed { id, result: text(&echoed("x", 1)) },
    ];
    assert_eq!(next(&scene, &mut events, 3).await, expected);
    scene.stop_consumers([consumer]).await;
}

/// Returns a text as the queue stores it.
fn text(text: &str) -> Option<Payload> {
    Some(Payload::encode(text).unwrap())
}

/// Returns a client like that of another process.
fn other_client<S: Store>(scene: &Scene<S>) -> Client<S> {
    let builder = Client::<S>::builder(Arc::clone(&scene.store));
    builder.notifier(Shared(Arc::clone(&scene.notifier))).build()
}

/// The time after which a client knows that its events have no subscribers.
const UNANSWERED: Duration = Duration::from_millis(300);

async fn later<S: Store>(scene: Scene<S>) {
    let queue = other_client(&scene).queue::<String, String>("texts").build().unwrap();
    queue.enqueue("before", "x".to_owned()).await.unwrap();
    // tidy: nothing shows when the client has given up
    tokio::time::sleep(UNANSWERED).await;
    let mut events = texts(&scene).build().unwrap().events().await.unwrap();
    // The other client may learn of the subscription after its next job.
    let enqueued = async {
        for number in 0_u64.. {
            queue.enqueue(number.to_string(), "x".to_owned()).await.unwrap();
            // tidy: the other client may need this time
            tokio::time::sleep(POLL).await;
        }
    };
    let seen = tokio::select! {
        seen = next(&scene, &mut events, 3) => seen,
        () = enqueued => unreachable!("it enqueues until the events arrive"),
    };
    let is_queued = |event: &QueueEvent| matches!(event, QueueEvent::Queued { .. });
    assert!(seen.iter().all(is_queued), "{seen:?}");
}

/// The time in which events that one subscriber has received also reach another one.
const DELIVERY: Duration = Duration::from_millis(500);

async fn slow<S: Store>(scene: Scene<S>) {
    const JOBS: u64 = 150;
    // Three events for each job: more than are buffered for a subscriber.
    const TOLD: u64 = 3 * JOBS;
    let queue = texts(&scene).build().unwrap();
    let (mut slow, mut quick) = (queue.events().await.unwrap(), queue.events().await.unwrap());
    let handler = |_: Item<String>| async { Ok::<_, BoxError>(String::new()) };
    let consumer = queue.consume(handler).concurrency(50).poll(POLL).await.unwrap();
    let plans = (0..JOBS).map(|number| queue.enqueue(number.to_string(), String::new()));
    queue.enqueue_many(plans).await.unwrap();
    // The slow subscriber reads nothing until the quick one has received everything.
    read(&scene, &mut quick, TOLD).await;
    // tidy: nothing shows when the last events have reached the other subscriber, which has its own subscription
    tokio::time::sleep(DELIVERY).await;
    let (late, missed) = read(&scene, &mut slow, TOLD).await;
    assert!(missed > 0, "{late} were read late, and none were missed");
    for number in 0..JOBS {
        assert_eq!(status(&queue, &number.to_string()).await.state, ItemState::Completed);
    }
    scene.stop_consumers([consumer]).await;
}

/// Reads until `reported` events about jobs are accounted for. Returns how many were read and how many were missed.
async fn read<S: Store>(scene: &Scene<S>, events: &mut Events, reported: u64) -> (u64, u64) {
    let (mut read, mut missed) = (0, 0);
    while read + missed < reported {
        match scene.soon("the remaining events arrive", events.next()).await.unwrap() {
            QueueEvent::Missed { count } => missed += count,
            QueueEvent::Started { .. } => {}
            _ => read += 1,
        }
    }
    (read, missed)
}
