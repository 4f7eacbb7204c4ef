//! The store at every default isolation level, through each driver and through PgBouncer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use windlass_conformance::snapshot::{SCENARIOS, Scenario};
use windlass_conformance::{Erased, Fixture, Subject, Tally, complete, race, random};
use windlass_core::command::{Create, Delete, GetChains};
use windlass_core::{
    Attempt, BoxError, BoxFuture, Capabilities, Client, Ctx, Done, Entry, ErrorKind, Job, JobOptions,
    ManualClock, State, Store, Transactional, Worker,
};
use windlass_postgres::{Options, PostgresStore, Provider, Sqlx};
use windlass_testkit::{PgBouncer, PostgresServer};

use crate::known_bad::spoil_in;

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
/// The levels at which a transaction reads from a snapshot.
const SNAPSHOTS: [&str; 2] = ["repeatable read", "serializable"];

const SOON: Duration = Duration::from_secs(60);

/// Starts a server with this default isolation level.
async fn server(level: &str) -> PostgresServer {
    PostgresServer::builder().setting("default_transaction_isolation", level).start().await
}

/// Opens a store twice and erases it.
async fn subject<P: Provider, F: Future<Output = P>>(connect: impl Fn() -> F, options: Options) -> Subject {
    let clock = Arc::new(ManualClock::default());
    let options = options.clock(clock.clone());
    let open = || async { Arc::new(PostgresStore::open(connect().await, options.clone()).await.unwrap()) };
    let (store, other) = (open().await, open().await);
    store.erase().await.unwrap();
    let transactions = Arc::new(Erased::new(store.clone()));
    Subject::new(store, other, clock).with_transactions(transactions)
}

async fn sqlx_subject(server: &PostgresServer) -> Subject {
    subject(async || Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await
}

async fn passes(subject: &Subject, scenario: Scenario) -> bool {
    subject.store.erase().await.unwrap();
    AssertUnwindSafe(scenario(subject.clone())).catch_unwind().await.is_ok()
}

/// Returns the names of the scenarios that fail.
async fn failures(subject: &Subject) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for (name, scenario) in SCENARIOS {
        if !passes(subject, *scenario).await {
            failed.push(*name);
        }
    }
    failed
}

