//! The hook that runs after execution.

use windlass_core::Fatal;
use windlass_core::queue::Executed;

use super::prelude::*;

const HOUR: Duration = Duration::from_secs(3_600);

type Done = Executed<String, String>;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.hook.success",
            "A hook receives a success before it is stored, and can change the result and its TTL.",
            ["Q28"],
            success
        ),
        behavior!(
            "queue.hook.failure",
            "A hook receives only the final failure, and can change the error and its TTL.",
            ["Q29"],
            failure
        ),
        behavior!(
            "queue.hook.fails",
            "A hook that fails, panics or returns invalid values changes nothing, and the handler does not run again.",
            ["Q30", "B4.15"],
            fails
        ),
        behavior!(
            "queue.hook.not_lost",
            "A result that cannot be encoded fails the job immediately: its handler does not run again.",
            ["B4.15"],
            unwritable
        ),
    ]
}

async fn success<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let seen = lines.clone();
    let hook = move |mut executed: Done| {
        seen.add(format!("{} {:?} {:?}", executed.item.id(), executed.result, executed.ttl));
        async move {
            tokio::task::yield_now().await;
            executed.result = Ok("changed".to_owned());
            executed.ttl = 9 * HOUR;
            Ok::<_, BoxError>(executed)
        }
    };
    let queue = texts(&scene).after_execution(hook).build().unwrap();
    let consumer = fail_before(&queue, 2).await;
    assert_eq!(queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap(), "changed");
    let done = status(&queue, "a").await;
    assert!(done.kept_until.unwrap() >= done.created_at + 9 * HOUR, "{done:?}");
    assert_eq!(lines.all(), ["a Ok(\"x, attempt 2\") 3600s"], "once, and not for the retry");
    scene.stop_consumers([consumer]).await;
}

async fn failure<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let seen = lines.clone();
    let hook = move |mut executed: Done| {
        let number = executed.item.attempt();
        seen.add(format!("{} {number} {:?} {:?}", executed.item.id(), executed.result, executed.ttl));
        async move {
            executed.result = Err("explained".to_owned());
            executed.ttl = 9 * HOUR;
            Ok::<_, BoxError>(executed)
        }
    };
    let queue = texts(&scene).attempts(2).error_ttl(2 * HOUR).after_execution(hook).build().unwrap();
    let handler = |item: Item<String>| async move {
        match item.id() {
            "fatal" => Err::<String, BoxError>(Fatal::new("no use").into()),
            "panics" => panic!("oh"),
            _ => Err("broken".into()),
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    for (id, reported) in [
        ("fails", "fails 2 Err(\"broken\") 7200s"),
        ("panics", "panics 2 Err(\"the handler panicked: oh\") 7200s"),
        ("fatal", "fatal 1 Err(\"no use\") 7200s"),
    ] {
        queue.enqueue(id, "x".to_owned()).await.unwrap();
        let failed = state(&scene, &queue, id, ItemState::Failed).await;
        assert_eq!(failed.error.as_ref().unwrap().as_str(), "explained");
        assert!(failed.kept_until.unwrap() >= failed.created_at + 9 * HOUR, "{failed:?}");
        assert_eq!(lines.all().last().unwrap(), reported);
    }
    assert_eq!(lines.all().len(), 3, "not for retries");
    scene.stop_consumers([consumer]).await;
}

async fn fails<S: Store>(scene: Scene<S>) {
    let hook = |mut executed: Done| async move {
        match executed.item.id() {
            "errs" => return Err(BoxError::from("the hook is broken")),
            "panics" => panic!("the hook panics"),
            "ttl" => executed.ttl = Duration::ZERO,
            _ => executed.result = Err("turned".to_owned()),
        }
        Ok(executed)
    };
    let queue = texts(&scene).after_execution(hook).build().unwrap();
    let lines = Lines::default();
    let seen = lines.clone();
    let handler = move |item: Item<String>| {
        seen.add(item.id());
        async move {
            match item.payload().as_str() {
                "fails" => Err(BoxError::from(Fatal::new("no use"))),
                _ => Ok("unchanged".to_owned()),
            }
        }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    let ids = ["errs", "panics", "ttl", "turns"];
    for id in ids {
        let result = queue.enqueue_and_wait(id, String::new()).poll(POLL).await.unwrap();
        assert_eq!(result, "unchanged", "{id}");
        let done = status(&queue, id).await;
        assert!(done.kept_until.unwrap() >= done.created_at + HOUR, "{done:?}");
    }
    scene.sees("each failure is reported", 4, |event| matches!(event, Event::HookFailed(..))).await;
    assert_eq!(lines.all(), ids, "each was run once");
    queue.enqueue("fails too", "fails".to_owned()).await.unwrap();
    let failed = state(&scene, &queue, "fails too", ItemState::Failed).await;
    assert_eq!(failed.error.unwrap().as_str(), "turned", "an error may be changed into another");
    scene.stop_consumers([consumer]).await;
}

async fn unwritable<S: Store>(scene: Scene<S>) {
    use std::collections::BTreeMap;
    // JSON objects only have string keys, so this result cannot be encoded.
    type Pairs = BTreeMap<(u32, u32), u32>;
    let queue = scene.client.queue::<String, Pairs>("pairs").build().unwrap();
    let lines = Lines::default();
    let seen = lines.clone();
    let handler = move |item: Item<String>| {
        seen.add(item.id());
        async { Ok::<_, BoxError>(Pairs::from([((1, 2), 3)])) }
    };
    let consumer = queue.consume(handler).concurrency(1).poll(POLL).await.unwrap();
    let error = queue.enqueue_and_wait("a", String::new()).poll(POLL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    assert!(error.to_string().contains("cannot encode the value as `json`"), "{error}");
    assert_eq!(lines.all(), ["a"]);
    scene.stop_consumers([consumer]).await;
}
