//! Kills worker processes, connections and the server under load: no job is lost or stuck, and none takes effect twice.

use std::env;
use std::process::Command;
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::interval;
use windlass_core::uuid::Uuid;
use windlass_core::{ChainId, Client, Fence, JobId};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::PostgresServer;
use windlass_testkit::crash::{self, Effect, JOBS_PER_BATCH, Run, WorkerGroup, Workload, this_test};

use crate::known_bad::spoil_in;
use crate::ledger::{SqlxTable, TABLE};

/// Environment variable with the server's URL for worker processes.
const URL: &str = "WINDLASS_CRASH_URL";

const WORKERS: usize = 3;
const WORK: Duration = Duration::from_millis(20);
/// Long attempts are rarely paused inside a transaction, whose locks would keep reapers from their jobs.
const PAUSED_WORK: Duration = Duration::from_secs(1);

/// Main function of the worker processes. Does nothing in the test run itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    if crash::is_worker_process() {
        let provider = Sqlx::connect(&env::var(URL).unwrap()).await.unwrap();
        let client = Client::new(PostgresStore::open(provider, Options::default()).await.unwrap());
        crash::serve(crash::ledger_worker::<SqlxTable>(&client).start().await.unwrap()).await;
    }
}

/// Main function of the worker processes with schedules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_process() {
    if crash::is_worker_process() {
        let provider = Sqlx::connect(&env::var(URL).unwrap()).await.unwrap();
        let client = Client::new(PostgresStore::open(provider, Options::default()).await.unwrap());
        crash::serve(crash::schedule_worker(&client).start().await.unwrap()).await;
    }
}

/// Five processes, one of them paused and one with a clock that is an hour fast, and kills in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_occurrence_of_a_schedule_starts_once() {
    let server = PostgresServer::start().await;
    let provider = Sqlx::connect(&server.url()).await.unwrap();
    let client = Client::new(PostgresStore::open(provider, Options::default()).await.unwrap());
    let seconds = if is_full() { 60 } else { 8 };
    let report = crash::run_schedules(&client, seconds, || {
        let mut command = this_test("crash::schedule_process");
        command.env(URL, server.url());
        command
    });
    println!("{:?}", report.await);
}

/// A private server with a store, a ledger and worker processes.
struct Fixture {
    server: PostgresServer,
    pool: PgPool,
    client: Client<PostgresStore<Sqlx>>,
    group: WorkerGroup,
}

impl Fixture {
    async fn new() -> Self {
        let server = PostgresServer::start().await;
        server.query(TABLE);
        let pool = PgPool::connect(&server.url()).await.unwrap();
        let store = PostgresStore::open(Sqlx::from(pool.clone()), Options::default()).await.unwrap();
        let url = format!("{}?application_name=worker-group", server.url());
        let group = WorkerGroup::start(WORKERS, move || -> Command {
            let mut command = this_test("crash::worker_process");
            command.env(URL, &url);
            command
        });
        Self { pool, client: Client::new(store), group: group.await, server }
    }
}

async fn ledger(pool: &PgPool) -> Vec<Effect> {
    let rows = sqlx::query_as("select chain, job, fence from ledger").fetch_all(pool).await;
    let effect = |(chain, job, fence): (Uuid, Uuid, i64)| {
        let fence = Fence(u64::try_from(fence).unwrap());
        Effect { chain: ChainId::from_uuid(chain), run: Run { job: JobId::from_uuid(job), fence } }
    };
    rows.unwrap().into_iter().map(effect).collect()
}

fn is_full() -> bool {
    env::var_os("WINDLASS_FULL").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_and_servers_lose_and_repeat_nothing() {
    let (kills, restarts) = if is_full() { (200, 20) } else { (20, 3) };
    let mut fixture = Fixture::new().await;
    let (client, mut restarted) = (fixture.client.clone(), 0);
    let mut workload = Workload::new(&client, WORK);
    while fixture.group.kills() < kills || restarted < restarts {
        workload.start_batch().await;
        fixture.group.kill_one(client.store()).await;
        if fixture.group.kills() * restarts / kills > restarted && fixture.group.is_busy().await {
            fixture.server.crash().await;
            fixture.server.restart().await;
            restarted += 1;
        }
        workload.wait_for_all_but(2).await;
        let (jobs, killed) = (workload.jobs(), fixture.group.kills());
        assert!(jobs < 2 * kills * JOBS_PER_BATCH, "only {killed} kills found jobs running");
    }
    workload.wait_for_all_but(0).await;
    let log = fixture.group.stop().await;
    println!("{} jobs, {restarted} restarts of the server; {log}", workload.jobs());
    workload.check(&log, &ledger(&fixture.pool).await).await;
}

/// Kills five connections of workers per second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_lose_and_repeat_nothing() {
    let kills = if is_full() { 5 * 300 } else { 5 * 4 };
    let fixture = Fixture::new().await;
    let pool = fixture.pool.clone();
    let killing = tokio::spawn(async move {
        let mut ticks = interval(Duration::from_millis(200));
        let mut killed = 0;
        while killed < kills {
            ticks.tick().await;
            let kill = "select pg_terminate_backend(pid) from pg_stat_activity \
                        where application_name = 'worker-group' order by random() limit 1";
            killed += sqlx::query(kill).execute(&pool).await.unwrap().rows_affected();
        }
    });
    let mut workload = Workload::new(&fixture.client, WORK);
    while !killing.is_finished() {
        workload.start_batch().await;
        workload.wait_for_all_but(1).await;
    }
    killing.await.unwrap();
    workload.wait_for_all_but(0).await;
    let log = fixture.group.stop().await;
    println!("{} jobs, {kills} connections killed; {log}", workload.jobs());
    workload.check(&log, &ledger(&fixture.pool).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_worker_does_not_overwrite_the_new_owner() {
    let mut fixture = Fixture::new().await;
    let client = fixture.client.clone();
    let mut workload = Workload::new(&client, PAUSED_WORK);
    workload.overtake(&mut fixture.group, 3).await;
    workload.wait_for_all_but(0).await;
    let log = fixture.group.stop().await;
    println!("{} jobs; {log}", workload.jobs());
    workload.check(&log, &ledger(&fixture.pool).await).await;
}

/// The harness detects a paused worker that overwrites the work of the new owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_ignores_the_fence_is_caught() {
    // A stale write succeeds only if the new owner is still running when the paused worker resumes, so try often.
    for _ in 0..30 {
        let mut fixture = Fixture::new().await;
        for (function, fence, by) in [
            ("complete_one_v1", "j.fence = of_fence", "true"),
            ("complete_plain_v1", "j.fence = i.fence", "true"),
            ("settle_items_v1", "j.fence = i.fence", "true"),
            ("settle_items_v1", "own.fence <> item.fence", "false"),
            ("renew_one_v1", "own.fence <> of_fence", "false"),
            ("renew_v1", "l.fence = a.fence", "true"),
            ("renew_v1", "l.fence = a.fence", "true"),
        ] {
            spoil_in(&fixture.pool, "windlass", function, fence, by).await;
        }
        let client = fixture.client.clone();
        Workload::new(&client, PAUSED_WORK).overtake(&mut fixture.group, 1).await;
        let log = fixture.group.stop().await;
        if !crash::stale_effects(&log, &ledger(&fixture.pool).await).is_empty() {
            return;
        }
    }
    panic!("no overtaken worker made a stale write in any round");
}
