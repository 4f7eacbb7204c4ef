//! The store at every default isolation level, through each driver and through PgBouncer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::{Barrier, mpsc};
use tokio::time::{Instant, sleep};
use windlass_conformance::snapshot::{SCENARIOS, Scenario};
use windlass_conformance::{
    Erased, ErasedTransactional, ErasedTx, Fixture, Subject, Tally, complete, continue_with, race, random,
};
use windlass_core::command::{
    Acquired, Command, Create, Created, Delete, GetChains, Reply, Settle, Settled, Settlement,
};
use windlass_core::{
    Attempt, BoxError, BoxFuture, Capabilities, Client, Ctx, Done, Entry, ErrorKind, Job, JobOptions,
    ManualClock, Result, State, Status, Store, Transactional, Worker,
};
use windlass_postgres::{Options, PostgresStore, Provider, Sqlx};
use windlass_testkit::{PgBouncer, PostgresServer, wait_until};

use crate::known_bad::spoil_in;

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
/// The levels at which a transaction reads from a snapshot.
const SNAPSHOTS: [&str; 2] = ["repeatable read", "serializable"];

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
        let subject = subject(connect, Options::default().cached_statements(false)).await;
        assert_eq!(failures(&subject).await, [""; 0], "{level}");
    }
}

/// Commands of the store race at read committed, whatever the default is, through each driver and a pooler.
#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_store_race_at_any_default() {
    for level in SNAPSHOTS {
        let server = server(level).await;
        check_races(async || sqlx_subject(&server).await).await;
        let pooler = PgBouncer::start(&server).await;
        let connect = async || Sqlx::connect(&pooler.url()).await.unwrap();
        check_races(async || subject(connect, Options::default().cached_statements(false)).await).await;
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

/// Begins each transaction at a level of its own, as an application does whose default is read committed.
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

/// If a lock in a snapshot returned an outdated row instead of an error, the mark of the job that attaches would still
/// unblock it. Without lock and mark it stays blocked.
#[tokio::test(flavor = "multi_thread")]
async fn known_bad_locks_are_made_good_by_marks() {
    let server = server("repeatable read").await;
    let subject = sqlx_subject(&server).await;
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let unlocked = "if shared and \"windlass\".in_snapshot_v1() then return '{}'; end if;";
    let begin = "begin\n  if cardinality(wanted) = 0";
    let bad = begin.replacen("begin\n", &format!("begin\n  {unlocked}\n"), 1);
    spoil_in(&pool, "windlass", "lock_chains_v1", begin, &bad).await;
    let names =
        ["ended_after_the_snapshot", "continued_after_its_blocker_ended", "retried_after_its_blocker_ended"];
    let scenarios = || SCENARIOS.iter().filter(|(name, _)| names.contains(name));
    for (name, scenario) in scenarios() {
        assert!(passes(&subject, *scenario).await, "{name}");
    }
    for function in ["insert_job_v1", "retry_one_v1"] {
        spoil_in(&pool, "windlass", function, "\"windlass\".in_snapshot_v1()", "false").await;
    }
    for (name, scenario) in scenarios() {
        assert!(!passes(&subject, *scenario).await, "{name}");
    }
}

/// A bulk import leaves thousands of marks. Each command removes a bounded number of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_marks_is_worked_off_in_bounded_commands() {
    const PAIRS: usize = 500;
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    let mut tx = s.begin().await;
    for _ in 0..5 {
        let pairs = (0..PAIRS).flat_map(|_| {
            let first = s.start("a").build();
            let second = s.start("b").blocked_by([first.id]).build();
            [first, second]
        });
        tx.run(Create { chains: pairs.collect() }).await.unwrap();
    }
    tx.commit().await.unwrap();
    let marks = || server.query("select count(*) from windlass.ripple").parse::<usize>().unwrap();
    assert_eq!(marks(), 5 * PAIRS);
    s.advance(1);
    s.acquire("a", 1).await;
    assert_eq!(marks(), 1_400, "one command sweeps a thousand marks and takes a hundred steps");
    s.acquire("a", 1).await;
    s.acquire("a", 1).await;
    assert_eq!(marks(), 0);
}

