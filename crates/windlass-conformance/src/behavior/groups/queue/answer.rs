//! Waiting for a job's result.

use std::sync::atomic::{AtomicBool, Ordering};

use windlass_core::{Capability, Client, Fatal, Key, Target};

use super::prelude::*;
use crate::behavior::MuteNotifier;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.answer",
            "Enqueueing and waiting returns the result, which is cached afterwards.",
            ["Q12", "Q14", "RR01", "RR05", "E02", "ST-27"],
            answer
        ),
        behavior!(
            "queue.answer.many",
            "Many concurrent callers each receive their own result.",
            ["RR02", "E09"],
            many
        ),
        behavior!(
            "queue.answer.joins",
            "A caller that waits for a queued or running id joins that job; giving up does not affect the others.",
            ["RR06", "RR07", "RR12", "ST-29", "B4.10"],
            joins
        ),
        behavior!(
            "queue.answer.timeout",
            "A wait that times out returns an error, and the job continues.",
            ["Q13", "RR03"],
            timeout
        ),
        behavior!(
            "queue.answer.fails",
            "A failure is returned as an error with its kind and the stored error.",
            ["RR08", "ST-28", "issue: errors by kind"],
            fails
        ),
        behavior!(
            "queue.answer.calls_off",
            "A wait for a job that is cancelled or deleted returns an error that says so.",
            ["issue: errors by kind"],
            [Need::Store(Capability::Cancel), Need::Store(Capability::Delete)],
            calls_off
        ),
        behavior!("queue.answer.large", "A large result is returned completely.", ["RR11"], large),
        behavior!(
            "queue.answer.nothing",
            "A job whose result is `()` or `null` returns it.",
            ["B4.29"],
            nothing
        ),
        behavior!(
            "queue.answer.unheard",
            "Without a notification, a wait finds the result by polling.",
            ["B4.9", "never 4"],
            unheard
        ),
    ]
}

async fn answer<S: Store>(scene: Scene<S>) {
    let (queue, other) = (texts(&scene).build().unwrap(), others(&scene).build().unwrap());
    let consumer = echo(&other).await;
    let result = queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap();
    assert_eq!(result, echoed("x", 1));
    scene.stop_consumers([consumer]).await;
    let again = queue.enqueue_and_wait("a", "y".to_owned()).timeout(Duration::from_secs(10)).await.unwrap();
    assert_eq!(again, result, "without a consumer");
}

async fn many<S: Store>(scene: Scene<S>) {
    let (queue, other) = (texts(&scene).build().unwrap(), others(&scene).build().unwrap());
    let handler = |item: Item<String>| async move { Ok::<_, BoxError>(format!("{} done", item.id())) };
    let consumer = other.consume(handler).concurrency(8).poll(POLL).await.unwrap();
    let waits: Vec<_> = (0..60)
        .map(|number| {
            let wait = queue.enqueue_and_wait(number.to_string(), String::new()).poll(POLL);
            tokio::spawn(wait.into_future())
        })
        .collect();
    for (number, wait) in waits.into_iter().enumerate() {
        let result = scene.soon("an answer comes", wait).await.unwrap().unwrap();
        assert_eq!(result, format!("{number} done"));
    }
    scene.stop_consumers([consumer]).await;
}

async fn joins<S: Store>(scene: Scene<S>) {
    let (queue, other) = (texts(&scene).build().unwrap(), others(&scene).build().unwrap());
    queue.enqueue("a", "first".to_owned()).await.unwrap();
    let wait = |queue: &Texts| {
        tokio::spawn(queue.enqueue_and_wait("a", "later".to_owned()).poll(POLL).into_future())
    };
    let mut waits = vec![wait(&queue), wait(&queue), wait(&other)];
    let held = Held::new(&queue).await;
    scene.soon("it begins", held.begun.pass()).await;
    waits.push(wait(&queue));
    let impatient = queue.enqueue_and_wait("a", String::new()).timeout(Duration::from_millis(20));
    assert_eq!(impatient.await.unwrap_err().kind(), ErrorKind::TimedOut);
    waits.pop().unwrap().abort();
    waits.push(wait(&other));
    held.go.open(1);
    for wait in waits {
        assert_eq!(scene.soon("each gets it", wait).await.unwrap().unwrap(), echoed("first", 1));
    }
    assert_eq!(held.runs(), 1);
    scene.stop_consumers([held.consumer]).await;
}

