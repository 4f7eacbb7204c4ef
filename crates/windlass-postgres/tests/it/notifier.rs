//! The notifier and its listening connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time;
use windlass_conformance::type_name;
use windlass_core::{
    BoxFuture, ChainId, Error, ErrorKind, Hint, Notifier, Reach, Result, Signal, Timestamp, Topic,
};
use windlass_postgres::driver::{Listener, Parameter, Row, Statement};
use windlass_postgres::{ConnectionRef, Options, PostgresNotifier, Provider, Sqlx};
use windlass_testkit::logs::Warnings;
use windlass_testkit::{PostgresServer, wait_until};

use crate::fixture;

fn hint() -> Hint {
    Hint::Scheduled { job_type: type_name("a"), count: 1, due_at: Timestamp::default() }
}

async fn notifier(url: &str, options: &Options) -> PostgresNotifier<Sqlx> {
    let provider = Sqlx::connect(url).await.unwrap();
    PostgresNotifier::new(provider, options).unwrap()
}

/// A notifier delivers its own hints without the server, and does not deliver them again when the server returns them.
#[tokio::test(flavor = "multi_thread")]
async fn own_hints_arrive_at_once_and_only_once() {
    let (server, _, options) = fixture::fresh().await;
    let (own, other) = (notifier(&server.url(), &options).await, notifier(&server.url(), &options).await);
    let topics = || vec![Topic::Scheduled(type_name("a")), Topic::Schedules];
    let mut subscription = own.subscribe(topics()).await.unwrap();
    let mut elsewhere = other.subscribe(topics()).await.unwrap();
    own.publish(hint()).await.unwrap();
    assert_eq!(subscription.try_next(), Some(Signal::Hint(hint())));
    assert_eq!(elsewhere.next().await, Some(Signal::Hint(hint())));
    // The server delivers in order, so the own hint would arrive again before this one.
    other.publish(Hint::SchedulesChanged).await.unwrap();
    assert_eq!(subscription.next().await, Some(Signal::Hint(Hint::SchedulesChanged)));
    assert_eq!(elsewhere.next().await, Some(Signal::Hint(Hint::SchedulesChanged)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_reopened_and_the_gap_reported() {
    let server = PostgresServer::start().await;
    let publisher = notifier(&server.url(), &Options::default()).await;
    let notifier = notifier(&server.url(), &Options::default()).await;
    let mut subscription = notifier.subscribe(vec![Topic::Scheduled(type_name("a"))]).await.unwrap();
    publisher.publish(hint()).await.unwrap();
    assert_eq!(subscription.next().await, Some(Signal::Hint(hint())));

    assert!(server.kill_backends() > 0, "there was a connection to kill");
    assert_eq!(subscription.next().await, Some(Signal::Gap { missed: 0 }));
    // Hints may be lost while the pool replaces its connections.
    let heard = wait_until("a hint arrives again", Duration::from_secs(60), async || {
        publisher.publish(hint()).await.unwrap();
        matches!(subscription.try_next(), Some(Signal::Hint(_)))
    });
    heard.await;
}

/// A notifier has one listening connection, whatever the number of subscriptions.
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

/// Events leave room in the queue for hints that wake workers, and dropped hints are logged. The test runs on one
/// thread, so all hints are queued before the notifier's task sends any.
#[tokio::test]
async fn queued_hints_are_bounded_and_drops_are_logged() {
    let warnings = Warnings::capture("windlass_postgres");
    let (server, _, options) = fixture::fresh().await;
    let other = notifier(&server.url(), &options).await;
    let notifier = notifier(&server.url(), &options).await;
    let closed = Hint::ChainClosed(ChainId::new());
    let mut subscription = other.subscribe(vec![closed.topic()]).await.unwrap();
    let publish = async |count: usize, hint: &Hint| {
        let mut refused = Vec::new();
        for _ in 0..count {
            refused.extend(notifier.publish(hint.clone()).await.err());
        }
        refused
    };
    let refused = publish(6_000, &Hint::Event(Bytes::from_static(b"x"))).await;
    assert_eq!(refused.len(), 1_000);
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::Unavailable), "{}", refused[0]);
    assert_eq!(publish(5_007, &closed).await.len(), 0);

    assert_eq!(subscription.next().await, Some(Signal::Hint(closed)));
    assert_eq!(
        warnings.lines(),
        ["7 hints were dropped, because PostgreSQL did not keep up: workers poll instead"]
    );
}

/// A provider whose listening connections do not work. Counts them.
#[derive(Debug)]
struct Deaf {
    inner: Sqlx,
    listens: Arc<AtomicUsize>,
    /// Whether they can be opened. If so, they receive nothing, as behind a pooler in transaction mode.
    opens: bool,
}

struct Silence;

impl Listener for Silence {
    fn next(&mut self) -> BoxFuture<'_, Result<String>> {
        Box::pin(std::future::pending())
    }
}