/// An open transaction holds a thousand dependents, and their other blockers leave marks that cannot be worked off. Chains
/// that end later are not delayed by them.
#[tokio::test(flavor = "multi_thread")]
async fn marks_that_cannot_be_worked_off_starve_no_others() {
    const STUCK: usize = 1_000;
    let server = PostgresServer::start().await;
    let s = sqlx_subject(&server).await;
    let shared = s.start("shared").await;
    let others: Vec<_> = (0..STUCK).map(|_| s.start("other").build()).collect();
    let ids: Vec<_> = others.iter().map(|chain| chain.id).collect();
    s.create(others).await;
    s.create(ids.iter().map(|id| s.start("a").blocked_by([shared, *id]).build()).collect()).await;
    let mut tx = s.begin().await;
    let attempt = s.acquire_one("shared").await;
    let settlement = Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome: complete("1") };
    tx.run(Settle { settlements: vec![settlement] }).await.unwrap();
    let attempts = s.acquire("other", 1_000).await;
    let settlements = attempts.iter().map(|attempt| Settlement {
        job: attempt.job.id,
        fence: attempt.job.fence,
        outcome: complete("1"),
    });
    let began = Instant::now();
    let settled = s.run(Settle { settlements: settlements.collect() }).await.settled;
    assert!(settled.iter().all(|one| matches!(one, Settled::Applied(_))));
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "it waits once, not for each chain: {:?}",
        began.elapsed()
    );
    s.advance(1);
    let blocker = s.start("b").await;
    let waiting = s.start("c").blocked_by([blocker]).await;
    s.work("b", complete("1")).await;
    s.expect_status(waiting, Status::Pending).await;
    tx.commit().await.unwrap();
    for _ in 0..40 {
        s.advance(1);
        s.reap().await;
    }
    assert_eq!(s.acquire("a", 1_000).await.len(), STUCK);
    assert_eq!(server.query("select count(*) from windlass.ripple"), "0");
}

/// A transaction of the application resolves only what it has ended itself: nobody sees it before the commit.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_does_not_take_the_marks_of_others() {
    let server = PostgresServer::start().await;
    let mut s = sqlx_subject(&server).await;
    let store =
        PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default()).await.unwrap();
    let own = s.transactions.replace(Arc::new(AtLevel {
        store: Arc::new(store),
        begin: "begin isolation level repeatable read",
    }));
    let (blocker, unrelated) = (s.start("b").await, s.start("c").await);
    let waiting = s.start("a").blocked_by([blocker]).await;
    let settlement = |attempt: &Acquired| Settlement {
        job: attempt.job.id,
        fence: attempt.job.fence,
        outcome: complete("1"),
    };
    let (first, second) = (s.acquire_one("b").await, s.acquire_one("c").await);
    let mut tx = s.begin().await;
    tx.run(Settle { settlements: vec![settlement(&first)] }).await.unwrap();
    tx.commit().await.unwrap();
    s.transactions = own;
    s.advance(1);
    let mut open = s.begin().await;
    open.run(Settle { settlements: vec![settlement(&second)] }).await.unwrap();
    s.reap().await;
    s.expect_status(waiting, Status::Pending).await;
    open.commit().await.unwrap();
    s.expect_status(unrelated, Status::Completed).await;
}

/// Marks go with their chain.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_leaves_takes_its_marks_along() {
    let server = server("repeatable read").await;
    let s = sqlx_subject(&server).await;
    let marks = || server.query("select count(*) from windlass.ripple");
    for deletes in [true, false] {
        let chain = s.start("a").retention(1).await;
        let attempt = s.acquire_one("a").await;
        let mut tx = s.begin().await;
        let settlement = Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome: complete("1") };
        tx.run(Settle { settlements: vec![settlement] }).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(marks(), "1");
        if deletes {
            s.run(Delete { chains: vec![chain.into()], cascade: false }).await;
        } else {
            s.advance(3_600_000);
            s.expire().await;
        }
        assert_eq!(s.find_chain(chain).await, None);
        assert_eq!(marks(), "0");
    }
}

