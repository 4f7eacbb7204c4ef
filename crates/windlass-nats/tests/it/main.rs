//! Cases that the conformance suite lacks: servers that go away, and notifiers without a wake budget.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../fixture/mod.rs"]
mod fixture;

mod names;
mod tls;

use std::time::Duration;

use tokio::time::timeout;
use windlass_conformance::{Verdict, run_notifier};
use windlass_core::{ChainId, ErrorKind, Hint, Notifier, Reach, Signal};
use windlass_nats::{NatsNotifier, Options};
use windlass_testkit::{NatsServer, wait_until};

const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bucket_everything_but_the_wake_budget_works() {
    let verdicts = run_notifier(&fixture::Nats { has_bucket: false }).await;
    let failed: Vec<_> =
        verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Failed(_))).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(verdicts.iter().any(|(_, verdict)| matches!(verdict, Verdict::Skipped(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_reachable_server_of_several_is_enough() {
    let (mut gone, server) = tokio::join!(NatsServer::start(), NatsServer::start());
    gone.kill().await;
    let urls = format!("{},{}", gone.url(), server.url());
    let notifier = NatsNotifier::open(&urls, Options::default()).await.unwrap();
    let hint = Hint::ChainClosed(ChainId::new());
    let mut subscription = notifier.subscribe(vec![hint.topic()]).await.unwrap();
    notifier.publish(hint.clone()).await.unwrap();
    assert_eq!(timeout(TIMEOUT, subscription.next()).await.unwrap(), Some(Signal::Hint(hint)));
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_receive_a_gap_and_later_hints_after_a_reconnect() {
    let mut server = NatsServer::start().await;
    let notifier = NatsNotifier::open(&server.url(), Options::default()).await.unwrap();
    let hint = Hint::ChainClosed(ChainId::new());
    let mut subscription = notifier.subscribe(vec![hint.topic()]).await.unwrap();

    server.kill().await;
    server.restart().await;
    let signal = timeout(TIMEOUT, subscription.next()).await.unwrap();
    assert!(matches!(signal, Some(Signal::Gap { .. })), "{signal:?}");

    // Hints published before the client has resubscribed are lost, so publish until one arrives.
    wait_until("the subscription receives hints again", TIMEOUT, async || {
        notifier.publish(hint.clone()).await.unwrap();
        let heard = timeout(Duration::from_millis(100), subscription.next()).await;
        matches!(heard, Ok(Some(Signal::Hint(heard))) if heard == hint)
    })
    .await;
}

#[tokio::test]
async fn an_invalid_namespace_and_an_unreachable_server_are_reported() {
    let mut server = NatsServer::start().await;
    let error = NatsNotifier::open(&server.url(), Options::default().namespace("a.b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    server.kill().await;
    let error = NatsNotifier::open(&server.url(), Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// A client of the application may connect in the background.
#[tokio::test]
async fn a_client_that_has_never_connected_reports_it() {
    let mut server = NatsServer::start().await;
    server.kill().await;
    let client = async_nats::ConnectOptions::new().retry_on_initial_connect().connect(server.url());
    let notifier = NatsNotifier::with_client(client.await.unwrap(), Options::default()).await.unwrap();
    let reach = notifier.reach();
    assert!(matches!(&reach, Reach::Lost(error) if error.to_string().contains("not connected")), "{reach:?}");
    server.restart().await;
    let connected = async || matches!(notifier.reach(), Reach::Everywhere);
    wait_until("the client has connected", TIMEOUT, connected).await;
}
