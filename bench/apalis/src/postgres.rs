use std::ops::Range;

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Mutex;
use windlass_bench_harness::{Arguments, Candidate, Guard, Result, Work};

use crate::{NoOp, POLL, PRODUCERS, QUEUE, index, no_op};

/// Connections of the application, as for every library.
const CONNECTIONS: u32 = 50;

pub struct Postgres {
    pool: PgPool,
    producers: Vec<Mutex<PostgresStorage<NoOp>>>,
}

impl Candidate for Postgres {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect(&arguments.url)
            .await?;
        // Its column type is installed by the first migration, which a pooled connection has to know.
        sqlx::query("create extension if not exists hstore").execute(&pool).await?;
        PostgresStorage::setup(&pool).await?;
        let storage = |_| Mutex::new(PostgresStorage::new(&pool).with_config(Config::default().queue(QUEUE)));
        Ok(Self { producers: (0..PRODUCERS).map(storage).collect(), pool })
    }

    async fn start(&self, producer: u64, number: u64) -> Result {
        self.producers[index(producer)].lock().await.push(NoOp { number }).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        let jobs = numbers.map(|number| NoOp { number }).collect();
        self.producers[0].lock().await.push_bulk(jobs).await?;
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let slots = usize::try_from(work.slots)?;
        let config = Config::default().queue(QUEUE).batch_size(slots);
        let storage = PostgresStorage::<NoOp>::new(&self.pool).with_config(config);
        let worker = WorkerBuilder::new("bench")
            .backend(storage.with_pubsub().poll_with_interval(POLL))
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
        let count = "select count(*) from apalis.jobs where status <> 'Done'";
        let count: i64 = sqlx::query_scalar(count).fetch_one(&self.pool).await?;
        Ok(u64::try_from(count)?)
    }
}
