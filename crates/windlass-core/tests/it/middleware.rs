//! Middleware around attempts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::{
    AnyAttempt, Backoff, BoxError, Client, Ctx, Data, Ended, Entry, Event, Inner, Job, JobOptions,
    MemoryStore, Middleware, Next, Observer, Status, Worker,
};

type Result<T, E = BoxError> = std::result::Result<T, E>;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Serialize, Deserialize)]
struct Echo {
    text: String,
}

impl Job for Echo {
    const NAME: &'static str = "echo";
    type Output = String;
    type Next = ();
    type Blockers = ();
    fn options() -> JobOptions {
        JobOptions { backoff: Some(Backoff::NONE), max_attempts: Some(3), ..JobOptions::default() }
    }
}
impl Entry for Echo {}

/// What happened, in order.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Lines {
    fn observe(&self, event: &Event) {
        if let Event::MiddlewareFailed(_, why) = event {
            self.add(format!("observed: {why}"));
        }
    }
}

/// Records when it is entered and left, with the stored status of the job when it is left.
struct Onion {
    name: &'static str,
    lines: Lines,
    client: Client<MemoryStore>,
}

impl Middleware for Onion {
    fn around<'a>(
        &'a self,
        mut attempt: AnyAttempt,
        inner: Inner,
    ) -> windlass_core::BoxFuture<'a, Result<Ended>> {
        Box::pin(async move {
            let (job, number) = (attempt.job().id, attempt.attempt());
            attempt.insert(self.name);
            self.lines.add(format!("{} in {number}", self.name));
            let ended = inner.run(attempt).await;
            let status = self.client.job(job).await?.unwrap().status;
            self.lines.add(format!("{} out {status:?}", self.name));
            Ok(ended)
        })
    }
}

async fn echo(job: Ctx<Echo>, Data(lines): Data<Lines>) -> Result<String> {
    lines.add(format!("handler {:?}", job.get::<&str>()));
    Ok(job.input().text.clone())
}

fn fixture() -> (Client<MemoryStore>, Lines) {
    let lines = Lines::default();
    (Client::builder(MemoryStore::new()).observer(lines.clone()).build(), lines)
}

async fn run<M: Middleware>(middleware: M) -> (Result<String, windlass_core::Error>, Vec<String>) {
    let (client, lines) = fixture();
    let worker = Worker::new(&client).data(lines.clone()).middleware(middleware).handle(echo);
    let worker = worker.start().await.unwrap();
    let chain = client.start(Echo { text: "hi".into() }).await.unwrap();
    let output = client.wait(chain).timeout(TIMEOUT).await;
    worker.stop(TIMEOUT).await;
    (output, lines.all())
}

#[tokio::test]
async fn middleware_is_nested_and_sees_the_committed_outcome() {
    let (client, lines) = fixture();
    let onion = |name| Onion { name, lines: lines.clone(), client: client.clone() };
    let worker = Worker::new(&client).data(lines.clone()).middleware(onion("outer"));
    let worker = worker.middleware(onion("inner")).handle(echo).start().await.unwrap();
    let chain = client.start(Echo { text: "hi".into() }).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "hi");
    worker.stop(TIMEOUT).await;
    assert_eq!(
        lines.all(),
        ["outer in 1", "inner in 1", "handler Some(\"inner\")", "inner out Completed", "outer out Completed",],
    );
}

#[tokio::test]
async fn middleware_receives_how_the_attempt_ended() {
    async fn handler(_: Ctx<Echo>, Data(runs): Data<Arc<AtomicU32>>) -> Result<Next<Echo>> {
        match runs.fetch_add(1, Ordering::SeqCst) {
            0 => Err("not yet".into()),
            1 => Ok(Next::reschedule(Duration::ZERO)),
            _ => Ok(Next::fail("never")),
        }
    }
    let (client, lines) = fixture();
    let seen = lines.clone();
    let listen = move |attempt: AnyAttempt, inner: Inner| {
        let seen = seen.clone();
        async move {
            let ended = inner.run(attempt).await;
            seen.add(match &ended {
                Ended::Retried { error, .. } => format!("retried: {error}"),
                Ended::Rescheduled { .. } => "rescheduled".to_owned(),
                other => format!("{other:?}"),
            });
            Ok::<_, BoxError>(ended)
        }
    };
    let worker = Worker::new(&client).data(Arc::<AtomicU32>::default()).middleware(listen).handle(handler);
    let worker = worker.start().await.unwrap();
    let chain = client.start(Echo { text: "hi".into() }).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    worker.stop(TIMEOUT).await;
    assert_eq!(lines.all(), ["retried: not yet", "rescheduled", "Failed { error: \"never\" }"]);
}

