//! Which jobs a worker acquires, and what is wrapped around its attempts.

use std::sync::atomic::{AtomicU32, Ordering};

use windlass_core::command::{CancelMode, Outcome};
use windlass_core::{
    AnyAttempt, Attempt, Backoff, BoxFuture, Closing, Done, Ended, HandlerOptions, Hooks, Inner, JobOptions,
    Middleware, Payload, Stage,
};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "worker.backlog",
            "A worker runs jobs that were started while no worker was running.",
            ["BS-192"],
            backlog
        ),
        behavior!(
            "worker.types",
            "A worker runs several types concurrently, each within its limit, and reports each start and end.",
            ["BS-193"],
            types
        ),
        behavior!("worker.added", "A worker runs jobs that are started while it runs.", ["BS-194"], added),
        behavior!(
            "worker.order",
            "A worker with one slot runs jobs by priority, then in order of creation.",
            ["BS-195"],
            order
        ),
        behavior!(
            "worker.prefetch",
            "A worker leases jobs in advance, but runs only as many handlers as its concurrency allows, in order.",
            ["bad input"],
            prefetch
        ),
        behavior!(
            "worker.prefetch_lost",
            "A job that was acquired in advance and then deleted or cancelled does not run.",
            ["never 2"],
            prefetch_lost
        ),
        behavior!(
            "worker.middleware",
            "Middleware layers are nested, pass values inwards, and receive the committed outcome.",
            ["BS-196", "A8.8"],
            middleware
        ),
        behavior!(
            "worker.middleware_fails",
            "If middleware fails before the handler, the attempt counts and the handler does not run.",
            ["A8.8", "bad input"],
            middleware_fails
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "worker.hooks.prepare",
            "Hooks can write in the transaction that prepares; a hook that refuses rolls it back.",
            ["BS-197"],
            |scene| hooks(scene, "close prepare")
        ),
        behavior!(
            "worker.hooks.finish",
            "Hooks can write in the transaction that ends the job and change its outcome; a refusal rolls it back.",
            ["BS-198"],
            |scene| hooks(scene, "close finish")
        ),
    ]
}

job!(Echo { text: String } -> String);
job!(Number { number: u32 } -> u32);

fn text(text: &str) -> Echo {
    Echo { text: text.to_owned() }
}

async fn number(job: Ctx<Number>) -> Result<u32> {
    Ok(job.input().number)
}

async fn backlog<S: Store>(scene: Scene<S>) {
    let chains = scene.client.start_many((0..25).map(|number| Number { number })).await.unwrap();
    let worker = scene.worker().concurrency(3).handle(number).start().await.unwrap();
    for (expected, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, expected);
    }
    scene.stop([worker]).await;
}

/// The current and the highest number of concurrent attempts.
#[derive(Clone, Default)]
struct Gauge(Arc<(AtomicU32, AtomicU32)>);

