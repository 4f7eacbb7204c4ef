//! Leases that expire before their attempts end.

use windlass_core::{Abort, AbortReason, Running};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "reaper.not_taken",
            "An attempt whose lease expired but whose job was not taken over can still finish; it was asked to stop.",
            ["BS-188"],
            not_taken
        ),
        behavior!(
            "reaper.learns_by_renewal",
            "Another worker runs an abandoned job, and its former owner learns of it at its next renewal.",
            ["BS-189"],
            learns_by_renewal
        ),
        behavior!(
            "reaper.learns_by_finishing",
            "A handler that returns after its job was lost changes nothing.",
            ["BS-190", "never 2", "bad input"],
            learns_by_finishing
        ),
        behavior!(
            "reaper.own_jobs",
            "A worker does not reap the jobs that it is running.",
            ["BS-191"],
            own_jobs
        ),
    ]
}

job!(Slow {} -> String, options JobOptions { lease: Some(Duration::from_millis(200)), ..quick() });

/// A worker whose renewals fail, with a running attempt that waits.
struct Zombie<S: Store> {
    store: Faulty<S>,
    worker: Running<Faulty<S>>,
    chain: Chain<Slow>,
    /// The attempt's abort signal.
    abort: Abort,
    /// Lets the handler return.
    go: Gate,
}

impl<S: Store> Zombie<S> {
    async fn start(scene: &Scene<S>, slots: u32) -> Self {
        let store = Faulty::new(&scene.store);
        store.fault(&["renew"], Fault::Fails, usize::MAX);
        let client = scene.client_on(store.clone());
        let (started, go) = (Gate::new(), Gate::new());
        let reason = Arc::new(Mutex::new(None));
        let (at, gate, shared) = (started.clone(), go.clone(), Arc::clone(&reason));
        let slow = move |job: Ctx<Slow>| {
            let (at, gate) = (at.clone(), gate.clone());
            *shared.lock().unwrap() = Some(job.aborted().clone());
            async move {
                at.open(1);
                gate.pass().await;
                Ok::<_, BoxError>(format!("slow attempt {}", job.attempt()))
            }
        };
        let worker = Worker::new(&client).poll(POLL).concurrency(slots).handle(slow).start().await.unwrap();
        let chain = scene.client.start(Slow {}).await.unwrap();
        scene.soon("the attempt starts", started.pass()).await;
        let abort = reason.lock().unwrap().clone().unwrap();
        Self { store, worker, chain, abort, go }
    }

    /// Waits until the attempt is aborted with a matching reason.
    async fn aborted(&self, scene: &Scene<S>, is: impl Fn(AbortReason) -> bool + Send + Sync) {
        scene.until("the attempt is notified", || self.abort.reason().is_some_and(&is)).await;
    }
}

async fn quick_attempt(job: Ctx<Slow>) -> Result<String> {
    Ok(format!("quick attempt {}", job.attempt()))
}

async fn not_taken<S: Store>(scene: Scene<S>) {
    let zombie = Zombie::start(&scene, 1).await;
    zombie.aborted(&scene, |reason| reason == AbortReason::StoreError).await;
    let warned = scene.seen.count(|event| matches!(event, Event::StoreFailed("renew", _)));
    assert!(warned > 0, "a failed renewal is reported");
    scene.past(scene.job(zombie.chain).await.lease.unwrap().until).await;
    zombie.go.open(1);
    assert_eq!(scene.output(zombie.chain).await, "slow attempt 1");
    scene.stop([zombie.worker]).await;
}

async fn learns_by_renewal<S: Store>(scene: Scene<S>) {
    let zombie = Zombie::start(&scene, 1).await;
    let other = scene.other_worker().handle(quick_attempt).start().await.unwrap();
    assert_eq!(scene.output(zombie.chain).await, "quick attempt 2");
    zombie.store.mend();
    zombie.aborted(&scene, AbortReason::is_lost).await;
    zombie.go.open(1);
    scene.sees("the attempt finds its job lost", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    assert_eq!(scene.output(zombie.chain).await, "quick attempt 2", "nothing changes");
    scene.stop([zombie.worker]).await;
    scene.stop([other]).await;
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobCompleted(..))), 1);
}

async fn learns_by_finishing<S: Store>(scene: Scene<S>) {
    let zombie = Zombie::start(&scene, 1).await;
    let other = scene.other_worker().handle(quick_attempt).start().await.unwrap();
    assert_eq!(scene.output(zombie.chain).await, "quick attempt 2");
    zombie.go.open(1);
    scene.sees("the attempt finds its job lost", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    assert_eq!(scene.output(zombie.chain).await, "quick attempt 2", "nothing changes");
    scene.stop([zombie.worker]).await;
    scene.stop([other]).await;
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobCompleted(..))), 1);
}

async fn own_jobs<S: Store>(scene: Scene<S>) {
    let zombie = Zombie::start(&scene, 2).await;
    scene.past(scene.job(zombie.chain).await.lease.unwrap().until).await;
    let reaps = zombie.store.calls("reap");
    scene.until("the worker reaps again and again", || zombie.store.calls("reap") > reaps + 3).await;
    let job = scene.job(zombie.chain).await;
    assert_eq!((job.status, job.attempt), (Status::Running, 1));
    zombie.go.open(1);
    assert_eq!(scene.output(zombie.chain).await, "slow attempt 1");
    scene.stop([zombie.worker]).await;
}
