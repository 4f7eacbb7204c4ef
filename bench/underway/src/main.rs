//! underway.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Postgres, Transaction};
use tokio::runtime::Handle;
use underway::{Queue, Task, Worker};
use windlass_bench_harness::{Arguments, Candidate, Guard, Handler, Result, Subject, Work};

/// Connections of the application, as for every library.
const CONNECTIONS: u32 = 50;

fn main() -> ExitCode {
    let settings =
        "concurrency_limit = slots; every job is completed in a transaction that its handler can use";
    windlass_bench_harness::main(&[Subject::new::<Underway>("postgres", "underway", settings).share(0.02)])
}

struct NoOp {
    /// Absent in the task that only starts jobs.
    handler: Option<Handler>,
}

impl Task for NoOp {
    type Input = u64;
    type Output = ();

    async fn execute(&self, _tx: Transaction<'_, Postgres>, number: u64) -> underway::task::Result<()> {
        if let Some(handler) = &self.handler {
            handler.call(number);
        }
        Ok(())
    }
}

struct Underway {
    pool: PgPool,
    queue: Arc<Queue<NoOp>>,
}

impl Candidate for Underway {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect(&arguments.url)
            .await?;
        // The future of the migrations cannot move between threads.
        tokio::task::block_in_place(|| Handle::current().block_on(underway::run_migrations(&pool)))?;
        let queue = Queue::builder().name("no-op").pool(pool.clone()).build().await?;
        Ok(Self { pool, queue: Arc::new(queue) })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        self.queue.enqueue(&self.pool, &NoOp { handler: None }, &number).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        let numbers: Vec<u64> = numbers.collect();
        if !numbers.is_empty() {
            self.queue.enqueue_multi(&self.pool, &NoOp { handler: None }, &numbers).await?;
        }
        Ok(())
    }

    /// A handler always has a transaction, so both kinds of drain are the same.
    async fn work(&self, work: Work) -> Result<Guard> {
        let mut worker = Worker::new(Arc::clone(&self.queue), NoOp { handler: Some(work.handler) });
        worker.set_concurrency_limit(usize::try_from(work.slots)?);
        Ok(Box::new(tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("the worker has ended: {error}");
            }
        })))
    }

    async fn unfinished(&self) -> Result<u64> {
        let count = "select count(*) from underway.task where state <> 'succeeded'";
        let count: i64 = sqlx::query_scalar(count).fetch_one(&self.pool).await?;
        Ok(u64::try_from(count)?)
    }
}
