//! How consumers process jobs.

use windlass_core::{Backoff, Capability, ErrorText, Handlers, JobId, Key, Target, Timestamp};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.consume",
            "A job is processed, and its result is stored with its actual time and attempts.",
            ["Q08", "Q10", "Q20", "Q21", "Q22", "E01", "E04", "ST-15", "ST-32", "B4.32"],
            consumes
        ),
        behavior!(
            "queue.consume.idle",
            "A consumer that found no jobs takes later ones and does not delay other consumers.",
            ["ST-03", "ST-05", "ST-06", "ST-07", "B4.5"],
            idle
        ),
        behavior!(
            "queue.consume.item",
            "A handler receives the id, payload, attempt number, creation time and previous error.",
            ["issue: the handler gets", "B4.32"],
            item
        ),
        behavior!(
            "queue.consume.parallel",
            "A consumer runs as many jobs concurrently as it has slots.",
            ["Q37"],
            parallel
        ),
        behavior!(
            "queue.consume.shared",
            "Several consumers share the work, and each job runs once.",
            ["E03", "Q03"],
            shared
        ),
        behavior!(
            "queue.consume.retries",
            "A job that fails or panics is retried; until then its state is `Failing`, and success clears the error.",
            ["Q15", "E05", "ST-14", "ST-34"],
            retries
        ),
        behavior!(
            "queue.consume.exhausted",
            "A job that fails in its last attempt has failed, with that error.",
            ["Q16", "Q23", "E06", "ST-33"],
            exhausted
        ),
        behavior!(
            "queue.consume.backs_off",
            "A failed attempt is retried after a delay, or immediately with `Backoff::NONE`, after jobs already due.",
            ["B4.19", "gaps: backoff"],
            backs_off
        ),
        behavior!(
            "queue.consume.default_backoff",
            "By default, a queue retries a failed job three times, after about 1, 2 and 4 seconds.",
            ["B4.19", "gaps: backoff"],
            [Need::Store(Capability::Trigger)],
            default_backoff
        ),
        behavior!(
            "queue.consume.lost_reply",
            "A job runs once even if the reply to its acquire or its settlement is lost.",
            ["B4.4", "B4.15", "never 12"],
            lost_reply
        ),
        behavior!(
            "queue.consume.worker",
            "The handler of a queue can be part of a worker with handlers of other types.",
            ["gaps: typed multi-job registry"],
            in_worker
        ),
    ]
}

async fn consumes<S: Store>(scene: Scene<S>) {
    let (queue, other) = (texts(&scene).build().unwrap(), others(&scene).build().unwrap());
    assert!(queue.status("a").await.unwrap().is_none());
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    let queued = status(&queue, "a").await;
    assert_eq!((queued.id(), queued.state, queued.attempts), ("a", ItemState::Queued, 0));
    assert!(queued.result().unwrap().is_none() && queued.kept_until.is_none());
    let consumer = echo(&other).await;
    let done = state(&scene, &queue, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("x", 1));
    assert_eq!((done.attempts, done.max_attempts, &done.error), (1, Some(4), &None));
    assert_eq!(done.created_at, queued.created_at);
    assert_eq!(queue.result("a").await.unwrap().unwrap(), echoed("x", 1));
    scene.stop_consumers([consumer]).await;
}

async fn idle<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let consumer = echo(&others(&scene).build().unwrap()).await;
    for number in 0..5 {
        // Wait for longer than the poll interval, so that the consumer has polled an empty queue.
        let looked_at = store_time(&queue).await;
        scene.past(looked_at + 3 * POLL).await;
        let result = queue.enqueue_and_wait(number.to_string(), "x".to_owned()).poll(POLL).await.unwrap();
        assert_eq!(result, echoed("x", 1));
    }
    scene.stop_consumers([consumer]).await;
}

/// Returns the store's current time.
async fn store_time(queue: &Texts) -> Timestamp {
    let id = JobId::new().to_string();
    queue.enqueue(&id, String::new()).after(Duration::from_secs(3_600)).await.unwrap();
    status(queue, &id).await.created_at
}

