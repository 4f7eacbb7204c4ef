//! The store and the notifier behind PgBouncer, which assigns a server connection per transaction.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPool};
use windlass_conformance::{random, run_cases};
use windlass_core::{
    Attempt, BoxError, ChainId, Client, Done, Entry, ErrorKind, Event, Hint, Job, Notifier, Observer, Reach,
    Signal, Worker, for_each_command,
};
use windlass_postgres::{Options, PostgresNotifier, PostgresStore, Provider, Sqlx};
use windlass_testkit::crash::{Effect, Ledger, Run};
use windlass_testkit::logs::Warnings;
use windlass_testkit::{PgBouncer, PostgresServer, is_full_run, shared_postgres, wait_until};

use crate::fixture::Postgres;
use crate::ledger::{SqlxTable, TABLE};

const TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
const CHAINS: u32 = 50;

#[derive(Serialize, Deserialize)]
struct Pay(u32);

impl Job for Pay {
    const NAME: &'static str = "pay";
    type Output = u32;
    type Next = ();
    type Blockers = ();
}

impl Entry for Pay {}

async fn pay<L: Ledger>(a: Attempt<Pay, L::Store>) -> Result<Done<Pay, L::Store>, BoxError> {
    let mut prepare = a.prepare().await?;
    prepare.client().job(a.job().id).await?;
    prepare.commit().await?;
    let mut step = a.begin().await?;
    let job = a.job();
    L::write(step.tx(), Effect { chain: job.chain, run: Run { job: job.id, fence: job.fence } }).await?;
    Ok(step.done(a.input().0)?)
}

/// Records failed store calls, workers and attempts.
#[derive(Clone, Debug, Default)]
struct Failures(Arc<Mutex<Vec<Event>>>);

impl Observer for Failures {
    fn observe(&self, event: &Event) {
        if matches!(event, Event::StoreFailed(..) | Event::WorkerFailed(..) | Event::AttemptFailed(..)) {
            self.0.lock().unwrap().push(event.clone());
        }
    }
}

