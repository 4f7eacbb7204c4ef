//! Lost replies, and the commands that a worker sends.

use std::sync::atomic::{AtomicU32, Ordering};

use windlass_core::{Attempt, Done};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "repeats.create",
            "A start whose reply is lost starts one chain, and its caller gets no error.",
            ["never 12"],
            |scene| lost(scene, &["create"])
        ),
        behavior!(
            "repeats.acquire",
            "Jobs acquired by a call whose reply is lost run once.",
            ["never 12"],
            |scene| lost(scene, &["acquire"])
        ),
        behavior!(
            "repeats.settle",
            "A settlement whose reply is lost is not applied twice, and the jobs acquired with it run.",
            ["never 12"],
            |scene| lost(scene, &["settle", "exchange"])
        ),
        behavior!(
            "repeats.one_acquire",
            "A worker fills all its slots with one call.",
            ["A8.12"],
            one_acquire
        ),
        behavior!(
            "repeats.recovery",
            "A worker backs off after repeated errors, and resets the delay after a success.",
            ["A8.9"],
            recovery
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "repeats.commit",
            "A finish that committed but whose reply was lost does not run again.",
            ["never 12"],
            commit
        ),
        behavior!(
            "repeats.dropped",
            "A transaction that is dropped midway leaves no writes and sends no events.",
            ["bad input", "never 3"],
            dropped
        ),
        behavior!(
            "repeats.panic",
            "A handler that panics in its transaction rolls it back and affects no other job.",
            ["bad input"],
            panics
        ),
    ]
}

job!(Task { number: u32 } -> u32);

/// Returns a handler that counts its runs.
fn counted(runs: &Arc<AtomicU32>) -> impl Fn(Ctx<Task>) -> std::future::Ready<Result<u32>> + Clone + use<> {
    let runs = Arc::clone(runs);
    move |job: Ctx<Task>| {
        runs.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(job.input().number))
    }
}

async fn lost<S: Store>(scene: Scene<S>, commands: &'static [&'static str]) {
    let (store, runs) = (Faulty::new(&scene.store), Arc::new(AtomicU32::new(0)));
    let client = scene.client_on(store.clone());
    store.fault(commands, Fault::LosesReply, 2);
    let mut chains = Vec::new();
    for number in 0..6 {
        chains.push(client.start(Task { number }).await.unwrap());
    }
    let worker = Worker::new(&client).poll(POLL).concurrency(2).handle(counted(&runs)).start().await.unwrap();
    for (number, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
        assert_eq!(scene.job(chain).await.attempt, 1);
    }
    scene.stop([worker]).await;
    assert_eq!(runs.load(Ordering::SeqCst), 6, "each job is run once");
    assert!(commands.iter().any(|command| store.calls(command) > 1), "a reply was lost and asked for again");
}

async fn one_acquire<S: Store>(scene: Scene<S>) {
    let (store, started, go) = (Faulty::new(&scene.store), Gate::new(), Gate::new());
    let client = scene.client_on(store.clone());
    let (at, gate) = (started.clone(), go.clone());
    let task = move |job: Ctx<Task>| {
        let (at, gate) = (at.clone(), gate.clone());
        async move {
            at.open(1);
            gate.pass().await;
            Ok::<_, BoxError>(job.input().number)
        }
    };
    let chains = scene.client.start_many((0..10).map(|number| Task { number })).await.unwrap();
    let worker = Worker::new(&client).poll(POLL).concurrency(10).handle(task).start().await.unwrap();
    for _ in 0..10 {
        scene.soon("all slots are filled", started.pass()).await;
    }
    assert_eq!(store.calls("acquire"), 1);
    go.open(10);
    for (number, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
    }
    scene.stop([worker]).await;
}

async fn recovery<S: Store>(scene: Scene<S>) {
    // If the backoff were not reset in each round, the delay after the tenth failure would exceed the case's limit.
    const ROUNDS: usize = 5;
    const FAILURES: usize = 2;
    let (store, runs) = (Faulty::new(&scene.store), Arc::new(AtomicU32::new(0)));
    let client = scene.client_on(store.clone());
    let worker = Worker::new(&client).poll(POLL).handle(counted(&runs)).start().await.unwrap();
    for round in 1..=ROUNDS {
        store.fault(&["acquire"], Fault::Fails, FAILURES);
        let failed = |event: &Event| matches!(event, Event::WorkerFailed(..));
        scene.sees("the worker's loop meets errors", round * FAILURES, failed).await;
        let chain = scene.client.start(Task { number: 1 }).await.unwrap();
        scene.output(chain).await;
    }
    scene.stop([worker]).await;
}

