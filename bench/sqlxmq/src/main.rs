//! sqlxmq.

use std::path::Path;
use std::process::ExitCode;

use sqlx::PgPool;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgPoolOptions;
use sqlxmq::{CurrentJob, JobBuilder, JobRunnerOptions};
use windlass_bench_harness::{Arguments, Candidate, Guard, Result, Subject, Work};

/// Connections of the application, as for every library.
const CONNECTIONS: u32 = 50;

fn main() -> ExitCode {
    let settings = "concurrency from half the slots to all of them";
    windlass_bench_harness::main(&[Subject::new::<Sqlxmq>("postgres", "sqlxmq", settings).share(0.2)])
}

struct Sqlxmq {
    pool: PgPool,
}

impl Candidate for Sqlxmq {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect(&arguments.url)
            .await?;
        Migrator::new(Path::new(env!("MIGRATIONS"))).await?.run(&pool).await?;
        Ok(Self { pool })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        JobBuilder::new("no-op").set_json(&number)?.spawn(&self.pool).await?;
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        let slots = usize::try_from(work.slots)?;
        let runner = JobRunnerOptions::new(&self.pool, move |job| {
            let work = work.clone();
            tokio::spawn(async move {
                if let Err(error) = finish(job, &work).await {
                    eprintln!("a job has failed: {error}");
                }
            });
        })
        .set_concurrency(slots / 2, slots)
        .run()
        .await?;
        Ok(Box::new(runner))
    }

    /// Completed jobs are deleted. The table has a row that is no job.
    async fn unfinished(&self) -> Result<u64> {
        let count = "select count(*) from mq_msgs where id <> uuid_nil()";
        let count: i64 = sqlx::query_scalar(count).fetch_one(&self.pool).await?;
        Ok(u64::try_from(count)?)
    }
}

async fn finish(mut job: CurrentJob, work: &Work) -> Result {
    let number = job.json()?.ok_or("a job without input")?;
    if work.in_transactions {
        let tx = job.pool().clone().begin().await?;
        work.handler.call(number);
        job.complete_with_transaction(tx).await?;
    } else {
        work.handler.call(number);
        job.complete().await?;
    }
    Ok(())
}
