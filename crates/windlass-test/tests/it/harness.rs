use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::schedule::Every;
use windlass::{BoxError, Client, Ctx, Data, Job, MemoryStore, Next, Worker, next};
use windlass_test::TestHarness;

use crate::failing;

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Ship), output = String)]
struct Order {
    user_id: u32,
}

#[derive(Serialize, Deserialize, Job)]
#[job(blocked_by(Pay), output = String)]
struct Ship {
    user_id: u32,
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = u32)]
struct Pay {
    user_id: u32,
}

/// A type without a handler.
#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct Elsewhere;

#[derive(Clone)]
struct App {
    client: Client<MemoryStore>,
}

async fn order(job: Ctx<Order>, Data(app): Data<App>) -> Result<Next<Order>, BoxError> {
    let user_id = job.input().user_id;
    let pay = app.client.start(Pay { user_id }).after(MINUTE).await?;
    Ok(Next::then(next(Ship { user_id }).blocked_by((pay,))))
}

async fn ship(job: Ctx<Ship>) -> Result<String, BoxError> {
    let (paid,) = job.blockers();
    Ok(format!("{} shipped for {paid}", job.input().user_id))
}

async fn pay(job: Ctx<Pay>) -> Result<u32, BoxError> {
    match (job.input().user_id, job.attempt()) {
        (0, _) => Err("no such user".into()),
        (_, 1) => Err("the bank sleeps".into()),
        _ => Ok(9),
    }
}

fn harness() -> TestHarness {
    TestHarness::new(|client| {
        let app = App { client: client.clone() };
        Worker::new(client).data(app).handle(order).handle(ship).handle(pay)
    })
}

#[tokio::test]
async fn nothing_runs_before_a_drain_and_everything_due_runs_in_it() {
    let harness = harness();
    let chain = harness.client().start(Order { user_id: 7 }).await.unwrap();
    harness.client().start(Elsewhere).await.unwrap();
    harness.assert_not_started::<Pay>(|_| true);

    let drained = harness.drain_until_idle().await.unwrap();
    assert_eq!((drained.attempts, drained.completed), (1, 1), "{drained}");
    harness.assert_started::<Ship>(|job| job.user_id == 7);

    harness.advance(MINUTE);
    let drained = harness.drain_until_idle().await.unwrap();
    assert_eq!(drained.errors, ["`pay`, attempt 1: the bank sleeps"]);
    assert_eq!((drained.attempts, drained.retried), (1, 1), "{drained}");

    assert_eq!(harness.advance_to_next_due(), Some(Duration::from_secs(10)), "the backoff");
    let drained = harness.drain_until_idle().await.unwrap();
    drained.assert_no_errors();
    assert_eq!(drained.to_string(), "2 attempts: 2 completed, 0 failed, 0 retried, 0 rescheduled");
    assert_eq!(harness.output(chain), "7 shipped for 9");
    assert_eq!(harness.advance_to_next_due(), None);
}

#[tokio::test]
async fn drains_are_deterministic() {
    async fn history() -> Vec<String> {
        let harness = harness();
        for user_id in [3, 0, 2] {
            harness.client().start(Order { user_id }).await.unwrap();
        }
        let mut history = Vec::new();
        for _ in 0..4 {
            history.extend(harness.drain_until_idle().await.unwrap().errors);
            harness.advance_to_next_due();
        }
        history
    }
    let first = history().await;
    let (sleeps, none) = ("`pay`, attempt 1: the bank sleeps", "`pay`, attempt 1: no such user");
    assert_eq!(first[..3], [sleeps, none, sleeps]);
    for _ in 0..10 {
        assert_eq!(history().await, first);
    }
}

#[tokio::test]
async fn failed_assertions_list_the_started_jobs() {
    let harness = harness();
    harness.assert_nothing_started();
    let nothing = failing(|| harness.assert_started::<Pay>(|_| true));
    assert_eq!(nothing, "expected a matching `pay` to be started, but no job was");

    harness.client().start(Order { user_id: 7 }).await.unwrap();
    let others = failing(|| harness.assert_started::<Pay>(|_| true));
    assert_eq!(
        others,
        "expected a matching `pay` to be started, but these jobs were:\n  `order` {\"user_id\":7}"
    );
    harness.client().start(Pay { user_id: 8 }).await.unwrap();
    let same = failing(|| harness.assert_started::<Pay>(|job| job.user_id == 7));
    assert_eq!(
        same,
        "expected a matching `pay` to be started, but these jobs were:\n  `pay` {\"user_id\":8}"
    );
    let not = failing(|| harness.assert_not_started::<Pay>(|job| job.user_id == 8));
    assert_eq!(
        not,
        "expected no matching `pay` to be started, but these jobs were:\n  `pay` {\"user_id\":8}"
    );
    let any = failing(|| harness.assert_nothing_started());
    assert_eq!(
        any,
        "expected no job to be started, but these jobs were:\n  `order` {\"user_id\":7}\n  `pay` {\"user_id\":8}"
    );
}

