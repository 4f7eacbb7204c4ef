//! Hints: with them nothing waits for a poll, and without them nothing is lost.

use tokio::sync::Barrier;
use windlass_core::{
    AbortReason, BoxFuture, CancelMode, Capability, Client, Error, ErrorKind, Hint, Job, Millis, Notifier,
    Signal, Subscription, Topic, TypeName,
};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "notify.at_once",
            "A job that another process starts runs immediately.",
            ["BS-199"],
            [Need::Hints],
            at_once
        ),
        behavior!(
            "notify.spread",
            "Jobs are distributed among the workers with free slots.",
            ["BS-200"],
            [Need::Hints],
            spread
        ),
        behavior!(
            "notify.blockers",
            "A job in one worker is unblocked immediately by a blocker in another.",
            ["BS-201"],
            [Need::Hints],
            blockers
        ),
        behavior!(
            "notify.steps",
            "The steps of a chain move between workers without delay.",
            ["BS-202"],
            [Need::Hints],
            steps
        ),
        behavior!(
            "notify.cancelled",
            "A running attempt is notified immediately when its chain is asked to stop.",
            ["never 4"],
            [Need::Hints, Need::Store(Capability::Cancel)],
            cancelled
        ),
        behavior!(
            "notify.reaped",
            "An attempt is notified immediately when its job is reaped.",
            ["BS-204"],
            [Need::Hints],
            reaped
        ),
        behavior!(
            "notify.rescheduled",
            "A rescheduled job is taken by another worker when it is due.",
            ["A8.14"],
            [Need::Hints, Need::Store(Capability::NextDue)],
            rescheduled
        ),
        behavior!("notify.blocked", "A blocked job wakes no worker.", ["A8.13"], [Need::Hints], blocked),
        behavior!(
            "notify.completed_outside",
            "A running attempt is notified immediately when its job is completed from outside, and changes nothing.",
            ["BS-203"],
            [Need::Hints, Need::Store(Capability::Outside)],
            completed_outside
        ),
        behavior!(
            "notify.failing",
            "If the notifier fails, and loses and repeats hints, no job is lost.",
            ["BS-205", "never 4"],
            failing
        ),
    ]
}

job!(Ping { number: u32 } -> u32, then(Pong));
job!(Pong { number: u32 } -> u32, then(Ping));
job!(After {} -> u32, blocked_by (Ping,));

/// A poll interval longer than the deadline of a case: a case that depends on polling fails.
const NEVER: Duration = Duration::from_secs(60);

async fn ping(job: Ctx<Ping>) -> Result<u32> {
    Ok(job.input().number)
}

/// Waits until a worker with a handler for `Pong` has polled once and has subscribed to hints.
async fn is_idle<S: Store>(scene: &Scene<S>) {
    let chain = scene.client.start(Pong { number: 0 }).await.unwrap();
    scene.output(chain).await;
}

async fn pong(job: Ctx<Pong>) -> Result<u32> {
    Ok(job.input().number)
}

async fn at_once<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().poll(NEVER).handle(ping).handle(pong).start().await.unwrap();
    is_idle(&scene).await;
    for number in 0..5 {
        let chain = scene.other.start(Ping { number }).await.unwrap();
        assert_eq!(scene.output(chain).await, number);
    }
    scene.stop([worker]).await;
}

async fn spread<S: Store>(scene: Scene<S>) {
    let together = Arc::new(Barrier::new(3));
    let ping = |together: Arc<Barrier>| {
        move |job: Ctx<Ping>| {
            let together = Arc::clone(&together);
            async move {
                together.wait().await;
                Ok::<_, BoxError>(job.input().number)
            }
        }
    };
    let workers = [
        scene.worker().poll(NEVER).handle(ping(Arc::clone(&together))).start().await.unwrap(),
        scene.other_worker().poll(NEVER).handle(ping(Arc::clone(&together))).start().await.unwrap(),
        scene.other_worker().poll(NEVER).handle(ping(together)).start().await.unwrap(),
    ];
    let chains = scene.client.start_many((0..3).map(|number| Ping { number })).await.unwrap();
    for (number, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, number, "all three run concurrently, each in its own worker");
    }
    scene.stop(workers).await;
}

