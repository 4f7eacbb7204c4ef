//! Events that observers receive.

use std::time::Duration;

use tokio::sync::Semaphore;
use windlass_core::command::{Acquire, Quota};
use windlass_core::{
    About, AboutWorker, AttemptRecord, BoxFuture, CancelMode, Chain, Client, ClosedAs, Error, ErrorKind,
    Hint, JobOptions, Millis, Notifier, OnBlockerFailure, RequestId, Subscription, Target, Topic, TypeName,
    Worker, WorkerId, WorkerName, plan,
};

use super::super::prelude::*;
use super::{ATTEMPTS, CANCEL, DELETE, LISTS, OUTSIDE, TRIGGER};
use crate::behavior::faulty::{Fault, Faulty};
use crate::behavior::job::quick;
use crate::behavior::scene::POLL;

#[expect(clippy::too_many_lines, reason = "a list of cases")]
pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "events.life",
            "Observers receive an event for each step of a chain and a worker, with its job and worker.",
            ["logging: simple lifecycle"],
            life
        ),
        behavior!(
            "events.worker_name",
            "The attempts of a named worker are stored with its name.",
            ["issue: the worker's name is in attempts"],
            [ATTEMPTS],
            worker_name
        ),
        behavior!(
            "events.retry",
            "A failed attempt is reported with its number, its error and the time of the retry.",
            ["logging: retry with backoff"],
            retry
        ),
        behavior!(
            "events.continuation",
            "A continued job is reported with the next job.",
            ["logging: continuations"],
            continuation
        ),
        behavior!(
            "events.blockers",
            "Observers receive an event when a job becomes blocked and when it is unblocked.",
            ["logging: blockers"],
            blockers
        ),
        behavior!(
            "events.blocker_failed",
            "A job that still waits for a chain that failed or was cancelled is reported, with the chain.",
            ["issue: a job whose blocker failed waits visibly"],
            [CANCEL, LISTS],
            blocker_failed
        ),
        behavior!(
            "events.outside",
            "A completion without a worker is reported without a worker.",
            ["logging: workerless"],
            [OUTSIDE],
            outside
        ),
        behavior!(
            "events.lease_renewed",
            "A lease renewal is reported.",
            ["logging: lease renewal"],
            lease_renewed
        ),
        behavior!(
            "events.lease_expired",
            "An attempt whose lease expired and that lost its job is reported.",
            ["logging: lease expiry"],
            lease_expired
        ),
        behavior!(
            "events.reaped",
            "A reaped job is reported with the worker that held it.",
            ["logging: reaper"],
            reaped
        ),
        behavior!(
            "events.store_fails",
            "Failed store calls of a worker are reported, and the worker continues.",
            ["logging: state and worker errors"],
            store_fails
        ),
        behavior!(
            "events.notifier_fails",
            "Failed notifier calls are reported, and jobs are still processed.",
            ["logging: notify errors"],
            notifier_fails
        ),
        behavior!(
            "events.deleted",
            "Each deleted chain is reported.",
            ["logging: chain deletion"],
            [DELETE],
            deleted
        ),
        behavior!(
            "events.triggered",
            "A triggered job is reported.",
            ["logging: trigger"],
            [TRIGGER],
            triggered
        ),
    ]
}

job!(Sow { seeds: u32 } -> u32, then(Reap));
job!(Reap { ears: u32 } -> u32);
job!(Bake {} -> u32, blocked_by (Sow,));
job!(Toast {} -> u32, blocked_by (Sow,), options JobOptions {
    on_blocker_failure: OnBlockerFailure::Fail,
    ..quick()
});

async fn sow(job: Ctx<Sow>) -> Result<u32> {
    Ok(job.input().seeds)
}

/// Returns the names of all events so far, in order.
fn names<S>(scene: &Scene<S>) -> Vec<String> {
    let name = |event: &Event| format!("{event:?}").split('(').next().unwrap_or_default().to_owned();
    scene.seen.all().iter().map(name).collect()
}