#[tokio::test]
async fn assertions_describe_the_state_of_a_chain() {
    let harness = harness();
    let late = harness.client().start(Pay { user_id: 1 }).after(MINUTE).await.unwrap();
    let failing_pay = harness.client().start(Pay { user_id: 0 }).max_attempts(1).await.unwrap();
    let open = failing(|| harness.output(late));
    assert!(open.ends_with("but its latest job `pay` {\"user_id\":1} is Pending, due in 60s"), "{open}");

    let drained = harness.drain_until_idle().await.unwrap();
    assert_eq!((drained.failed, harness.failure(failing_pay).as_str()), (1, "no such user"));
    assert!(failing(|| harness.output(failing_pay)).ends_with("failed: no such user"));
    assert!(failing(|| drained.assert_no_errors()).contains("`pay`, attempt 1: no such user"));

    harness.advance(MINUTE);
    harness.drain_until_idle().await.unwrap();
    let retried = failing(|| harness.failure(late));
    assert!(retried.ends_with("is Pending, due in 10s, after: the bank sleeps"), "{retried}");
    harness.advance(MINUTE);
    harness.drain_until_idle().await.unwrap();
    let completed = failing(|| harness.failure(late));
    assert!(completed.ends_with("is Completed with 9"), "{completed}");
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Spin))]
struct Spin;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_drain_names_the_looping_job() {
    async fn spin(_: Ctx<Spin>) -> Result<Next<Spin>, BoxError> {
        Ok(Next::then(Spin))
    }
    let harness = TestHarness::new(|client| Worker::new(client).handle(spin)).attempts_max(20);
    let chain = harness.client().start(Spin).await.unwrap();
    let error = harness.drain_until_idle().await.unwrap_err().to_string();
    let expected = format!(
        "more than 20 attempts in one drain; the most frequent job is `spin`, most recently in chain {}: add a delay or \
         a condition to end the loop, or increase `attempts_max`",
        chain.id()
    );
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_hanging_handler_is_named_and_its_job_released() {
    async fn hang(_: Ctx<Spin>) -> Result<(), BoxError> {
        std::future::pending().await
    }
    let harness =
        TestHarness::new(|client| Worker::new(client).handle(hang)).timeout(Duration::from_millis(50));
    let chain = harness.client().start(Spin).await.unwrap();
    let error = harness.drain_until_idle().await.unwrap_err().to_string();
    assert!(error.starts_with("nothing has happened for 50ms; running: `spin` null:"), "{error}");
    assert_eq!(harness.client().chain(chain).await.unwrap().unwrap().latest.attempt, 0, "the attempt counts");
}

#[tokio::test(start_paused = true)]
async fn handlers_may_take_their_time_on_paused_time() {
    async fn nap(_: Ctx<Pay>) -> Result<u32, BoxError> {
        tokio::time::sleep(60 * MINUTE).await; // tidy: time is paused, and the sleep is the handler's work
        Ok(1)
    }
    let harness = TestHarness::new(|client| Worker::new(client).handle(nap)).concurrency(2);
    let chains = harness.client().start_many([Pay { user_id: 1 }, Pay { user_id: 2 }]).await.unwrap();
    harness.drain_until_idle().await.unwrap().assert_no_errors();
    assert_eq!(chains.into_iter().map(|chain| harness.output(chain)).collect::<Vec<_>>(), [1, 1]);
}

#[tokio::test]
async fn a_worker_that_cannot_start_is_an_error() {
    let harness = TestHarness::new(|client| Worker::new(client).handle(ship).handle(ship));
    let error = harness.drain_until_idle().await.unwrap_err();
    assert!(error.to_string().contains("two handlers"), "{error}");
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct Tick;

async fn tick(job: Ctx<Tick>) -> Result<(), BoxError> {
    job.occurrence().map(drop).ok_or_else(|| "a schedule starts this job".into())
}

#[tokio::test]
async fn the_clock_is_turned_to_schedules_with_jitter() {
    let harness = TestHarness::new(|client| {
        let hourly = Every::new(60 * MINUTE).unwrap().jitter(30 * MINUTE);
        let worker = Worker::new(client).handle(tick);
        (0..5).fold(worker, |worker, number| worker.schedule(format!("{number}"), hourly.clone(), Tick))
    });
    assert_eq!(harness.drain_until_idle().await.unwrap().completed, 0);
    for step in 0..10 {
        harness.advance_to_next_due().expect("a schedule has a next occurrence");
        let completed = harness.drain_until_idle().await.unwrap().completed;
        assert!(completed > 0, "nothing has started in step {step}");
    }
}