async fn timeout<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let held = Held::new(&queue).await;
    scene
        .soon("the store takes it in before the time is over", async {
            loop {
                let wait = queue.enqueue_and_wait("a", "x".to_owned()).timeout(Duration::from_millis(500));
                let error = wait.await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                if error.to_string().contains("the job continues") {
                    let text = format!("job `a` of queue `{}` is still open after 500ms: it ", queue.name());
                    assert!(error.to_string().starts_with(&text), "{error}");
                    return;
                }
            }
        })
        .await;
    held.go.open(1);
    let result = queue.enqueue_and_wait("a", "y".to_owned()).poll(POLL).await.unwrap();
    assert_eq!(result, echoed("x", 1), "the job continued");
    scene.stop_consumers([held.consumer]).await;
}

async fn fails<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let handler = |item: Item<String>| async move {
        match item.id() {
            "gives up" => Err::<String, BoxError>(Fatal::new("no use").into()),
            _ => Err(format!("broken {}", item.attempt()).into()),
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    let wait = |id| queue.enqueue(id, String::new()).attempts(2).and_wait().poll(POLL).into_future();
    for (id, kind, text, attempts) in [
        ("tries", ErrorKind::AttemptsExhausted, "broken 2", 2),
        ("gives up", ErrorKind::ChainFailed, "no use", 1),
    ] {
        let error = wait(id).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.job_error().unwrap().as_str(), text);
        assert!(error.to_string().contains(id) && error.to_string().contains(text), "{error}");
        let failed = status(&queue, id).await;
        assert_eq!((failed.state, failed.attempts), (ItemState::Failed, attempts));
    }
    scene.stop_consumers([consumer]).await;
}

async fn calls_off<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let wait = |id: &str| tokio::spawn(queue.enqueue_and_wait(id, String::new()).poll(POLL).into_future());
    let (cancelled, deleted) = (wait("cancelled"), wait("deleted"));
    for id in ["cancelled", "deleted"] {
        state(&scene, &queue, id, ItemState::Queued).await;
    }
    queue.cancel("cancelled").await.unwrap();
    let key = Target::Key(queue.name().clone(), Key::new("deleted").unwrap());
    scene.client.delete(vec![key]).await.unwrap();
    for (wait, kind) in [(cancelled, ErrorKind::ChainCancelled), (deleted, ErrorKind::NotFound)] {
        let error = scene.soon("the wait ends", wait).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

async fn large<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).build().unwrap();
    let large = |item: Item<String>| async move { Ok::<_, BoxError>(item.payload().repeat(1024)) };
    let consumer = queue.consume(large).concurrency(1).poll(POLL).await.unwrap();
    let payload = "0123456789 \"\\\u{0}ä\u{1F600}".repeat(50);
    let result = queue.enqueue_and_wait("a", &payload).poll(POLL).await.unwrap();
    assert!(result == payload.repeat(1024), "the result is another");
    scene.stop_consumers([consumer]).await;
}

async fn nothing<S: Store>(scene: Scene<S>) {
    let (void, null) = (
        scene.client.queue::<u32, ()>("void").build().unwrap(),
        scene.client.queue::<u32, Option<u32>>("null").build().unwrap(),
    );
    let ran = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&ran);
    let gives_void = move |_: Item<u32>| {
        assert!(!runs.swap(true, Ordering::SeqCst), "once is enough");
        async { Ok::<_, BoxError>(()) }
    };
    let consumers = [
        void.consume(gives_void).concurrency(1).poll(POLL).await.unwrap(),
        null.consume(|_| async { Ok::<_, BoxError>(None) }).concurrency(1).poll(POLL).await.unwrap(),
    ];
    void.enqueue_and_wait("a", 1).poll(POLL).await.unwrap();
    assert_eq!(void.enqueue("a", 1).await.unwrap(), Enqueued::Completed(()));
    assert_eq!(null.enqueue_and_wait("a", 1).poll(POLL).await.unwrap(), None);
    assert_eq!(null.enqueue("a", 1).await.unwrap(), Enqueued::Completed(None));
    assert_eq!(null.result("a").await.unwrap(), Some(None));
    scene.stop_consumers(consumers).await;
}

async fn unheard<S: Store>(scene: Scene<S>) {
    let builder = Client::<S>::builder(Arc::clone(&scene.store)).notifier(MuteNotifier::default());
    let queue = builder.build().queue::<String, String>("texts").build().unwrap();
    let consumer = echo(&others(&scene).build().unwrap()).await;
    let result = queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap();
    assert_eq!(result, echoed("x", 1));
    scene.stop_consumers([consumer]).await;
}
