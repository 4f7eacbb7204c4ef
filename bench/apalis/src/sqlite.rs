use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteStorage};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::Mutex;
use windlass_bench_harness::{Arguments, Candidate, Guard, Result, Work};

use crate::{NoOp, POLL, PRODUCERS, QUEUE, index, no_op};

/// Connections to the file: SQLite has one writer, so more only wait for each other.
const CONNECTIONS: u32 = 5;

pub struct Sqlite {
    pool: SqlitePool,
    producers: Vec<Mutex<SqliteStorage<NoOp>>>,
}

impl Candidate for Sqlite {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let options = SqliteConnectOptions::from_str(&format!("sqlite://{}", arguments.url))?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect_with(options)
            .await?;
        SqliteStorage::setup(&pool).await?;
        let storage = |_| Mutex::new(SqliteStorage::new(&pool).with_config(Config::default().queue(QUEUE)));
        Ok(Self { producers: (0..PRODUCERS).map(storage).collect(), pool })
    }

    async fn start(&self, producer: u64, number: u64) -> Result {
        self.producers[index(producer)].lock().await.push(NoOp { number }).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        let jobs: Vec<NoOp> = numbers.map(|number| NoOp { number }).collect();
        if !jobs.is_empty() {
            self.producers[0].lock().await.push_bulk(jobs).await?;
        }
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let slots = usize::try_from(work.slots)?;
        let config = Config::default().queue(QUEUE).batch_size(slots);
        let storage = SqliteStorage::<NoOp>::new(&self.pool).with_config(config);
        let worker = WorkerBuilder::new("bench")
            .backend(storage.poll_with_interval(POLL))
            .concurrency(slots)
            .data(work.handler)
            .build(no_op);
        Ok(Box::new(tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("the worker has ended: {error}");
            }
        })))
    }

    async fn unfinished(&self) -> Result<u64> {
        let count = "select count(*) from Jobs where status <> 'Done'";
        let count: i64 = sqlx::query_scalar(count).fetch_one(&self.pool).await?;
        Ok(u64::try_from(count)?)
    }
}