/// Waits for `count` events about closed chains. A query may show that a chain is closed before the event is delivered.
async fn closed<S: Store>(scene: &Scene<S>, count: usize) {
    scene.sees("the ends are reported", count, |event| matches!(event, Event::ChainClosed(..))).await;
}

/// Returns the job that an event is about.
fn about(event: &Event) -> Option<&About> {
    match event {
        Event::ChainCreated(about)
        | Event::JobCreated(about)
        | Event::JobBlocked(about)
        | Event::JobUnblocked(about)
        | Event::JobTriggered(about)
        | Event::AttemptStarted(about)
        | Event::LeaseRenewed(about)
        | Event::AttemptLost(about)
        | Event::AttemptFailed(about, ..)
        | Event::AttemptReaped(about)
        | Event::JobCompleted(about, _)
        | Event::ChainClosed(about, _) => Some(about),
        _ => None,
    }
}

async fn life<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    let worker = scene.worker().name("sower").handle(sow).start().await.unwrap();
    let id = worker.id();
    scene.output(chain).await;
    closed(&scene, 1).await;
    scene.stop([worker]).await;
    let created = ["ChainCreated", "JobCreated", "WorkerStarted"];
    let worked = ["AttemptStarted", "JobCompleted", "ChainClosed", "WorkerStopping", "WorkerStopped"];
    assert_eq!(names(&scene), [&created[..], &worked[..]].concat());
    let events = scene.seen.all();
    for about in events.iter().filter_map(about) {
        assert_eq!((about.job, about.chain), (chain.id().first_job(), chain.id()));
        assert_eq!((about.job_type.as_str(), about.chain_type.as_str()), ("Sow", "Sow"));
    }
    for event in [&events[3], &events[4]] {
        let about = about(event).unwrap();
        assert_eq!((about.attempt, about.worker), (Some(1), Some(id)));
        assert_eq!(about.worker_name.as_ref().map(WorkerName::as_str), Some("sower"));
    }
    assert!(matches!(events[5], Event::ChainClosed(_, ClosedAs::Completed)));
    let is_worker = |worker: &AboutWorker| {
        worker.id == id && worker.name.as_ref().map(WorkerName::as_str) == Some("sower")
    };
    assert!(matches!(&events[2], Event::WorkerStarted(worker) if is_worker(worker)), "{:?}", events[2]);
    assert!(matches!(&events[7], Event::WorkerStopped(worker) if is_worker(worker)), "{:?}", events[7]);
}

async fn worker_name<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    let worker = scene.worker().name("sower").handle(sow).start().await.unwrap();
    scene.output(chain).await;
    let attempts = scene.client.attempts(chain.id().first_job()).await.unwrap();
    let by = |attempt: &AttemptRecord| (attempt.worker, attempt.worker_name.clone());
    let expected = [(worker.id(), Some(WorkerName::new("sower").unwrap()))];
    assert_eq!(attempts.iter().map(by).collect::<Vec<_>>(), expected);
    scene.stop([worker]).await;
}

async fn retry<S: Store>(scene: Scene<S>) {
    async fn try_hard(job: Ctx<Sow>) -> Result<u32> {
        if job.attempt() < 3 { Err("frost".into()) } else { Ok(1) }
    }
    let chain = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    let worker = scene.worker().concurrency(1).handle(try_hard).start().await.unwrap();
    scene.output(chain).await;
    closed(&scene, 1).await;
    scene.stop([worker]).await;
    let mut expected = vec!["ChainCreated", "JobCreated", "WorkerStarted"];
    expected.extend(["AttemptStarted", "AttemptFailed"].repeat(2));
    expected.extend(["AttemptStarted", "JobCompleted", "ChainClosed", "WorkerStopping", "WorkerStopped"]);
    assert_eq!(names(&scene), expected);
    let created_at = scene.job(chain).await.created_at;
    let mut failed = Vec::new();
    for event in scene.seen.all() {
        if let Event::AttemptFailed(about, error, due_at) = event {
            assert!(error.as_str() == "frost" && due_at > created_at);
            failed.push(about.attempt);
        }
    }
    assert_eq!(failed, [Some(1), Some(2)]);
}

