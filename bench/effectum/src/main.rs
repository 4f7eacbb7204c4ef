//! effectum, which keeps its jobs in SQLite (`synchronous = normal`).

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use windlass_bench_harness::{Arguments, Candidate, Guard, Handler, Result, Subject, Work};

fn main() -> ExitCode {
    let settings = "max_concurrency = slots, min_concurrency half of it";
    windlass_bench_harness::main(&[Subject::new::<Effectum>("sqlite", "effectum", settings)])
}

struct Effectum {
    queue: Arc<Queue>,
}

fn job(number: u64) -> Job {
    Job::builder("no-op").payload(number.to_string().into_bytes()).build()
}

impl Candidate for Effectum {
    async fn open(arguments: &Arguments) -> Result<Self> {
        Ok(Self { queue: Arc::new(Queue::new(Path::new(&arguments.url)).await?) })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        self.queue.add_job(job(number)).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        if !numbers.is_empty() {
            self.queue.add_jobs(numbers.map(job).collect()).await?;
        }
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let slots = u16::try_from(work.slots)?;
        let worker = Worker::builder(&self.queue, Arc::new(work.handler))
            .max_concurrency(slots)
            .min_concurrency(slots / 2)
            .jobs([JobRunner::builder("no-op", no_op).build()])
            .build()
            .await?;
        Ok(Box::new(worker))
    }

    async fn unfinished(&self) -> Result<u64> {
        let counts = self.queue.num_active_jobs().await?;
        Ok(counts.pending + counts.running)
    }
}

async fn no_op(job: RunningJob, handler: Arc<Handler>) -> std::result::Result<u64, effectum::Error> {
    let number = std::str::from_utf8(&job.payload).ok().and_then(|text| text.parse().ok());
    handler.call(number.unwrap_or_default());
    Ok(0)
}