impl Gauge {
    /// Counts the attempt until the gate lets it pass.
    async fn pass(&self, gate: &Gate) {
        let running = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(running, Ordering::SeqCst);
        gate.pass().await;
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn running(&self) -> u32 {
        self.0.0.load(Ordering::SeqCst)
    }

    fn peak(&self) -> u32 {
        self.0.1.load(Ordering::SeqCst)
    }
}

async fn types<S: Store>(scene: Scene<S>) {
    let (numbers, texts, gate) = (Gauge::default(), Gauge::default(), Gate::new());
    let held = (numbers.clone(), gate.clone());
    let number = move |job: Ctx<Number>| {
        let (numbers, gate) = held.clone();
        async move {
            numbers.pass(&gate).await;
            Ok::<_, BoxError>(job.input().number)
        }
    };
    let held = (texts.clone(), gate.clone());
    let echo = move |job: Ctx<Echo>| {
        let (texts, gate) = held.clone();
        async move {
            texts.pass(&gate).await;
            Ok::<_, BoxError>(job.input().text.clone())
        }
    };
    // The limited type comes first: a worker that fills its slots in order must not stop at the limit.
    let echoes = scene.client.start_many((0..20).map(|_| text("hi"))).await.unwrap();
    let chains = scene.client.start_many((0..20).map(|number| Number { number })).await.unwrap();
    let worker = scene
        .worker()
        .concurrency(4)
        .handle(number)
        .handle_with(HandlerOptions::new().concurrency(2), echo)
        .start()
        .await
        .unwrap();
    scene
        .until("two attempts of each type run concurrently", || {
            (numbers.running(), texts.running()) == (2, 2)
        })
        .await;
    gate.open(40);
    for chain in chains {
        scene.output(chain).await;
    }
    for chain in echoes {
        scene.output(chain).await;
    }
    assert!(numbers.peak() <= 4 && texts.peak() <= 2, "{} and {} concurrently", numbers.peak(), texts.peak());
    for name in ["Number", "Echo"] {
        let of = |event: &Event, ended: bool| match event {
            Event::JobCompleted(about, _) => ended && about.job_type.as_str() == name,
            Event::AttemptStarted(about) => !ended && about.job_type.as_str() == name,
            _ => false,
        };
        scene.sees("each end is reported", 20, |event| of(event, true)).await;
        assert_eq!(scene.seen.count(|event| of(event, false)), 20, "each start of {name} is reported");
    }
    scene.stop([worker]).await;
}

async fn prefetch<S: Store>(scene: Scene<S>) {
    let (gauge, gate, lines) = (Gauge::default(), Gate::new(), Lines::default());
    let held = (gauge.clone(), gate.clone(), lines.clone());
    let number = move |job: Ctx<Number>| {
        let (gauge, gate, lines) = held.clone();
        async move {
            lines.add(job.input().number.to_string());
            gauge.pass(&gate).await;
            Ok::<_, BoxError>(job.input().number)
        }
    };
    let chains = scene.client.start_many((0..8).map(|number| Number { number })).await.unwrap();
    let worker = scene.worker().concurrency(1).prefetch(4).handle(number).start().await.unwrap();
    scene.job_that("five jobs are leased", chains[4], |job| job.status == Status::Running).await;
    scene.until("the first handler starts", || gauge.running() == 1).await;
    assert_eq!(scene.job(chains[5]).await.status, Status::Pending);
    gate.open(8);
    for (expected, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, expected);
    }
    assert_eq!(gauge.peak(), 1);
    assert_eq!(lines.all(), ["0", "1", "2", "3", "4", "5", "6", "7"]);
    scene.stop([worker]).await;
}

async fn prefetch_lost<S: Store>(scene: Scene<S>) {
    let (gate, lines) = (Gate::new(), Lines::default());
    let held = (gate.clone(), lines.clone());
    let number = move |job: Ctx<Number>| {
        let (gate, lines) = held.clone();
        async move {
            lines.add(job.input().number.to_string());
            gate.pass().await;
            Ok::<_, BoxError>(job.input().number)
        }
    };
    let chains = scene.client.start_many((0..4).map(|number| Number { number })).await.unwrap();
    let options = HandlerOptions::new().lease(Duration::from_secs(2)).renewal(Duration::from_millis(100));
    let worker =
        scene.worker().concurrency(1).prefetch(3).handle_with(options, number).start().await.unwrap();
    scene.job_that("four jobs are leased", chains[3], |job| job.status == Status::Running).await;
    scene.client.delete(vec![chains[1].into()]).await.unwrap();
    scene.client.cancel(chains[2], CancelMode::Ask).await.unwrap();
    scene.sees("the deleted job is lost", 1, |event| matches!(event, Event::AttemptLost(_))).await;
    let cancelled = chains[2].id().first_job();
    let renewed = |event: &Event| matches!(event, Event::LeaseRenewed(about) if about.job == cancelled);
    // The second renewal from now on began after the cancellation.
    let renewals = scene.seen.count(renewed) + 2;
    scene.sees("the worker knows of the cancellation", renewals, renewed).await;
    gate.open(4);
    scene.output(chains[3]).await;
    scene.job_that("it is cancelled", chains[2], |job| job.status == Status::Cancelled).await;
    assert_eq!(lines.all(), ["0", "3"]);
    scene.stop([worker]).await;
}

