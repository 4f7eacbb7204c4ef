//! rusty-sidekiq. It removes a job from Redis before the job runs, so a drain ends with the last handler.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use sidekiq::{Processor, ProcessorConfig, RedisConnectionManager, RedisPool, Worker};
use windlass_bench_harness::{Arguments, Candidate, Guard, Handler, Result, Subject, Work};

const QUEUE: &str = "no-op";

/// Connections of the application, as for every library. A worker holds one for each slot.
const CONNECTIONS: u32 = 50;

fn main() -> ExitCode {
    let settings = "num_workers = slots, a connection per slot; removes jobs from Redis before they run";
    windlass_bench_harness::main(&[Subject::new::<Sidekiq>("redis", "rusty-sidekiq", settings)])
}

struct Sidekiq {
    url: String,
    pool: RedisPool,
}

async fn connect(url: &str, connections: u32) -> Result<RedisPool> {
    let manager = RedisConnectionManager::new(url)?;
    Ok(RedisPool::builder().max_size(connections).build(manager).await?)
}

#[derive(Clone, Serialize, Deserialize)]
struct Input {
    number: u64,
}

#[derive(Clone)]
struct NoOp {
    handler: Handler,
}

#[async_trait::async_trait]
impl Worker<Input> for NoOp {
    fn opts() -> sidekiq::WorkerOpts<Input, Self> {
        sidekiq::WorkerOpts::new().queue(QUEUE)
    }

    async fn perform(&self, input: Input) -> sidekiq::Result<()> {
        self.handler.call(input.number);
        Ok(())
    }
}

impl Candidate for Sidekiq {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let url = arguments.url.clone();
        Ok(Self { pool: connect(&url, CONNECTIONS).await?, url })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        NoOp::perform_async(&self.pool, Input { number }).await?;
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let pool = connect(&self.url, work.slots + CONNECTIONS).await?;
        let config = ProcessorConfig::default().num_workers(usize::try_from(work.slots)?);
        let mut processor = Processor::new(pool, vec![QUEUE.to_owned()]).with_config(config);
        processor.register(NoOp { handler: work.handler });
        Ok(Box::new(tokio::spawn(processor.run())))
    }

    async fn unfinished(&self) -> Result<u64> {
        let mut connection = self.pool.get().await?;
        let mut command = connection.cmd_with_key("LLEN", format!("queue:{QUEUE}"));
        let count = command.query_async(connection.unnamespaced_borrow_mut()).await?;
        Ok(count)
    }
}
