//! Handlers that end their jobs in a transaction.

use std::collections::BTreeMap;

use windlass_core::queue::{Executed, ItemAttempt, ItemDone};
use windlass_core::{AnyAttempt, BoxFuture, Closing, Data, ErrorText, Hooks};

use super::prelude::*;

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "queue.transaction.commits",
            "The rows of a handler and the result of its job are committed together; then a waiting caller gets it.",
            ["issue: transactional completion for queue handlers"],
            commits
        ),
        behavior!(
            "queue.transaction.rolls_back",
            "If a handler fails or panics, before or after `done`, its rows are rolled back and the job is retried.",
            ["issue: transactional completion for queue handlers", "never 3"],
            rolls_back
        ),
        behavior!(
            "queue.transaction.lost",
            "A handler whose job was taken over commits nothing.",
            ["issue: transactional completion for queue handlers", "never 2"],
            lost
        ),
        behavior!(
            "queue.transaction.fails",
            "A handler can fail its job for good in the transaction; its rows are kept.",
            ["issue: transactional completion for queue handlers"],
            fails
        ),
        behavior!(
            "queue.transaction.hook",
            "The hook after execution can change a result before the commit; after an error the rollback comes first.",
            ["issue: transactional completion for queue handlers", "Q28", "Q29"],
            hook
        ),
        behavior!(
            "queue.transaction.unwritable",
            "If the result cannot be encoded, the rows are rolled back and the job fails.",
            ["issue: transactional completion for queue handlers", "B4.15"],
            unwritable
        ),
        behavior!(
            "queue.transaction.worker",
            "In a worker with other handlers, the hooks of the worker run in the transactions of the queue's handler.",
            ["issue: transactional completion for queue handlers"],
            in_worker
        ),
    ]
}

async fn commits<S: Transactional>(scene: Scene<S>) {
    async fn handler<S: Transactional>(
        item: ItemAttempt<String, S>,
        Data(scene): Data<Scene<S>>,
        Data(suffix): Data<&'static str>,
    ) -> Result<ItemDone<String, S>> {
        let mut prepare = item.prepare().await?;
        scene.mark(prepare.tx(), &format!("prepared {}", item.id())).await?;
        prepare.commit().await?;
        assert!(scene.is_marked(&format!("prepared {}", item.id())).await, "it has committed");
        let mut step = item.begin().await?;
        scene.mark(step.tx(), &format!("done {}", item.id())).await?;
        assert!(!scene.is_marked(&format!("done {}", item.id())).await, "the worker commits last");
        assert!(item.begin().await.is_err(), "a job ends once");
        Ok(step.done(format!("{} {suffix}", item.payload())))
    }
    let queue = texts(&scene).build().unwrap();
    let consumer = queue.consume_on(&scene.client, handler::<S>).data(scene.clone()).data("as well");
    let consumer = consumer.concurrency(1).poll(POLL).await.unwrap();
    for id in ["a", "b"] {
        let result = queue.enqueue_and_wait(id, "x".to_owned()).poll(POLL).await.unwrap();
        assert_eq!(result, "x as well");
        assert!(scene.is_marked(&format!("done {id}")).await, "the caller is answered after the commit");
        let done = status(&queue, id).await;
        assert_eq!((done.state, done.attempts), (ItemState::Completed, 1));
    }
    let completed = |event: &Event| matches!(event, Event::JobCompleted(..));
    scene.sees("each end is reported", 2, completed).await;
    scene.stop_consumers([consumer]).await;
    assert_eq!(scene.seen.count(completed), 2);
}

