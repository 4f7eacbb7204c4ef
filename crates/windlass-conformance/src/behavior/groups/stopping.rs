//! Stopping workers.

use std::future::pending;

use windlass_core::{Attempt, Capability, Done, Millis};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "stopping.deaf",
            "A job whose handler ignores the abort signal is released at the deadline; the attempt does not count.",
            ["never 10", "A8.10", "bad input"],
            deaf
        ),
        behavior!(
            "stopping.finishes",
            "A handler that succeeds after the abort signal completes its job.",
            ["never 10"],
            finishes
        ),
        behavior!(
            "stopping.fails",
            "If a handler fails after the abort signal, its job is released without the error or counting the attempt.",
            ["never 10"],
            fails
        ),
        behavior!(
            "stopping.prefetched",
            "Jobs that a worker has acquired in advance are released as soon as it stops; the attempts do not count.",
            ["never 10"],
            prefetched
        ),
        behavior!(
            "stopping.store_down",
            "A worker stops although the store is unreachable; its jobs are requeued when their leases expire.",
            ["never 10", "never 1"],
            store_down
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "stopping.closing",
            "A finish that is being written when the worker stops is written once.",
            ["never 10", "bad input"],
            [Need::Store(Capability::NextDue)],
            closing
        ),
        behavior!(
            "stopping.open_transaction",
            "A transaction that is open at the deadline is rolled back, and its job is released.",
            ["never 10", "bad input"],
            open_transaction
        ),
    ]
}

job!(Task {} -> u32, options JobOptions { lease: Some(Duration::from_secs(60)), ..quick() });
job!(Brief {} -> u32, options JobOptions { lease: Some(Duration::from_millis(200)), ..quick() });

async fn task(job: Ctx<Task>) -> Result<u32> {
    Ok(job.attempt())
}

/// Checks that another worker runs the job, and that this is the first counted attempt.
async fn runs_elsewhere<S: Store>(scene: &Scene<S>, chain: Chain<Task>) {
    let job = scene.job(chain).await;
    assert_eq!((job.status, job.attempt, job.error), (Status::Pending, 0, None));
    let other = scene.other_worker().handle(task).start().await.unwrap();
    assert_eq!(scene.output(chain).await, 1);
    scene.stop_now([other]).await;
}

async fn deaf<S: Store>(scene: Scene<S>) {
    let started = Gate::new();
    let at = started.clone();
    let deaf = move |_: Ctx<Task>| {
        at.open(1);
        pending::<Result<u32>>()
    };
    let worker = scene.worker().handle(deaf).start().await.unwrap();
    let chain = scene.client.start(Task {}).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    scene.soon("the worker stops", worker.stop_now(Duration::from_millis(50))).await;
    assert_eq!(scene.seen.count(|event| matches!(event, Event::AttemptReleased(_))), 1);
    runs_elsewhere(&scene, chain).await;
}

async fn prefetched<S: Store>(scene: Scene<S>) {
    let (started, gate) = (Gate::new(), Gate::new());
    let held = (started.clone(), gate.clone());
    let slow = move |job: Ctx<Task>| {
        let (started, gate) = held.clone();
        async move {
            started.open(1);
            gate.pass().await;
            Ok::<_, BoxError>(job.attempt())
        }
    };
    let chains = scene.client.start_many((0..3).map(|_| Task {})).await.unwrap();
    let worker = scene.worker().concurrency(1).prefetch(2).handle(slow).start().await.unwrap();
    scene.soon("the first handler starts", started.pass()).await;
    scene.job_that("three jobs are leased", chains[2], |job| job.status == Status::Running).await;
    // The running handler ends only after the waiting jobs were released.
    let stopping = tokio::spawn(worker.stop(Duration::from_secs(60)));
    for chain in &chains[1..] {
        scene
            .job_that("it is released", *chain, |job| job.status == Status::Pending && job.attempt == 0)
            .await;
    }
    gate.open(1);
    scene.soon("the worker stops", stopping).await.unwrap();
    assert_eq!(scene.output(chains[0]).await, 1);
    let other = scene.other_worker().handle(task).start().await.unwrap();
    for chain in &chains[1..] {
        assert_eq!(scene.output(*chain).await, 1);
    }
    scene.stop_now([other]).await;
}

