//! bullmq-official, the Rust port of BullMQ by its authors.

use std::ops::Range;
use std::process::ExitCode;

use bullmq::options::RedisConnectionOptions;
use bullmq::queue::BulkJob;
use bullmq::{Job, Queue, QueueOptions, Worker, WorkerOptions};
use serde_json::{Value, json};
use windlass_bench_harness::{Arguments, Candidate, Guard, Result, Subject, Work};

const QUEUE: &str = "no-op";

fn main() -> ExitCode {
    let settings = "concurrency = slots";
    windlass_bench_harness::main(&[Subject::new::<Bullmq>("redis", "bullmq-official", settings)])
}

struct Bullmq {
    url: String,
    queue: Queue,
}

impl Bullmq {
    fn connection(url: &str) -> RedisConnectionOptions {
        RedisConnectionOptions::new().url(url)
    }
}

impl Candidate for Bullmq {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let url = arguments.url.clone();
        let options = QueueOptions { connection: Self::connection(&url), ..QueueOptions::default() };
        let queue = Queue::with_options(QUEUE, options).await?;
        Ok(Self { url, queue })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        self.queue.add("no-op", json!({ "number": number })).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        let jobs = numbers.map(|number| BulkJob::new("no-op", json!({ "number": number }))).collect();
        self.queue.add_bulk(jobs).await?;
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let options = WorkerOptions {
            connection: Self::connection(&self.url),
            concurrency: usize::try_from(work.slots)?,
            ..WorkerOptions::default()
        };
        let run = move |job: Job, _token| {
            work.handler.call(job.data()["number"].as_u64().unwrap_or_default());
            std::future::ready(Ok(Value::from(0)))
        };
        Ok(Box::new(Worker::with_options(QUEUE, run, options).await?))
    }

    async fn unfinished(&self) -> Result<u64> {
        let counts = self.queue.get_job_counts().await?;
        Ok(counts.waiting + counts.active + counts.delayed + counts.prioritized + counts.failed)
    }
}
