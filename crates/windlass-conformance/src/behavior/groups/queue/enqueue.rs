//! Enqueueing: which jobs are accepted, and that each is accepted once.

use windlass_core::queue::content_id;

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.enqueue.once",
            "An id is enqueued once: while it is queued or running, enqueuing it again is a duplicate, whatever the payload.",
            ["Q06", "Q07", "D01", "D02", "D03", "E10", "ST-01", "ST-02"],
            once
        ),
        behavior!(
            "queue.enqueue.cached",
            "Enqueueing a completed id returns its result immediately, whatever the payload.",
            ["Q11", "D04", "D05", "E11", "ST-16"],
            cached
        ),
        behavior!(
            "queue.enqueue.concurrent",
            "If many callers enqueue one id concurrently, exactly one job is accepted, and it runs once.",
            ["D08", "B4.18"],
            concurrent
        ),
        behavior!(
            "queue.enqueue.many",
            "Many jobs can be enqueued in one call, with a result for each.",
            ["ST-12", "gaps: batch enqueue"],
            many
        ),
        behavior!(
            "queue.enqueue.order",
            "Jobs run in the order in which they were enqueued, those with a higher priority first.",
            ["ST-04", "gaps: priorities"],
            order
        ),
        behavior!(
            "queue.enqueue.delay",
            "A delayed job is queued, counts as a duplicate, and does not run before its due time.",
            ["gaps: delays"],
            delay
        ),
        behavior!(
            "queue.enqueue.lost_reply",
            "If the reply to an enqueue is lost, the job is queued once, and the caller gets the correct result.",
            ["never 12"],
            lost_reply
        ),
        behavior!(
            "queue.enqueue.content",
            "Equal payloads become one job if their ids are derived from them.",
            ["issue: content ids"],
            content
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![behavior!(
        "queue.enqueue.transaction",
        "A job that is enqueued in a transaction exists when it commits, or not at all.",
        ["gaps: transactional enqueue"],
        transaction
    )]
}

async fn once<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    assert_eq!(queue.enqueue("a", "first".to_owned()).await.unwrap(), Enqueued::Queued);
    for payload in ["first", "second"] {
        let again = others(&scene).build().unwrap().enqueue("a", payload.to_owned()).await.unwrap();
        assert_eq!(again, Enqueued::Duplicate(ItemState::Queued));
    }
    let held = Held::new(&queue).await;
    scene.soon("it begins", held.begun.pass()).await;
    let again = queue.enqueue("a", "third".to_owned()).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate(ItemState::Processing));
    held.go.open(1);
    let done = state(&scene, &queue, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("first", 1));
    assert_eq!(held.runs(), 1);
    scene.stop_consumers([held.consumer]).await;
}

async fn cached<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let consumer = echo(&queue).await;
    let result = queue.enqueue_and_wait("a", "first".to_owned()).poll(POLL).await.unwrap();
    scene.stop_consumers([consumer]).await;
    for payload in ["first", "second"] {
        let again = others(&scene).build().unwrap().enqueue("a", payload.to_owned()).await.unwrap();
        assert_eq!(again, Enqueued::Completed(result.clone()));
    }
    assert_eq!(queue.result("a").await.unwrap(), Some(result));
}

async fn concurrent<S: Store>(scene: Scene<S>) {
    let (queue, other) = (texts(&scene).build().unwrap(), others(&scene).build().unwrap());
    let consumer = echo(&queue).await;
    for round in 0..5 {
        let id = format!("round {round}");
        let callers: Vec<_> = (0..20)
            .map(|number| {
                let (queue, id) = (if number % 2 == 0 { queue.clone() } else { other.clone() }, id.clone());
                tokio::spawn(unless_busy(move || queue.enqueue(&id, number.to_string()).into_future()))
            })
            .collect();
        let mut accepted = Vec::new();
        for (number, caller) in callers.into_iter().enumerate() {
            if caller.await.unwrap() == Enqueued::Queued {
                accepted.push(number);
            }
        }
        assert_eq!(accepted.len(), 1, "exactly one is accepted");
        let done = state(&scene, &queue, &id, ItemState::Completed).await;
        assert_eq!(done.result().unwrap().unwrap(), echoed(&accepted[0].to_string(), 1));
    }
    scene.stop_consumers([consumer]).await;
}

