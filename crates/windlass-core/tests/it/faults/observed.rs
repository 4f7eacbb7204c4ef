//! What observers learn of attempts and of requested trace contexts if the store is slow or loses replies.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio::time::timeout;
use windlass_core::command::Outcome;
use windlass_core::schedule::Every;
use windlass_core::{
    About, Activity, AnyAttempt, Attempt, AttemptScope, BoxFuture, Chain, ChainId, Client, Closing, Ctx,
    Data, Done, Ended, ErrorKind, Event, Frequent, HandlerOptions, Hooks, MemoryTx, Next, NotWritten,
    Observer, Reaper, Stage, StoreCall, TraceContext, Traced, Worker, WorkerId, plan,
};

use super::faulty::{Fault, Faulty};
use super::{LEASE, MINUTE, Result, Seen, TIMEOUT, Task, echo, hang, pass, task};

/// Records the ends of attempts, stages and requested trace contexts.
#[derive(Clone, Debug, Default)]
struct Recorder {
    lines: Arc<Mutex<Vec<String>>>,
    ran: Arc<Mutex<Vec<Duration>>>,
    failed: Arc<Mutex<Vec<(&'static str, ErrorKind)>>>,
}

impl Recorder {
    fn line(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

impl Observer for Recorder {
    fn observe(&self, event: &Event) {
        if let Event::ChainCreated(_) | Event::JobCreated(_) = event {
            self.line("created".to_owned());
        }
    }

    fn trace_context(&self, _: Traced, _: &About) -> Option<TraceContext> {
        Some(TraceContext::new("context").unwrap())
    }

    fn rolled_back(&self, traced: Traced, _: &About, why: NotWritten) {
        self.line(format!("not written {traced:?}: {why:?}"));
    }

    fn existed(&self, traced: Traced, _: &About, _: ChainId, _: Option<&TraceContext>) {
        self.line(format!("existed {traced:?}"));
    }

    fn unreported(&self, traced: Traced, _: &About) {
        self.line(format!("unreported {traced:?}"));
    }

    fn measure(&self, activity: &Activity) {
        if let Activity::StoreCalled(StoreCall { command, error: Some(error), .. }) = activity {
            self.failed.lock().unwrap().push((*command, *error));
        }
    }

    fn attempt(&self, _: &About) -> Option<Box<dyn AttemptScope>> {
        Some(Box::new(Scope(self.clone())))
    }
}

#[derive(Debug)]
struct Scope(Recorder);

impl AttemptScope for Scope {
    fn closed(&self, stage: Stage, error: Option<&str>) {
        self.0.line(format!("closed {stage:?} {error:?}"));
    }

    fn ended(&self, about: &About, ended: &Ended) {
        self.0.line(format!("ended {ended:?}"));
        self.0.ran.lock().unwrap().push(about.ran.unwrap());
    }
}

fn observed() -> (Faulty, Recorder, Client<Faulty>) {
    let (store, recorder) = (Faulty::default(), Recorder::default());
    let client = Client::builder(store.clone()).observer(recorder.clone()).build();
    (store, recorder, client)
}

#[tokio::test(start_paused = true)]
async fn a_slow_settlement_does_not_count_as_running() {
    async fn works(job: Ctx<Task>) -> Result<String> {
        pass(Duration::from_secs(1)).await;
        echo(job).await
    }
    let (store, recorder, client) = observed();
    let worker = Worker::new(&client).concurrency(1).handle(works).start().await.unwrap();
    for command in ["settle", "exchange"] {
        store.fault(command, Fault::Takes(Duration::from_secs(2)), 1);
    }
    let chain = client.start(task("x")).await.unwrap();
    client.wait(chain).timeout(MINUTE).await.unwrap();
    worker.stop(TIMEOUT).await;
    assert_eq!(*recorder.ran.lock().unwrap(), [Duration::from_secs(1)]);
}

#[tokio::test(start_paused = true)]
async fn the_query_of_a_handler_is_measured() {
    async fn query(job: Ctx<Task>) -> Result<String> {
        job.last_success().await?;
        echo(job).await
    }
    let (store, recorder, client) = observed();
    client.schedules().put("hourly", Every::new(60 * MINUTE).unwrap(), task("x")).await.unwrap();
    let chain = Chain::<Task>::from_id(client.schedules().run_now("hourly").await.unwrap());
    store.fault("get_schedules", Fault::IsDenied, 1);
    let worker = Worker::new(&client).concurrency(1).handle(query).start().await.unwrap();
    assert_eq!(client.wait(chain).timeout(MINUTE).await.unwrap(), "attempt 2");
    worker.stop(TIMEOUT).await;
    assert_eq!(*recorder.failed.lock().unwrap(), [("get_schedules", ErrorKind::AccessDenied)]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_lost_its_job_ends_with_the_reason() {
    let (_, recorder, client) = observed();
    let _worker = Worker::new(&client).concurrency(1).handle(hang::<Task>).start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    pass(LEASE / 10).await;
    client.step(chain).await.unwrap().of::<Task>().unwrap().done("by hand".into()).await.unwrap();
    pass(2 * LEASE).await;
    let lines = recorder.take();
    assert_eq!(lines.last().unwrap(), "ended Lost(AlreadyClosed)", "{lines:?}");
}

/// An observer that relies on scopes, and reads a completion only if no scope can report it.
#[derive(Debug)]
struct RelyingOnScopes {
    ended: mpsc::Sender<()>,
    completed: tokio::sync::mpsc::UnboundedSender<Option<WorkerId>>,
}

impl Observer for RelyingOnScopes {
    fn observe(&self, event: &Event) {
        if let Event::JobCompleted(about, _) = event {
            self.completed.send(about.worker).unwrap();
        }
    }

    fn wants(&self, event: Frequent) -> bool {
        event != Frequent::JobCompleted
    }

    fn attempt(&self, _: &About) -> Option<Box<dyn AttemptScope>> {
        Some(Box::new(Ending(self.ended.clone())))
    }
}

#[derive(Debug)]
struct Ending(mpsc::Sender<()>);

impl AttemptScope for Ending {
    fn ended(&self, _: &About, ended: &Ended) {
        assert!(matches!(ended, Ended::Lost(_)), "{ended:?}");
        self.0.send(()).unwrap();
    }
}

/// A handler that blocks its thread until its scope has ended. The store still accepts its completion.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_completion_after_the_end_of_its_scope_is_reported() {
    let (ended, has_ended) = mpsc::channel();
    let (completed, mut completions) = tokio::sync::mpsc::unbounded_channel();
    let store = Faulty::default();
    // Otherwise this worker would requeue the job when its lease has ended.
    store.break_all(&["reap"], &Fault::Fails);
    let client = Client::builder(store).observer(RelyingOnScopes { ended, completed }).build();
    let has_ended = Arc::new(Mutex::new(has_ended));
    let blocks = |job: Ctx<Task>, Data(ended): Data<Arc<Mutex<mpsc::Receiver<()>>>>| async move {
        ended.lock().unwrap().recv()?;
        echo(job).await
    };
    let options = HandlerOptions::new().lease(Duration::from_millis(200)).timeout(Duration::from_millis(50));
    let worker = Worker::new(&client).concurrency(1).data(has_ended);
    let worker = worker.handle_with::<Task, _>(options, blocks).start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    client.wait(chain).timeout(MINUTE).await.unwrap();
    let worker_id = timeout(MINUTE, completions.recv()).await.unwrap();
    assert_eq!(worker_id, Some(None), "the event is the only report");
    worker.stop(TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_creation_is_reported_to_the_tracer() {
    let (store, recorder, client) = observed();
    store.fault("create", Fault::LosesReply, 1);
    client.start(task("x")).await.unwrap();
    assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
    store.fault("create", Fault::LosesReply, 1);
    client.start_many([plan(task("x"))]).await.unwrap();
    assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
    client.start(task("x")).await.unwrap();
    assert_eq!(recorder.take(), ["created", "created"]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_stops_waiting_is_reported_to_the_tracer() {
    let (store, recorder, client) = observed();
    for _ in 0..2 {
        store.fault("create", Fault::Hangs, 1);
        timeout(TIMEOUT / 10, async { client.start(task("x")).await }).await.unwrap_err();
        assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
        store.fault("create", Fault::Hangs, 1);
        timeout(TIMEOUT / 10, client.start_many([plan(task("x"))])).await.unwrap_err();
        assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
    }
}

/// The store may have executed the command, although it did not answer.
#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_is_not_reported_as_rolled_back() {
    let (store, recorder, client) = observed();
    let chain = client.start(task("x")).await.unwrap();
    recorder.take();
    store.break_all(&["create", "complete_from_outside"], &Fault::LosesReply);
    client.start(task("x")).await.unwrap_err();
    assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
    client.start_many([plan(task("x"))]).await.unwrap_err();
    assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
    let step = client.step(chain).await.unwrap().of::<Task>().unwrap();
    step.done(String::new()).start(plan(task("carried"))).await.unwrap_err();
    assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
    store.clear_faults();
    store.fault("commit", Fault::LosesReply, 1);
    let mut tx = client.begin().await.unwrap();
    tx.start(task("x")).await.unwrap();
    tx.commit().await.unwrap_err();
    assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_denied_is_reported_with_the_kind_of_error() {
    let (store, recorder, client) = observed();
    store.break_all(&["create"], &Fault::IsDenied);
    let denied = ["not written Chain: Failed(AccessDenied)", "not written Job: Failed(AccessDenied)"];
    client.start(task("x")).await.unwrap_err();
    assert_eq!(recorder.take(), denied);
    client.start_many([plan(task("x"))]).await.unwrap_err();
    assert_eq!(recorder.take(), denied);
    store.break_all(&["create"], &Fault::IsBusy);
    client.start_many([plan(task("x"))]).await.unwrap_err();
    assert_eq!(recorder.take(), ["not written Chain: Failed(Busy)", "not written Job: Failed(Busy)"]);
}

/// Completes, and starts a chain with a key.
async fn carries(job: Ctx<Task>) -> Result<Next<Task>> {
    let next = Next::done(String::new());
    Ok(if job.input().text == "carries" { next.start(plan(task("carried")).key("held")) } else { next })
}

#[tokio::test(start_paused = true)]
async fn a_carried_chain_that_exists_is_reported_to_the_tracer() {
    let (_, recorder, client) = observed();
    let worker = Worker::new(&client).concurrency(1).handle(carries).start().await.unwrap();
    client.start(task("later")).key("held").after(MINUTE).await.unwrap();
    recorder.take();
    let chain = client.start(task("carries")).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    let expected = ["created", "created", "ended Completed", "existed Chain", "existed Job"];
    assert_eq!(recorder.take(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_settlement_reports_its_carried_chains_to_the_tracer() {
    let (store, recorder, client) = observed();
    let worker = Worker::new(&client).concurrency(1).handle(carries).start().await.unwrap();
    for command in ["settle", "exchange"] {
        store.fault(command, Fault::LosesReply, 1);
    }
    let chain = client.start(task("carries")).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    let lines = recorder.take();
    let unreported = ["unreported Chain", "unreported Job"];
    assert!(unreported.iter().all(|line| lines.iter().any(|found| found == line)), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_completion_from_outside_is_reported_to_the_tracer() {
    let (store, recorder, client) = observed();
    let chain = client.start(task("x")).await.unwrap();
    recorder.take();
    store.fault("complete_from_outside", Fault::LosesReply, 1);
    let step = client.step(chain).await.unwrap().of::<Task>().unwrap();
    step.done(String::new()).start(plan(task("carried"))).await.unwrap();
    assert_eq!(recorder.take(), ["unreported Chain", "unreported Job"]);
}

#[tokio::test(start_paused = true)]
async fn a_stage_ends_when_it_is_known_whether_the_commit_happened() {
    async fn finish(attempt: Attempt<Task, Faulty>) -> Result<Done<Task, Faulty>> {
        Ok(attempt.begin().await?.done(String::new())?)
    }
    let (store, recorder, client) = observed();
    let worker = Worker::new(&client).concurrency(1).handle(finish).start().await.unwrap();
    store.fault("commit", Fault::LosesReply, 1);
    let chain = client.start(task("x")).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    assert_eq!(recorder.take(), ["created", "created", "closed Finish None", "ended Completed"]);
    assert_eq!(*recorder.failed.lock().unwrap(), [("commit", ErrorKind::Unavailable)]);
}

#[tokio::test(start_paused = true)]
async fn failures_of_every_call_of_a_worker_are_measured() {
    let (store, recorder, client) = observed();
    store.fault("beat", Fault::Fails, 1);
    store.fault("renew", Fault::Hangs, 1);
    let worker = Worker::new(&client).concurrency(1).handle(hang::<Task>).start().await.unwrap();
    client.start(task("x")).await.unwrap();
    pass(2 * LEASE).await;
    worker.stop(Duration::ZERO).await;
    let failed = recorder.failed.lock().unwrap().clone();
    for expected in [("beat", ErrorKind::Unavailable), ("renew", ErrorKind::TimedOut)] {
        assert!(failed.contains(&expected), "{expected:?} in {failed:?}");
    }
}

/// Starts a chain with a key in the transaction that completes a job.
struct Carrying;

impl Hooks<MemoryTx> for Carrying {
    fn closing<'a>(
        &'a self,
        _: &'a AnyAttempt,
        closing: Closing<'a>,
        _: &'a mut MemoryTx,
    ) -> BoxFuture<'a, Result<()>> {
        if let Closing::Finish(Outcome::Complete { create, .. }) = closing {
            create.push(plan(task("carried")).key("held").build().unwrap());
        }
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_a_transaction_carries_and_that_exists_is_reported_to_the_tracer() {
    async fn finish(attempt: Attempt<Task, Faulty>) -> Result<Done<Task, Faulty>> {
        Ok(attempt.begin().await?.done(String::new())?)
    }
    let (_, recorder, client) = observed();
    let worker = Worker::new(&client).concurrency(1).hooks(Carrying).handle(finish).start().await.unwrap();
    client.start(task("later")).key("held").after(MINUTE).await.unwrap();
    recorder.take();
    let chain = client.start(task("x")).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    let lines = recorder.take();
    let existed: Vec<_> = lines.iter().filter(|line| line.starts_with("existed")).collect();
    assert_eq!(existed, ["existed Chain", "existed Job"], "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reaper_that_fails_is_reported_and_leads_again() {
    let (store, recorder, seen) = (Faulty::default(), Recorder::default(), Seen::default());
    let client = Client::builder(store.clone()).observer(recorder.clone()).observer(seen.clone()).build();
    store.break_all(&["reap"], &Fault::IsDenied);
    let reaper = Reaper::new(&client).start().await.unwrap();
    pass(MINUTE).await;
    assert!(!reaper.is_leader());
    assert!(recorder.failed.lock().unwrap().contains(&("reap", ErrorKind::AccessDenied)));
    let is_failure =
        |event: &Event| matches!(event, Event::StoreFailed("reap", why) if !why.as_str().is_empty());
    assert!(seen.count(is_failure) > 0);
    store.clear_faults();
    pass(5 * MINUTE).await;
    assert!(reaper.is_leader());
    reaper.stop().await;
}

/// While the store is down, each failed chain would fail to be queried for the same reason.
#[tokio::test(start_paused = true)]
async fn a_failed_query_for_waiting_jobs_is_reported_once() {
    let (store, seen) = (Faulty::default(), Seen::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let failures = || {
        seen.count(|event| matches!(event, Event::StoreFailed(command, _) if *command == "list_dependents"))
    };
    for expected in [1, 2] {
        store.fault("list_dependents", Fault::IsDenied, 2);
        for text in ["denied", "denied", "answered"] {
            let chain = client.start(task(text)).await.unwrap();
            client.cancel_unless_running(chain).await.unwrap();
            pass(TIMEOUT).await;
        }
        assert_eq!(failures(), expected);
    }
}