async fn continuation<S: Store>(scene: Scene<S>) {
    async fn sow(job: Ctx<Sow>) -> Result<Next<Sow>> {
        Ok(Next::then(Reap { ears: job.input().seeds * 10 }))
    }
    async fn reap(job: Ctx<Reap>) -> Result<u32> {
        Ok(job.input().ears)
    }
    let chain = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    // With one slot, the write that ends a job also acquires the next one. No other attempt can start the continuation
    // before the events of that write are delivered, so the order is fixed.
    let worker = scene.worker().concurrency(1).handle(sow).handle(reap).start().await.unwrap();
    scene.output(chain).await;
    closed(&scene, 1).await;
    scene.stop([worker]).await;
    let of_chain = ["AttemptStarted", "JobCompleted", "JobCreated"];
    assert_eq!(names(&scene)[3..6], of_chain);
    assert_eq!(names(&scene)[6..9], ["AttemptStarted", "JobCompleted", "ChainClosed"]);
    let (events, latest) = (scene.seen.all(), scene.job(chain).await.id);
    assert!(matches!(&events[4], Event::JobCompleted(_, Some(next)) if *next == latest));
    for event in &events[5..9] {
        let about = about(event).unwrap();
        assert_eq!((about.job, about.job_type.as_str(), about.chain_type.as_str()), (latest, "Reap", "Sow"));
    }
    assert!(matches!(events[7], Event::JobCompleted(_, None)));
}

async fn blockers<S: Store>(scene: Scene<S>) {
    async fn bake(job: Ctx<Bake>) -> Result<u32> {
        Ok(job.blockers().0)
    }
    let blocker = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    let chain = scene.client.start(Bake {}).blocked_by((blocker,)).await.unwrap();
    assert_eq!(names(&scene)[2..], ["ChainCreated", "JobCreated", "JobBlocked"]);
    let worker = scene.worker().concurrency(1).handle(sow).handle(bake).start().await.unwrap();
    scene.output(chain).await;
    closed(&scene, 2).await;
    scene.stop([worker]).await;
    let freed = ["AttemptStarted", "JobCompleted", "ChainClosed", "JobUnblocked"];
    assert_eq!(names(&scene)[6..10], freed);
    assert_eq!(names(&scene)[10..13], ["AttemptStarted", "JobCompleted", "ChainClosed"]);
    let events = scene.seen.all();
    for event in [&events[4], &events[9]] {
        assert_eq!(about(event).unwrap().chain, chain.id(), "{event:?}");
    }
    assert_eq!(about(&events[8]).unwrap().chain, blocker.id());
}

async fn blocker_failed<S: Store>(scene: Scene<S>) {
    async fn fails(_: Ctx<Sow>) -> Result<u32> {
        Err("no seeds".into())
    }
    let mut expected = Vec::new();
    for closed_as in [ClosedAs::Cancelled, ClosedAs::Failed] {
        let blocker = scene.client.start(Sow { seeds: 3 }).max_attempts(1).await.unwrap();
        let other = scene.client.start(Reap { ears: 1 }).await.unwrap();
        let waits = scene.client.start(Bake {}).blocked_by((blocker,)).await.unwrap();
        scene.client.cancel(other, CancelMode::Ask).await.unwrap();
        // Fails with its blocker instead of waiting for it.
        scene.client.start(Toast {}).blocked_by((blocker,)).await.unwrap();
        expected.push((waits.id(), blocker.id(), closed_as));
        if closed_as == ClosedAs::Cancelled {
            scene.client.cancel(blocker, CancelMode::Ask).await.unwrap();
        }
    }
    let worker = scene.worker().concurrency(1).handle(fails).start().await.unwrap();
    let is_report = |event: &Event| matches!(event, Event::BlockerFailed(..));
    scene.sees("the waiting jobs are reported", 2, is_report).await;
    scene.stop([worker]).await;
    let report = |event: &Event| match event {
        Event::BlockerFailed(about, blocker, closed_as) => Some((about.chain, *blocker, *closed_as)),
        _ => None,
    };
    assert_eq!(scene.seen.all().iter().filter_map(report).collect::<Vec<_>>(), expected);
}

