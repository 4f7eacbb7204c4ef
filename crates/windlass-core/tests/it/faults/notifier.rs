//! Notifiers that hang or panic, and subscriptions that end.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use windlass_core::{
    BoxFuture, Client, Error, ErrorKind, Event, Hint, InProcessNotifier, LazyNotifier, Notifier, Reach,
    Result, Subscription, Topic, TypeName, Worker,
};

use super::faulty::Faulty;
use super::{MINUTE, Seen, TIMEOUT, Task, Trace, echo, pass, slow, task};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    PublishHangs,
    SubscribeHangs,
    ClaimWakeHangs,
    SubscribePanics,
    ClaimWakePanics,
    /// Each subscription ends immediately.
    Flaps,
    /// It takes a second to publish a hint about scheduled jobs.
    PublishIsSlow,
}

#[derive(Clone, Debug)]
struct Bad {
    fault: Fault,
    inner: InProcessNotifier,
    subscribed: Arc<AtomicUsize>,
    /// The number of published hints about scheduled jobs.
    published: Arc<AtomicUsize>,
}

impl Notifier for Bad {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let is_scheduled = matches!(hint, Hint::Scheduled { .. });
            match self.fault {
                Fault::PublishHangs => pending().await,
                Fault::PublishIsSlow if is_scheduled => pass(Duration::from_secs(1)).await,
                _ => {}
            }
            if is_scheduled {
                self.published.fetch_add(1, Ordering::SeqCst);
            }
            self.inner.publish(hint).await
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        self.subscribed.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Fault::SubscribeHangs => Box::pin(pending()),
            Fault::SubscribePanics => panic!("subscribe panics"),
            Fault::Flaps => Box::pin(async { Ok(Subscription::new(|| ()).1) }),
            _ => self.inner.subscribe(topics),
        }
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        match self.fault {
            Fault::ClaimWakeHangs => Box::pin(pending()),
            Fault::ClaimWakePanics => panic!("claim_wake panics"),
            _ => self.inner.claim_wake(job_type),
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

fn client(fault: Fault) -> (Bad, Faulty, Client<Faulty>) {
    let (subscribed, published) = Default::default();
    let bad = Bad { fault, inner: InProcessNotifier::new(), subscribed, published };
    let store = Faulty::default();
    (bad.clone(), store.clone(), Client::builder(store).notifier(bad).build())
}

/// Checks that work is done, later than with a good notifier, and that nothing waits for the bad one.
async fn check(fault: Fault) {
    timeout(MINUTE, check_work(fault)).await.unwrap_or_else(|_| panic!("a call still waits: {fault:?}"));
}

async fn check_work(fault: Fault) {
    let (_, _, client) = client(fault);
    let worker =
        Worker::new(&client).concurrency(1).poll(TIMEOUT).handle(echo::<Task>).start().await.unwrap();
    pass(TIMEOUT).await;
    for text in ["one", "two"] {
        let before = Instant::now();
        let chain = client.start(task(text)).await.unwrap();
        assert!(before.elapsed().is_zero(), "a start waits for the notifier: {fault:?}");
        let done = client.wait(chain).poll(TIMEOUT / 10).timeout(2 * TIMEOUT).await;
        assert_eq!(done.unwrap(), "attempt 1", "{fault:?}");
    }
    let before = Instant::now();
    worker.stop(TIMEOUT).await;
    assert!(before.elapsed() < TIMEOUT, "{fault:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_publish_delays_nothing() {
    check(Fault::PublishHangs).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_subscribe_delays_nothing() {
    check(Fault::SubscribeHangs).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_claim_delays_nothing() {
    check(Fault::ClaimWakeHangs).await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_subscribe_is_ignored() {
    check(Fault::SubscribePanics).await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_claim_is_ignored() {
    check(Fault::ClaimWakePanics).await;
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_ends_immediately_causes_no_hot_loop() {
    check(Fault::Flaps).await;
    let (bad, store, client) = client(Fault::Flaps);
    let _worker =
        Worker::new(&client).concurrency(1).poll(MINUTE).handle(echo::<Task>).start().await.unwrap();
    pass(MINUTE).await;
    let (subscribed, queries) = (bad.subscribed.load(Ordering::SeqCst), store.calls("next_due"));
    assert!((2..=20).contains(&subscribed) && queries <= 30, "{subscribed} subscriptions, {queries} queries");
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_though_subscribe_hangs() {
    let (_, _, client) = client(Fault::SubscribeHangs);
    let chain = client.start(task("x")).await.unwrap();
    let before = Instant::now();
    let wait = client.wait(chain).timeout(TIMEOUT / 10);
    let error = timeout(MINUTE, wait.into_future()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(before.elapsed() < TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_notifier_was_closed_still_fills_freed_slots() {
    let notifier = InProcessNotifier::new();
    let client = Client::builder(Faulty::default()).notifier(notifier.clone()).build();
    let trace = Trace::default();
    let worker =
        Worker::new(&client).concurrency(1).poll(2 * MINUTE).data(trace.clone()).handle(slow).start();
    let _worker = worker.await.unwrap();
    let chains = client.start_many([task("one"), task("two")]).await.unwrap();
    trace.started.notified().await;
    notifier.close().await.unwrap();
    for chain in chains {
        assert_eq!(client.wait(chain).poll(TIMEOUT / 10).timeout(2 * TIMEOUT).await.unwrap(), "attempt 1");
    }
}

/// A process that starts a job and exits immediately still wakes a worker.
#[tokio::test(start_paused = true)]
async fn closing_a_client_publishes_its_hints_first() {
    let (bad, _, client) = client(Fault::PublishIsSlow);
    client.start(task("x")).await.unwrap();
    assert_eq!(bad.published.load(Ordering::SeqCst), 0, "a start does not wait for the notifier");
    client.close().await.unwrap();
    assert_eq!(bad.published.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn workers_and_waits_poll_every_5_s_if_hints_arrive_from_everywhere_and_every_1500_ms_otherwise() {
    for (reaches_all, polls) in [(true, 12..=14), (false, 40..=45)] {
        let store = Faulty::default();
        let client = match reaches_all {
            true => Client::new(store.clone()),
            false => Client::builder(store.clone()).notifier(InProcessNotifier::new()).build(),
        };
        assert_eq!(matches!(client.reach(), Reach::Everywhere), reaches_all);
        let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
        pass(MINUTE).await;
        let before = store.calls("acquire");
        pass(MINUTE).await;
        let acquires = store.calls("acquire") - before;
        assert!(polls.contains(&acquires), "a worker: {acquires} polls in a minute");
        worker.stop(TIMEOUT).await;

        let chain = client.start(task("x")).await.unwrap();
        let before = store.calls("get_chains");
        let error = client.wait(chain).timeout(MINUTE).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        // The first query is no poll.
        let queries = store.calls("get_chains") - before - 1;
        assert!(polls.contains(&queries), "a wait: {queries} polls in a minute");
    }
}

/// For example, a connection pooler that does not support notifications.
#[tokio::test(start_paused = true)]
async fn a_worker_whose_notifier_cannot_connect_is_degraded_but_healthy() {
    let (is_up, seen) = (Arc::new(AtomicBool::new(false)), Seen::default());
    let open = Arc::clone(&is_up);
    let notifier = LazyNotifier::new(move || {
        let is_up = open.load(Ordering::SeqCst);
        Box::pin(async move {
            match is_up {
                true => Ok(Arc::new(InProcessNotifier::new()) as Arc<dyn Notifier>),
                false => Err(Error::new(ErrorKind::Unavailable, "the pooler does not support LISTEN")),
            }
        })
    });
    let client = Client::builder(Faulty::default()).notifier(notifier).observer(seen.clone()).build();
    let worker = Worker::new(&client).handle(echo::<Task>);
    let probe = worker.probe();
    assert!(probe.degraded().is_none(), "nothing has connected yet");
    let worker = worker.start().await.unwrap();
    pass(MINUTE / 2).await;
    let error = probe.degraded().expect("the notifier cannot connect");
    assert_eq!(error.to_string(), "the pooler does not support LISTEN");
    assert!(probe.health().is_ok() && probe.is_ready(), "the worker polls");
    assert_eq!(seen.count(|event| matches!(event, Event::NotifierFailed("subscribe", _))), 1);
    let chain = client.start(task("x")).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), "attempt 1");

    is_up.store(true, Ordering::SeqCst);
    pass(MINUTE / 2).await;
    assert!(probe.degraded().is_none(), "it has connected");
    worker.stop(TIMEOUT).await;
    drop(client);
    assert!(probe.degraded().is_none(), "there is no client any more");
}

/// A health check must not alternate while the notifier tries to connect again.
#[tokio::test(start_paused = true)]
async fn a_worker_stays_degraded_while_its_notifier_retries() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let notifier = LazyNotifier::new(move || {
        let count = count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if count > 0 {
                pass(TIMEOUT).await;
            }
            Err(Error::new(ErrorKind::Unavailable, format!("attempt {count} failed")))
        })
    });
    let client = Client::builder(Faulty::default()).notifier(notifier).build();
    let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    let probe = worker.probe();
    pass(Duration::from_millis(1)).await;
    let mut errors = Vec::new();
    while opened.load(Ordering::SeqCst) < 4 {
        errors.push(probe.degraded().expect("it has never connected").to_string());
        errors.dedup();
        pass(Duration::from_millis(100)).await;
    }
    assert_eq!(errors, ["attempt 0 failed", "attempt 1 failed", "attempt 2 failed"]);
    worker.stop(TIMEOUT).await;
}

/// Only one of two workers is notified of a scheduled job. Whichever of them stops, the other one runs the
/// job in time.
#[tokio::test(start_paused = true)]
async fn a_stopping_worker_hands_over_its_claimed_wake_ups() {
    for first_stops in [true, false] {
        let client = Client::new(Faulty::default());
        let start = || Worker::new(&client).concurrency(1).poll(60 * MINUTE).handle(echo::<Task>).start();
        let (first, second) = (start().await.unwrap(), start().await.unwrap());
        pass(TIMEOUT).await;
        let chain = client.start(task("later")).after(MINUTE).await.unwrap();
        pass(TIMEOUT).await;
        let (stops, _stays) = if first_stops { (first, second) } else { (second, first) };
        stops.stop(TIMEOUT).await;
        let done = client.wait(chain).poll(TIMEOUT).timeout(MINUTE + TIMEOUT).await;
        assert_eq!(done.unwrap(), "attempt 1", "first stops: {first_stops}");
    }
}
