//! Failing handlers, failing observers, and attempts that fail to end.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use windlass_core::{Attempt, Client, Ctx, Done, Event, Observer, Status, Worker};

use super::faulty::{Fault, Faulty};
use super::{Endless, LEASE, Result, Seen, TIMEOUT, Task, Timed, echo, faulty, stored, task};

#[tokio::test(start_paused = true)]
async fn a_hanging_handler_frees_its_slot_after_the_timeout() {
    async fn some_hang(job: Ctx<Timed>) -> Result<String> {
        if job.input().text == "bad" {
            std::future::pending::<()>().await;
        }
        echo(job).await
    }
    let (_, client) = faulty();
    client.start::<Timed>("bad".into()).await.unwrap();
    let _worker = Worker::new(&client).handle(some_hang).start().await.unwrap();
    let good = client.start::<Timed>("good".into()).await.unwrap();
    assert_eq!(client.wait(good).timeout(2 * LEASE).await.unwrap(), "attempt 1");
}

#[tokio::test(start_paused = true)]
async fn a_panicking_observer_is_ignored() {
    #[derive(Debug)]
    struct Panics;
    impl Observer for Panics {
        fn observe(&self, event: &Event) {
            panic!("observed {event:?}");
        }
    }
    check_observer(Panics).await;
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_in_is_on_is_ignored() {
    #[derive(Debug)]
    struct Undecided;
    impl Observer for Undecided {
        fn observe(&self, _: &Event) {}

        fn is_on(&self) -> bool {
            panic!("on or off?");
        }
    }
    check_observer(Undecided).await;
}

async fn check_observer(observer: impl Observer) {
    let client = Client::builder(Faulty::default()).observer(observer).build();
    let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    for text in ["one", "two"] {
        let chain = client.start(task(text)).await.unwrap();
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 1");
    }
    worker.stop(TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_whose_display_panics_fails_the_attempt() {
    #[derive(Debug)]
    struct Unspeakable;
    impl fmt::Display for Unspeakable {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("no words");
        }
    }
    impl std::error::Error for Unspeakable {}
    async fn fails_first(job: Ctx<Task>) -> Result<String> {
        if job.attempt() == 1 {
            return Err(Box::new(Unspeakable));
        }
        echo(job).await
    }
    let (_, client) = faulty();
    let _worker = Worker::new(&client).handle(fails_first).start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 2");
}

async fn finish(attempt: Attempt<Task, Faulty>) -> Result<Done<Task, Faulty>> {
    let done = format!("attempt {}", attempt.attempt());
    // Calls `begin` a second time if the first call fails or takes too long.
    let step = match timeout(TIMEOUT / 10, attempt.begin()).await {
        Ok(Ok(step)) => step,
        _ => attempt.begin().await?,
    };
    Ok(step.done(done)?)
}

async fn check_finish(command: &'static str, (fault, times): (Fault, usize), expected: &str) {
    let (store, client) = faulty();
    store.fault(command, fault, times);
    let _worker = Worker::new(&client).handle(finish).start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), expected, "{command}");
    assert_eq!(stored(&client, chain).await.status, Status::Completed);
    assert!(store.calls(command) > times, "{command}: the fault did not occur");
}

#[tokio::test(start_paused = true)]
async fn a_finish_retries_a_briefly_busy_job() {
    check_finish("settle_in", (Fault::IsBusy, 3), "attempt 1").await;
}

#[tokio::test(start_paused = true)]
async fn a_finish_reschedules_a_job_that_stays_busy() {
    check_finish("settle_in", (Fault::IsBusy, 30), "attempt 1").await;
}

#[tokio::test(start_paused = true)]
async fn a_finish_whose_commit_is_not_answered_is_reported_correctly() {
    let (store, seen) = (Faulty::default(), Seen::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    store.fault("commit", Fault::LosesReply, 1);
    let worker = Worker::new(&client).handle(finish).start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 1");
    worker.stop(TIMEOUT).await;
    assert_eq!(seen.count(|event| matches!(event, Event::JobCompleted(..))), 1);
    assert_eq!(seen.count(|event| matches!(event, Event::AttemptLost(_))), 0);
}

#[tokio::test(start_paused = true)]
async fn a_finish_whose_commit_fails_is_retried_after_the_backoff() {
    check_finish("commit", (Fault::Fails, 1), "attempt 2").await;
}

#[tokio::test(start_paused = true)]
async fn a_finish_that_fails_to_begin_can_be_repeated() {
    check_finish("begin", (Fault::Fails, 1), "attempt 1").await;
}

#[tokio::test(start_paused = true)]
async fn a_finish_that_was_dropped_midway_can_be_repeated() {
    check_finish("begin", (Fault::Hangs, 1), "attempt 1").await;
}

#[tokio::test(start_paused = true)]
async fn durations_may_be_unlimited() {
    let (_, client) = faulty();
    let worker = Worker::new(&client).poll(Duration::MAX).handle(echo::<Endless>).start().await.unwrap();
    let chain = client.start::<Endless>("x".into()).await.unwrap();
    let wait = client.wait(chain).poll(Duration::MAX).timeout(Duration::MAX);
    assert_eq!(timeout(TIMEOUT, wait.into_future()).await.unwrap().unwrap(), "attempt 1");
    let before = Instant::now();
    worker.stop(Duration::MAX).await;
    assert!(before.elapsed() < TIMEOUT);
}