/// Logical replication refuses deletes from a published table without a key.
#[tokio::test(flavor = "multi_thread")]
async fn published_tables_can_be_changed() {
    let server = PostgresServer::start().await;
    let s = sqlx_subject(&server).await;
    server.query("create publication everything for all tables");
    let blocker = s.start("b").key("k").await;
    let waiting = s.start("a").blocked_by([blocker]).retention(1).await;
    s.work("b", complete("1")).await;
    s.work("a", complete("2")).await;
    s.advance(30 * 24 * 3_600_000);
    s.expire().await;
    assert_eq!((s.find_chain(blocker).await, s.find_chain(waiting).await), (None, None));
}

/// A command looks for its blockers to lock them, waits for something else, and finds one that was committed meanwhile: it
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

/// Two commands that each close one half of a circle of waits do not see each other's half.
#[tokio::test(flavor = "multi_thread")]
async fn two_halves_of_a_circle_are_not_closed_at_once() {
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
        assert_eq!(applied, 1, "{level}: four chains wait for each other");
    }
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
    State(committing): State<mpsc::UnboundedSender<Instant>>,
) -> Result<Done<Approval, Postgres>, BoxError> {
    let mut step = a.finish().await?;
    sqlx::query("select 1").execute(&mut **step.tx()).await?;
    committing.send(Instant::now())?;
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
            let (sender, mut committing) = mpsc::unbounded_channel();
            let approving = Worker::new(client).state(sender).handle(approve).start().await.unwrap();
            client.wait(approval).timeout(TIMEOUT).await.unwrap();
            approving.stop(TIMEOUT).await;
            committing.recv().await.unwrap()
        }
    };
    let started =
        tokio::time::timeout(TIMEOUT, started.recv()).await.expect("it starts without a poll").unwrap();
    worker.stop(TIMEOUT).await;
    started.duration_since(committed)
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
            client.wait(chain).timeout(TIMEOUT).await.unwrap(),
            1,
            "{level}: the first attempt completes the job"
        );
        worker.stop(TIMEOUT).await;
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

#[derive(Serialize, Deserialize)]
struct Transfer {}

impl Job for Transfer {
    const NAME: &'static str = "transfer";
    type Output = ();
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        JobOptions { max_attempts: Some(1), ..JobOptions::default() }
    }
}

impl Entry for Transfer {}

/// Reads the table and adds to it. The first two attempts do so at the same time, which is not serializable.
async fn transfer(
    a: Attempt<Transfer, Postgres>,
    State((runs, both)): State<(Arc<AtomicU32>, Arc<Barrier>)>,
) -> Result<Done<Transfer, Postgres>, BoxError> {
    let mut step = a.finish().await?;
    sqlx::query("select sum(amount) from account").execute(&mut **step.tx()).await?;
    sqlx::query("insert into account (amount) values (1)").execute(&mut **step.tx()).await?;
    if runs.fetch_add(1, Ordering::SeqCst) < 2 {
        both.wait().await;
    }
    Ok(step.done(())?)
}

/// A conflict at the end of an attempt is not the handler's fault: the job runs again, and the attempt does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_at_the_end_of_an_attempt_does_not_count() {
    let server = server("serializable").await;
    server.query("create table account (amount bigint)");
    let store = PostgresStore::open(Sqlx::connect(&server.url()).await.unwrap(), Options::default());
    let client = Client::new(store.await.unwrap());
    let runs = Arc::new(AtomicU32::new(0));
    let state = (Arc::clone(&runs), Arc::new(Barrier::new(2)));
    let worker = Worker::new(&client).concurrency(2).state(state).handle(transfer).start().await.unwrap();
    let chains = client.start_many([Transfer {}, Transfer {}]).await.unwrap();
    for chain in chains {
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
    }
    worker.stop(TIMEOUT).await;
    assert!(runs.load(Ordering::SeqCst) > 2, "one of the two conflicts");
}
