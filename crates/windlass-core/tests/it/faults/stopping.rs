//! Stops at inconvenient moments.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use windlass_core::command::CancelMode;
use windlass_core::{
    AnyAttempt, Backoff, BoxFuture, Ctx, Data, Ended, Inner, Middleware, Running, Status, Store, Worker,
};

use super::faulty::Fault;
use super::{
    Long, MINUTE, Result, TIMEOUT, Task, Trace, echo, faulty, hang, obedient, pass, slow, stored, task,
};

/// How a worker is stopped.
#[derive(Clone, Copy)]
enum Stop {
    Gently,
    Now,
}

const STOPS: [Stop; 2] = [Stop::Gently, Stop::Now];

async fn stop<S: Store>(worker: Running<S>, how: Stop, deadline: Duration) {
    match how {
        Stop::Gently => worker.stop(deadline).await,
        Stop::Now => worker.stop_now(deadline).await,
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_aborts_handlers_immediately_though_acquire_hangs() {
    let (store, client) = faulty();
    let trace = Trace::default();
    let worker = Worker::new(&client).concurrency(2).data(trace.clone()).handle(obedient).start();
    let worker = worker.await.unwrap();
    let chain = client.start(task("running")).await.unwrap();
    trace.started.notified().await;
    pass(TIMEOUT / 10).await;
    let acquires = store.calls("acquire");
    store.break_all(&["acquire"], &Fault::Hangs);
    client.start(task("due")).await.unwrap();
    pass(TIMEOUT / 10).await;
    assert!(store.calls("acquire") > acquires, "an acquire hangs");

    let (before, stopping) = (Instant::now(), tokio::spawn(worker.stop_now(TIMEOUT)));
    timeout(TIMEOUT, trace.aborted.notified()).await.unwrap();
    assert!(before.elapsed().is_zero());
    timeout(2 * TIMEOUT, stopping).await.unwrap().unwrap();
    let job = stored(&client, chain).await;
    assert_eq!((job.status, job.attempt), (Status::Completed, 1), "it had time to complete");
}

#[tokio::test(start_paused = true)]
async fn jobs_of_an_acquire_in_flight_at_the_stop_are_released() {
    for how in STOPS {
        check_acquire_in_flight(how).await;
    }
}

async fn check_acquire_in_flight(how: Stop) {
    let (store, client) = faulty();
    let trace = Trace::default();
    let chain = client.start(task("x")).await.unwrap();
    let gate = store.hold("acquire");
    let worker = Worker::new(&client).concurrency(1).data(trace.clone()).handle(slow).start().await.unwrap();
    pass(TIMEOUT / 10).await;
    let stopping = tokio::spawn(stop(worker, how, TIMEOUT));
    pass(TIMEOUT / 10).await;
    gate.notify_one();
    stopping.await.unwrap();
    let job = stored(&client, chain).await;
    assert_eq!((job.status, job.attempt, trace.runs()), (Status::Pending, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn jobs_of_an_unanswered_acquire_are_released_at_the_stop() {
    for how in STOPS {
        check_unanswered_acquire(how).await;
    }
}

async fn check_unanswered_acquire(how: Stop) {
    let (store, client) = faulty();
    store.fault("acquire", Fault::HangsAfterwards, 1);
    let chain = client.start(task("x")).await.unwrap();
    let worker = Worker::new(&client).concurrency(1).handle(hang::<Task>).start().await.unwrap();
    pass(TIMEOUT / 10).await;
    assert_eq!(stored(&client, chain).await.status, Status::Running, "the worker does not know");
    stop(worker, how, TIMEOUT).await;
    let job = stored(&client, chain).await;
    assert_eq!((job.status, job.attempt), (Status::Pending, 0));
}

/// A stop may have a long deadline. It must not spend all of it on one call.
#[tokio::test(start_paused = true)]
async fn a_stop_repeats_the_recovery_of_an_acquire() {
    for fault in [Fault::Hangs, Fault::Fails] {
        let (store, client) = faulty();
        store.fault("acquire", Fault::LosesReply, 1);
        let chain = client.start(Long::from("x")).await.unwrap();
        // The loop must not repeat the acquire before the stop does.
        let slow = Backoff { initial: MINUTE, max: MINUTE, ..Backoff::NONE };
        let worker = Worker::new(&client).concurrency(1).recovery(slow).handle(hang::<Long>).start().await;
        pass(TIMEOUT / 10).await;
        store.fault("acquire", fault, 1);
        let began = Instant::now();
        worker.unwrap().stop(10 * MINUTE).await;
        assert!(began.elapsed() < MINUTE, "{:?}", began.elapsed());
        let job = client.chain(chain).await.unwrap().unwrap().latest;
        assert_eq!((job.status, job.attempt), (Status::Pending, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_retried() {
    for how in STOPS {
        check_failed_release(how).await;
    }
}

async fn check_failed_release(how: Stop) {
    let (store, client) = faulty();
    let worker = Worker::new(&client).concurrency(1).handle(hang::<Task>).start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    pass(TIMEOUT / 10).await;
    store.fault("settle", Fault::Fails, 1);
    stop(worker, how, TIMEOUT / 10).await;
    let job = stored(&client, chain).await;
    assert_eq!((job.status, job.attempt, store.calls("settle")), (Status::Pending, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_overtake_the_settlement_of_an_attempt_that_has_ended() {
    let (store, client) = faulty();
    let gate = store.hold("settle");
    let worker = Worker::new(&client).concurrency(2).handle(echo::<Task>).start().await.unwrap();
    let first = client.start(task("settles slowly")).await.unwrap();
    pass(TIMEOUT / 10).await;
    let second = client.start(task("queued behind it")).await.unwrap();
    pass(TIMEOUT / 10).await;
    let stopping = tokio::spawn(worker.stop_now(TIMEOUT / 10));
    pass(TIMEOUT / 5).await;
    gate.notify_one();
    stopping.await.unwrap();
    for chain in [first, second] {
        assert_eq!(stored(&client, chain).await.status, Status::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_an_unreachable_store() {
    for how in STOPS {
        check_unreachable_store(how).await;
    }
}

async fn check_unreachable_store(how: Stop) {
    let (store, client) = faulty();
    let trace = Trace::default();
    let worker =
        Worker::new(&client).concurrency(1).data(trace.clone()).handle(obedient).start().await.unwrap();
    client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    store.break_all(
        &["acquire", "beat", "exchange", "next_due", "reap", "retire", "renew", "settle"],
        &Fault::Hangs,
    );
    timeout(10 * TIMEOUT, stop(worker, how, TIMEOUT)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_calls_a_closed_store_after_the_stop() {
    let (store, client) = faulty();
    let trace = Trace::default();
    let worker =
        Worker::new(&client).concurrency(1).data(trace.clone()).handle(obedient).start().await.unwrap();
    client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    store.close().await.unwrap();
    worker.stop_now(TIMEOUT).await;
    let settles = store.calls("settle");
    pass(MINUTE).await;
    assert_eq!(store.calls("settle"), settles);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_middleware_that_hangs_after_the_handler() {
    struct Lingers(Trace);
    impl Middleware for Lingers {
        fn around<'a>(&'a self, attempt: AnyAttempt, inner: Inner) -> BoxFuture<'a, Result<Ended>> {
            Box::pin(async move {
                inner.run(attempt).await;
                loop {
                    pass(TIMEOUT / 10).await;
                    self.0.start();
                }
            })
        }
    }
    let (_, client) = faulty();
    let trace = Trace::default();
    let worker = Worker::new(&client).concurrency(1).middleware(Lingers(trace.clone())).handle(echo::<Task>);
    let worker = worker.start().await.unwrap();
    client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    worker.stop_now(TIMEOUT).await;
    let runs = trace.runs();
    pass(MINUTE).await;
    assert_eq!(trace.runs(), runs);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_worker_aborts_its_handlers() {
    let (_, client) = faulty();
    let trace = Trace::default();
    let worker =
        Worker::new(&client).concurrency(1).data(trace.clone()).handle(obedient).start().await.unwrap();
    client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    drop(worker);
    timeout(TIMEOUT, trace.aborted.notified()).await.unwrap();
}

/// A handler that takes a minute. Returns whether it was asked to stop.
async fn takes_a_minute(job: Ctx<Task>, Data(trace): Data<Trace>) -> Result<String> {
    trace.started.notify_one();
    pass(MINUTE).await;
    Ok(format!("{:?}", job.aborted().reason()))
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_handlers_finish() {
    let (_, client) = faulty();
    let trace = Trace::default();
    let worker =
        Worker::new(&client).concurrency(1).data(trace.clone()).handle(takes_a_minute).start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    let before = Instant::now();
    worker.stop(2 * MINUTE).await;
    assert!((MINUTE..MINUTE + TIMEOUT / 10).contains(&before.elapsed()), "{:?}", before.elapsed());
    assert_eq!(client.wait(chain).await.unwrap(), "None", "it was not asked to stop");
}

#[tokio::test(start_paused = true)]
async fn a_stop_acquires_no_more_jobs_while_handlers_finish() {
    let (_, client) = faulty();
    let trace = Trace::default();
    let worker =
        Worker::new(&client).concurrency(1).data(trace.clone()).handle(takes_a_minute).start().await.unwrap();
    client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    let stopping = tokio::spawn(worker.stop(2 * MINUTE));
    pass(TIMEOUT / 10).await;
    let later = client.start(task("later")).await.unwrap();
    stopping.await.unwrap();
    let job = stored(&client, later).await;
    assert_eq!((job.status, job.attempt), (Status::Pending, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stop_asks_handlers_to_stop_shortly_before_its_deadline() {
    for (deadline, expected) in
        [(MINUTE, Duration::from_secs(55)), (Duration::from_secs(5), Duration::from_secs(4))]
    {
        let (_, client) = faulty();
        let trace = Trace::default();
        let worker =
            Worker::new(&client).concurrency(1).data(trace.clone()).handle(obedient).start().await.unwrap();
        client.start(task("x")).await.unwrap();
        trace.started.notified().await;
        let (before, stopping) = (Instant::now(), tokio::spawn(worker.stop(deadline)));
        trace.aborted.notified().await;
        let asked = before.elapsed();
        assert!((expected..expected + Duration::from_millis(10)).contains(&asked), "{asked:?}");
        stopping.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_follows_the_worker_from_start_to_stop() {
    let (store, client) = faulty();
    let gate = store.hold("acquire");
    let worker = Worker::new(&client).concurrency(1).handle(echo::<Task>).start().await.unwrap();
    let probe = worker.probe();
    pass(TIMEOUT / 10).await;
    assert!(!probe.is_ready() && probe.health().is_ok(), "it has not reached the store");
    gate.notify_one();
    pass(TIMEOUT / 10).await;
    assert!(probe.is_ready());
    store.break_all(&["acquire", "next_due", "reap"], &Fault::Fails);
    pass(MINUTE).await;
    assert!(!probe.is_ready());
    assert!(probe.health().unwrap_err().failures > 1);
    store.clear_faults();
    pass(MINUTE).await;
    assert!(probe.is_ready() && probe.health().is_ok());
    worker.stop(TIMEOUT).await;
    assert!(!probe.is_ready() && probe.health().is_ok());

    let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    let probe = worker.probe();
    pass(TIMEOUT / 10).await;
    assert!(probe.is_ready());
    drop(worker);
    pass(MINUTE).await;
    assert!(!probe.is_ready(), "a dropped worker runs no jobs");
}

#[tokio::test(start_paused = true)]
async fn a_handler_learns_of_a_cancellation_while_its_worker_stops() {
    let (_, client) = faulty();
    let trace = Trace::default();
    let worker = Worker::new(&client).data(trace.clone()).handle(obedient).start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    let stopping = tokio::spawn(worker.stop(10 * MINUTE));
    pass(TIMEOUT / 10).await;
    let before = Instant::now();
    client.cancel(chain, CancelMode::Ask).await.unwrap();
    trace.aborted.notified().await;
    assert!(
        before.elapsed() < Duration::from_secs(1),
        "not only at the next renewal: {:?}",
        before.elapsed()
    );
    stopping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_runs_until_a_signal() {
    let (_, client) = faulty();
    let (signal, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(&client).handle(echo::<Task>);
    let probe = worker.probe();
    assert!(!probe.is_ready());
    let running = tokio::spawn(worker.run_until(stopped, TIMEOUT));
    let chain = client.start(task("x")).await.unwrap();
    client.wait(chain).await.unwrap();
    assert!(!running.is_finished() && probe.is_ready());
    signal.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert!(!probe.is_ready());
}