async fn blockers<S: Store>(scene: Scene<S>) {
    async fn after(job: Ctx<After>) -> Result<u32> {
        Ok(job.blockers().0 + 1)
    }
    let worker = scene.worker().poll(NEVER).handle(ping).start().await.unwrap();
    let other = scene.other_worker().poll(NEVER).handle(after).handle(pong).start().await.unwrap();
    is_idle(&scene).await;
    let blocker = scene.client.start(Ping { number: 1 }).await.unwrap();
    let chain = scene.client.start(After {}).blocked_by((blocker,)).await.unwrap();
    assert_eq!(scene.output(chain).await, 2);
    scene.stop([worker, other]).await;
}

async fn steps<S: Store>(scene: Scene<S>) {
    async fn ping(job: Ctx<Ping>) -> Result<Next<Ping>> {
        Ok(Next::then(Pong { number: job.input().number + 1 }))
    }
    async fn pong(job: Ctx<Pong>) -> Result<Next<Pong>> {
        let number = job.input().number;
        Ok(if number < 6 { Next::then(Ping { number: number + 1 }) } else { Next::done(number) })
    }
    let worker = scene.worker().poll(NEVER).handle(ping).start().await.unwrap();
    let other = scene.other_worker().poll(NEVER).handle(pong).start().await.unwrap();
    let chain = scene.client.start(Ping { number: 1 }).await.unwrap();
    assert_eq!(scene.output(chain).await, 6);
    scene.stop([worker, other]).await;
}

/// Returns a handler that waits for the abort signal and records the reason.
fn obedient<J: Job<Output = u32>>(
    started: &Gate,
    lines: &Lines,
) -> impl Fn(Ctx<J>) -> BoxFuture<'static, Result<u32>> + Clone + use<J> {
    let (started, lines) = (started.clone(), lines.clone());
    move |job: Ctx<J>| {
        let (started, lines) = (started.clone(), lines.clone());
        Box::pin(async move {
            started.open(1);
            lines.add(format!("{:?}", job.aborted().wait().await));
            Ok(100)
        })
    }
}

async fn cancelled<S: Store>(scene: Scene<S>) {
    let (started, lines) = (Gate::new(), Lines::default());
    let worker = scene.worker().poll(NEVER).handle(obedient::<Ping>(&started, &lines)).start().await.unwrap();
    let chain = scene.client.start(Ping { number: 1 }).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    scene.other.cancel(chain, CancelMode::Ask).await.unwrap();
    scene.until("the attempt is notified", || lines.all() == ["Cancelled"]).await;
    scene.stop([worker]).await;
}

async fn reaped<S: Store>(scene: Scene<S>) {
    let (started, lines, store) = (Gate::new(), Lines::default(), Faulty::new(&scene.store));
    // The worker believes that its lease lasts a minute, so its next renewal is far away.
    store.shorten_leases(Millis::new(50).unwrap());
    let client = scene.client_on(store);
    let zombie = Worker::new(&client)
        .concurrency(1)
        .poll(NEVER)
        .handle(obedient::<Ping>(&started, &lines))
        .start()
        .await
        .unwrap();
    let chain = scene.client.start(Ping { number: 1 }).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    let other = scene.other_worker().handle(ping).start().await.unwrap();
    assert_eq!(scene.output(chain).await, 1, "another worker has taken it over");
    scene.until("the stale attempt is notified", || !lines.all().is_empty()).await;
    let reported = [AbortReason::TakenOver, AbortReason::AlreadyClosed].map(|reason| format!("{reason:?}"));
    assert!(reported.contains(&lines.all()[0]), "{:?}", lines.all());
    scene.stop([zombie]).await;
    scene.stop([other]).await;
    assert_eq!(scene.output(chain).await, 1);
}

async fn rescheduled<S: Store>(scene: Scene<S>) {
    let (started, go) = (Gate::new(), Gate::new());
    let (at, gate) = (started.clone(), go.clone());
    let put_off = move |_: Ctx<Ping>| {
        let (at, gate) = (at.clone(), gate.clone());
        async move {
            at.open(1);
            gate.pass().await;
            Ok::<_, BoxError>(Next::<Ping>::reschedule(Duration::from_millis(50)))
        }
    };
    let first = scene.worker().poll(NEVER).handle(put_off).start().await.unwrap();
    let chain = scene.client.start(Ping { number: 7 }).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    let second = scene.other_worker().poll(NEVER).handle(ping).handle(pong).start().await.unwrap();
    is_idle(&scene).await;
    go.open(1);
    scene.stop([first]).await;
    assert_eq!(scene.output(chain).await, 7);
    scene.stop([second]).await;
}