/// Stops a worker whose handler returns `end()` when it receives the abort signal.
async fn stop_when_told<S: Store>(scene: &Scene<S>, end: fn() -> Result<u32>) -> Chain<Task> {
    let started = Gate::new();
    let at = started.clone();
    let obedient = move |job: Ctx<Task>| {
        let at = at.clone();
        async move {
            at.open(1);
            job.aborted().wait().await;
            end()
        }
    };
    let worker = scene.worker().handle(obedient).start().await.unwrap();
    let chain = scene.client.start(Task {}).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    scene.stop_now([worker]).await;
    chain
}

async fn finishes<S: Store>(scene: Scene<S>) {
    let chain = stop_when_told(&scene, || Ok(7)).await;
    assert_eq!(scene.job(chain).await.status, Status::Completed, "before `stop` returns");
    assert_eq!(scene.output(chain).await, 7);
}

async fn fails<S: Store>(scene: Scene<S>) {
    let chain = stop_when_told(&scene, || Err("interrupted".into())).await;
    runs_elsewhere(&scene, chain).await;
}

async fn store_down<S: Store>(scene: Scene<S>) {
    let (started, store) = (Gate::new(), Faulty::new(&scene.store));
    let (client, at) = (scene.client_on(store.clone()), started.clone());
    let deaf = move |_: Ctx<Brief>| {
        at.open(1);
        pending::<Result<u32>>()
    };
    async fn brief(job: Ctx<Brief>) -> Result<u32> {
        Ok(job.attempt())
    }
    let worker = Worker::new(&client).concurrency(1).poll(POLL).handle(deaf).start().await.unwrap();
    let chain = scene.client.start(Brief {}).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    let all = ["acquire", "beat", "exchange", "next_due", "reap", "renew", "retire", "settle"];
    store.fault(&all, Fault::Fails, usize::MAX);
    scene.soon("the worker stops", worker.stop_now(Duration::from_millis(50))).await;
    let other = scene.other_worker().handle(brief).start().await.unwrap();
    assert_eq!(scene.output(chain).await, 2, "the lease has ended, and that counts");
    scene.stop_now([other]).await;
}

/// Long after a deadline of zero.
const LATE: Duration = Duration::from_millis(300);

async fn closing<S: Transactional>(scene: Scene<S>) {
    let (stage, store) = (scene.clone(), Faulty::new(&scene.store));
    let client = scene.client_on(store.clone());
    let finish = move |a: Attempt<Task, Faulty<S>>| {
        let stage = stage.clone();
        async move {
            let mut step = a.begin().await?;
            stage.mark(step.tx(), &format!("run {}", a.attempt())).await?;
            Ok::<Done<Task, _>, BoxError>(step.done(a.attempt())?)
        }
    };
    let commit = store.hold("commit");
    let worker = Worker::new(&client).concurrency(1).poll(POLL).handle(finish).start().await.unwrap();
    let chain = scene.client.start(Task {}).await.unwrap();
    scene.soon("the end of the job is being written", commit.begun()).await;
    let stopping = tokio::spawn(worker.stop_now(Duration::ZERO));
    scene.sees("the worker stops", 1, |event| matches!(event, Event::WorkerStopping(_))).await;
    // If the worker released jobs whose completion is being committed, it would have done so by then.
    scene.reads_past(scene.reads_time().await + Millis::try_from(LATE).unwrap()).await;
    commit.let_go();
    scene.soon("the worker has stopped", stopping).await.unwrap();
    assert_eq!(scene.output(chain).await, 1);
    assert!(scene.is_marked("run 1").await);
    assert_eq!(scene.seen.count(|event| matches!(event, Event::AttemptReleased(_))), 0);
}

async fn open_transaction<S: Transactional>(scene: Scene<S>) {
    let (stage, started) = (scene.clone(), Gate::new());
    let at = started.clone();
    let hang = move |a: Attempt<Task, S>| {
        let (stage, at) = (stage.clone(), at.clone());
        async move {
            let mut step = a.atomic().await?;
            stage.mark(step.tx(), "half-way").await?;
            at.open(1);
            pending::<()>().await;
            Ok::<Done<Task, S>, BoxError>(step.done(0)?)
        }
    };
    let worker = scene.worker().handle(hang).start().await.unwrap();
    let chain = scene.client.start(Task {}).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    scene.soon("the worker stops", worker.stop_now(Duration::from_millis(50))).await;
    runs_elsewhere(&scene, chain).await;
    assert!(!scene.is_marked("half-way").await);
}