async fn commit<S: Transactional>(scene: Scene<S>) {
    let (store, stage) = (Faulty::new(&scene.store), scene.clone());
    let client = scene.client_on(store.clone());
    let task = move |a: Attempt<Task, Faulty<S>>| {
        let stage = stage.clone();
        async move {
            let mut step = a.begin().await?;
            stage.mark(step.tx(), &format!("run {} of {}", a.attempt(), a.input().number)).await?;
            Ok::<Done<Task, _>, BoxError>(step.done(a.input().number)?)
        }
    };
    let worker = Worker::new(&client).poll(POLL).concurrency(2).handle(task).start().await.unwrap();
    store.fault(&["commit"], Fault::LosesReply, 2);
    let chains = scene.client.start_many((0..4).map(|number| Task { number })).await.unwrap();
    for (number, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
        assert_eq!(scene.job(chain).await.attempt, 1);
        assert!(scene.is_marked(&format!("run 1 of {number}")).await);
    }
    scene.stop([worker]).await;
}

async fn dropped<S: Transactional>(scene: Scene<S>) {
    let mut tx = scene.client.begin().await.unwrap();
    let chain = tx.start(Task { number: 1 }).await.unwrap();
    scene.mark(tx.tx(), "half-way").await.unwrap();
    drop(tx);
    let stage = scene.clone();
    let task = move |a: Attempt<Task, S>| {
        let stage = stage.clone();
        async move {
            let mut prepare = a.prepare().await?;
            stage.mark(prepare.tx(), &format!("prepared {}", a.attempt())).await?;
            if a.attempt() == 1 {
                drop(prepare);
                return Err("dropped".into());
            }
            prepare.commit().await?;
            let mut step = a.begin().await?;
            stage.mark(step.tx(), &format!("finished {}", a.attempt())).await?;
            if a.attempt() == 2 {
                drop(step);
                return Err("dropped".into());
            }
            Ok::<Done<Task, S>, BoxError>(step.done(a.attempt())?)
        }
    };
    let worker = scene.worker().handle(task).start().await.unwrap();
    let other = scene.client.start(Task { number: 2 }).await.unwrap();
    assert_eq!(scene.output(other).await, 3);
    for (name, stays) in [
        ("half-way", false),
        ("prepared 1", false),
        ("prepared 2", true),
        ("finished 2", false),
        ("finished 3", true),
    ] {
        assert_eq!(scene.is_marked(name).await, stays, "{name}");
    }
    assert!(scene.client.chain(chain).await.unwrap().is_none());
    let created = |event: &Event| matches!(event, Event::ChainCreated(about) if about.chain == chain.id());
    assert_eq!(scene.seen.count(created), 0);
    scene.stop([worker]).await;
}

async fn panics<S: Transactional>(scene: Scene<S>) {
    let stage = scene.clone();
    let task = move |a: Attempt<Task, S>| {
        let stage = stage.clone();
        async move {
            let mut step = a.atomic().await?;
            stage.mark(step.tx(), &format!("run {} of {}", a.attempt(), a.input().number)).await?;
            assert!(a.attempt() > 1 || a.input().number > 0, "broken");
            Ok::<Done<Task, S>, BoxError>(step.done(a.attempt())?)
        }
    };
    let worker = scene.worker().concurrency(3).handle(task).start().await.unwrap();
    let chains = scene.client.start_many((0..5).map(|number| Task { number })).await.unwrap();
    for (number, chain) in (0..).zip(chains) {
        let attempts = scene.output(chain).await;
        assert_eq!(attempts, if number == 0 { 2 } else { 1 });
        assert!(scene.is_marked(&format!("run {attempts} of {number}")).await);
    }
    assert!(!scene.is_marked("run 1 of 0").await, "its writes before the panic are rolled back");
    let failed =
        |event: &Event| matches!(event, Event::AttemptFailed(_, why, _) if why.as_str().contains("broken"));
    scene.sees("the panic is reported", 1, failed).await;
    scene.stop([worker]).await;
    assert_eq!(scene.seen.count(failed), 1);
}
