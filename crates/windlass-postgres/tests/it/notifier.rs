//! The notifier and its connection.

use std::sync::Arc;
use std::time::Duration;

use windlass_conformance::type_name;
use windlass_core::{Hint, Notifier, Signal, Timestamp, Topic};
use windlass_postgres::{Options, PostgresNotifier, Sqlx};
use windlass_testkit::{PostgresServer, wait_until};

fn hint() -> Hint {
    Hint::Scheduled { job_type: type_name("a"), count: 1, due_at: Timestamp::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_made_again_and_the_gap_is_told() {
    let server = PostgresServer::start().await;
    let provider = Sqlx::connect(&server.url()).await.unwrap();
    let notifier = Arc::new(PostgresNotifier::new(provider, &Options::default()).unwrap());
    let mut subscription = notifier.subscribe(vec![Topic::Scheduled(type_name("a"))]).await.unwrap();
    notifier.publish(hint()).await.unwrap();
    assert_eq!(subscription.next().await, Some(Signal::Hint(hint())));

    assert!(server.kill_backends() > 0, "there was a connection to kill");
    assert_eq!(subscription.next().await, Some(Signal::Gap { missed: 0 }));
    // Hints may be lost while connections of the pool are replaced.
    let heard = wait_until("a hint arrives again", Duration::from_secs(20), async || {
        notifier.publish(hint()).await.unwrap();
        matches!(subscription.try_next(), Some(Signal::Hint(_)))
    });
    heard.await;
}

/// Each process has one connection that listens, whatever the number of its subscriptions.
#[tokio::test(flavor = "multi_thread")]
async fn all_subscriptions_share_one_connection() {
    let server = PostgresServer::start().await;
    let provider = Sqlx::connect(&server.url()).await.unwrap();
    let notifier = PostgresNotifier::new(provider, &Options::default()).unwrap();
    let mut subscriptions = Vec::new();
    for name in ["a", "b", "c"] {
        subscriptions.push(notifier.subscribe(vec![Topic::Scheduled(type_name(name))]).await.unwrap());
    }
    let listening = server.query("select count(*) from pg_stat_activity where query ilike 'listen%'");
    assert_eq!(listening.trim(), "1");
}
