//! The worker on the memory store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use windlass_core::command::{CancelMode, Create, ListAttempts, NewChain, NewJob, Step as OutsideStep};
use windlass_core::command::{CompleteFromOutside, ListWorkers};
use windlass_core::{
    AbortReason, Attempt, AttemptEnd, Backoff, BoxError, Chain, ChainId, Client, Ctx, Data, Done, Entry,
    ErrorKind, ErrorText, HandlerOptions, Job, JobOptions, MemoryStore, Next, Payload, RequestId, Status,
    Store, Then, TypeName, Worker, next,
};

use crate::faults::RuntimeClock;

type Result<T, E = BoxError> = std::result::Result<T, E>;

macro_rules! job {
    ($type:ident { $($field:ident: $kind:ty),* }, $output:ty, next ($($next:ident),*), blockers $blockers:ty
        $(, options $options:expr)?) => {
        #[derive(Clone, Serialize, Deserialize)]
        struct $type { $($field: $kind),* }
        impl Job for $type {
            const NAME: &'static str = stringify!($type);
            type Output = $output;
            type Next = ($($next,)*);
            type Blockers = $blockers;
            $(fn options() -> JobOptions { $options })?
        }
        impl Entry for $type {}
        $(impl Then<$next> for $type {})*
    };
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CrmId(String);

impl From<String> for CrmId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

job!(Provision { user: u32 }, CrmId, next(Welcome), blockers());
job!(Welcome { user: u32, account: String }, CrmId, next(Provision, Sync), blockers());
job!(Sync { account: String }, String, next(), blockers(Plan,));
job!(Plan { name: String }, f64, next(), blockers());
job!(Echo { text: String }, String, next (), blockers (), options JobOptions {
    backoff: Some(Backoff::NONE),
    max_attempts: Some(3),
    ..JobOptions::default()
});
job!(Slow { number: u32 }, u32, next (), blockers (), options JobOptions {
    lease: Some(Duration::from_millis(400)),
    ..JobOptions::default()
});
job!(Timed { number: u32 }, u32, next (), blockers (), options JobOptions {
    timeout: Some(Duration::from_millis(50)),
    max_attempts: Some(1),
    ..JobOptions::default()
});

fn client() -> Client<MemoryStore> {
    Client::new(MemoryStore::new())
}

fn echo(text: &str) -> Echo {
    Echo { text: text.to_owned() }
}

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_chain_runs_through_typed_steps_to_its_output() {
    #[derive(Clone)]
    struct App {
        client: Client<MemoryStore>,
    }
    async fn provision(a: Attempt<Provision, MemoryStore>) -> Result<Done<Provision, MemoryStore>> {
        let prepare = a.prepare().await?;
        prepare.commit().await?;
        let step = a.begin().await?;
        Ok(step.then(Welcome { user: a.input().user, account: format!("acc-{}", a.input().user) })?)
    }
    async fn welcome(job: Ctx<Welcome>, Data(app): Data<App>) -> Result<Next<Welcome>> {
        let Welcome { user, account } = job.input().clone();
        if user < 3 {
            return Ok(Next::then(Provision { user: user + 1 }));
        }
        let plan = app.client.start(Plan { name: "gold".into() }).await?;
        Ok(Next::then(next(Sync { account }).blocked_by((plan,)).priority(3)))
    }
    async fn sync(job: Ctx<Sync>) -> Result<String> {
        let (price,) = job.blockers();
        Ok(format!("{} at {price}", job.input().account))
    }
    async fn plan(_: Ctx<Plan>) -> Result<f64> {
        Ok(1.5)
    }

    let client = client();
    let worker = Worker::new(&client)
        .data(App { client: client.clone() })
        .concurrency(2)
        .handle(provision)
        .handle(welcome)
        .handle(sync)
        .handle(plan)
        .start()
        .await
        .unwrap();
    let chain = client.start(Provision { user: 1 }).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), CrmId("acc-3 at 1.5".into()));
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn a_failed_attempt_is_retried_and_the_last_one_is_final() {
    let client = client();
    let runs = Arc::new(AtomicU32::new(0));
    async fn flaky(job: Ctx<Echo>, Data(runs): Data<Arc<AtomicU32>>) -> Result<String> {
        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
        assert_eq!(job.attempt(), if run > 2 { run - 2 } else { run });
        match (job.input().text.as_str(), run) {
            ("good", 1) => Err("not yet".into()),
            ("good", _) => Ok("done".into()),
            _ => Err("never".into()),
        }
    }
    let worker = Worker::new(&client).concurrency(1).data(runs.clone()).handle(flaky).start().await.unwrap();
    let good = client.start(echo("good")).await.unwrap();
    assert_eq!(client.wait(good).timeout(TIMEOUT).await.unwrap(), "done");
    assert_eq!(client.chain(good).await.unwrap().unwrap().latest.error, None, "a success clears the error");
    let bad = client.start(echo("bad")).await.unwrap();
    let error = client.wait(bad).timeout(TIMEOUT).await.unwrap_err();
    assert_eq!((error.kind(), error.job_error()), (ErrorKind::ChainFailed, Some(&ErrorText::new("never"))));
    assert_eq!(runs.load(Ordering::SeqCst), 5);
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn outcomes_are_values() {
    let client = client();
    async fn decide(job: Ctx<Echo>) -> Result<Next<Echo>> {
        match (job.input().text.as_str(), job.job().error.is_some()) {
            ("fail", _) => Ok(Next::fail("hopeless")),
            ("later", false) => Ok(Next::reschedule(Duration::ZERO).because("not now")),
            _ => Ok(Next::done(format!("attempt {}", job.attempt()))),
        }
    }
    let worker = Worker::new(&client).concurrency(1).handle(decide).start().await.unwrap();
    let fail = client.start(echo("fail")).await.unwrap();
    let error = client.wait(fail).timeout(TIMEOUT).await.unwrap_err();
    assert_eq!(error.job_error(), Some(&ErrorText::new("hopeless")));
    let later = client.start(echo("later")).await.unwrap();
    assert_eq!(
        client.wait(later).timeout(TIMEOUT).await.unwrap(),
        "attempt 1",
        "a reschedule does not count"
    );
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn a_panic_fails_only_its_attempt() {
    let client = client();
    async fn fragile(job: Ctx<Echo>) -> Result<String> {
        assert!(job.input().text != "bad", "broken");
        Ok("fine".into())
    }
    let worker = Worker::new(&client).concurrency(2).handle(fragile).start().await.unwrap();
    let bad = client.start(echo("bad")).await.unwrap();
    let good = client.start(echo("good")).await.unwrap();
    assert_eq!(client.wait(good).timeout(TIMEOUT).await.unwrap(), "fine");
    let error = client.wait(bad).timeout(TIMEOUT).await.unwrap_err();
    assert!(error.to_string().contains("the handler panicked: broken"), "{error}");
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn an_undecodable_input_fails_only_its_job() {
    let client = client();
    async fn repeat(job: Ctx<Echo>) -> Result<String> {
        Ok(job.input().text.clone())
    }
    let id = ChainId::new();
    let job = NewJob::new(TypeName::new("Echo").unwrap(), Payload::json(r#"{"txet":1}"#).unwrap());
    let job = NewJob { max_attempts: Some(2), ..job };
    client.store().create(Create { chains: vec![NewChain::new(id, job)] }).await.unwrap();
    let worker = Worker::new(&client).concurrency(1).handle(repeat).start().await.unwrap();
    let error = client.wait(Chain::<Echo>::from_id(id)).timeout(TIMEOUT).await.unwrap_err();
    assert!(error.to_string().contains("cannot decode the stored payload: missing field `text`"), "{error}");
    let attempts = client.store().list_attempts(ListAttempts { job: id.first_job() }).await.unwrap().attempts;
    assert_eq!(attempts.len(), 2, "it is retried, but not forever");
    let good = client.start(echo("hi")).await.unwrap();
    assert_eq!(client.wait(good).timeout(TIMEOUT).await.unwrap(), "hi");
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn an_error_after_finish_rolls_back() {
    let client = client();
    async fn regret(a: Attempt<Echo, MemoryStore>) -> Result<Done<Echo, MemoryStore>> {
        let step = a.begin().await?;
        let done = step.done("too early".into())?;
        if a.attempt() == 1 {
            return Err("on second thought".into());
        }
        Ok(done)
    }
    let worker = Worker::new(&client).concurrency(1).handle(regret).start().await.unwrap();
    let chain = client.start(echo("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "too early");
    let attempts =
        client.store().list_attempts(ListAttempts { job: chain.id().first_job() }).await.unwrap().attempts;
    let ends: Vec<_> = attempts.iter().map(|attempt| attempt.end).collect();
    assert_eq!(ends, [AttemptEnd::Retried, AttemptEnd::Completed]);
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn a_step_dropped_midway_is_rolled_back_before_the_retry() {
    let client = client();
    async fn drops(a: Attempt<Echo, MemoryStore>) -> Result<Done<Echo, MemoryStore>> {
        let step = a.begin().await?;
        if a.attempt() == 1 {
            drop(step);
            return Err("changed my mind".into());
        }
        Ok(step.done("done".into())?)
    }
    let worker = Worker::new(&client).concurrency(1).handle(drops).start().await.unwrap();
    let chain = client.start(echo("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "done");
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn calls_in_the_wrong_order_are_errors() {
    let client = client();
    async fn confused(a: Attempt<Echo, MemoryStore>) -> Result<Done<Echo, MemoryStore>> {
        a.prepare().await?.commit().await?;
        assert_eq!(a.prepare().await.unwrap_err().kind(), ErrorKind::Invalid);
        let step = a.begin().await?;
        assert_eq!(a.begin().await.unwrap_err().kind(), ErrorKind::Invalid);
        Ok(step.done("fine".into())?)
    }
    let worker = Worker::new(&client).concurrency(1).handle(confused).start().await.unwrap();
    let chain = client.start(echo("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "fine");
    worker.stop(TIMEOUT).await;
}

#[derive(Clone, Default)]
struct Gate {
    started: Arc<Notify>,
    reasons: Arc<Mutex<Vec<AbortReason>>>,
}

/// Runs until it is aborted.
async fn obedient(job: Ctx<Slow>, Data(gate): Data<Gate>) -> Result<u32> {
    gate.started.notify_one();
    let reason = job.aborted().wait().await;
    gate.reasons.lock().unwrap().push(reason);
    Err(format!("stopped: {reason:?}").into())
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_beyond_their_length() {
    let client = Client::new(MemoryStore::with_clock(Arc::new(RuntimeClock::default())));
    async fn slow(job: Ctx<Slow>, Data(gate): Data<Gate>) -> Result<u32> {
        gate.started.notified().await;
        Ok(job.attempt())
    }
    let gate = Gate::default();
    let first = Worker::new(&client).concurrency(1).data(gate.clone()).handle(slow).start().await.unwrap();
    let second = Worker::new(&client)
        .concurrency(1)
        .data(gate.clone())
        .poll(Duration::from_millis(50))
        .handle(slow)
        .start()
        .await
        .unwrap();
    let chain = client.start(Slow { number: 1 }).await.unwrap();
    // Three times the lease, with another worker that would reap the job.
    let error = client.wait(chain).timeout(Duration::from_millis(1_200)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    gate.started.notify_one();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), 1, "the first attempt");
    first.stop(TIMEOUT).await;
    second.stop(TIMEOUT).await;
}

#[tokio::test]
async fn a_stopping_worker_releases_unfinished_jobs() {
    let client = client();
    async fn stubborn(_: Ctx<Slow>, Data(gate): Data<Gate>) -> Result<u32> {
        gate.started.notify_one();
        std::future::pending().await
    }
    let gate = Gate::default();
    let worker =
        Worker::new(&client).concurrency(1).data(gate.clone()).handle(stubborn).start().await.unwrap();
    let chain = client.start(Slow { number: 1 }).await.unwrap();
    gate.started.notified().await;
    assert_eq!(client.store().list_workers(ListWorkers).await.unwrap().workers.len(), 1);
    worker.stop(Duration::from_millis(50)).await;
    let job = client.chain(chain).await.unwrap().unwrap().latest;
    assert_eq!((job.status, job.attempt), (Status::Pending, 0));
    assert_eq!(client.store().list_workers(ListWorkers).await.unwrap().workers, []);
}

#[tokio::test]
async fn a_job_whose_handler_stops_on_request_is_released() {
    let client = client();
    let gate = Gate::default();
    let worker =
        Worker::new(&client).concurrency(1).data(gate.clone()).handle(obedient).start().await.unwrap();
    let chain = client.start(Slow { number: 1 }).await.unwrap();
    gate.started.notified().await;
    worker.stop_now(TIMEOUT).await;
    let job = client.chain(chain).await.unwrap().unwrap().latest;
    assert_eq!((job.status, job.attempt, job.error), (Status::Pending, 0, None));
    assert_eq!(*gate.reasons.lock().unwrap(), [AbortReason::WorkerStopping]);
}

#[tokio::test]
async fn a_running_job_is_aborted_when_it_is_cancelled_completed_or_deleted() {
    let client = client();
    let gate = Gate::default();
    let worker =
        Worker::new(&client).concurrency(1).data(gate.clone()).handle(obedient).start().await.unwrap();

    let cancelled = client.start(Slow { number: 1 }).await.unwrap();
    gate.started.notified().await;
    client.cancel(cancelled, CancelMode::Ask).await.unwrap();
    let error = client.wait(cancelled).timeout(TIMEOUT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainCancelled);

    let completed = client.start(Slow { number: 2 }).await.unwrap();
    gate.started.notified().await;
    let job = client.chain(completed).await.unwrap().unwrap().latest;
    let complete =
        OutsideStep::Complete { output: Payload::encode(&7).unwrap(), retention: None, create: Vec::new() };
    let outside = CompleteFromOutside {
        request: RequestId::new(),
        job: job.id,
        version: job.version,
        steps: vec![complete],
    };
    client.store().complete_from_outside(outside).await.unwrap();
    assert_eq!(client.wait(completed).timeout(TIMEOUT).await.unwrap(), 7);

    let deleted = client.start(Slow { number: 3 }).await.unwrap();
    gate.started.notified().await;
    client.delete(vec![deleted.into()]).await.unwrap();
    let last = client.start(Slow { number: 4 }).await.unwrap();
    gate.started.notified().await;
    worker.stop_now(TIMEOUT).await;
    assert!(client.chain(last).await.unwrap().is_some());
    assert_eq!(
        *gate.reasons.lock().unwrap(),
        [
            AbortReason::Cancelled,
            AbortReason::AlreadyClosed,
            AbortReason::NotFound,
            AbortReason::WorkerStopping
        ]
    );
}

#[tokio::test]
async fn a_handler_is_aborted_after_its_timeout() {
    let client = client();
    async fn late(job: Ctx<Timed>) -> Result<u32> {
        Err(format!("{:?}", job.aborted().wait().await).into())
    }
    let worker = Worker::new(&client).concurrency(1).handle(late).start().await.unwrap();
    let chain = client.start(Timed { number: 1 }).await.unwrap();
    let error = client.wait(chain).timeout(TIMEOUT).await.unwrap_err();
    assert_eq!(error.job_error(), Some(&ErrorText::new("TimedOut")));
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn per_type_concurrency_limits_are_respected() {
    #[derive(Clone, Default)]
    struct Peak {
        running: Arc<AtomicU32>,
        peak: Arc<AtomicU32>,
    }
    async fn counted(job: Ctx<Slow>, Data(peak): Data<Peak>) -> Result<u32> {
        let running = peak.running.fetch_add(1, Ordering::SeqCst) + 1;
        peak.peak.fetch_max(running, Ordering::SeqCst);
        tokio::task::yield_now().await;
        peak.running.fetch_sub(1, Ordering::SeqCst);
        Ok(job.input().number)
    }
    let client = client();
    let peak = Peak::default();
    let chains = client.start_many((0..50).map(|number| Slow { number })).await.unwrap();
    let worker = Worker::new(&client)
        .data(peak.clone())
        .concurrency(10)
        .handle_with(HandlerOptions::new().concurrency(2), counted)
        .start();
    let worker = worker.await.unwrap();
    for (number, chain) in (0..50).zip(chains) {
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), number);
    }
    assert!(peak.peak.load(Ordering::SeqCst) <= 2);
    worker.stop(TIMEOUT).await;
}

#[tokio::test]
async fn an_invalid_worker_does_not_start() {
    async fn one(_: Ctx<Echo>) -> Result<String> {
        Ok(String::new())
    }
    let client = client();
    let error = Worker::new(&client).concurrency(1).start().await.unwrap_err();
    assert!(error.to_string().contains("no handlers"), "{error}");
    let error = Worker::new(&client).concurrency(1).handle(one).handle(one).start().await.unwrap_err();
    assert!(error.to_string().contains("two handlers"), "{error}");
    let error = Worker::new(&client).concurrency(0).handle(one).start().await.unwrap_err();
    assert!(error.to_string().contains("concurrency must be at least 1, got 0"), "{error}");
}