async fn many<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    queue.enqueue("7", "before".to_owned()).await.unwrap();
    let plan = |number: usize| {
        let id = if number == 13 { String::new() } else { number.to_string() };
        queue.enqueue(id, number.to_string())
    };
    let enqueued = queue.enqueue_many((0..1_050).map(plan).chain([plan(8)])).await.unwrap();
    assert_eq!(enqueued.len(), 1_051);
    for (number, enqueued) in enqueued.into_iter().enumerate() {
        match number {
            7 | 1_050 => assert_eq!(enqueued.unwrap(), Enqueued::Duplicate(ItemState::Queued)),
            13 => assert_eq!(enqueued.unwrap_err().kind(), ErrorKind::Invalid),
            _ => assert_eq!(enqueued.unwrap(), Enqueued::Queued),
        }
    }
    let statuses = queue.statuses((0..1_051).map(|number| number.to_string())).await.unwrap();
    let unknown: Vec<_> = (0..).zip(&statuses).filter(|(_, status)| status.is_none()).collect();
    assert_eq!(unknown.iter().map(|(number, _)| *number).collect::<Vec<u32>>(), [13, 1_050]);
}

async fn order<S: Store>(scene: Scene<S>) {
    let (queue, lines) = (texts(&scene).build().unwrap(), Lines::default());
    for id in ["a", "b", "c"] {
        queue.enqueue(id, String::new()).await.unwrap();
    }
    queue.enqueue("urgent", String::new()).priority(5).await.unwrap();
    queue.enqueue("leisurely", String::new()).priority(-5).await.unwrap();
    queue.enqueue("d", String::new()).await.unwrap();
    let seen = lines.clone();
    let handler = move |item: Item<String>| {
        seen.add(item.id());
        async { Ok::<_, BoxError>(String::new()) }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    state(&scene, &queue, "leisurely", ItemState::Completed).await;
    assert_eq!(lines.all(), ["urgent", "a", "b", "c", "d", "leisurely"]);
    scene.stop_consumers([consumer]).await;
}

async fn delay<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let delay = Duration::from_millis(300);
    queue.enqueue("later", "x".to_owned()).after(delay).await.unwrap();
    let again = queue.enqueue("later", "y".to_owned()).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate(ItemState::Queued));
    let queued = status(&queue, "later").await;
    assert!(queued.due_at >= queued.created_at + delay, "{queued:?}");
    let consumer = echo(&queue).await;
    let done = state(&scene, &queue, "later", ItemState::Completed).await;
    let kept_until = done.kept_until.unwrap();
    assert!(kept_until >= queued.due_at + Duration::from_secs(3_600), "it ended after its time");
    scene.stop_consumers([consumer]).await;
}

async fn lost_reply<S: Store>(scene: Scene<S>) {
    let store = Faulty::new(&scene.store);
    let queue = scene.client_on(store.clone()).queue::<String, String>("texts").build().unwrap();
    store.fault(&["create"], Fault::LosesReply, 1);
    assert_eq!(queue.enqueue("a", "x".to_owned()).await.unwrap(), Enqueued::Queued);
    assert_eq!(store.failures(), 1, "the reply was lost");
    let consumer = echo(&texts(&scene).build().unwrap()).await;
    let done = state(&scene, &queue, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("x", 1));
    scene.stop_consumers([consumer]).await;
}

async fn content<S: Store>(scene: Scene<S>) {
    let queue = scene.client.queue::<(String, u32), u32>("resize").build().unwrap();
    for (payload, expected) in [
        (("a".to_owned(), 1), Enqueued::Queued),
        (("a".to_owned(), 1), Enqueued::Duplicate(ItemState::Queued)),
        (("a".to_owned(), 2), Enqueued::Queued),
    ] {
        let id = content_id(&payload).unwrap();
        assert_eq!(queue.enqueue(id, payload).await.unwrap(), expected);
    }
}

async fn transaction<S: Transactional>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let mut tx = scene.client.begin().await.unwrap();
    assert_eq!(queue.enqueue("kept", "x".to_owned()).in_tx(&mut tx).await.unwrap(), Enqueued::Queued);
    let again = queue.enqueue("kept", "y".to_owned()).in_tx(&mut tx).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate(ItemState::Queued));
    assert!(queue.status("kept").await.unwrap().is_none(), "not visible outside before the commit");
    tx.commit().await.unwrap();
    assert_eq!(status(&queue, "kept").await.state, ItemState::Queued);

    let mut tx = scene.client.begin().await.unwrap();
    queue.enqueue("dropped", "x".to_owned()).in_tx(&mut tx).await.unwrap();
    let waits = queue.enqueue("dropped", "x".to_owned()).in_tx(&mut tx).and_wait().await.unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::Invalid, "the answer would come after the commit");
    tx.rollback().await.unwrap();
    assert!(queue.status("dropped").await.unwrap().is_none());
}
