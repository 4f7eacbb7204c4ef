//! riverqueue on PostgreSQL and SQLite.

use std::ops::Range;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use riverqueue::migrate::{PostgresMigrator, SqliteMigrator};
use riverqueue::sqlx::postgres::PgPoolOptions;
use riverqueue::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use riverqueue::sqlx::{self, PgPool, SqlitePool};
use riverqueue::{BoxError, Client, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde::{Deserialize, Serialize};
use windlass_bench_harness::{Arguments, Candidate, Guard, Result, Subject, Unsupported, Work};

/// Connections of the application, as for every library.
const CONNECTIONS: u32 = 50;

/// Connections to an SQLite file, as in the library's own example.
const SQLITE_CONNECTIONS: u32 = 5;

/// The shortest that the library allows. The default is 100 ms, and a worker fetches at most once in that time.
const COOLDOWN: Duration = Duration::from_millis(1);

const UNFINISHED: &str = "select count(*) from river_job where state <> 'completed'";

fn main() -> ExitCode {
    let settings = "max_workers = slots, fetch_cooldown 1 ms, fetch_poll_interval 10 ms";
    windlass_bench_harness::main(&[
        Subject::new::<Postgres>("postgres", "riverqueue", settings).share(0.25),
        Subject::new::<Sqlite>("sqlite", "riverqueue", settings).share(0.25),
    ])
}

#[derive(Clone, Debug, Deserialize, JobArgs, Serialize)]
#[river(kind = "no_op")]
struct NoOp {
    number: u64,
}

struct Postgres {
    pool: PgPool,
    client: Client,
}

impl Candidate for Postgres {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect(&arguments.url)
            .await?;
        PostgresMigrator::new(pool.clone()).migrate_up().await?;
        let client = Client::builder(pool.clone()).fetch_cooldown(COOLDOWN).build()?;
        Ok(Self { pool, client })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        self.client.insert(NoOp { number }).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        start_batch(&self.client, numbers).await
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        let mut workers = Workers::new();
        let (handler, pool) = (work.handler.clone(), self.pool.clone());
        if work.in_transactions {
            workers.add_fn(move |context: WorkContext, job: Job<NoOp>| {
                let (handler, pool) = (handler.clone(), pool.clone());
                async move {
                    let mut tx = riverqueue::database::begin_postgres(&pool).await?;
                    handler.call(job.args.number);
                    context.job_complete_tx(&mut tx).await?;
                    tx.commit().await?;
                    Ok::<_, BoxError>(WorkOutcome::Complete)
                }
            })?;
        } else {
            workers.add_fn(move |_: WorkContext, job: Job<NoOp>| {
                let handler = handler.clone();
                async move {
                    handler.call(job.args.number);
                    Ok::<_, BoxError>(WorkOutcome::Complete)
                }
            })?;
        }
        let client = Client::builder(self.pool.clone());
        run(client, workers, work.slots)
    }

    async fn unfinished(&self) -> Result<u64> {
        let count: i64 = sqlx::query_scalar(UNFINISHED).fetch_one(&self.pool).await?;
        Ok(u64::try_from(count)?)
    }
}

struct Sqlite {
    pool: SqlitePool,
    client: Client,
}

impl Candidate for Sqlite {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let options = SqliteConnectOptions::from_str(&format!("sqlite://{}", arguments.url))?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(5));
        let pool = SqlitePoolOptions::new()
            .max_connections(SQLITE_CONNECTIONS)
            .test_before_acquire(false)
            .connect_with(options)
            .await?;
        SqliteMigrator::new(pool.clone()).migrate_up().await?;
        let client = Client::builder(pool.clone()).fetch_cooldown(COOLDOWN).build()?;
        Ok(Self { pool, client })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        self.client.insert(NoOp { number }).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        start_batch(&self.client, numbers).await
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        if work.in_transactions {
            return Err(Unsupported("one writer at a time: not compared").into());
        }
        let mut workers = Workers::new();
        let handler = work.handler.clone();
        workers.add_fn(move |_: WorkContext, job: Job<NoOp>| {
            let handler = handler.clone();
            async move {
                handler.call(job.args.number);
                Ok::<_, BoxError>(WorkOutcome::Complete)
            }
        })?;
        run(Client::builder(self.pool.clone()), workers, work.slots)
    }

    async fn unfinished(&self) -> Result<u64> {
        let count: i64 = sqlx::query_scalar(UNFINISHED).fetch_one(&self.pool).await?;
        Ok(u64::try_from(count)?)
    }
}

async fn start_batch(client: &Client, numbers: Range<u64>) -> Result {
    let jobs: Vec<NoOp> = numbers.map(|number| NoOp { number }).collect();
    if !jobs.is_empty() {
        client.insert_many(jobs).await?;
    }
    Ok(())
}

fn run(client: riverqueue::ClientBuilder, workers: Workers, slots: u32) -> Result<Guard> {
    let queue = QueueConfig::new(usize::try_from(slots)?)
        .with_fetch_cooldown(COOLDOWN)
        .with_fetch_poll_interval(Duration::from_millis(10));
    let client = client.fetch_cooldown(COOLDOWN).workers(workers).queue("default", queue).build()?;
    Ok(Box::new(client.start()?))
}
