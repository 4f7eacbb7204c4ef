//! Queue names: queues are separate, and names and ids with special characters are never confused.

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.names.apart",
            "Queues with different names share a store but no ids, jobs or results.",
            ["MQ01", "MQ02", "MQ03", "MQ04", "MQ05", "MQ06", "ST-45"],
            apart
        ),
        behavior!(
            "queue.names.never_delayed",
            "A queue whose consumer is idle or whose handlers hang does not delay others.",
            ["MQ08", "B4.23"],
            never_delayed
        ),
        behavior!(
            "queue.names.hostile",
            "Any valid text can be an id or a name and is never confused with another; invalid ones are refused.",
            ["B4.31", "never 9"],
            hostile
        ),
    ]
}

async fn apart<S: Store>(scene: Scene<S>) {
    let [left, right] =
        ["left", "right"].map(|name| scene.client.queue::<String, String>(name).build().unwrap());
    for queue in [&left, &right] {
        assert_eq!(queue.enqueue("a", queue.name().to_string()).await.unwrap(), Enqueued::Queued);
        let again = queue.enqueue("a", String::new()).await.unwrap();
        assert_eq!(again, Enqueued::Duplicate(ItemState::Queued));
    }
    let consumer = echo(&left).await;
    let done = state(&scene, &left, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("left", 1));
    assert_eq!(status(&right, "a").await.state, ItemState::Queued);
    assert!(right.result("a").await.unwrap().is_none());
    let other = echo(&right).await;
    let done = state(&scene, &right, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("right", 1));
    scene.stop_consumers([consumer, other]).await;
}

async fn never_delayed<S: Store>(scene: Scene<S>) {
    let [stuck, idle, busy] =
        ["stuck", "idle", "busy"].map(|name| scene.client.queue::<String, String>(name).build().unwrap());
    let begun = Gate::new();
    let at = begun.clone();
    let hangs = move |_: Item<String>| {
        at.open(1);
        hang::<Result<String>>()
    };
    let consumers = [
        stuck.consume(hangs).concurrency(1).poll(POLL).await.unwrap(),
        echo(&idle).await,
        echo(&busy).await,
        echo(&busy).await,
    ];
    for id in ["a", "b"] {
        stuck.enqueue(id, String::new()).await.unwrap();
    }
    scene.soon("it is stuck", begun.pass()).await;
    for number in 0..10 {
        let wait = busy.enqueue_and_wait(number.to_string(), "x".to_owned()).poll(POLL);
        assert_eq!(scene.soon("it is not delayed", wait.into_future()).await.unwrap(), echoed("x", 1));
    }
    let [stuck, idle, one, two] = consumers;
    scene.stop_consumers([idle, one, two]).await;
    scene.soon("it stops", stuck.stop(Duration::from_millis(50))).await;
}

async fn hostile<S: Store>(scene: Scene<S>) {
    let long = "ä".repeat(500);
    let ids = [
        "a",
        "a:exp",
        ":",
        "a:queued",
        "../../etc/passwd",
        "/",
        "\\",
        "a b",
        "'; drop table job; --",
        "{a}",
        "%s",
        "*",
        "\n",
        "\u{1F600}",
        "A",
        "processing:1:2",
        &long,
    ];
    for name in ["queue", "jobs", "results", "a:b", "../up", "'\"", "%", "ä \u{1F600}", "{tag}"] {
        let queue = scene.client.queue::<String, String>(name).build().unwrap();
        let echo =
            |item: Item<String>| async move { Ok::<_, BoxError>(echoed(item.payload(), item.attempt())) };
        let consumer = queue.consume(echo).concurrency(20).poll(POLL).await.unwrap();
        let plans = ids.iter().map(|id| queue.enqueue(id, (*id).to_owned()));
        for enqueued in queue.enqueue_many(plans).await.unwrap() {
            assert_eq!(enqueued.unwrap(), Enqueued::Queued, "in {name:?}");
        }
        for id in ids {
            let done = state(&scene, &queue, id, ItemState::Completed).await;
            assert_eq!((done.id(), done.result().unwrap().unwrap()), (id, echoed(id, 1)), "in {name:?}");
        }
        scene.stop_consumers([consumer]).await;
    }
    let queue = texts(&scene).build().unwrap();
    for id in ["", "a\0b", &"x".repeat(1_001)] {
        let refused = [
            queue.enqueue(id, String::new()).await.unwrap_err(),
            queue.status(id).await.unwrap_err(),
            queue.cancel(id).await.unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.kind() == ErrorKind::Invalid), "{refused:?}");
    }
    for name in ["", "a\nb", &"x".repeat(201)] {
        let refused = scene.client.queue::<String, String>(name).build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
}
