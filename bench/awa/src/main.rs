//! awa.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Handle;
use windlass_bench_harness::{Arguments, Candidate, Guard, Result, Subject, Work};

/// Connections of the application, as for every library.
const CONNECTIONS: u32 = 50;

fn main() -> ExitCode {
    let settings = "max_workers = slots, poll_interval 10 ms, batches by `enqueue_params_copy`";
    windlass_bench_harness::main(&[Subject::new::<Awa>("postgres", "awa", settings).share(0.05)])
}

async fn migrate(pool: &PgPool, storage: &QueueStorage) -> Result {
    awa::migrations::run(pool).await?;
    storage.install(pool).await?;
    Ok(())
}

#[derive(Serialize, Deserialize, JobArgs)]
struct NoOp {
    number: u64,
}

struct Awa {
    pool: PgPool,
    storage: QueueStorage,
}

impl Candidate for Awa {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect(&arguments.url)
            .await?;
        let storage = QueueStorage::new(QueueStorageConfig::default())?;
        // The futures of the migrations cannot move between threads.
        tokio::task::block_in_place(|| Handle::current().block_on(migrate(&pool, &storage)))?;
        Ok(Self { pool, storage })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        awa::insert(&self.pool, &NoOp { number }).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        let kind = NoOp::kind();
        let job = |number| -> Result<InsertParams> {
            let args = serde_json::to_value(NoOp { number })?;
            Ok(InsertParams { kind: kind.to_owned(), args, opts: InsertOpts::default() })
        };
        let jobs: Vec<InsertParams> = numbers.map(job).collect::<Result<_>>()?;
        self.storage.enqueue_params_copy(&self.pool, &jobs).await?;
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let queue = QueueConfig {
            max_workers: work.slots,
            poll_interval: Duration::from_millis(10),
            ..QueueConfig::default()
        };
        let client = Client::builder(self.pool.clone())
            .queue("default", queue)
            .register::<NoOp, _, _>(move |job, _| {
                work.handler.call(job.number);
                std::future::ready(Ok(JobResult::Completed))
            })
            .build()?;
        let client = Arc::new(client);
        client.start().await?;
        Ok(Box::new(client))
    }

    async fn unfinished(&self) -> Result<u64> {
        let counts = awa::admin::state_counts(&self.pool).await?;
        let open = counts.iter().filter(|(state, _)| !matches!(state, awa::JobState::Completed));
        Ok(u64::try_from(open.map(|(_, count)| count).sum::<i64>())?)
    }
}
