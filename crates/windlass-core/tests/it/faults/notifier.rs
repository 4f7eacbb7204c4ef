//! Notifiers that hang or panic, and subscriptions that end.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::{Instant, timeout};
use windlass_core::{
    BoxFuture, Client, ErrorKind, Hint, InProcessNotifier, Notifier, Result, Subscription, Topic, TypeName,
    Worker,
};

use super::faulty::Faulty;
use super::{MINUTE, TIMEOUT, Task, Trace, echo, pass, slow, task};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    PublishHangs,
    SubscribeHangs,
    ClaimWakeHangs,
    SubscribePanics,
    ClaimWakePanics,
    /// Each subscription ends immediately.
    Flaps,
}

#[derive(Clone, Debug)]
struct Bad {
    fault: Fault,
    inner: InProcessNotifier,
    subscribed: Arc<AtomicUsize>,
}

impl Notifier for Bad {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        if self.fault == Fault::PublishHangs { Box::pin(pending()) } else { self.inner.publish(hint) }
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
    let bad = Bad { fault, inner: InProcessNotifier::new(), subscribed: Arc::default() };
    let store = Faulty::default();
    (bad.clone(), store.clone(), Client::builder(store).notifier(bad).build())
}

/// Checks that work is done, later than with a good notifier, and that nothing waits for the bad one.
async fn check(fault: Fault) {
    timeout(MINUTE, check_work(fault)).await.unwrap_or_else(|_| panic!("a call still waits: {fault:?}"));
}

async fn check_work(fault: Fault) {
    let (_, _, client) = client(fault);
    let worker = Worker::new(&client).poll(TIMEOUT).handle(echo::<Task>).start().await.unwrap();
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
    let _worker = Worker::new(&client).poll(MINUTE).handle(echo::<Task>).start().await.unwrap();
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
    let worker = Worker::new(&client).poll(2 * MINUTE).data(trace.clone()).handle(slow).start();
    let _worker = worker.await.unwrap();
    let chains = client.start_many([task("one"), task("two")]).await.unwrap();
    trace.started.notified().await;
    notifier.close().await.unwrap();
    for chain in chains {
        assert_eq!(client.wait(chain).poll(TIMEOUT / 10).timeout(2 * TIMEOUT).await.unwrap(), "attempt 1");
    }
}

/// Only one of two workers is notified of a scheduled job. Whichever of them stops, the other one runs the
/// job in time.
#[tokio::test(start_paused = true)]
async fn a_stopping_worker_hands_over_its_claimed_wake_ups() {
    for first_stops in [true, false] {
        let client = Client::new(Faulty::default());
        let start = || Worker::new(&client).poll(60 * MINUTE).handle(echo::<Task>).start();
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
