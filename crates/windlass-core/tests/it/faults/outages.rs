//! A store that hangs, is slow or unreachable, panics, or loses replies.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use windlass_core::command::{Count, Types};
use windlass_core::{Client, Ctx, Entry, ErrorKind, Event, Job, Next, Status, Store, Then, Worker};

use super::faulty::{Fault, Faulty};
use super::{
    LEASE, MINUTE, Result, Seen, Short, TIMEOUT, Task, Trace, echo, faulty, hang, obedient, pass, slow,
    stored, task,
};

#[tokio::test(start_paused = true)]
async fn a_hanging_heartbeat_loses_no_lease() {
    let (store, client) = faulty();
    store.break_all(&["beat"], &Fault::Hangs);
    check_lease_is_kept(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_renewal_times_out_before_the_lease_ends() {
    let (store, client) = faulty();
    store.fault("renew", Fault::Hangs, 1);
    check_lease_is_kept(&store, &client).await;
}

/// Checks that another worker, whose handler would complete immediately, cannot acquire a running job.
async fn check_lease_is_kept(store: &Faulty, client: &Client<Faulty>) {
    let chain = client.start(task("x")).await.unwrap();
    let _owner = Worker::new(client).handle(hang::<Task>).start().await.unwrap();
    pass(TIMEOUT / 10).await;
    let _other = Worker::new(client).poll(LEASE / 8).handle(echo::<Task>).start().await.unwrap();
    pass(MINUTE).await;
    let job = stored(client, chain).await;
    assert_eq!((job.status, job.attempt), (Status::Running, 1));
    assert!(store.calls("renew") > 10 && store.calls("reap") > 10);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_too_slow_for_a_short_lease_is_in_time_for_a_longer_one() {
    let (store, client) = faulty();
    store.break_all(&["renew"], &Fault::Takes(Duration::from_millis(150)));
    let chain = client.start(task("x")).await.unwrap();
    client.start::<Short>("x".into()).await.unwrap();
    let worker = Worker::new(&client).concurrency(2).data(Trace::default());
    let _worker = worker.handle(obedient).handle(hang::<Short>).start().await.unwrap();
    pass(MINUTE).await;
    let job = stored(&client, chain).await;
    assert_eq!((job.status, job.attempt), (Status::Running, 1), "the handler was asked to stop");
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_call_of_the_worker_times_out_and_is_repeated() {
    for command in ["acquire", "next_due", "reap"] {
        check_work_continues(command, Fault::Hangs).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_the_worker_that_panics_is_repeated() {
    for command in ["acquire", "next_due", "reap"] {
        check_work_continues(command, Fault::Panics).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_access_is_unhealthy_until_it_gets_access_again() {
    let store = Faulty::default();
    let seen = Seen::default();
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let worker = Worker::new(&client).poll(TIMEOUT).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    worker.health().unwrap();
    store.break_all(&["acquire", "renew", "reap", "next_due", "beat"], &Fault::IsDenied);
    pass(MINUTE).await;
    let unhealthy = worker.health().unwrap_err();
    assert_eq!(unhealthy.error.kind(), ErrorKind::AccessDenied);
    let failures = seen.count(|event| matches!(event, Event::WorkerFailed(..)));
    assert_eq!(unhealthy.failures as usize, failures);
    assert!((3..20).contains(&failures), "{failures} tries in a minute: it backs off");

    store.clear_faults();
    let chain = client.start(task("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(MINUTE).await.unwrap(), "attempt 1");
    worker.health().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_access_ends_at_once() {
    let (store, client) = faulty();
    let chain = client.start(task("x")).await.unwrap();
    store.break_all(&["get_chains"], &Fault::IsDenied);
    let began = tokio::time::Instant::now();
    let error = client.wait(chain).timeout(MINUTE).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed()), (ErrorKind::AccessDenied, Duration::ZERO));
}

/// Checks that a worker runs later jobs after it met this fault.
async fn check_work_continues(command: &'static str, fault: Fault) {
    let (store, client) = faulty();
    store.fault(command, fault, 1);
    let _worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    let chain = client.start(task("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(MINUTE).await.unwrap(), "attempt 1", "{command}");
    assert!(store.calls(command) > 1, "{command}");
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_settlement_times_out_and_is_repeated() {
    for fault in [Fault::Hangs, Fault::HangsAfterwards] {
        let (store, client) = faulty();
        store.fault("exchange", fault, 1);
        let chains = client.start_many((0..20).map(|_| task("x"))).await.unwrap();
        let _worker = Worker::new(&client).concurrency(4).handle(echo::<Task>).start().await.unwrap();
        for chain in chains {
            assert_eq!(client.wait(chain).timeout(MINUTE).await.unwrap(), "attempt 1");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_start_does_not_delay_others() {
    let (store, client) = faulty();
    store.fault("create", Fault::Hangs, 1);
    timeout(TIMEOUT, client.start(task("given up")).into_future()).await.unwrap_err();
    timeout(MINUTE, client.start(task("queued behind it")).into_future()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_does_not_run_work_twice() {
    const ALL: &[&str] = &["acquire", "beat", "exchange", "next_due", "reap", "renew", "settle"];
    let (store, client) = faulty();
    let trace = Trace::default();
    let worker = Worker::new(&client).concurrency(2).data(trace.clone()).handle(slow).start();
    let _worker = worker.await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    trace.started.notified().await;
    store.break_all(ALL, &Fault::Fails);
    pass(3 * LEASE).await;
    assert_eq!(stored(&client, chain).await.status, Status::Running, "nothing got through");
    store.clear_faults();
    assert_eq!(client.wait(chain).timeout(MINUTE).await.unwrap(), "attempt 1");
    assert_eq!(trace.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_creation_whose_reply_is_lost_is_repeated_and_stored_once() {
    let (store, client) = faulty();
    store.fault("create", Fault::LosesReply, 2);
    let chain = client.start(task("x")).await.unwrap();
    assert_eq!(stored(&client, chain).await.status, Status::Pending);
    assert_eq!(store.calls("create"), 3);
    let counts = store.count(Count { types: Types::All }).await.unwrap().types;
    assert_eq!(counts.iter().map(|count| count.pending).sum::<u64>(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_reply_is_lost_is_repeated_and_returns_the_same_jobs() {
    let (store, client) = faulty();
    store.fault("acquire", Fault::LosesReply, 2);
    let chain = client.start(task("x")).await.unwrap();
    let _worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 1");
}

#[tokio::test(start_paused = true)]
async fn a_settlement_whose_reply_is_lost_is_repeated() {
    let (store, client) = faulty();
    store.fault("exchange", Fault::LosesReply, 2);
    let chain = client.start(task("x")).await.unwrap();
    let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    assert_eq!(client.wait(chain).poll(TIMEOUT / 10).timeout(TIMEOUT).await.unwrap(), "attempt 1");
    // The result is stored before the worker has the reply.
    pass(TIMEOUT).await;
    assert_eq!(store.calls("exchange"), 3);
    worker.stop(TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_survives_transient_store_errors() {
    let (store, client) = faulty();
    let chain = client.start(task("x")).await.unwrap();
    store.fault("get_chains", Fault::Fails, 3);
    let _worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    assert_eq!(client.wait(chain).poll(TIMEOUT / 10).timeout(2 * TIMEOUT).await.unwrap(), "attempt 1");
}

#[tokio::test(start_paused = true)]
async fn a_wait_whose_query_fails_after_the_notification_queries_again_soon() {
    let (store, client) = faulty();
    let chain = client.start(task("x")).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait(chain).await }
    });
    pass(TIMEOUT / 10).await;
    store.fault("get_chains", Fault::Fails, 4);
    let _worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    let waited = timeout(TIMEOUT, waiting).await.unwrap();
    assert_eq!(waited.unwrap().unwrap(), "attempt 1");
}

#[test]
fn a_client_outlives_its_runtime() {
    let (store, client) = faulty();
    store.fault("create", Fault::Hangs, 1);
    let first = runtime();
    let unanswered = first.spawn({
        let client = client.clone();
        async move { client.start(task("x")).await }
    });
    first.block_on(pass(TIMEOUT));
    assert!(!unanswered.is_finished());
    let mut waiting = Box::pin(client.start(task("queued behind it")).into_future());
    assert!(first.block_on(async { timeout(TIMEOUT, &mut waiting).await }).is_err());
    drop(first);

    runtime().block_on(async {
        let lost = timeout(TIMEOUT, waiting).await.unwrap().unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Unavailable);
        let chain = timeout(TIMEOUT, client.start(task("x")).into_future()).await.unwrap().unwrap();
        let _worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
        assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 1");
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_settlement_whose_reply_is_lost_wakes_the_next_worker() {
    #[derive(Serialize, Deserialize)]
    struct First;
    impl Job for First {
        const NAME: &'static str = "First";
        type Output = String;
        type Next = (Task,);
        type Blockers = ();
    }
    impl Entry for First {}
    impl Then<Task> for First {}
    async fn first(_: Ctx<First>) -> Result<Next<First>> {
        Ok(Next::then(task("x")))
    }
    let (store, seen) = (Faulty::default(), Seen::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let _first = Worker::new(&client).handle(first).start().await.unwrap();
    let _second = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    store.fault("exchange", Fault::LosesReply, 1);
    let chain = client.start(First).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 1");
    pass(TIMEOUT).await;
    assert_eq!(seen.count(|event| matches!(event, Event::JobCompleted(..))), 2, "each end is reported once");
}