/// Runs many jobs at the same time, with rows of the application, by a client that connects only through the pooler.
async fn check_store<L, P, F>(connect: impl Fn(String) -> F)
where
    L: Ledger<Store = PostgresStore<P>>,
    P: Provider,
    F: Future<Output = P>,
{
    let server = PostgresServer::start().await;
    server.query(TABLE);
    let pooler = PgBouncer::start(&server).await;
    let store = PostgresStore::open(connect(pooler.url()).await, Options::default()).await.unwrap();
    let failures = Failures::default();
    let client = Client::builder(store).observer(failures.clone()).build();
    let worker = Worker::new(&client).concurrency(16).poll(POLL).handle(pay::<L>).start().await.unwrap();
    let starting = (0..CHAINS).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut tx = client.begin().await.unwrap();
            let chain = tx.start(Pay(number)).await.unwrap();
            tx.savepoint().await.unwrap();
            tx.start(Pay(CHAINS)).await.unwrap();
            tx.rollback_to().await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(client.wait(chain).poll(POLL).timeout(TIMEOUT).await.unwrap(), number);
        })
    });
    for started in starting.collect::<Vec<_>>() {
        started.await.unwrap();
    }
    worker.stop(TIMEOUT).await;
    assert_eq!(*failures.0.lock().unwrap(), []);
    assert_eq!(
        server.query("select count(*), count(distinct job) from ledger"),
        format!("{CHAINS}|{CHAINS}")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_works_behind_a_pooler() {
    // There are more concurrent starts and waits than connections, so some of them wait for a connection.
    let connect = async |url: String| {
        let options = url.parse::<PgConnectOptions>().unwrap().extra_float_digits(None);
        Sqlx::from(Sqlx::pool_options().acquire_timeout(TIMEOUT).connect_with(options).await.unwrap())
    };
    check_store::<SqlxTable, _, _>(connect).await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn the_store_works_behind_a_pooler_on_tokio_postgres() {
    use windlass_postgres::TokioPostgres;

    let connect = async |url: String| TokioPostgres::connect(&url).await.unwrap();
    check_store::<crate::ledger::TokioPostgresTable, _, _>(connect).await;
}

macro_rules! names {
    ($($method:ident: $request:ident => $reply:ident,)*) => { [$(stringify!($method)),*] };
}

/// The cases of commands that random sequences do not contain, because they belong to workers.
const FURTHER_CASES: [&str; 3] = ["worker.listed", "worker.retired", "lock.one_holder"];
const FURTHER: [&str; 4] = ["beat", "retire", "list_workers", "leader_lock"];

/// Runs every command through the pooler, by two stores and in transactions, and compares the replies with the model's.
async fn check_commands<P, F>(name: &'static str, connect: fn(String) -> F)
where
    P: Provider + Clone,
    F: Future<Output = P> + Send + 'static,
{
    let shared = shared_postgres().await;
    let pooler = PgBouncer::start(shared.server()).await;
    let [direct, pooled] = [shared.server().port(), pooler.port()].map(|port| format!(":{port}/"));
    let connect = move |url: String| {
        assert!(url.contains(&direct), "{url}");
        connect(url.replace(&direct, &pooled))
    };
    let fixture = Postgres { name, connect };
    let commands = if is_full_run() { 10_000 } else { 1_000 };
    let tally = random(&fixture, 0, commands).await;
    let kind = |command: &'static str| match command {
        "complete_from_outside" => "outside",
        "change_schedules" => "schedule",
        command => command,
    };
    let was_run =
        |command: &&'static str| tally.kinds.keys().any(|seen| seen.split(' ').next() == Some(kind(command)));
    let left: Vec<_> = for_each_command!(names).into_iter().filter(|command| !was_run(command)).collect();
    assert_eq!(left, FURTHER, "{tally}");
    let report = run_cases(&fixture, &FURTHER_CASES).await;
    assert!(report.is_conformant(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works_behind_a_pooler() {
    check_commands("postgres, PgBouncer", |url| async move { Sqlx::connect(&url).await.unwrap() }).await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn every_command_works_behind_a_pooler_on_tokio_postgres() {
    use windlass_postgres::TokioPostgres;

    let connect = |url: String| async move { TokioPostgres::connect(&url).await.unwrap() };
    check_commands("postgres, tokio-postgres, PgBouncer", connect).await;
}

async fn pay_in_a_transaction(
    a: windlass_postgres::Attempt<Pay>,
) -> Result<windlass_postgres::Done<Pay>, BoxError> {
    let step = a.begin().await?;
    Ok(step.done(a.input().0)?)
}

/// Two lines, on an empty server, and with nothing but a URL.
#[tokio::test(flavor = "multi_thread")]
async fn connect_opens_a_store_behind_a_pooler() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server).await;
    let client: windlass_postgres::Client =
        Client::new(windlass_postgres::connect(&pooler.url()).await.unwrap());
    let worker = Worker::new(&client).handle(pay_in_a_transaction).start().await.unwrap();
    let chain = client.start(Pay(7)).await.unwrap();
    assert_eq!(client.wait(chain).timeout(TIMEOUT).await.unwrap(), 7);
    worker.stop(TIMEOUT).await;
    client.close().await.unwrap();
    assert_eq!(server.query("select count(*) from windlass.job"), "1");
}

/// Statements stay prepared only on connections that keep their server process, and in a cache that is on.
#[tokio::test(flavor = "multi_thread")]
async fn statements_are_cached_only_on_direct_connections() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server).await;
    let direct = Sqlx::connect(&server.url()).await.unwrap();
    assert!(direct.may_cache_statements().await);
    let off = server.url().parse::<PgConnectOptions>().unwrap().statement_cache_capacity(0);
    assert!(!Sqlx::from(PgPool::connect_lazy_with(off)).may_cache_statements().await);

    // Not even right after the pooler has started a server connection for the check itself.
    let options = pooler.url().parse::<PgConnectOptions>().unwrap().extra_float_digits(None);
    assert!(!Sqlx::from(PgPool::connect_lazy_with(options)).may_cache_statements().await);
    let pooled = Sqlx::connect(&pooler.url()).await.unwrap();
    let mut tx = pooled.begin().await.unwrap();
    pooled.script_in(Sqlx::tx_ref(&mut tx), "select 1").await.unwrap();
    assert!(!pooled.may_cache_statements().await);
    pooled.commit(tx).await.unwrap();
    let count = "select count(*) from pg_stat_activity where application_name like 'windlass-%'";
    wait_until("the checks leave no trace", TIMEOUT, async || server.query(count) == "0").await;
}

/// A pool that sends what PgBouncer refuses fails with the reason and the remedy.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_startup_parameter_is_reported() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server).await;
    let pool = PgPool::connect_lazy(&pooler.url()).unwrap();
    let error = PostgresStore::open(Sqlx::from(pool), Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let text = error.to_string();
    assert!(text.contains("extra_float_digits") && text.contains("ignore_startup_parameters"), "{error}");
}

/// Behind the pooler, a `LISTEN` lasts no longer than its transaction.
async fn check_notifier<L, P, F>(connect: impl Fn(String) -> F)
where
    L: Ledger<Store = PostgresStore<P>>,
    P: Provider,
    F: Future<Output = P>,
{
    let warnings = Warnings::capture("windlass_postgres");
    let server = PostgresServer::start().await;
    server.query(TABLE);
    let pooler = PgBouncer::start(&server).await;
    let notifier = PostgresNotifier::new(connect(pooler.url()).await, &Options::default()).unwrap();
    let store = PostgresStore::open(connect(pooler.url()).await, Options::default()).await.unwrap();
    let client = Client::builder(store).notifier(notifier).build();
    let worker = Worker::new(&client).concurrency(1).poll(POLL).handle(pay::<L>).start().await.unwrap();
    for number in 0..3 {
        let chain = client.start(Pay(number)).await.unwrap();
        assert_eq!(client.wait(chain).poll(POLL).timeout(TIMEOUT).await.unwrap(), number);
    }
    wait_until("the notifier has noticed", TIMEOUT, async || !warnings.lines().is_empty()).await;
    worker.stop(TIMEOUT).await;
    let texts = warnings.lines();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(
        texts[0].contains("workers poll: the connection goes through a pooler in transaction mode"),
        "{texts:?}"
    );
}

#[tokio::test]
async fn a_notifier_behind_a_pooler_warns_once_and_workers_poll() {
    check_notifier::<SqlxTable, _, _>(async |url: String| Sqlx::connect(&url).await.unwrap()).await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test]
async fn a_notifier_behind_a_pooler_warns_once_on_tokio_postgres() {
    use windlass_postgres::TokioPostgres;

    let connect = async |url: String| TokioPostgres::connect(&url).await.unwrap();
    check_notifier::<crate::ledger::TokioPostgresTable, _, _>(connect).await;
}

/// The pool may go through the pooler while the listening connection does not.
#[cfg(feature = "tokio-postgres")]
#[tokio::test]
async fn a_notifier_with_a_direct_connection_listens_beside_a_pooler() {
    use deadpool_postgres::{Manager, Pool};
    use tokio_postgres::{Config, NoTls};
    use windlass_postgres::TokioPostgres;

    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server).await;
    let config = |url: String| url.parse::<Config>().unwrap();
    let pool = Pool::builder(Manager::new(config(pooler.url()), NoTls)).build().unwrap();
    let provider = TokioPostgres::new(pool, config(server.url()), NoTls);
    let notifier = PostgresNotifier::new(provider, &Options::default()).unwrap();
    let hint = Hint::ChainClosed(ChainId::new());
    let mut subscription = notifier.subscribe(vec![hint.topic()]).await.unwrap();
    assert!(matches!(notifier.reach(), Reach::Everywhere), "{:?}", notifier.reach());
    notifier.publish(hint.clone()).await.unwrap();
    assert_eq!(subscription.next().await, Some(Signal::Hint(hint)));
}

/// Tries to listen while other clients of the pooler run transactions. If the pooler were not recognized, the next client
/// of the listening server connection would receive notifications that it did not ask for, and fail.
async fn check_busy<P, F>(connect: impl Fn(String) -> F)
where
    P: Provider + Clone,
    F: Future<Output = P>,
{
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server).await;
    let provider = connect(pooler.url()).await;
    let busy: Vec<_> = (0..8)
        .map(|_| {
            let provider = provider.clone();
            tokio::spawn(async move {
                loop {
                    let mut tx = provider.begin().await.unwrap();
                    provider.script_in(P::tx_ref(&mut tx), "select 1").await.unwrap();
                    provider.commit(tx).await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..100 {
        let error = provider.listen("busy").await.err().expect("the pooler is recognized");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    for client in busy {
        client.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pooler_is_recognized() {
    check_busy(async |url: String| Sqlx::connect(&url).await.unwrap()).await;
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pooler_is_recognized_on_tokio_postgres() {
    check_busy(async |url: String| windlass_postgres::TokioPostgres::connect(&url).await.unwrap()).await;
}