async fn outside<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    let step = scene.client.step(chain).await.unwrap().of::<Sow>().unwrap();
    step.then(Reap { ears: 1 }).done(7).await.unwrap();
    let expected =
        ["ChainCreated", "JobCreated", "JobCompleted", "JobCreated", "JobCompleted", "ChainClosed"];
    assert_eq!(names(&scene), expected);
    for about in scene.seen.all().iter().filter_map(about) {
        assert_eq!((about.attempt, about.worker), (None, None));
    }
}

job!(Watch {} -> u32, options JobOptions { renewal: Some(Duration::from_millis(50)), ..quick() });
job!(Oversleep {} -> u32, options JobOptions {
    lease: Some(Duration::from_secs(4)),
    timeout: Some(Duration::from_millis(30)),
    ..quick()
});

async fn lease_renewed<S: Store>(scene: Scene<S>) {
    let stage = scene.clone();
    let watch = move |job: Ctx<Watch>| {
        let stage = stage.clone();
        async move {
            stage.sees("the lease is renewed", 2, |event| matches!(event, Event::LeaseRenewed(_))).await;
            Ok::<_, BoxError>(job.attempt())
        }
    };
    let chain = scene.client.start(Watch {}).await.unwrap();
    let worker = scene.worker().handle(watch).start().await.unwrap();
    let id = worker.id();
    assert_eq!(scene.output(chain).await, 1);
    scene.stop([worker]).await;
    let events = scene.seen.all();
    let renewed = events.iter().find(|event| matches!(event, Event::LeaseRenewed(_)));
    let about = about(renewed.unwrap()).unwrap();
    assert_eq!((about.chain, about.attempt, about.worker), (chain.id(), Some(1), Some(id)));
}

async fn lease_expired<S: Store>(scene: Scene<S>) {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let oversleep = move |job: Ctx<Oversleep>| {
        let gate = Arc::clone(&opened);
        async move {
            if job.attempt() == 1 {
                // This attempt ignores its abort signal.
                gate.acquire().await?.forget();
            }
            Ok::<_, BoxError>(job.attempt())
        }
    };
    let chain = scene.client.start(Oversleep {}).await.unwrap();
    let worker = scene.worker().handle(oversleep.clone()).start().await.unwrap();
    scene.sees("the attempt runs", 1, |event| matches!(event, Event::AttemptStarted(_))).await;
    let other = scene.other_worker().handle(oversleep).start().await.unwrap();
    assert_eq!(scene.output(chain).await, 2);
    gate.add_permits(1);
    scene.sees("the loss is reported", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    for event in scene.seen.all() {
        if let Event::AttemptLost(about) | Event::AttemptReaped(about) = event {
            assert_eq!((about.chain, about.attempt, about.worker), (chain.id(), Some(1), Some(worker.id())));
        }
    }
    scene.stop([worker, other]).await;
}

async fn reaped<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    // Simulate a worker that acquires the job and dies.
    let (dead, lease) = (WorkerId::new(), Millis::new(50).unwrap());
    let quota = Quota { job_type: TypeName::new("Sow").unwrap(), max: 1, lease };
    let acquire =
        Acquire { request: RequestId::new(), worker: dead, worker_name: None, types: vec![quota], max: 1 };
    let reply = scene.client.store().acquire(acquire).await.unwrap();
    assert_eq!(reply.jobs.len(), 1);
    let worker = scene.worker().handle(sow).start().await.unwrap();
    assert_eq!(scene.output(chain).await, 3);
    closed(&scene, 1).await;
    scene.stop([worker]).await;
    let events = scene.seen.all();
    let reaped: Vec<_> = events.iter().filter(|event| matches!(event, Event::AttemptReaped(_))).collect();
    assert_eq!(reaped.len(), 1);
    let about = about(reaped[0]).unwrap();
    assert_eq!((about.chain, about.attempt, about.worker), (chain.id(), Some(1), Some(dead)));
}