async fn added<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(number).start().await.unwrap();
    for number in 0..3 {
        let chain = scene.other.start(Number { number }).await.unwrap();
        assert_eq!(scene.output(chain).await, number);
    }
    scene.stop([worker]).await;
}

async fn order<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let said = lines.clone();
    let echo = move |job: Ctx<Echo>| {
        said.add(job.input().text.clone());
        async { Ok::<_, BoxError>(String::new()) }
    };
    let mut chains = scene.client.start_many(["a", "b", "c", "d"].map(text)).await.unwrap();
    chains.push(scene.client.start(text("low")).priority(-1).await.unwrap());
    chains.push(scene.client.start(text("high")).priority(1).await.unwrap());
    let worker = scene.worker().handle(echo).start().await.unwrap();
    for chain in chains {
        scene.output(chain).await;
    }
    assert_eq!(lines.all(), ["high", "a", "b", "c", "d", "low"]);
    scene.stop([worker]).await;
}

/// The names of the middleware layers that an attempt has passed through so far.
#[derive(Clone)]
struct Way(String);

struct Layer<S> {
    name: &'static str,
    scene: Scene<S>,
    lines: Lines,
}

impl<S: Store> Middleware for Layer<S> {
    fn around<'a>(&'a self, mut attempt: AnyAttempt, inner: Inner) -> BoxFuture<'a, Result<Ended>> {
        Box::pin(async move {
            let way = attempt.get::<Way>().map(|way| way.0.clone()).unwrap_or_default();
            attempt.insert(Way(format!("{way}>{}", self.name)));
            let job = attempt.job().id;
            let ended = inner.run(attempt).await;
            let stored = self.scene.client.job(job).await?.unwrap().status;
            let ended_as = if ended.is_done() { "done" } else { "not done" };
            self.lines.add(format!("{}: {ended_as}, {stored:?}", self.name));
            Ok(ended)
        })
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

job!(Later {} -> String, options JobOptions {
    backoff: Some(Backoff { initial: HOUR, max: HOUR, ..Backoff::default() }),
    ..quick()
});

async fn middleware<S: Store>(scene: Scene<S>) {
    async fn later(_: Ctx<Later>) -> Result<String> {
        Err("not yet".into())
    }
    async fn echo(job: Ctx<Echo>) -> Result<String> {
        Ok(job.get::<Way>().unwrap().0.clone())
    }
    let lines = Lines::default();
    let layer = |name| Layer { name, scene: scene.clone(), lines: lines.clone() };
    let worker = scene.worker().middleware(layer("outer")).middleware(layer("inner"));
    let worker = worker.handle(later).handle(echo).start().await.unwrap();
    scene.client.start(Later {}).await.unwrap();
    scene.until("both saw the failure", || lines.all().len() == 2).await;
    let chain = scene.client.start(text("")).await.unwrap();
    assert_eq!(scene.output(chain).await, ">outer>inner");
    scene.stop([worker]).await;
    let [failed, done] = ["not done, Pending", "done, Completed"];
    let expected = [("inner", failed), ("outer", failed), ("inner", done), ("outer", done)];
    assert_eq!(lines.all(), expected.map(|(name, end)| format!("{name}: {end}")));
}

