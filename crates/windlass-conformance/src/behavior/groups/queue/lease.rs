//! Visibility: how long an acquired job is hidden from other consumers.

use std::sync::atomic::{AtomicU32, Ordering};

use windlass_core::{AbortReason, LEASE_EXPIRED};

use super::prelude::*;

/// A visibility that is meant to expire.
const SHORT: Duration = Duration::from_millis(300);
/// A visibility that must not expire on a slow machine, or not before the handler receives the abort signal.
const LONG: Duration = Duration::from_secs(4);

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.lease.renewed",
            "The visibility of a long job is renewed, and it runs once although other consumers are idle.",
            ["RE07", "B4.22"],
            renewed
        ),
        behavior!(
            "queue.lease.fixed",
            "With a fixed visibility, a handler is asked to stop, then ended, and the job is retried.",
            ["B4.11", "issue: fixed as an option"],
            fixed
        ),
        behavior!(
            "queue.lease.dead",
            "Another consumer takes over a job whose worker died, and the late result is discarded.",
            ["B4.1", "B4.11", "B4.12"],
            dead
        ),
        behavior!(
            "queue.lease.killer",
            "A job that kills its worker each time fails eventually, and its id is held no longer than others.",
            ["B4.14"],
            killer
        ),
    ]
}

async fn renewed<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).visibility(LONG).build().unwrap();
    let (held, idle) =
        (Held::new(&queue).await, echo(&others(&scene).visibility(LONG).build().unwrap()).await);
    // Either consumer may take the job. If the idle one does, enqueue another.
    let mut number = 0;
    while held.runs() == 0 {
        number += 1;
        queue.enqueue(number.to_string(), "x".to_owned()).await.unwrap();
        scene
            .soon("a consumer takes it", async {
                while held.runs() == 0
                    && status(&queue, &number.to_string()).await.state != ItemState::Completed
                {
                    rest().await;
                }
            })
            .await;
    }
    // A renewal happens after each half of the visibility.
    scene.sees("its lease is renewed", 3, |event| matches!(event, Event::LeaseRenewed(_))).await;
    let processing = status(&queue, &number.to_string()).await;
    assert_eq!((processing.state, processing.attempts), (ItemState::Processing, 1));
    held.go.open(1);
    let done = state(&scene, &queue, &number.to_string(), ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("x", 1));
    assert_eq!(held.runs(), 1);
    scene.stop_consumers([held.consumer, idle]).await;
}

async fn fixed<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).fixed_visibility(LONG).build().unwrap();
    let lines = Lines::default();
    let seen = lines.clone();
    let handler = move |item: Item<String>| {
        let seen = seen.clone();
        async move {
            if item.attempt() == 1 {
                assert_eq!(item.aborted().wait().await, AbortReason::TimedOut);
                seen.add("aborted");
                return hang().await;
            }
            Ok::<_, BoxError>(echoed(item.payload(), item.attempt()))
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    let result = queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap();
    assert_eq!(result, echoed("x", 2));
    assert_eq!(lines.all(), ["aborted"]);
    scene.stop_consumers([consumer]).await;
}

async fn dead<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).visibility(SHORT).build().unwrap();
    let store = Faulty::new(&scene.store);
    store.fault(&["renew"], Fault::Fails, usize::MAX);
    let zombies = scene.client_on(store.clone()).queue::<String, String>("texts").visibility(SHORT).build();
    let zombie = Held::new(&zombies.unwrap()).await;
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    scene.soon("the stale attempt starts", zombie.begun.pass()).await;
    let consumer = echo(&others(&scene).build().unwrap()).await;
    let done = state(&scene, &queue, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("x", 2));
    zombie.go.open(1);
    scene.sees("it finds its job lost", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    assert_eq!(status(&queue, "a").await.result().unwrap().unwrap(), echoed("x", 2));
    store.mend();
    scene.stop_consumers([zombie.consumer, consumer]).await;
}

async fn killer<S: Store>(scene: Scene<S>) {
    let queue = texts(&scene).attempts(3).build().unwrap();
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    let others_run = Arc::new(AtomicU32::new(0));
    let runs = Arc::clone(&others_run);
    let handler = move |_: Item<String>| {
        runs.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, BoxError>(String::new()) }
    };
    for _ in 0..3 {
        take_and_die(&scene, &queue, Duration::from_millis(50)).await;
        reap(&scene, &queue).await;
    }
    let failed = state(&scene, &queue, "a", ItemState::Failed).await;
    assert_eq!((failed.attempts, failed.error.as_ref().unwrap().as_str()), (3, LEASE_EXPIRED));
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    queue.enqueue_and_wait("b", String::new()).poll(POLL).await.unwrap();
    assert_eq!(others_run.load(Ordering::SeqCst), 1, "it was not run again");
    assert_eq!(queue.enqueue("a", "y".to_owned()).await.unwrap(), Enqueued::Queued);
    scene.stop_consumers([consumer]).await;
}

/// Requeues expired jobs, as any worker would.
async fn reap<S: Store>(scene: &Scene<S>, queue: &Texts) {
    use windlass_core::command::{Reap, Types};
    let types = Types::Only(vec![queue.name().clone()]);
    let renewal_interval = windlass_core::Millis::ZERO;
    let reap = Reap { types, max: 10, except: Vec::new(), renewal_interval };
    scene
        .soon("it is reaped", async {
            while scene.store.reap(reap.clone()).await.unwrap().reaped.is_empty() {
                rest().await;
            }
        })
        .await;
}