#[tokio::test(flavor = "multi_thread")]
async fn no_snapshot_hides_a_change_through_sqlx() {
    for level in LEVELS {
        let server = server(level).await;
        assert_eq!(failures(&sqlx_subject(&server).await).await, [""; 0], "{level}");
    }
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn no_snapshot_hides_a_change_through_tokio_postgres() {
    use windlass_postgres::TokioPostgres;

    for level in LEVELS {
        let server = server(level).await;
        let connect = async || TokioPostgres::connect(&server.url()).await.unwrap();
        let subject = subject(connect, Options::default()).await;
        assert_eq!(failures(&subject).await, [""; 0], "{level}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_snapshot_hides_a_change_behind_a_pooler() {
    for level in LEVELS {
        let server = server(level).await;
        let pooler = PgBouncer::start(&server).await;
        let connect = async || Sqlx::connect(&pooler.url()).await.unwrap();
        let subject = subject(connect, Options::default().cached_statements(false)).await;
        assert_eq!(failures(&subject).await, [""; 0], "{level}");
    }
}

/// The store's own commands run at read committed, whatever the default is.
#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_store_race_at_any_default() {
    for level in SNAPSHOTS {
        let server = server(level).await;
        race::blockers_end_at_once(sqlx_subject(&server).await).await;
        race::attached_while_closing(sqlx_subject(&server).await).await;
        race::one_key(sqlx_subject(&server).await).await;
        race::continued_twice(sqlx_subject(&server).await).await;
        race::sixteen_workers(sqlx_subject(&server).await).await;
        race::deleted_while_running(sqlx_subject(&server).await).await;
        race::batches_in_opposite_order(sqlx_subject(&server).await).await;
    }
}

struct Leveled(PostgresServer);

impl Fixture for Leveled {
    fn name(&self) -> &str {
        "postgres above read committed"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn has_snapshots(&self) -> bool {
        true
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        Box::pin(sqlx_subject(&self.0))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_commands_get_the_models_replies_at_any_default() {
    let commands = if std::env::var_os("WINDLASS_FULL").is_some() { 50_000 } else { 5_000 };
    for level in SNAPSHOTS {
        let fixture = Leveled(server(level).await);
        let mut tally = Tally::default();
        for seed in 0..2 {
            tally.add(&random(&fixture, seed, commands / 2).await);
        }
        tally.assert_rolled_back();
    }
}

/// Without the check in `own_v1`, commands run at the session's level, where blockers that end concurrently strand a
/// job or fail.
#[tokio::test(flavor = "multi_thread")]
async fn known_bad_commands_at_the_default_level_lose_the_race() {
    let server = server("repeatable read").await;
    let subject = sqlx_subject(&server).await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    spoil_in(&pool, "windlass", "own_v1", "begin\n", "begin return given;\n").await;
    // Open the store while the default is read committed, so that it does not begin transactions for its commands.
    server.query("alter role windlass set default_transaction_isolation = 'read committed'");
    let unaware = sqlx_subject(&server).await;
    server.query("alter role windlass reset default_transaction_isolation");
    server.kill_backends();
    drop(subject);
    // Let the pools notice that their connections are gone.
    let _ = (unaware.store.erase().await, unaware.other.erase().await);
    let fan_in: Scenario = |s| Box::pin(race::blockers_end_at_once(s));
    assert!(!passes(&unaware, fan_in).await);
}

/// A closing chain that is marked only if its snapshot shows dependents strands a job.
#[tokio::test(flavor = "multi_thread")]
async fn known_bad_marks_strand_a_job() {
    let server = server("repeatable read").await;
    let subject = sqlx_subject(&server).await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let own = "\"windlass\".in_snapshot_v1()";
    spoil_in(&pool, "windlass", "close_chain_v1", own, "false").await;
    spoil_in(&pool, "windlass", "complete_v1", own, "false").await;
    let strands = [
        "attached_after_the_snapshot",
        "failed_after_a_dependent_attached",
        "cancelled_after_a_dependent_attached",
        "completed_from_outside_after_a_dependent_attached",
    ];
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| strands.contains(name)) {
        assert!(!passes(&subject, *scenario).await, "{name}");
    }
}

/// Marks of chains without dependents are removed.
#[tokio::test(flavor = "multi_thread")]
async fn marks_leave() {
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    for (name, scenario) in SCENARIOS {
        assert!(passes(&s, *scenario).await, "{name}");
        s.reap().await;
        assert_eq!(server.query("select count(*) from windlass.ripple"), "0", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_has_a_kind_of_its_own_and_a_delete_is_refused() {
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    let store =
        PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap();
    let blocker = s.start("b").await;
    let attempt = s.acquire_one("b").await;
    let mut tx = store.begin().await.unwrap();
    let get = GetChains { chains: vec![blocker.into()] };
    store.run_in(PostgresStore::<Sqlx>::lend(&mut tx), get.clone()).await.unwrap();
    let delete = Delete { chains: vec![blocker.into()], cascade: false };
    let error = store.run_in(PostgresStore::<Sqlx>::lend(&mut tx), delete).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    store.run_in(PostgresStore::<Sqlx>::lend(&mut tx), get).await.expect("the transaction goes on");
    s.complete(&attempt, "1").await;
    let create = Create { chains: vec![s.start("a").blocked_by([blocker]).build()] };
    let error = store.run_in(PostgresStore::<Sqlx>::lend(&mut tx), create).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    store.rollback(tx).await.unwrap();
}

#[derive(Serialize, Deserialize)]
struct Approval {}

impl Job for Approval {
    const NAME: &'static str = "approval";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Approval {}

#[derive(Serialize, Deserialize)]
struct Ship {}

impl Job for Ship {
    const NAME: &'static str = "ship";
    type Output = ();
    type Next = ();
    type Blockers = (Approval,);
}

impl Entry for Ship {}

type Postgres = PostgresStore<Sqlx>;

async fn ship(_: Ctx<Ship>, State(started): State<mpsc::UnboundedSender<Instant>>) -> Result<(), BoxError> {
    Ok(started.send(Instant::now())?)
}

/// Completes the approval in the handler's transaction.
async fn approve(
    a: Attempt<Approval, Postgres>,
    State(_): State<mpsc::UnboundedSender<Instant>>,
) -> Result<Done<Approval, Postgres>, BoxError> {
    let mut step = a.finish().await?;
    sqlx::query("select 1").execute(&mut **step.tx()).await?;
    Ok(step.done(())?)
}

/// Which kind of transaction completes the blocker. The snapshots of the first two are older than the dependent.
#[derive(Clone, Copy, Debug)]
enum By {
    OwnTransaction,
    BorrowedTransaction,
    Handler,
}

/// Returns the time from the commit that completes the blocker to the start of its dependent. The worker of the
/// dependent does not poll.
async fn time_to_start(client: &Client<Postgres>, pool: &PgPool, by: By) -> Duration {
    let (sender, mut started) = mpsc::unbounded_channel();
    let worker = Worker::new(client).poll(Duration::from_secs(3_600)).state(sender).handle(ship);
    let worker = worker.start().await.unwrap();
    let approval = client.start(Approval {}).await.unwrap();
    let committed = match by {
        By::OwnTransaction => {
            let mut tx = client.begin().await.unwrap();
            tx.chain(approval).await.unwrap();
            client.start(Ship {}).blocked_by((approval,)).await.unwrap();
            tx.step(approval).await.unwrap().of::<Approval>().unwrap().done(()).await.unwrap();
            let at = Instant::now();
            tx.commit().await.unwrap();
            at
        }
        By::BorrowedTransaction => {
            let mut tx = pool.begin().await.unwrap();
            let mut inside = client.in_tx(&mut tx);
            inside.chain(approval).await.unwrap();
            client.start(Ship {}).blocked_by((approval,)).await.unwrap();
            inside.step(approval).await.unwrap().of::<Approval>().unwrap().done(()).await.unwrap();
            let at = Instant::now();
            inside.announcements().announce_after(tx.commit()).await.unwrap();
            at
        }
        By::Handler => {
            client.start(Ship {}).blocked_by((approval,)).await.unwrap();
            let (sender, _keep) = mpsc::unbounded_channel();
            let approving = Worker::new(client).state(sender).handle(approve).start().await.unwrap();
            client.wait(approval).timeout(SOON).await.unwrap();
            let at = Instant::now();
            approving.stop(SOON).await;
            at
        }
    };
    let started =
        tokio::time::timeout(SOON, started.recv()).await.expect("it starts without a poll").unwrap();
    worker.stop(SOON).await;
    started.saturating_duration_since(committed)
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_start_soon_after_the_commit() {
    for level in LEVELS {
        let server = server(level).await;
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let store = PostgresStore::open(Sqlx::from(pool.clone()), Options::default()).await.unwrap();
        let client = Client::new(store);
        for by in [By::OwnTransaction, By::BorrowedTransaction, By::Handler] {
            // Repeat, because other load on the machine may delay it.
            let mut took = Vec::new();
            while took.last().is_none_or(|took| *took > Duration::from_millis(250)) {
                assert!(took.len() < 5, "{level}, {by:?}: it took {took:?}");
                took.push(time_to_start(&client, &pool, by).await);
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Long {}

impl Job for Long {
    const NAME: &'static str = "long";
    type Output = u32;
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        JobOptions { lease: Duration::from_secs(2), ..JobOptions::default() }
    }
}

impl Entry for Long {}

/// Keeps its transaction open for longer than its lease, so that the lease must be renewed meanwhile.
async fn long(a: Attempt<Long, Postgres>) -> Result<Done<Long, Postgres>, BoxError> {
    let mut step = a.atomic().await?;
    sqlx::query("select 1").execute(&mut **step.tx()).await?;
    sleep(Duration::from_millis(2_500)).await; // tidy: renewals follow the server's clock, which no test can turn
    Ok(step.done(a.attempt())?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_outlasts_renewals_does_not_conflict_with_them() {
    for level in LEVELS {
        let server = server(level).await;
        let store = PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default())
            .await
            .unwrap();
        let client = Client::new(store);
        let worker = Worker::new(&client).handle(long).start().await.unwrap();
        let chain = client.start(Long {}).await.unwrap();
        assert_eq!(
            client.wait(chain).timeout(SOON).await.unwrap(),
            1,
            "{level}: the first attempt completes the job"
        );
        worker.stop(SOON).await;
    }
}

/// Many programs migrate at the same time. None may miss the others' migrations because of an old snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn many_may_open_a_new_schema_at_once_at_any_default() {
    for level in SNAPSHOTS {
        let server = server(level).await;
        let opening: Vec<_> = (0..8)
            .map(|_| {
                let url = server.url();
                tokio::spawn(async move {
                    PostgresStore::open(Sqlx::connect(&url).await.unwrap(), Options::default())
                        .await
                        .map(drop)
                })
            })
            .collect();
        for opened in opening {
            opened.await.unwrap().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_completed_meanwhile_is_told_by_its_conflict() {
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    let client = Client::new(
        PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap(),
    );
    let approval = client.start(Approval {}).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    tx.chain(approval).await.unwrap();
    s.work("approval", complete("null")).await;
    let step = tx.step(approval).await.unwrap();
    let error = step.of::<Approval>().unwrap().done(()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    tx.rollback().await.unwrap();
}
