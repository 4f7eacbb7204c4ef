//! Hints across server outages, and the keys that hints leave behind.

use std::time::Duration;

use redis::AsyncCommands;
use tokio::time::timeout;
use windlass_conformance::type_name;
use windlass_core::{ChainId, ErrorKind, Hint, Notifier, Signal, Timestamp};
use windlass_redis::{Options, RedisNotifier};
use windlass_testkit::{Proxy, RedisServer, shared_redis, wait_until};

use crate::database::Database;

const TIMEOUT: Duration = Duration::from_secs(30);
const MINUTE_MS: i64 = 60_000;

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_receive_a_gap_and_later_hints_after_a_reconnect() {
    let mut server = RedisServer::start().await;
    let notifier = RedisNotifier::open(&server.url(), &Options::default()).await.unwrap();
    let hint = Hint::ChainClosed(ChainId::new());
    let mut subscription = notifier.subscribe(vec![hint.topic()]).await.unwrap();

    server.kill().await;
    server.restart().await;
    let signal = timeout(TIMEOUT, subscription.next()).await.unwrap();
    assert!(matches!(signal, Some(Signal::Gap { .. })), "{signal:?}");

    // The publishing connection reconnects independently; until then hints are lost.
    wait_until("the subscription receives hints again", TIMEOUT, async || {
        notifier.publish(hint.clone()).await.unwrap();
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
