//! Creations that acquire for an idle worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Notify;
use windlass_core::{Client, Ctx, Data, ErrorKind, Event, HandlerOptions, InProcessNotifier, Status, Worker};

use super::faulty::{Fault, Faulty};
use super::{LEASE, Long, MINUTE, Result, Seen, TIMEOUT, Task, Trace, echo, obedient, pass, stored, task};

const JOINED: &str = "create_and_acquire";
/// Long enough that nothing is found by polling.
const HOUR: Duration = Duration::from_secs(3_600);

fn joining() -> (Faulty, Client<Faulty>) {
    let store = Faulty::joining();
    (store.clone(), Client::new(store))
}

#[tokio::test(start_paused = true)]
async fn a_creation_acquires_for_an_idle_worker() {
    let (store, seen) = (Faulty::joining(), Seen::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let worker = Worker::new(&client).concurrency(2).poll(HOUR).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    let acquires = store.calls("acquire");
    for _ in 0..5 {
        let chain = client.start(task("x")).await.unwrap();
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 1");
    }
    assert_eq!((store.calls(JOINED), store.calls("create")), (5, 0));
    assert_eq!(store.calls("acquire"), acquires, "no job needs an acquire of its own");
    // The creation is reported before the attempt.
    let order = |event: &Event| match event {
        Event::JobCreated(_) => Some(0),
        Event::AttemptStarted(_) => Some(1),
        _ => None,
    };
    let order: Vec<_> = seen.0.lock().unwrap().iter().filter_map(order).collect();
    assert_eq!(order, [0, 1].repeat(5));
    worker.stop(TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_gains_nothing_creates_alone() {
    let store = Faulty::default();
    let client = Client::new(store.clone());
    let _worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    let chain = client.start(task("x")).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    assert_eq!((store.calls(JOINED), store.calls("create")), (0, 1));
}

/// Whatever happens to the command, the chain is created and its job runs once.
#[tokio::test(start_paused = true)]
async fn a_creation_survives_any_fault_of_the_command() {
    let faults = [
        Fault::Hangs,
        Fault::Fails,
        Fault::IsDenied,
        Fault::LosesReply,
        Fault::HangsAfterwards,
        Fault::Takes(TIMEOUT),
        Fault::IsBusy,
        Fault::IsLocked,
    ];
    for fault in faults {
        let (store, client) = joining();
        let trace = Trace::default();
        let worker =
            Worker::new(&client).concurrency(2).poll(HOUR).data(trace.clone()).handle(count).start().await;
        pass(TIMEOUT).await;
        store.fault(JOINED, fault.clone(), 1);
        let chain = client.start(task("x")).await.unwrap();
        let output = client.wait(chain).timeout(TIMEOUT).poll(HOUR).await;
        assert_eq!(output.unwrap(), "attempt 1", "{fault:?}");
        assert_eq!(trace.runs(), 1, "{fault:?}");
        // The slot that was reserved is free again.
        let chains = client.start_many([task("a"), task("b"), task("c")]).await.unwrap();
        for chain in chains {
            client.wait(chain).timeout(TIMEOUT).poll(HOUR).await.unwrap();
        }
        worker.unwrap().stop(TIMEOUT).await;
    }
}

async fn count(job: Ctx<Task>, Data(trace): Data<Trace>) -> Result<String> {
    trace.start();
    echo(job).await
}

/// A panic ends the batch of the creation, as without a worker. The acquire is repeated.
#[tokio::test(start_paused = true)]
async fn a_panic_leaves_no_slot_reserved() {
    let (store, client) = joining();
    let _worker = Worker::new(&client).concurrency(1).poll(HOUR).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    store.fault(JOINED, Fault::Panics, 1);
    client.start(task("x")).await.unwrap_err();
    let chain = client.start(task("y")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).poll(HOUR).await.unwrap(), "attempt 1");
}

/// The acquire prefers a job that was due earlier. The new job is announced as usual.
#[tokio::test(start_paused = true)]
async fn a_new_job_that_is_not_acquired_is_announced() {
    let (store, client) = joining();
    let silent = Client::builder(store.clone()).notifier(Arc::new(InProcessNotifier::new())).build();
    let _worker = Worker::new(&client).concurrency(1).poll(HOUR).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    let earlier = silent.start(task("unannounced")).await.unwrap();
    pass(TIMEOUT).await;
    assert_eq!(stored(&client, earlier).await.status, Status::Pending);
    let new = client.start(task("new")).await.unwrap();
    assert_eq!(store.calls(JOINED), 1);
    for chain in [earlier, new] {
        assert_eq!(client.wait(chain).timeout(TIMEOUT).poll(HOUR).await.unwrap(), "attempt 1");
    }
}

/// More jobs are due than the command can acquire, and no hint was published for them.
#[tokio::test(start_paused = true)]
async fn a_backlog_behind_a_joined_acquire_is_drained() {
    for concurrency in [1, 3] {
        let (store, client) = joining();
        let silent = Client::builder(store.clone()).notifier(Arc::new(InProcessNotifier::new())).build();
        let worker = Worker::new(&client).concurrency(concurrency).poll(HOUR).handle(echo::<Task>).start();
        let worker = worker.await.unwrap();
        pass(TIMEOUT).await;
        let mut chains = silent.start_many((0..20).map(|_| task("unannounced"))).await.unwrap();
        pass(TIMEOUT).await;
        chains.push(client.start(task("new")).await.unwrap());
        assert_eq!(store.calls(JOINED), 1);
        for chain in chains {
            client.wait(chain).timeout(TIMEOUT).poll(HOUR).await.unwrap();
        }
        worker.stop(TIMEOUT).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_jobs_that_the_worker_can_start_are_joined() {
    let (store, client) = joining();
    let trace = Trace::default();
    let options = HandlerOptions::new().concurrency(1);
    let worker = Worker::new(&client).concurrency(2).poll(HOUR).data(trace.clone());
    let worker = worker.handle_with(options, obedient).start().await.unwrap();
    pass(TIMEOUT).await;
    client.start::<Long>("no handler".into()).await.unwrap();
    client.start(task("later")).after(HOUR).await.unwrap();
    client.start_many([task("many"), task("at once")]).await.unwrap();
    trace.started.notified().await;
    // The type has no room, although the worker has.
    client.start(task("no room")).await.unwrap();
    assert_eq!((store.calls(JOINED), store.calls("create")), (0, 4));
    worker.stop_now(TIMEOUT).await;
    client.start(task("stopped")).await.unwrap();
    assert_eq!(store.calls(JOINED), 0);
}

/// The hint of a job arrives while the slots are reserved for an acquire in flight, so that the loop ignores it.
#[tokio::test(start_paused = true)]
async fn a_hint_during_the_command_is_not_lost() {
    for key in ["another key", "key"] {
        let (store, client) = joining();
        let other = Client::new(store.clone());
        let trace = Trace::default();
        let worker = Worker::new(&client).concurrency(3).poll(HOUR).data(trace.clone());
        let worker = worker.handle(obedient).handle(echo::<Long>).start().await.unwrap();
        client.start(task("holds its key")).key("key").await.unwrap();
        pass(TIMEOUT).await;
        store.fault(JOINED, Fault::AnswersLate(LEASE / 8), 1);
        let starting = tokio::spawn({
            let client = client.clone();
            async move { client.start(task("x")).key(key).await }
        });
        pass(LEASE / 16).await;
        let chain = other.start::<Long>("y".into()).await.unwrap();
        let output = other.wait(chain).poll(HOUR).timeout(TIMEOUT).await;
        assert_eq!(output.unwrap(), "attempt 1", "{key}");
        starting.await.unwrap().unwrap();
        assert_eq!(store.calls(JOINED), 2);
        worker.stop_now(TIMEOUT).await;
    }
}

/// A job that would wait for a busy handler is announced, so that another worker can run it.
#[tokio::test(start_paused = true)]
async fn a_worker_whose_handlers_are_busy_is_not_joined() {
    let (store, client) = joining();
    let trace = Trace::default();
    let worker = Worker::new(&client).concurrency(1).prefetch(10).poll(HOUR).data(trace.clone());
    let worker = worker.handle(obedient).start().await.unwrap();
    pass(TIMEOUT).await;
    client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    client.start(task("y")).await.unwrap();
    assert_eq!((store.calls(JOINED), store.calls("create")), (1, 1));
    worker.stop_now(TIMEOUT).await;
}

/// The acquire does not prefetch: jobs that would wait are announced, so that other workers can run them.
#[tokio::test(start_paused = true)]
async fn a_joined_acquire_takes_only_jobs_that_can_start() {
    let (store, client) = joining();
    let trace = Trace::default();
    let worker = Worker::new(&client).concurrency(3).prefetch(10).poll(HOUR).data(trace.clone());
    let worker = worker.handle(obedient).start().await.unwrap();
    pass(TIMEOUT).await;
    client.start(task("first")).await.unwrap();
    pass(TIMEOUT).await;
    assert_eq!((store.calls(JOINED), store.joined_max(), trace.runs()), (1, 3, 1));
    client.start(task("second")).await.unwrap();
    pass(TIMEOUT).await;
    assert_eq!((store.calls(JOINED), store.joined_max(), trace.runs()), (2, 3, 2));
    worker.stop_now(TIMEOUT).await;
}

/// The creation is not repeated, and is reported once. Meanwhile the worker repeats the acquire, and runs the job.
#[tokio::test(start_paused = true)]
async fn a_slow_command_is_not_repeated() {
    let (store, seen) = (Faulty::joining(), Seen::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let trace = Trace::default();
    let worker = Worker::new(&client).concurrency(1).poll(HOUR).data(trace.clone()).handle(count);
    let worker = worker.start().await.unwrap();
    pass(TIMEOUT).await;
    store.fault(JOINED, Fault::AnswersLate(Duration::from_secs(20)), 1);
    let starting = tokio::spawn({
        let client = client.clone();
        async move { client.start(task("x")).await }
    });
    pass(Duration::from_secs(5)).await;
    assert_eq!((trace.runs(), starting.is_finished()), (1, false));
    let chain = starting.await.unwrap().unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).poll(HOUR).await.unwrap(), "attempt 1");
    assert_eq!((store.calls(JOINED), store.calls("create"), trace.runs()), (1, 0, 1));
    assert_eq!(seen.count(|event| matches!(event, Event::JobCreated(_))), 1);
    worker.stop(TIMEOUT).await;
}

/// A chain that stays locked does not reserve the slots of the worker for each retry.
#[tokio::test(start_paused = true)]
async fn a_locked_chain_is_retried_alone() {
    let (store, client) = joining();
    let worker = Worker::new(&client).poll(HOUR).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    store.break_all(&[JOINED, "create"], &Fault::IsBusy);
    let error = client.start(task("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(store.calls(JOINED) <= 2, "{}", store.calls(JOINED));
    assert!(store.calls("create") > 10);
    worker.stop(TIMEOUT).await;
}

/// The transaction of the lost command may still commit.
#[tokio::test(start_paused = true)]
async fn a_lost_reply_leaves_a_busy_creation_in_doubt() {
    let (store, client) = joining();
    let _worker = Worker::new(&client).poll(HOUR).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    store.fault(JOINED, Fault::LosesReply, 1);
    store.fault("create", Fault::IsLocked, 1);
    let error = client.start(task("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// A command that fails again and again is reported, and not sent for each creation.
#[tokio::test(start_paused = true)]
async fn failures_suspend_the_command() {
    let (store, seen) = (Faulty::joining(), Seen::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let worker = Worker::new(&client).poll(HOUR).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    store.break_all(&[JOINED], &Fault::IsLocked);
    for _ in 0..20 {
        let chain = client.start(task("x")).await.unwrap();
        client.wait(chain).poll(HOUR).timeout(TIMEOUT).await.unwrap();
    }
    assert_eq!(store.calls(JOINED), 1);
    assert_eq!(seen.count(|event| matches!(event, Event::StoreFailed(..))), 1);
    store.clear_faults();
    pass(TIMEOUT).await;
    client.start(task("x")).await.unwrap();
    assert_eq!(store.calls(JOINED), 2);
    worker.stop(TIMEOUT).await;
}

/// The chain may exist although its creation was denied.
#[tokio::test(start_paused = true)]
async fn a_lost_reply_leaves_a_denied_creation_in_doubt() {
    let (store, client) = joining();
    let _worker = Worker::new(&client).poll(HOUR).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    store.fault(JOINED, Fault::LosesReply, 1);
    store.fault("create", Fault::IsDenied, 1);
    let error = client.start(task("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// Starts of many callers, workers with few slots, and faults at random: every job runs, without polling.
#[tokio::test(start_paused = true)]
async fn every_job_runs_under_load() {
    for seed in 0..30 {
        fastrand::seed(seed);
        let (store, client) = joining();
        let slots = fastrand::u32(1..4);
        let trace = Trace::default();
        let worker = Worker::new(&client).concurrency(slots).poll(HOUR).data(trace.clone());
        let worker = worker.handle(count).start().await.unwrap();
        pass(TIMEOUT).await;
        let commands = [JOINED, "create", "acquire", "exchange", "settle"];
        store.break_all(&commands, &Fault::Takes(Duration::from_millis(fastrand::u64(0..5))));
        let starts: Vec<_> = (0..60)
            .map(|number: u32| {
                let (client, delay) = (client.clone(), Duration::from_millis(fastrand::u64(0..100)));
                tokio::spawn(async move {
                    pass(delay).await;
                    let chain = client.start(task(&number.to_string())).await.unwrap();
                    client.wait(chain).timeout(MINUTE).poll(HOUR).await.unwrap()
                })
            })
            .collect();
        for start in starts {
            assert_eq!(start.await.unwrap(), "attempt 1", "seed {seed}");
        }
        assert_eq!(trace.runs(), 60, "seed {seed}");
        assert!(store.calls(JOINED) > 0, "seed {seed}");
        worker.stop(TIMEOUT).await;
    }
}

/// A job that is acquired while the worker stops is released, and its attempt does not count.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_joined_acquire() {
    let (store, client) = joining();
    let trace = Trace::default();
    let worker = Worker::new(&client).poll(HOUR).data(trace.clone()).handle(obedient).start().await.unwrap();
    pass(TIMEOUT).await;
    let gate = store.hold(JOINED);
    let starting = tokio::spawn({
        let client = client.clone();
        async move { client.start(task("x")).await }
    });
    pass(LEASE / 8).await;
    let stopping = tokio::spawn(worker.stop(TIMEOUT));
    pass(LEASE / 8).await;
    gate.notify_one();
    let chain = starting.await.unwrap().unwrap();
    stopping.await.unwrap();
    let job = stored(&client, chain).await;
    assert_eq!((job.status, job.attempt, trace.runs()), (Status::Pending, 0, 0));
}

/// A worker of another runtime starts its attempts itself: its tasks would otherwise run where they do not belong.
#[test]
fn a_worker_of_another_runtime_is_not_joined() {
    let (store, client) = joining();
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (of_worker, of_client) = (runtime(), runtime());
    let idle = Arc::new(Notify::new());
    let worker = of_worker.block_on(async {
        let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
        let chain = client.start(task("x")).await.unwrap();
        client.wait(chain).timeout(MINUTE).await.unwrap();
        idle.notify_one();
        worker
    });
    let joined = store.calls(JOINED);
    of_client.block_on(async {
        idle.notified().await;
        for _ in 0..10 {
            let chain = client.start(task("y")).await.unwrap();
            client.wait(chain).timeout(MINUTE).await.unwrap();
        }
    });
    assert_eq!(store.calls(JOINED), joined);
    of_worker.block_on(worker.stop(TIMEOUT));
}