async fn item<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(7).build().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let items = Arc::clone(&seen);
    let handler = move |item: Item<String>| {
        let items = Arc::clone(&items);
        async move {
            items.lock().unwrap().push(item.clone());
            if item.attempt() == 1 { Err(BoxError::from("broken")) } else { Ok(String::new()) }
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap();
    let created_at = status(&queue, "a").await.created_at;
    let items = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(items.len(), 2);
    for (number, item) in (1..).zip(&items) {
        assert_eq!((item.id(), item.payload().as_str(), item.attempt()), ("a", "x", number));
        assert_eq!((item.created_at(), item.max_attempts()), (created_at, Some(7)));
        assert_eq!(item.worker(), consumer.id());
        assert_eq!(item.aborted().reason(), None);
        assert_eq!(item.last_error().map(ErrorText::as_str), (number == 2).then_some("broken"));
    }
    scene.stop_consumers([consumer]).await;
}

async fn parallel<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let together = Arc::new(tokio::sync::Barrier::new(3));
    let handler = move |_: Item<String>| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            Ok::<_, BoxError>(String::new())
        }
    };
    let consumer = queue.consume(handler).concurrency(3).poll(POLL).await.unwrap();
    for id in ["a", "b", "c"] {
        queue.enqueue(id, String::new()).await.unwrap();
    }
    for id in ["a", "b", "c"] {
        state(&scene, &queue, id, ItemState::Completed).await;
    }
    scene.stop_consumers([consumer]).await;
}

async fn shared<S: Store>(scene: Scene<S>) {
    let (queue, other) = (texts(&scene).build().unwrap(), others(&scene).build().unwrap());
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let lines = Lines::default();
    let mut consumers = Vec::new();
    for (name, queue) in [("one", &queue), ("other", &other)] {
        let (both, lines) = (Arc::clone(&both), lines.clone());
        let handler = move |item: Item<String>| {
            let (both, lines) = (Arc::clone(&both), lines.clone());
            async move {
                lines.add(item.id());
                // The first two jobs wait for each other, so each consumer gets one of them.
                if item.payload() == "meet" {
                    both.wait().await;
                }
                Ok::<_, BoxError>(name.to_owned())
            }
        };
        consumers.push(queue.consume(handler).concurrency(1).poll(POLL).await.unwrap());
    }
    for number in 0..20 {
        let payload = if number < 2 { "meet" } else { "" };
        queue.enqueue(number.to_string(), payload.to_owned()).await.unwrap();
    }
    let mut met = Vec::new();
    for number in 0..20 {
        let done = state(&scene, &queue, &number.to_string(), ItemState::Completed).await;
        if number < 2 {
            met.push(done.result().unwrap().unwrap());
        }
    }
    met.sort();
    assert_eq!(met, ["one", "other"]);
    let mut runs = lines.all();
    runs.sort_unstable();
    runs.dedup();
    assert_eq!((runs.len(), lines.all().len()), (20, 20), "each once");
    scene.stop_consumers(consumers).await;
}

