//! Hints across server outages, and the keys that hints leave behind.

use std::time::Duration;

use redis::AsyncCommands;
use tokio::time::timeout;
use windlass_conformance::type_name;
use windlass_core::{ChainId, ErrorKind, Hint, Notifier, Reach, Signal, Subscription, Timestamp, Topic};
use windlass_redis::{Options, RedisNotifier};
use windlass_testkit::{Proxy, RedisServer, shared_redis, wait_until};

use crate::database::Database;

const TIMEOUT: Duration = Duration::from_secs(30);
const MINUTE_MS: i64 = 60_000;

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_receive_a_gap_and_later_hints_after_a_reconnect() {
    let mut server = RedisServer::start().await;
    let notifier = RedisNotifier::open(&server.url(), &Options::default()).await.unwrap();
    // A notifier receives its own hints without the server.
    let other = RedisNotifier::open(&server.url(), &Options::default()).await.unwrap();
    let hint = Hint::ChainClosed(ChainId::new());
    let mut subscription = notifier.subscribe(vec![hint.topic()]).await.unwrap();

    server.kill().await;
    server.restart().await;
    let signal = timeout(TIMEOUT, subscription.next()).await.unwrap();
    assert!(matches!(signal, Some(Signal::Gap { .. })), "{signal:?}");

    // The publishing connection reconnects independently; until then hints are lost.
    wait_until("the subscription receives hints again", TIMEOUT, async || {
        other.publish(hint.clone()).await.unwrap();
        let heard = timeout(Duration::from_millis(100), subscription.next()).await;
        matches!(heard, Ok(Some(Signal::Hint(heard))) if heard == hint)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_receive_a_gap_after_a_cut_connection() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::to(server.port()).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    let notifier = RedisNotifier::open(&url, &Options::default()).await.unwrap();
    let mut subscription = notifier.subscribe(vec![Hint::ChainClosed(ChainId::new()).topic()]).await.unwrap();
    proxy.cut().await;
    let signal = timeout(TIMEOUT, subscription.next()).await.unwrap();
    assert!(matches!(signal, Some(Signal::Gap { .. })), "{signal:?}");
}

/// A client learns that it is not notified even if it has not subscribed to anything yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_notifier_without_subscriptions_reports_that_it_cannot_connect() {
    let server = RedisServer::start().await;
    let mut proxy = Proxy::to(server.port()).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    let notifier = RedisNotifier::open(&url, &Options::default()).await.unwrap();
    let is_connected = async || matches!(notifier.reach(), Reach::Everywhere);
    wait_until("it has connected", TIMEOUT, is_connected).await;
    proxy.refuse().await;
    proxy.cut().await;
    wait_until("it knows", TIMEOUT, async || matches!(notifier.reach(), Reach::Lost(_))).await;
    proxy.resume().await;
    wait_until("it has connected again", TIMEOUT, is_connected).await;
}

/// Two notifiers of one namespace, as two processes have them, and direct access to their keys.
struct Pair {
    own: RedisNotifier,
    other: RedisNotifier,
    database: Database,
}

impl Pair {
    async fn open() -> Self {
        let server = shared_redis().await;
        let database = Database::open(&server).await;
        let options = Options::default().namespace(server.namespace());
        let own = RedisNotifier::open(&server.url(), &options).await.unwrap();
        let other = RedisNotifier::open(&server.url(), &options).await.unwrap();
        Self { own, other, database }
    }
}

fn scheduled(count: u32) -> Hint {
    Hint::Scheduled { job_type: type_name("a"), count, due_at: Timestamp::from_millis(1).unwrap() }
}

async fn next(subscription: &mut Subscription) -> Option<Signal> {
    timeout(TIMEOUT, subscription.next()).await.unwrap()
}

/// A notifier delivers its own hints without the server, and does not deliver them again when the server returns them.
#[tokio::test]
async fn own_hints_arrive_at_once_and_only_once() {
    let Pair { own, other, .. } = Pair::open().await;
    let topics = || vec![scheduled(1).topic(), Topic::Schedules];
    let mut subscription = own.subscribe(topics()).await.unwrap();
    let mut elsewhere = other.subscribe(topics()).await.unwrap();
    own.publish(scheduled(1)).await.unwrap();
    assert_eq!(subscription.try_next(), Some(Signal::Hint(scheduled(1))));
    assert_eq!(next(&mut elsewhere).await, Some(Signal::Hint(scheduled(1))));
    // The server delivers in order, so the own hint would arrive again before this one.
    other.publish(Hint::SchedulesChanged).await.unwrap();
    assert_eq!(next(&mut subscription).await, Some(Signal::Hint(Hint::SchedulesChanged)));
}

/// Publishing queues the hint when it is polled first, and the claim follows before any other task runs. So a slow machine
/// does not change the result.
#[tokio::test]
async fn a_wake_up_that_the_only_worker_of_the_process_claims_costs_no_write() {
    let Pair { own, other, mut database } = Pair::open().await;
    let _worker = own.subscribe(vec![scheduled(1).topic()]).await.unwrap();
    let mut elsewhere = other.subscribe(vec![scheduled(1).topic()]).await.unwrap();
    let (published, claimed) = tokio::join!(own.publish(scheduled(1)), own.claim_wake(type_name("a")));
    published.unwrap();
    assert!(claimed.unwrap());
    assert_eq!(database.names().await, [] as [&str; 0]);
    // The next one is not claimed here. It is the first that the other process receives.
    own.publish(scheduled(2)).await.unwrap();
    assert_eq!(next(&mut elsewhere).await, Some(Signal::Hint(scheduled(2))));
}

#[tokio::test]
async fn wake_ups_that_no_worker_of_the_process_claims_are_left_to_others() {
    let Pair { own, other, mut database } = Pair::open().await;
    let _busy = own.subscribe(vec![scheduled(1).topic()]).await.unwrap();
    let (published, claimed) = tokio::join!(own.publish(scheduled(3)), own.claim_wake(type_name("a")));
    published.unwrap();
    assert!(claimed.unwrap());
    let mut granted = Vec::new();
    for notifier in [&other, &own, &other] {
        granted.push(notifier.claim_wake(type_name("a")).await.unwrap());
    }
    assert_eq!(granted, [true, true, false]);
    assert_eq!(database.names().await, [database.key("wake:scheduled:a")]);
}

#[tokio::test]
async fn the_other_workers_of_the_process_do_not_wake_for_a_claimed_job() {
    let Pair { own, .. } = Pair::open().await;
    let _workers = [
        own.subscribe(vec![scheduled(1).topic()]).await.unwrap(),
        own.subscribe(vec![scheduled(1).topic()]).await.unwrap(),
    ];
    let (published, first, second) = tokio::join!(
        own.publish(scheduled(1)),
        own.claim_wake(type_name("a")),
        own.claim_wake(type_name("a")),
    );
    published.unwrap();
    assert_eq!((first.unwrap(), second.unwrap()), (true, false));
}

#[tokio::test]
async fn a_wake_budget_expires_after_a_minute_and_no_other_key_remains() {
    let server = shared_redis().await;
    let mut database = Database::open(&server).await;
    let options = Options::default().namespace(server.namespace());
    let notifier = RedisNotifier::open(&server.url(), &options).await.unwrap();
    let due_at = Timestamp::from_millis(1).unwrap();
    notifier.publish(Hint::Scheduled { job_type: type_name("a:{b}"), count: 2, due_at }).await.unwrap();
    let budget = database.key("wake:scheduled:a:{b}");
    assert_eq!(database.names().await, std::slice::from_ref(&budget));
    let left: i64 = database.connection.pttl(budget).await.unwrap();
    assert!(left > 0 && left <= MINUTE_MS, "{left}");
}

#[tokio::test]
async fn an_invalid_namespace_and_an_unreachable_server_are_reported() {
    let mut server = RedisServer::start().await;
    let options = Options::default().namespace("no}tag");
    let error = RedisNotifier::open(&server.url(), &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    server.stop().await;
    let error = RedisNotifier::open(&server.url(), &Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
