//! chasquimq, which needs Redis 8.6.

use std::ops::Range;
use std::process::ExitCode;

use bytes::Bytes;
use chasquimq::{Consumer, ConsumerConfig, Producer, ProducerConfig};
use fred::clients::Client;
use fred::interfaces::{ClientLike, ServerInterface, StreamsInterface};
use fred::types::InfoKind;
use fred::types::config::Config;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use windlass_bench_harness::{Arguments, Candidate, Guard, Result, Subject, Unsupported, Work};

const QUEUE: &str = "no-op";

/// The oldest server that has the commands it needs.
const SERVER: (u64, u64) = (8, 6);

fn main() -> ExitCode {
    let settings = "concurrency = slots; keeps no state of finished jobs";
    windlass_bench_harness::main(&[Subject::new::<Chasquimq>("redis", "chasquimq", settings).reads_ahead()])
}

#[derive(Clone, Serialize, Deserialize)]
struct NoOp {
    number: u64,
}

struct Chasquimq {
    url: String,
    client: Client,
    producer: Producer<NoOp>,
}

impl Candidate for Chasquimq {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let url = arguments.url.clone();
        let client = Client::new(Config::from_url(&url)?, None, None, None);
        client.init().await?;
        let about: String = client.info(Some(InfoKind::Server)).await?;
        if version(&about).is_none_or(|version| version < SERVER) {
            return Err(Unsupported("needs Redis 8.6").into());
        }
        let config = ProducerConfig { queue_name: QUEUE.to_owned(), ..ProducerConfig::default() };
        let producer = Producer::connect(&url, config).await?;
        Ok(Self { url, client, producer })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result {
        self.producer.add(NoOp { number }).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result {
        let jobs: Vec<NoOp> = numbers.map(|number| NoOp { number }).collect();
        if !jobs.is_empty() {
            self.producer.add_bulk(jobs).await?;
        }
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard> {
        work.without_transactions()?;
        let config = ConsumerConfig {
            queue_name: QUEUE.to_owned(),
            concurrency: usize::try_from(work.slots)?,
            ..ConsumerConfig::default()
        };
        let consumer = Consumer::<NoOp>::new(self.url.clone(), config);
        let handler = work.handler;
        let run = move |job: chasquimq::Job<NoOp>| {
            handler.call(job.payload.number);
            std::future::ready(Ok(Bytes::new()))
        };
        Ok(Box::new(tokio::spawn(async move {
            if let Err(error) = consumer.run(run, CancellationToken::new()).await {
                eprintln!("the worker has ended: {error}");
            }
        })))
    }

    /// A finished job is acknowledged and deleted from the stream.
    async fn unfinished(&self) -> Result<u64> {
        Ok(self.client.xlen(self.producer.stream_key()).await?)
    }
}

/// Reads the version of a Redis server from its `INFO`. Valkey reports the version of Redis that it was made from.
fn version(about: &str) -> Option<(u64, u64)> {
    let version = about.lines().find_map(|line| line.strip_prefix("redis_version:"))?;
    let mut numbers = version.trim().split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
