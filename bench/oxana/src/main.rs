//! oxana.

use std::convert::Infallible;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use oxana::Storage;
use serde::{Deserialize, Serialize};
use windlass_bench_harness::{self as harness, Arguments, Candidate, Guard, Handler, Subject, Work};

fn main() -> ExitCode {
    let settings = "queue concurrency = slots, dispatcher_idle_sleep 1 ms";
    harness::main(&[Subject::new::<Oxana>("redis", "oxana", settings).share(0.5)])
}

#[derive(Debug, Serialize, Deserialize, oxana::Job)]
struct NoOpJob {
    number: u64,
}

#[derive(Debug, Clone)]
struct Context {
    handler: Handler,
}

#[derive(oxana::Worker)]
#[oxana(context = Context, error = Infallible, job = NoOpJob)]
struct NoOpWorker {
    context: Context,
}

impl NoOpWorker {
    async fn process(&self, job: NoOpJob, _ctx: &oxana::JobContext) -> Result<(), Infallible> {
        self.context.handler.call(job.number);
        Ok(())
    }
}

#[derive(oxana::Queue)]
#[oxana(key = "no-op")]
struct NoOpQueue;

struct Oxana {
    storage: Storage,
}

impl Candidate for Oxana {
    async fn open(arguments: &Arguments) -> harness::Result<Self> {
        Ok(Self { storage: Storage::from_url(arguments.url.clone())? })
    }

    async fn start(&self, _producer: u64, number: u64) -> harness::Result {
        self.storage.enqueue(NoOpQueue, NoOpJob { number }).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> harness::Result {
        let jobs: Vec<NoOpJob> = numbers.map(|number| NoOpJob { number }).collect();
        if !jobs.is_empty() {
            self.storage.enqueue_list(NoOpQueue, jobs).await?;
        }
        Ok(())
    }

    async fn work(&self, work: Work) -> harness::Result<Guard> {
        work.without_transactions()?;
        let runtime = self
            .storage
            .runtime(Context { handler: work.handler })
            .queue_with_concurrency::<NoOpQueue>(usize::try_from(work.slots)?)
            .worker::<NoOpWorker, NoOpJob>()
            .dispatcher_idle_sleep(Duration::from_millis(1));
        Ok(Box::new(tokio::spawn(async move {
            if let Err(error) = runtime.run().await {
                eprintln!("the worker has ended: {error}");
            }
        })))
    }

    /// Completed jobs are deleted.
    async fn unfinished(&self) -> harness::Result<u64> {
        Ok(u64::try_from(self.storage.jobs_count().await?)?)
    }
}