async fn store_fails<S: Store>(scene: Scene<S>) {
    let store = Faulty::new(&scene.store);
    store.fault(&["acquire", "settle", "exchange"], Fault::Fails, 1);
    let chain = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    let worker =
        Worker::new(&scene.client_on(store)).concurrency(1).poll(POLL).handle(sow).start().await.unwrap();
    let id = worker.id();
    assert_eq!(scene.output(chain).await, 3);
    scene.stop([worker]).await;
    let mut of_worker = 0;
    for event in scene.seen.all() {
        if let Event::WorkerFailed(worker, why) = event {
            assert!(worker.id == id && why.as_str().contains("the store is down"), "{why}");
            of_worker += 1;
        }
    }
    assert!(of_worker > 0, "{:?}", names(&scene));
    assert!(scene.seen.count(|event| matches!(event, Event::StoreFailed("settle", _))) > 0);
    assert_eq!(scene.seen.count(|event| matches!(event, Event::JobCompleted(..))), 1);
}

/// A notifier whose calls all fail.
#[derive(Debug)]
struct Broken;

impl Broken {
    fn fails<T>() -> BoxFuture<'static, Result<T, Error>> {
        Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "the notifier is down")) })
    }
}

impl Notifier for Broken {
    fn publish(&self, _: Hint) -> BoxFuture<'_, Result<(), Error>> {
        Self::fails()
    }

    fn subscribe(&self, _: Vec<Topic>) -> BoxFuture<'_, Result<Subscription, Error>> {
        Self::fails()
    }

    fn claim_wake(&self, _: TypeName) -> BoxFuture<'_, Result<bool, Error>> {
        Self::fails()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Self::fails()
    }
}

async fn notifier_fails<S: Store>(scene: Scene<S>) {
    let builder = Client::<S>::builder(Arc::clone(&scene.store)).notifier(Broken);
    let client = builder.observer(scene.seen.clone()).build();
    let worker = Worker::new(&client).concurrency(1).poll(POLL).handle(sow).start().await.unwrap();
    let chain = client.start(Sow { seeds: 3 }).await.unwrap();
    assert_eq!(scene.output(chain).await, 3);
    for call in ["publish", "subscribe"] {
        let failed = |event: &Event| {
            matches!(event, Event::NotifierFailed(which, why)
                if *which == call && why.as_str().contains("the notifier is down"))
        };
        scene.sees("the failure is reported", 1, failed).await;
    }
    scene.stop([worker]).await;
}

async fn deleted<S: Store>(scene: Scene<S>) {
    let blocker = scene.client.start(Sow { seeds: 3 }).await.unwrap();
    let chain = scene.client.start(Bake {}).blocked_by((blocker,)).await.unwrap();
    let before = scene.seen.all().len();
    scene.client.delete_cascading(vec![chain.into()]).await.unwrap();
    let of = |chain, name| Event::ChainDeleted(chain, TypeName::new(name).unwrap());
    assert_eq!(scene.seen.all()[before..], [of(chain.id(), "Bake"), of(blocker.id(), "Sow")]);
}

async fn triggered<S: Store>(scene: Scene<S>) {
    let plans = (0..2).map(|seeds| plan(Sow { seeds }).after(Duration::from_secs(3_600)));
    let chains: Vec<Chain<Sow>> = scene.client.start_many(plans).await.unwrap();
    let before = scene.seen.all().len();
    scene.client.trigger_many(chains.iter().map(|chain| Target::from(*chain)).collect()).await.unwrap();
    let events = scene.seen.all();
    assert_eq!(names(&scene)[before..], ["JobTriggered", "JobTriggered"]);
    let reported = events[before..].iter().filter_map(about).map(|about| about.chain);
    assert_eq!(reported.collect::<Vec<_>>(), [chains[0].id(), chains[1].id()]);
}