async fn rolls_back<S: Transactional>(scene: Scene<S>) {
    let stage = scene.clone();
    let handler = move |item: ItemAttempt<String, S>| {
        let stage = stage.clone();
        async move {
            let mut step = item.atomic().await?;
            stage.mark(step.tx(), &format!("attempt {}", item.attempt())).await?;
            match item.attempt() {
                1 => Err(BoxError::from("broken")),
                2 => panic!("even worse"),
                3 => {
                    let _done: ItemDone<String, S> = step.done("taken back".to_owned());
                    Err("on second thought".into())
                }
                attempt => Ok(step.done(echoed(item.payload(), attempt))),
            }
        }
    };
    let queue = texts(&scene).build().unwrap();
    let consumer = queue.consume_on(&scene.client, handler).concurrency(1).poll(POLL).await.unwrap();
    let result = queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap();
    assert_eq!(result, echoed("x", 4));
    for (attempt, stays) in [(1, false), (2, false), (3, false), (4, true)] {
        assert_eq!(scene.is_marked(&format!("attempt {attempt}")).await, stays, "attempt {attempt}");
    }
    let says = |why: &ErrorText| why.as_str().contains("even worse");
    let panicked = |event: &Event| matches!(event, Event::AttemptFailed(_, why, _) if says(why));
    scene.sees("the panic is reported", 1, panicked).await;
    let completed = |event: &Event| matches!(event, Event::JobCompleted(..));
    scene.stop_consumers([consumer]).await;
    assert_eq!(scene.seen.count(completed), 1, "only what was committed is reported");
}

