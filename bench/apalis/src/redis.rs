use std::ops::Range;

use apalis::prelude::*;
use apalis_redis::{Config, ConnectionManager, RedisStorage};
use tokio::sync::Mutex;
use windlass_bench_harness::{Arguments, Candidate, Guard, Result, Work};

use crate::{NoOp, POLL, PRODUCERS, QUEUE, index, no_op};

pub struct Redis {
    connection: ConnectionManager,
    producers: Vec<Mutex<RedisStorage<NoOp>>>,
    /// The number of started jobs. The store has no count of jobs that are not done.
    started: std::sync::atomic::AtomicU64,
}

fn config() -> Config {
    Config::default().queue(QUEUE)
}

impl Candidate for Redis {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let connection = apalis_redis::connect(arguments.url.clone()).await?;
        let storage = |_| Mutex::new(RedisStorage::new(connection.clone()).with_config(config()));
        Ok(Self { producers: (0..PRODUCERS).map(storage).collect(), connection, started: 0.into() })
    }

    async fn start(&self, producer: u64, number: u64) -> Result {
        self.producers[index(producer)].lock().await.push(NoOp { number }).await?;
        self.started.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        let jobs: Vec<NoOp> = numbers.map(|number| NoOp { number }).collect();
        if !jobs.is_empty() {
            self.started.fetch_add(u64::try_from(jobs.len())?, std::sync::atomic::Ordering::Relaxed);
            self.producers[0].lock().await.push_bulk(jobs).await?;
        }
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let slots = usize::try_from(work.slots)?;
        let storage =
            RedisStorage::<NoOp>::new(self.connection.clone()).with_config(config().batch_size(slots));
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
        let mut connection = self.connection.clone();
        let done: u64 =
            redis::cmd("SCARD").arg(config().done_jobs_set()).query_async(&mut connection).await?;
        Ok(self.started.load(std::sync::atomic::Ordering::Relaxed).saturating_sub(done))
    }
}