async fn retries<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let (begun, go) = (Gate::new(), Gate::new());
    let (at, gate) = (begun.clone(), go.clone());
    let handler = move |item: Item<String>| {
        let (at, gate) = (at.clone(), gate.clone());
        async move {
            at.open(1);
            gate.pass().await;
            match item.attempt() {
                1 => Err(BoxError::from("broken")),
                2 => panic!("even worse"),
                attempt => Ok(echoed(item.payload(), attempt)),
            }
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    for error in [None, Some("broken"), Some("the handler panicked: even worse")] {
        scene.soon("an attempt begins", begun.pass()).await;
        let running = status(&queue, "a").await;
        assert_eq!(running.state, ItemState::Processing);
        assert_eq!(running.error.as_ref().map(ErrorText::as_str), error);
        go.open(1);
    }
    let done = state(&scene, &queue, "a", ItemState::Completed).await;
    assert_eq!((done.attempts, done.error.as_ref()), (3, None));
    assert_eq!(done.result().unwrap().unwrap(), echoed("x", 3));
    scene.stop_consumers([consumer]).await;
}

async fn exhausted<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let handler = |item: Item<String>| async move {
        Err::<String, _>(BoxError::from(format!("{{\"code\":{}}}", item.attempt())))
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    let failed = state(&scene, &queue, "a", ItemState::Failed).await;
    assert_eq!((failed.attempts, failed.error.as_ref().unwrap().as_str()), (4, "{\"code\":4}"));
    assert!(failed.result().unwrap().is_none() && failed.kept_until.is_some());
    assert!(queue.result("a").await.unwrap().is_none());
    scene.stop_consumers([consumer]).await;
}

async fn backs_off<S: Store>(scene: Scene<S>) {
    let ten_seconds = Backoff { jitter: 0.0, ..Backoff::default() };
    let patient = texts(&scene).backoff(ten_seconds).build().unwrap();
    let lines = Lines::default();
    let seen = lines.clone();
    let handler = move |item: Item<String>| {
        let seen = seen.clone();
        async move {
            seen.add(format!("{} {}", item.id(), item.attempt()));
            if item.payload() == "fails" && item.attempt() < 3 {
                return Err(BoxError::from("broken"));
            }
            Ok(String::new())
        }
    };
    patient.enqueue("patient", "fails".to_owned()).await.unwrap();
    let consumer = patient.consume(handler.clone()).concurrency(1).poll(POLL).await.unwrap();
    let failing = state(&scene, &patient, "patient", ItemState::Failing).await;
    assert!(failing.due_at >= failing.created_at + Duration::from_secs(10), "{failing:?}");
    scene.stop_consumers([consumer]).await;

    let eager = scene.client.queue::<String, String>("eager").backoff(Backoff::NONE).build().unwrap();
    eager.enqueue("eager", "fails".to_owned()).await.unwrap();
    eager.enqueue("ready", String::new()).await.unwrap();
    // An immediate retry is due at the time of the failure. Wait until "ready" is due, so that it is due before the
    // retry of "eager".
    scene.past(status(&eager, "ready").await.due_at).await;
    let consumer = eager.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    state(&scene, &eager, "eager", ItemState::Completed).await;
    assert_eq!(lines.all(), ["patient 1", "eager 1", "ready 1", "eager 2", "eager 3"]);
    scene.stop_consumers([consumer]).await;
}

async fn default_backoff<S: Store>(scene: Scene<S>) {
    let queue = scene.client.queue::<String, String>("unset").build().unwrap();
    let consumer = fail_before(&queue, u32::MAX).await;
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    for (attempt, delay) in [(1, 1_000), (2, 2_000), (3, 4_000)] {
        let has_failed = async {
            loop {
                let status = status(&queue, "a").await;
                if (status.state, status.attempts) == (ItemState::Failing, attempt) {
                    return status;
                }
                rest().await;
            }
        };
        let failing = scene.soon(&format!("attempt {attempt} has failed"), has_failed).await;
        // At most a tenth of the delay is left to chance.
        assert!(failing.due_at >= failing.created_at + Duration::from_millis(delay * 9 / 10), "{failing:?}");
        // The attempt failed before now. The clocks may differ by a little.
        assert!(failing.due_at <= Timestamp::now() + Duration::from_millis(delay + 100), "{failing:?}");
        // Makes the next attempt due now, so that the case does not wait for the delay.
        let job = Target::Key(queue.name().clone(), Key::new("a").unwrap());
        scene.client.trigger(job).await.unwrap();
    }
    let failed = state(&scene, &queue, "a", ItemState::Failed).await;
    assert_eq!(failed.attempts, 4);
    scene.stop_consumers([consumer]).await;
}

async fn lost_reply<S: Store>(scene: Scene<S>) {
    let store = Faulty::new(&scene.store);
    let queue = scene.client_on(store.clone()).queue::<String, String>("texts").build().unwrap();
    let held = Held::new(&queue).await;
    for (number, commands) in (0..).zip([["acquire", "exchange"], ["settle", "exchange"]]) {
        store.fault(&commands, Fault::LosesReply, 1);
        let id = number.to_string();
        queue.enqueue(&id, "x".to_owned()).await.unwrap();
        scene.soon("it begins", held.begun.pass()).await;
        held.go.open(1);
        let done = state(&scene, &queue, &id, ItemState::Completed).await;
        assert_eq!(done.result().unwrap().unwrap(), echoed("x", 1));
        assert_eq!(held.runs(), number + 1, "once each");
        store.mend();
    }
    assert!(store.failures() >= 2, "replies were lost");
    scene.stop_consumers([held.consumer]).await;
}

job!(Typed { number: u32 } -> u32);

async fn in_worker<S: Store>(scene: Scene<S>) {
    async fn typed(job: Ctx<Typed>) -> Result<u32> {
        Ok(job.input().number)
    }
    let queue = texts(&scene).build().unwrap();
    let handler =
        |item: Item<String>| async move { Ok::<_, BoxError>(echoed(item.payload(), item.attempt())) };
    let handlers: Handlers<S> = queue.handlers(handler);
    let worker = scene.worker().concurrency(2).handle(typed).handlers(handlers).start().await.unwrap();
    let chain = scene.client.start(Typed { number: 7 }).await.unwrap();
    assert_eq!(queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap(), echoed("x", 1));
    assert_eq!(scene.output(chain).await, 7);
    scene.stop([worker]).await;
    let twice = scene.worker().handlers(queue.handlers(handler)).handlers(queue.handlers(handler)).start();
    assert_eq!(twice.await.unwrap_err().kind(), ErrorKind::Invalid, "one handler for each name");
}