async fn lost<S: Transactional>(scene: Scene<S>) {
    /// The visibility of the attempt that loses its job.
    const SHORT: Duration = Duration::from_millis(300);

    let store = Faulty::new(&scene.store);
    store.fault(&["renew"], Fault::Fails, usize::MAX);
    let client = scene.client_on(store.clone());
    let (begun, go, stage) = (Gate::new(), Gate::new(), scene.clone());
    let (at, gate) = (begun.clone(), go.clone());
    let handler = move |item: ItemAttempt<String, Faulty<S>>| {
        let (at, gate, stage) = (at.clone(), gate.clone(), stage.clone());
        async move {
            at.open(1);
            gate.pass().await;
            let mut step = item.begin().await?;
            stage.mark(step.tx(), "stale").await?;
            Ok::<_, BoxError>(step.done("stale".to_owned()))
        }
    };
    let stale = client.queue::<String, String>("texts").visibility(SHORT).build().unwrap();
    let zombie = stale.consume_on(&client, handler).concurrency(1).poll(POLL).await.unwrap();
    let queue = texts(&scene).build().unwrap();
    queue.enqueue("a", "x".to_owned()).await.unwrap();
    scene.soon("the stale attempt starts", begun.pass()).await;
    let consumer = echo(&others(&scene).build().unwrap()).await;
    let done = state(&scene, &queue, "a", ItemState::Completed).await;
    assert_eq!(done.result().unwrap().unwrap(), echoed("x", 2));
    go.open(1);
    scene.sees("it finds its job lost", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    assert_eq!(status(&queue, "a").await.result().unwrap().unwrap(), echoed("x", 2), "nothing changes");
    assert!(!scene.is_marked("stale").await);
    store.mend();
    scene.stop_consumers([zombie, consumer]).await;
}

async fn fails<S: Transactional>(scene: Scene<S>) {
    let stage = scene.clone();
    let handler = move |item: ItemAttempt<String, S>| {
        let stage = stage.clone();
        async move {
            let mut step = item.begin().await?;
            stage.mark(step.tx(), &format!("attempt {}", item.attempt())).await?;
            Ok::<ItemDone<String, S>, BoxError>(step.fail("no use"))
        }
    };
    let queue = texts(&scene).build().unwrap();
    let consumer = queue.consume_on(&scene.client, handler).concurrency(1).poll(POLL).await.unwrap();
    let error = queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap_err();
    assert_eq!((error.kind(), error.job_error().unwrap().as_str()), (ErrorKind::ChainFailed, "no use"));
    assert_eq!(status(&queue, "a").await.attempts, 1);
    assert!(scene.is_marked("attempt 1").await, "the rows are kept");
    scene.stop_consumers([consumer]).await;
}

async fn hook<S: Transactional>(scene: Scene<S>) {
    let (lines, stage) = (Lines::default(), scene.clone());
    let seen = lines.clone();
    let hook = move |mut executed: Executed<String, String>| {
        let (seen, stage) = (seen.clone(), stage.clone());
        async move {
            let id = executed.item.id().to_owned();
            seen.add(format!("{id} {:?}", executed.result));
            if executed.result.is_err() {
                // The transaction of the handler is rolled back by now. Otherwise, this would wait for it.
                let mut tx = stage.client.begin().await?;
                stage.mark(tx.tx(), &format!("hook {id}")).await?;
                tx.commit().await?;
            }
            executed.result =
                executed.result.map(|_| "changed".to_owned()).map_err(|_| "explained".to_owned());
            Ok::<_, BoxError>(executed)
        }
    };
    let stage = scene.clone();
    let handler = move |item: ItemAttempt<String, S>| {
        let stage = stage.clone();
        async move {
            let mut step = item.begin().await?;
            stage.mark(step.tx(), &format!("handler {}", item.id())).await?;
            if item.payload() == "fails" {
                Err(BoxError::from("broken"))
            } else {
                Ok(step.done("x".to_owned()))
            }
        }
    };
    let queue = texts(&scene).attempts(1).after_execution(hook).build().unwrap();
    let consumer = queue.consume_on(&scene.client, handler).concurrency(1).poll(POLL).await.unwrap();
    assert_eq!(queue.enqueue_and_wait("good", String::new()).poll(POLL).await.unwrap(), "changed");
    let error = queue.enqueue_and_wait("bad", "fails".to_owned()).poll(POLL).await.unwrap_err();
    assert_eq!(error.job_error().unwrap().as_str(), "explained");
    assert_eq!(lines.all(), ["good Ok(\"x\")", "bad Err(\"broken\")"]);
    for (name, stays) in [("handler good", true), ("handler bad", false), ("hook bad", true)] {
        assert_eq!(scene.is_marked(name).await, stays, "{name}");
    }
    scene.stop_consumers([consumer]).await;
}

async fn unwritable<S: Transactional>(scene: Scene<S>) {
    // JSON objects only have string keys, so this result cannot be encoded.
    type Pairs = BTreeMap<(u32, u32), u32>;
    let queue = scene.client.queue::<String, Pairs>("pairs").build().unwrap();
    let stage = scene.clone();
    let handler = move |item: ItemAttempt<String, S>| {
        let stage = stage.clone();
        async move {
            let mut step = item.begin().await?;
            stage.mark(step.tx(), &format!("attempt {}", item.attempt())).await?;
            Ok::<_, BoxError>(step.done(Pairs::from([((1, 2), 3)])))
        }
    };
    let consumer = queue.consume_on(&scene.client, handler).concurrency(1).poll(POLL).await.unwrap();
    let error = queue.enqueue_and_wait("a", String::new()).poll(POLL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    assert!(error.to_string().contains("cannot encode the value as `json`"), "{error}");
    assert!(!scene.is_marked("attempt 1").await);
    scene.stop_consumers([consumer]).await;
}

job!(Typed { number: u32 } -> u32);

/// Refuses the first transaction that ends a job.
struct Refuses(Lines);

impl<Tx: Send> Hooks<Tx> for Refuses {
    fn closing<'a>(
        &'a self,
        attempt: &'a AnyAttempt,
        _: Closing<'a>,
        _: &'a mut Tx,
    ) -> BoxFuture<'a, Result<()>> {
        self.0.add(format!("{} {}", attempt.job().job_type, attempt.attempt()));
        Box::pin(async { if attempt.attempt() == 1 { Err("not yet".into()) } else { Ok(()) } })
    }
}

async fn in_worker<S: Transactional>(scene: Scene<S>) {
    async fn typed(job: Ctx<Typed>) -> Result<u32> {
        Ok(job.input().number)
    }
    let stage = scene.clone();
    let handler = move |item: ItemAttempt<String, S>| {
        let stage = stage.clone();
        async move {
            let mut step = item.begin().await?;
            stage.mark(step.tx(), &format!("attempt {}", item.attempt())).await?;
            Ok::<_, BoxError>(step.done(echoed(item.payload(), item.attempt())))
        }
    };
    let (queue, lines) = (texts(&scene).build().unwrap(), Lines::default());
    let worker = scene.worker().handle(typed).handlers(queue.handlers(handler)).hooks(Refuses(lines.clone()));
    let worker = worker.start().await.unwrap();
    let chain = scene.client.start(Typed { number: 7 }).await.unwrap();
    assert_eq!(queue.enqueue_and_wait("a", "x".to_owned()).poll(POLL).await.unwrap(), echoed("x", 2));
    assert_eq!(scene.output(chain).await, 7);
    assert_eq!(lines.all(), ["texts 1", "texts 2"]);
    assert!(!scene.is_marked("attempt 1").await && scene.is_marked("attempt 2").await);
    scene.stop([worker]).await;
}
