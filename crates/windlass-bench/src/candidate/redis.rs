use std::ops::Range;

use redis::Script;
use redis::aio::MultiplexedConnection;
use windlass::redis::RedisStore;
use windlass::{BoxError, Client};
use windlass_bench_harness::{Arguments, Candidate, Guard, Unsupported, Work, Workload};

use super::Open;

/// Clients that claim and complete jobs.
const CLIENTS: u32 = 2;

/// Stores the jobs with these numbers.
const CREATE: &str = "
for i = 1, #ARGV do
  redis.call('HSET', 'job:' .. ARGV[i], 'status', 'pending', 'input', '{\"number\":' .. ARGV[i] .. '}')
end
redis.call('LPUSH', 'ready', unpack(ARGV))";

/// Moves up to this many jobs to the running ones. Returns their numbers and inputs.
const CLAIM: &str = "
local jobs = redis.call('RPOP', 'ready', ARGV[1])
if not jobs then return {} end
redis.call('SADD', 'running', unpack(jobs))
local reply = {}
for i = 1, #jobs do
  reply[2 * i - 1] = jobs[i]
  reply[2 * i] = redis.call('HGET', 'job:' .. jobs[i], 'input')
end
return reply";

/// Completes jobs that run, given as numbers and outputs.
const COMPLETE: &str = "
for i = 1, #ARGV, 2 do
  if redis.call('SREM', 'running', ARGV[i]) == 1 then
    redis.call('HSET', 'job:' .. ARGV[i], 'status', 'completed', 'output', ARGV[i + 1])
  end
end";

pub(super) struct Store;

impl Open for Store {
    type Store = RedisStore;

    async fn open(url: &str) -> Result<Client<RedisStore>, BoxError> {
        Ok(Client::new(windlass::redis::connect(url).await?))
    }

    async fn work_in_transactions(_: &Client<RedisStore>, _: Work) -> Result<Guard, BoxError> {
        Err(Unsupported("Redis has no transactions that a handler could use").into())
    }
}

/// A hash per job, a list of those that wait and a set of those that run.
pub(super) struct Bare {
    client: redis::Client,
    connection: MultiplexedConnection,
    create: Script,
}

impl Candidate for Bare {
    async fn open(arguments: &Arguments) -> Result<Self, BoxError> {
        if matches!(arguments.workload, Workload::Sustained | Workload::Latency | Workload::RoundTrip) {
            return Err(super::not_compared());
        }
        let client = redis::Client::open(arguments.url.as_str())?;
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Self { client, connection, create: Script::new(CREATE) })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result<(), BoxError> {
        Ok(self.create.arg(number).invoke_async(&mut self.connection.clone()).await?)
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result<(), BoxError> {
        if numbers.is_empty() {
            return Ok(());
        }
        let mut create = self.create.prepare_invoke();
        for number in numbers {
            create.arg(number);
        }
        Ok(create.invoke_async(&mut self.connection.clone()).await?)
    }

    async fn work(&self, work: Work) -> Result<Guard, BoxError> {
        work.without_transactions()?;
        for _ in 0..CLIENTS {
            let mut connection = self.client.get_multiplexed_async_connection().await?;
            let work = work.clone();
            tokio::spawn(async move {
                let (claim, complete) = (Script::new(CLAIM), Script::new(COMPLETE));
                loop {
                    let jobs: Vec<(u64, Vec<u8>)> =
                        claim.arg(work.slots).invoke_async(&mut connection).await?;
                    if jobs.is_empty() {
                        return Ok::<_, BoxError>(());
                    }
                    let mut complete = complete.prepare_invoke();
                    for (number, input) in jobs {
                        work.handler.call(number);
                        complete.arg(number).arg(input);
                    }
                    let () = complete.invoke_async(&mut connection).await?;
                }
            });
        }
        Ok(Box::new(()))
    }

    async fn unfinished(&self) -> Result<u64, BoxError> {
        let mut pipe = redis::pipe();
        pipe.cmd("LLEN").arg("ready").cmd("SCARD").arg("running");
        let (waiting, running): (u64, u64) = pipe.query_async(&mut self.connection.clone()).await?;
        Ok(waiting + running)
    }
}