async fn blocked<S: Store>(scene: Scene<S>) {
    let topics = ["Ping", "Pong", "After"].map(|name| Topic::Scheduled(TypeName::new(name).unwrap()));
    let mut hints = scene.notifier.subscribe(topics.to_vec()).await.unwrap();
    let blocker = scene.other.start(Ping { number: 1 }).await.unwrap();
    scene.other.start(After {}).blocked_by((blocker,)).await.unwrap();
    scene.other.start(Pong { number: 1 }).await.unwrap();
    let mut heard = Vec::new();
    while heard.last().map(String::as_str) != Some("Pong") {
        let signal = scene.soon("a hint arrives", hints.next()).await;
        if let Some(Signal::Hint(Hint::Scheduled { job_type, .. })) = signal {
            heard.push(job_type.to_string());
        }
    }
    assert_eq!(heard, ["Ping", "Pong"], "no worker queries for a blocked job");
}

async fn completed_outside<S: Store>(scene: Scene<S>) {
    let (started, lines) = (Gate::new(), Lines::default());
    let handler = obedient::<Unhurried>(&started, &lines);
    let worker = scene.worker().poll(NEVER).handle(handler).start().await.unwrap();
    let chain = scene.client.start(Unhurried {}).await.unwrap();
    scene.soon("the attempt starts", started.pass()).await;
    let step = scene.other.step(chain).await.unwrap().of::<Unhurried>().unwrap();
    assert_eq!(step.done(7).await.unwrap(), Status::Completed);
    scene.until("the attempt is notified", || lines.all() == ["AlreadyClosed"]).await;
    scene.sees("the attempt finds its job lost", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    assert_eq!(scene.output(chain).await, 7);
    scene.stop([worker]).await;
}

// Its next renewal comes after the deadline of a case: a case that depends on a renewal fails.
job!(Unhurried {} -> u32, options JobOptions { lease: Some(2 * NEVER), renewal: Some(NEVER), ..quick() });

/// A notifier that fails a third of its calls, loses a third of the hints, and delivers the others twice.
#[derive(Debug)]
struct Unreliable(Arc<dyn Notifier>);

impl Unreliable {
    fn fails() -> Result<(), Error> {
        match fastrand::u32(..3) {
            0 => Err(Error::new(ErrorKind::Unavailable, "the notifier is down")),
            _ => Ok(()),
        }
    }
}

impl Notifier for Unreliable {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            Self::fails()?;
            if fastrand::bool() {
                self.0.publish(hint.clone()).await?;
                self.0.publish(hint).await?;
            }
            Ok(())
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription, Error>> {
        Box::pin(async move {
            Self::fails()?;
            self.0.subscribe(topics).await
        })
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            Self::fails()?;
            self.0.claim_wake(job_type).await
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.0.close()
    }
}

async fn failing<S: Store>(scene: Scene<S>) {
    let builder = Client::<S>::builder(Arc::clone(&scene.store));
    let client =
        builder.notifier(Unreliable(Arc::clone(&scene.notifier))).observer(scene.seen.clone()).build();
    async fn ping(job: Ctx<Ping>) -> Result<Next<Ping>> {
        Ok(Next::then(Pong { number: job.input().number + 1 }))
    }
    let mut workers = Vec::new();
    for _ in 0..3 {
        let worker = Worker::new(&client).poll(POLL).concurrency(2).handle(ping).handle(pong);
        workers.push(worker.start().await.unwrap());
    }
    let chains = client.start_many((0..30).map(|number| Ping { number })).await.unwrap();
    for (number, chain) in (1..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
    }
    let completed = |event: &Event| matches!(event, Event::JobCompleted(..));
    scene.sees("each end is reported", 60, completed).await;
    assert_eq!(scene.seen.count(completed), 60, "nothing was done twice");
    scene.stop(workers).await;
}