async fn middleware_fails<S: Store>(scene: Scene<S>) {
    async fn refuse(attempt: AnyAttempt, inner: Inner) -> Result<Ended> {
        match attempt.attempt() {
            1 => Err("no entry".into()),
            2 => panic!("no way"),
            _ => Ok(inner.run(attempt).await),
        }
    }
    async fn echo(job: Ctx<Echo>) -> Result<String> {
        Ok(format!("{} after {:?}", job.attempt(), job.job().error))
    }
    let worker = scene.worker().middleware(refuse).handle(echo).start().await.unwrap();
    let chain = scene.client.start(text("")).await.unwrap();
    assert_eq!(scene.output(chain).await, "3 after Some(\"the middleware panicked: no way\")");
    let due_at = |event| if let Event::AttemptFailed(_, _, due_at) = event { Some(due_at) } else { None };
    let due: Vec<_> = scene.seen.all().into_iter().filter_map(due_at).collect();
    assert_eq!(due.len(), 2);
    assert!(due[1].since(due[0]) >= Duration::from_millis(2), "each failure backs off");
    scene.stop([worker]).await;
}

/// Hooks that write a mark into the transaction for each call, and refuse once.
struct Marker<S> {
    scene: Scene<S>,
    refuses: &'static str,
    lines: Lines,
}

impl<S: Transactional> Marker<S> {
    async fn see(&self, attempt: &AnyAttempt, what: &str, tx: &mut S::Tx) -> Result<()> {
        let line = format!("{what} {}", attempt.attempt());
        self.scene.mark(S::connection(S::tx_ref(tx)), &line).await?;
        self.lines.add(line);
        if attempt.attempt() == 1 && self.refuses == what { Err("refused".into()) } else { Ok(()) }
    }
}

impl<S: Transactional> Hooks<S::Tx> for Marker<S> {
    fn opened<'a>(
        &'a self,
        attempt: &'a AnyAttempt,
        stage: Stage,
        tx: &'a mut S::Tx,
    ) -> BoxFuture<'a, Result<()>> {
        let what = if stage == Stage::Prepare { "open prepare" } else { "open finish" };
        Box::pin(self.see(attempt, what, tx))
    }

    fn closing<'a>(
        &'a self,
        attempt: &'a AnyAttempt,
        closing: Closing<'a>,
        tx: &'a mut S::Tx,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Closing::Finish(outcome) = closing else {
                return self.see(attempt, "close prepare", tx).await;
            };
            if let Outcome::Complete { output, .. } = outcome {
                *output = Payload::encode(&format!("{}, hooked", output.decode::<String>()?))?;
            }
            self.see(attempt, "close finish", tx).await
        })
    }
}

async fn hooks<S: Transactional>(scene: Scene<S>, refuses: &'static str) {
    async fn staged<S: Transactional>(a: Attempt<Echo, S>) -> Result<Done<Echo, S>> {
        a.prepare().await?.commit().await?;
        Ok(a.begin().await?.done(a.input().text.clone())?)
    }
    let lines = Lines::default();
    let marker = Marker { scene: scene.clone(), refuses, lines: lines.clone() };
    let worker = scene.worker().hooks(marker).handle(staged::<S>).start().await.unwrap();
    let chain = scene.client.start(text("hi")).await.unwrap();
    assert_eq!(scene.output(chain).await, "hi, hooked");
    assert_eq!(scene.job(chain).await.attempt, 2);
    let stages = ["open prepare", "close prepare", "open finish", "close finish"];
    let until_refused = stages.iter().take_while(|stage| **stage != refuses).chain([&refuses]);
    let expected: Vec<_> = until_refused
        .map(|stage| format!("{stage} 1"))
        .chain(stages.map(|stage| format!("{stage} 2")))
        .collect();
    assert_eq!(lines.all(), expected);
    let prepared = refuses == "close finish";
    assert_eq!(scene.is_marked("open prepare 1").await, prepared, "a refused transaction leaves nothing");
    assert!(!scene.is_marked("open finish 1").await && scene.is_marked("close finish 2").await);
    scene.stop([worker]).await;
}
