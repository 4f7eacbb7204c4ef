//! graphile_worker, with and without its local queue.

use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerContextExt,
    WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use windlass_bench_harness::{
    Arguments, Candidate, Guard, Handler, Result, Subject, Unsupported, Work, Workload,
};

/// Connections of the application, as for every library.
const CONNECTIONS: u32 = 50;

fn main() -> ExitCode {
    let plain = "concurrency = slots, poll_interval 1 ms";
    let local = "concurrency = slots, local queue of 1,000 jobs, complete_job_batch_delay 1 ms";
    windlass_bench_harness::main(&[
        Subject::new::<Graphile<false>>("postgres", "graphile_worker", plain).share(0.1),
        Subject::new::<Graphile<true>>("postgres", "graphile_worker, local queue", local).reads_ahead(),
    ])
}

struct Graphile<const LOCAL: bool> {
    pool: PgPool,
    utils: WorkerUtils,
}

#[derive(Clone, Serialize, Deserialize)]
struct NoOp {
    number: u64,
}

impl TaskHandler for NoOp {
    const IDENTIFIER: &'static str = "no_op";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let handler = context.get_ext::<Handler>().ok_or("no handler")?;
        handler.call(self.number);
        Ok::<(), String>(())
    }
}

impl<const LOCAL: bool> Candidate for Graphile<LOCAL> {
    async fn open(arguments: &Arguments) -> Result<Self> {
        if LOCAL && matches!(arguments.workload, Workload::Start | Workload::StartBatched) {
            return Err(Unsupported("jobs are started in the same way as without the local queue").into());
        }
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect(&arguments.url)
            .await?;
        let options = WorkerOptions::default().pg_pool(pool.clone()).define_job::<NoOp>();
        let utils = options.init().await?.create_utils();
        Ok(Self { pool, utils })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        self.utils.add_job(NoOp { number }, JobSpec::default()).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        let spec = JobSpec::default();
        let jobs: Vec<(NoOp, &JobSpec)> = numbers.map(|number| (NoOp { number }, &spec)).collect();
        if !jobs.is_empty() {
            self.utils.add_jobs::<NoOp>(&jobs).await?;
        }
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let mut options = WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .concurrency(usize::try_from(work.slots)?)
            .listen_os_shutdown_signals(false)
            .add_extension(work.handler)
            .define_job::<NoOp>();
        options = if LOCAL {
            let queue = LocalQueueConfig::default().with_size(1_000);
            options.local_queue(queue).complete_job_batch_delay(Duration::from_millis(1))
        } else {
            options.poll_interval(Duration::from_millis(1))
        };
        let worker = options.init().await?;
        Ok(Box::new(tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("the worker has ended: {error}");
            }
        })))
    }

    /// Completed jobs are deleted.
    async fn unfinished(&self) -> Result<u64> {
        let count: i64 = sqlx::query_scalar("select count(*) from graphile_worker._private_jobs")
            .fetch_one(&self.pool)
            .await?;
        Ok(u64::try_from(count)?)
    }
}
