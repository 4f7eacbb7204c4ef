//! Queues on a store that hangs, fails and loses replies.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass_core::command::{Acquire, Quota};
use windlass_core::queue::{Enqueued, FailureKind, Item, ItemCancelled, ItemState, QueueEvent, TtlUpdated};
use windlass_core::{Client, ErrorKind, Millis, Queue, RequestId, Store, WorkerId};

use super::faulty::{Fault, Faulty};
use super::{LEASE, MINUTE, Result, TIMEOUT, faulty, pass};

async fn double(item: Item<u64>) -> Result<u64> {
    Ok(2 * item.payload())
}

fn queue(client: &Client<Faulty>, name: &str) -> Queue<u64, u64> {
    client.queue(name).build().unwrap()
}

/// Yields until a command was called this many times.
async fn called(store: &Faulty, command: &str, times: usize) {
    while store.calls(command) < times {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_jobs_being_stored() {
    for gives_up in [false, true] {
        let (store, client) = faulty();
        let queue = queue(&client, "numbers");
        let gate = store.hold("create");
        let enqueue = tokio::spawn(queue.enqueue("a", 1).into_future());
        called(&store, "create", 1).await;
        if gives_up {
            enqueue.abort();
        }
        let draining = queue.clone();
        let drain = tokio::spawn(async move { draining.drain(MINUTE).await });
        pass(TIMEOUT).await;
        assert!(!drain.is_finished(), "a job is neither stored nor refused; gives up: {gives_up}");
        gate.notify_one();
        pass(TIMEOUT).await;
        assert!(!drain.is_finished(), "a job is open; gives up: {gives_up}");
        let _consumer = queue.consume(double).concurrency(1).await.unwrap();
        drain.await.unwrap().unwrap();
        assert_eq!(queue.result("a").await.unwrap(), Some(2));
        assert_eq!(queue.enqueue("b", 1).await.unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_in_time_though_an_enqueue_hangs() {
    let (store, client) = faulty();
    let queue = queue(&client, "numbers");
    let _gate = store.hold("create");
    let _enqueue = tokio::spawn(queue.enqueue("a", 1).into_future());
    called(&store, "create", 1).await;
    let began = Instant::now();
    let error = queue.drain(TIMEOUT).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed()), (ErrorKind::TimedOut, TIMEOUT));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_an_answer_ends_in_time_though_the_enqueue_hangs() {
    let (store, client) = faulty();
    let queue = queue(&client, "numbers");
    store.break_all(&["create"], &Fault::Hangs);
    let began = Instant::now();
    let error = queue.enqueue_and_wait("a", 1).timeout(TIMEOUT).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed()), (ErrorKind::TimedOut, TIMEOUT));
    assert!(error.to_string().contains("`a`"), "{error}");
    let (token, began) = (CancellationToken::new(), Instant::now());
    token.cancel();
    let error = queue.enqueue_and_wait("b", 1).cancelled_by(token).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed()), (ErrorKind::TimedOut, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_wait_includes_the_enqueue() {
    let (store, client) = faulty();
    store.break_all(&["create"], &Fault::Takes(TIMEOUT));
    let began = Instant::now();
    let error = queue(&client, "numbers").enqueue_and_wait("a", 1).timeout(2 * TIMEOUT).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed()), (ErrorKind::TimedOut, 2 * TIMEOUT));
    assert!(error.to_string().contains("after 6s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_write_of_one_queue_does_not_delay_others() {
    let (store, client) = faulty();
    let (slow, quick) = (queue(&client, "slow"), queue(&client, "quick"));
    let _consumer = quick.consume(double).concurrency(1).await.unwrap();
    let gate = store.hold("create");
    let hanging = tokio::spawn(slow.enqueue("a", 1).into_future());
    called(&store, "create", 1).await;
    assert_eq!(quick.enqueue_and_wait("a", 1).timeout(TIMEOUT).await.unwrap(), 2);
    // It does not delay chains that the client starts either.
    tokio::time::timeout(TIMEOUT, client.start(super::task("x"))).await.unwrap().unwrap();
    assert!(!hanging.is_finished());
    gate.notify_one();
    assert_eq!(hanging.await.unwrap().unwrap(), Enqueued::Queued);
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_queue_share_writes() {
    let (store, client) = faulty();
    let queue = queue(&client, "numbers");
    let gate = store.hold("create");
    let enqueue = |id: u32| tokio::spawn(queue.clone().enqueue(id.to_string(), 1).into_future());
    let first = enqueue(0);
    called(&store, "create", 1).await;
    let others: Vec<_> = (1..100).map(enqueue).collect();
    pass(TIMEOUT).await;
    gate.notify_one();
    for enqueued in others.into_iter().chain([first]) {
        assert_eq!(enqueued.await.unwrap().unwrap(), Enqueued::Queued);
    }
    assert_eq!(store.calls("create"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_job_cannot_be_queried_is_counted() {
    let (store, client) = faulty();
    let queue = queue(&client, "numbers");
    queue.enqueue("a", 1).await.unwrap();
    let types =
        vec![Quota { job_type: queue.name().clone(), max: 1, lease: Millis::try_from(LEASE).unwrap() }];
    let dead =
        Acquire { request: RequestId::new(), worker: WorkerId::new(), worker_name: None, types, max: 1 };
    assert_eq!(store.acquire(dead).await.unwrap().jobs.len(), 1);
    pass(2 * LEASE).await;
    let mut events = queue.events().await.unwrap();
    store.break_all(&["get_chains"], &Fault::Fails);
    let _consumer = queue.consume(double).concurrency(1).await.unwrap();
    let (mut seen, missed) = (Vec::new(), QueueEvent::Missed { count: 1 });
    // The reaper does not know the id of the job, and the message of its completion does not have the result.
    while seen.iter().filter(|event| **event == missed).count() < 2 {
        seen.push(tokio::time::timeout(MINUTE, events.next()).await.unwrap().unwrap());
    }
    assert!(!seen.iter().any(|event| matches!(event, QueueEvent::Completed { .. })), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn the_queries_of_an_event_are_repeated() {
    async fn fail(_: Item<u64>) -> Result<u64> {
        Err("broken".into())
    }
    for command in ["get_chains", "list_attempts"] {
        for fault in [Fault::Hangs, Fault::LosesReply] {
            let (store, client) = faulty();
            let queue: Queue<u64, u64> = client.queue("numbers").attempts(1).build().unwrap();
            let mut events = queue.events().await.unwrap();
            let _consumer = queue.consume(fail).concurrency(1).await.unwrap();
            store.fault(command, fault.clone(), 1);
            queue.enqueue("a", 1).await.unwrap();
            let failed = async {
                loop {
                    match events.next().await.unwrap() {
                        QueueEvent::Failed { kind, payload, .. } => return (kind, payload.is_some()),
                        QueueEvent::Missed { .. } => panic!("{command}, {fault:?}: the event was dropped"),
                        _ => {}
                    }
                }
            };
            let failed = tokio::time::timeout(MINUTE, failed).await.unwrap();
            assert_eq!(failed, (FailureKind::Exhausted, true), "{command}, {fault:?}");
            assert_eq!(store.calls(command), 2, "{command}, {fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn repeatable_queue_commands_survive_lost_replies() {
    let (store, client) = faulty();
    let queue = queue(&client, "numbers");
    let lose = |command| store.fault(command, Fault::LosesReply, 2);
    lose("pause");
    queue.pause().await.unwrap();
    lose("pause");
    queue.resume().await.unwrap();
    let _consumer = queue.consume(double).concurrency(1).await.unwrap();
    lose("create");
    queue.enqueue_and_wait("a", 1).await.unwrap();
    lose("set_retention");
    assert!(matches!(queue.update_result_ttl("a", MINUTE).await.unwrap(), TtlUpdated::Updated(_)));
    queue.enqueue("b", 1).after(MINUTE).await.unwrap();
    lose("cancel");
    assert_eq!(queue.cancel("b").await.unwrap(), ItemCancelled::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_failed_batch_reports_the_jobs_accepted_before_it() {
    const JOBS: usize = 2_500;
    let (store, client) = faulty();
    let queue = queue(&client, "numbers");
    let gate = store.hold("create");
    let all = queue.clone();
    let enqueuing = tokio::spawn(async move {
        all.enqueue_many((0..JOBS).map(|number| all.enqueue(number.to_string(), 1))).await
    });
    called(&store, "create", 1).await;
    store.break_all(&["create"], &Fault::Fails);
    gate.notify_one();
    let enqueued = enqueuing.await.unwrap().unwrap();
    assert_eq!(enqueued.len(), JOBS);
    let (accepted, failed) = enqueued.split_at(1_000);
    assert!(accepted.iter().all(|accepted| matches!(accepted, Ok(Enqueued::Queued))));
    let is_down = |failed: &windlass_core::Result<_>| {
        failed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
    };
    assert!(failed.iter().all(is_down));
    store.clear_faults();
    assert_eq!(queue.enqueue("0", 1).await.unwrap(), Enqueued::Duplicate(ItemState::Queued));
    assert_eq!(queue.enqueue("1000", 1).await.unwrap(), Enqueued::Queued);
}