#[tokio::test]
async fn middleware_that_fails_before_the_handler_fails_the_attempt() {
    async fn refuse(_: AnyAttempt, _: Inner) -> Result<Ended> {
        Err("no entry".into())
    }
    let (output, lines) = run(refuse).await;
    let error = output.unwrap_err();
    assert_eq!(error.job_error().unwrap().as_str(), "no entry", "after three attempts, as the type says");
    assert!(lines.is_empty(), "the handler never ran: {lines:?}");
}

#[tokio::test]
async fn middleware_that_panics_before_the_handler_fails_the_attempt() {
    async fn burst(attempt: AnyAttempt, inner: Inner) -> Result<Ended> {
        assert!(attempt.attempt() > 1, "too early");
        Ok(inner.run(attempt).await)
    }
    let (output, lines) = run(burst).await;
    assert_eq!(output.unwrap(), "hi");
    assert_eq!(lines, ["handler None"]);
}

#[tokio::test]
async fn middleware_that_fails_after_the_handler_changes_nothing() {
    async fn stumble(attempt: AnyAttempt, inner: Inner) -> Result<Ended> {
        inner.run(attempt).await;
        Err("too late".into())
    }
    let (output, lines) = run(stumble).await;
    assert_eq!(output.unwrap(), "hi");
    assert_eq!(lines, ["handler None", "observed: too late"]);
}

#[tokio::test]
async fn middleware_can_end_the_attempt() {
    async fn later(attempt: AnyAttempt, inner: Inner) -> Result<Ended> {
        if attempt.job().error.is_none() {
            return Ok(inner.fail("not here").await);
        }
        Ok(inner.run(attempt).await)
    }
    let (output, lines) = run(later).await;
    assert_eq!(output.unwrap_err().job_error().unwrap().as_str(), "not here");
    assert!(lines.is_empty());
}

#[tokio::test(start_paused = true)]
async fn middleware_can_reschedule_the_attempt() {
    let (client, lines) = fixture();
    let times = Arc::new(AtomicU32::new(0));
    let put_off = move |attempt: AnyAttempt, inner: Inner| {
        let is_late = times.fetch_add(1, Ordering::SeqCst) > 2;
        async move { if is_late { Ok(inner.run(attempt).await) } else { inner.reschedule(Duration::ZERO).await } }
    };
    let worker = Worker::new(&client).data(lines.clone()).middleware(put_off).handle(echo);
    let worker = worker.start().await.unwrap();
    let chain = client.start(Echo { text: "hi".into() }).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "hi");
    worker.stop(TIMEOUT).await;
    let job = client.chain(chain).await.unwrap().unwrap().latest;
    assert_eq!((job.status, job.attempt), (Status::Completed, 1));
}

#[tokio::test]
async fn middleware_that_drops_the_handler_leads_to_a_retry() {
    async fn impatient(attempt: AnyAttempt, inner: Inner) -> Result<Ended> {
        let patience = if attempt.attempt() == 1 { Duration::from_millis(20) } else { TIMEOUT };
        Ok(tokio::time::timeout(patience, inner.run(attempt)).await?)
    }
    async fn first_hangs(job: Ctx<Echo>) -> Result<String> {
        if job.attempt() == 1 {
            std::future::pending::<()>().await;
        }
        Ok(format!("attempt {}", job.attempt()))
    }
    let (client, _) = fixture();
    let worker = Worker::new(&client).middleware(impatient).handle(first_hangs).start().await.unwrap();
    let chain = client.start(Echo { text: "hi".into() }).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 2");
    worker.stop(TIMEOUT).await;
}