impl Provider for Deaf {
    type Tx = <Sqlx as Provider>::Tx;
    type TxRef<'t> = ConnectionRef<'t>;
    type Connection<'t> = &'t mut sqlx::PgConnection;

    fn tx_ref(tx: &mut Self::Tx) -> ConnectionRef<'_> {
        Sqlx::tx_ref(tx)
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        Sqlx::connection(tx)
    }

    fn reborrow<'t>(tx: &'t mut ConnectionRef<'_>) -> ConnectionRef<'t> {
        Sqlx::reborrow(tx)
    }

    fn run<'a>(
        &'a self,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        self.inner.run(statement, parameters)
    }

    fn run_in<'a>(
        &'a self,
        tx: ConnectionRef<'a>,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        self.inner.run_in(tx, statement, parameters)
    }

    fn script<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<()>> {
        self.inner.script(text)
    }

    fn script_in<'a>(&'a self, tx: ConnectionRef<'a>, text: &'a str) -> BoxFuture<'a, Result<()>> {
        self.inner.script_in(tx, text)
    }

    fn ask_in<'a>(&'a self, tx: ConnectionRef<'a>, text: &'a str) -> BoxFuture<'a, Result<Option<String>>> {
        self.inner.ask_in(tx, text)
    }

    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx>> {
        self.inner.begin()
    }

    fn begin_read_committed(&self) -> BoxFuture<'_, Result<Self::Tx>> {
        self.inner.begin_read_committed()
    }

    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>> {
        self.inner.commit(tx)
    }

    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>> {
        self.inner.rollback(tx)
    }

    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        self.listens.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            match self.opens {
                true => Ok(Box::new(Silence) as Box<dyn Listener>),
                false => Err(Error::new(ErrorKind::Unavailable, "no connection is free")),
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

/// The notifier continues without notifications: subscribing and publishing succeed, hints arrive only from the same
/// process, and workers poll. It retries periodically and does not warn again.
#[tokio::test]
async fn a_connection_without_notifications_is_logged_once() {
    let warnings = Warnings::capture("windlass_postgres");
    let (server, _, options) = fixture::fresh().await;
    let listens = Arc::new(AtomicUsize::new(0));
    let inner = Sqlx::connect(&server.url()).await.unwrap();
    let provider = Deaf { inner, listens: Arc::clone(&listens), opens: true };
    let notifier = PostgresNotifier::new(provider, &options).unwrap();
    let mut subscription = notifier.subscribe(vec![Topic::Scheduled(type_name("a"))]).await.unwrap();
    notifier.publish(hint()).await.unwrap();
    assert_eq!(subscription.try_next(), Some(Signal::Hint(hint())), "hints of the same process arrive");
    // The notifier waits a minute between attempts. Advance by one second per poll and resume the clock in between,
    // because replies of the server take real time.
    wait_until("it has listened three times", Duration::from_secs(3_600), async || {
        time::pause();
        time::advance(Duration::from_secs(1)).await;
        time::resume();
        listens.load(Ordering::Relaxed) == 3
    })
    .await;
    assert_eq!(warnings.lines().len(), 1, "{:?}", warnings.lines());
}

/// For example, the server has no free connection, or a firewall blocks it.
#[tokio::test]
async fn a_connection_that_cannot_be_opened_is_reported_while_it_is_retried() {
    let (server, _, options) = fixture::fresh().await;
    let (inner, listens) = (Sqlx::connect(&server.url()).await.unwrap(), Arc::new(AtomicUsize::new(0)));
    let provider = Deaf { inner, listens: Arc::clone(&listens), opens: false };
    let notifier = PostgresNotifier::new(provider, &options).unwrap();
    assert!(matches!(notifier.reach(), Reach::Process), "nothing has been tried yet");
    wait_until("a retry has begun", Duration::from_secs(60), async || listens.load(Ordering::Relaxed) >= 2)
        .await;
    let reach = notifier.reach();
    assert!(
        matches!(&reach, Reach::Lost(error) if error.to_string() == "no connection is free"),
        "{reach:?}"
    );
}
