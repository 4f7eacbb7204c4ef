//! The store at every default isolation level, through each driver and through PgBouncer.

mod application;
mod marks;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::PgPool;
use windlass_conformance::snapshot::{SCENARIOS, Scenario};
use windlass_conformance::{
    Erased, ErasedTransactional, ErasedTx, Fixture, Subject, Tally, complete, continue_with, race, random,
};
use windlass_core::command::{Command, Create, Created, Reply, Settle, Settled, Settlement};
use windlass_core::{BoxFuture, Capabilities, ManualClock, Result, Status, Store, Transactional};
use windlass_postgres::{Options, PostgresStore, Provider, Sqlx};
use windlass_testkit::{PgBouncer, PostgresServer, is_full_run, wait_until};

use crate::known_bad::spoil_in;

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
/// The levels at which a transaction reads from a snapshot.
const SNAPSHOTS: [&str; 2] = ["repeatable read", "serializable"];

type Postgres = PostgresStore<Sqlx>;

const TIMEOUT: Duration = Duration::from_secs(60);

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
        let subject = subject(connect, Options::default()).await;
        assert_eq!(failures(&subject).await, [""; 0], "{level}");
    }
}

/// Commands of the store race at read committed, whatever the default is, through each driver and a pooler.
#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_store_race_at_any_default() {
    for level in SNAPSHOTS {
        let server = server(level).await;
        check_races(async || sqlx_subject(&server).await).await;
        if level != SNAPSHOTS[0] && !is_full_run() {
            continue;
        }
        let pooler = PgBouncer::start(&server).await;
        let connect = async || Sqlx::connect(&pooler.url()).await.unwrap();
        check_races(async || subject(connect, Options::default()).await).await;
    }
}

#[cfg(feature = "tokio-postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_store_race_at_any_default_on_tokio_postgres() {
    let server = server("repeatable read").await;
    let connect = async || windlass_postgres::TokioPostgres::connect(&server.url()).await.unwrap();
    check_races(async || subject(connect, Options::default()).await).await;
}

async fn check_races(open: impl AsyncFn() -> Subject) {
    race::blockers_end_at_once(open().await).await;
    race::attached_while_closing(open().await).await;
    race::one_key(open().await).await;
    race::continued_twice(open().await).await;
    race::sixteen_workers(open().await).await;
    race::deleted_while_running(open().await).await;
    race::batches_in_opposite_order(open().await).await;
}

struct Leveled(PostgresServer);

impl Fixture for Leveled {
    fn name(&self) -> &str {
        "postgres above read committed"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().in_parallel().joining()
    }

    fn has_snapshots(&self) -> bool {
        true
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        Box::pin(async {
            let subject = sqlx_subject(&self.0).await;
            // Erasing keeps the largest deleted fence, but the clock of the next run starts at the beginning again.
            self.0.query("select setval('windlass.deleted_fence', 1, false)");
            subject
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_commands_get_the_models_replies_at_any_default() {
    let commands = if is_full_run() { 50_000 } else { 2_000 };
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
    let fan_in: Scenario = |s| Box::pin(race::blockers_end_at_once(s));
    assert!(passes(&subject, fan_in).await);
    spoil_in(&pool, "windlass", "own_v1", "begin\n", "begin return given;\n").await;
    // Open the store while the default is read committed, so that it does not begin transactions for its commands.
    server.query("alter role windlass set default_transaction_isolation = 'read committed'");
    let unaware = sqlx_subject(&server).await;
    server.query("alter role windlass reset default_transaction_isolation");
    server.kill_backends();
    drop(subject);
    // Let the pools notice that their connections are gone.
    let _ = (unaware.store.erase().await, unaware.other.erase().await);
    assert!(!passes(&unaware, fan_in).await);
}

/// Begins each transaction at its own level, as an application does whose default is read committed.
struct AtLevel {
    store: Arc<Postgres>,
    begin: &'static str,
}

struct OpenAtLevel {
    store: Arc<Postgres>,
    tx: sqlx::Transaction<'static, sqlx::Postgres>,
}

impl ErasedTransactional for AtLevel {
    fn begin(&self) -> BoxFuture<'_, Result<Box<dyn ErasedTx>>> {
        Box::pin(async {
            let tx = self.store.provider().pool().begin_with(self.begin).await.unwrap();
            Ok(Box::new(OpenAtLevel { store: Arc::clone(&self.store), tx }) as Box<dyn ErasedTx>)
        })
    }
}

impl ErasedTx for OpenAtLevel {
    fn execute(&mut self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        self.store.execute_in((&mut self.tx).into(), command)
    }

    fn savepoint(&mut self) -> BoxFuture<'_, Result<()>> {
        self.store.savepoint((&mut self.tx).into())
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        self.store.release((&mut self.tx).into())
    }

    fn rollback_to(&mut self) -> BoxFuture<'_, Result<()>> {
        self.store.rollback_to((&mut self.tx).into())
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { self.store.commit(self.tx).await })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { self.store.rollback(self.tx).await })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_snapshot_of_a_single_transaction_hides_a_change() {
    let server = PostgresServer::start().await;
    for begin in ["begin isolation level repeatable read", "begin isolation level serializable"] {
        let mut subject = sqlx_subject(&server).await;
        let store = PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default());
        let store = Arc::new(store.await.unwrap());
        subject.transactions = Some(Arc::new(AtLevel { store, begin }));
        assert_eq!(failures(&subject).await, [""; 0], "{begin}");
    }
}

/// A command queries its blockers, waits for another lock, and then finds a blocker that was committed in the meantime. It
/// must lock that one too.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocker_that_appears_during_the_command_is_locked() {
    let server = PostgresServer::start().await;
    let s = sqlx_subject(&server).await;
    let (blocker, raced) = (s.start("b").build(), s.start("c").build());
    let waiting = s.start("a").blocked_by([blocker.id]).build();
    let (mut creating, mut racing, mut tx) = (s.begin().await, s.begin().await, s.begin().await);
    creating.run(Create { chains: vec![blocker.clone()] }).await.unwrap();
    racing.run(Create { chains: vec![raced.clone()] }).await.unwrap();
    let chains = vec![raced, waiting.clone()];
    let attaching = tokio::spawn(async move { (tx.run(Create { chains }).await, tx) });
    let waits =
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%create_v1%'";
    wait_until("the command waits for the other's row", TIMEOUT, async || server.query(waits) == "1").await;
    creating.commit().await.unwrap();
    racing.rollback().await.unwrap();
    let (created, tx) = attaching.await.unwrap();
    assert!(created.unwrap().chains.iter().all(|created| matches!(created, Created::New { .. })));
    let attempt = s.acquire_one("b").await;
    assert_eq!(s.settle(&attempt, complete("1")).await, Settled::Busy, "a job attaches to the chain");
    tx.commit().await.unwrap();
    s.complete(&attempt, "1").await;
    s.expect_status(waiting.id, Status::Pending).await;
}

/// Two commands each add one half of a cycle of waits. Neither sees the other's half.
#[tokio::test(flavor = "multi_thread")]
async fn two_commands_cannot_each_close_half_of_a_cycle() {
    for level in LEVELS {
        let server = server(level).await;
        let s = sqlx_subject(&server).await;
        let (a, c) = (s.start("a").await, s.start("c").await);
        let (b, d) = (s.start("b").blocked_by([c]).await, s.start("d").blocked_by([a]).await);
        let attempts = [s.acquire_one("a").await, s.acquire_one("c").await];
        let mut applied = 0;
        let mut open = Vec::new();
        for (attempt, blocker) in attempts.iter().zip([b, d]) {
            let mut tx = s.begin().await;
            let next = continue_with(s.start("a").blocked_by([blocker]).next_job());
            let settlement = Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome: next };
            let settled = tx.run(Settle { settlements: vec![settlement] }).await;
            applied +=
                usize::from(settled.is_ok_and(|reply| matches!(reply.settled[0], Settled::Applied(_))));
            open.push(tx);
        }
        for tx in open {
            let _ = tx.commit().await;
        }
        assert_eq!(applied, 1, "{level}: both commands succeeded, which closes a cycle");
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
