//! Windlass and bare stores, as candidates in the comparison with other libraries.
//!
//! The runner starts this program once for each measurement, in the same way as the programs of the other libraries.

mod postgres;
mod redis;
mod sqlite;

use std::future::Future;
use std::ops::Range;

use tokio::sync::OnceCell;
use windlass::command::Types;
use windlass::queue::Item;
use windlass::{Attempt, BoxError, Client, Ctx, Data, Done, Queue, Store, Transactional, Worker};
use windlass_bench_harness::{Arguments, Candidate, Guard, Handler, Subject, Unsupported, Work, Workload};

use crate::workload::NoOp;

/// Name of Windlass in the comparison.
pub const WINDLASS: &str = "Windlass";

/// Name of Windlass with jobs that are acquired in advance, in the comparison.
pub const PREFETCH: &str = "Windlass, prefetch";

/// Name of the bare store in the comparison.
pub const BARE: &str = "bare";

/// Returns the subjects of this program.
#[must_use]
pub fn subjects() -> Vec<Subject> {
    let defaults = "concurrency = slots";
    let prefetch = "concurrency = slots, prefetch = 4 × slots";
    // With 100 slots, as many jobs as the local queue of graphile_worker holds.
    let prefetch_more = "concurrency = slots, prefetch = 9 × slots";
    let postgres = "a plain table: inserts by 16 connections; 4 connections that each claim as many jobs as there are \
                    slots and complete them in one statement; in transactions, 50 connections that claim and complete \
                    one job at a time; round trips by `NOTIFY`";
    let redis = "scripts: a hash per job and a list; 2 clients that each claim and complete as many jobs as there are \
                 slots";
    let sqlite =
        "a plain table and one connection, which claims and completes as many jobs as there are slots";
    vec![
        Subject::new::<Windlass<postgres::Store, 0>>("postgres", WINDLASS, defaults),
        Subject::new::<Windlass<postgres::Store, 9>>("postgres", PREFETCH, prefetch_more).reads_ahead(),
        Subject::new::<postgres::Bare>("postgres", BARE, postgres),
        Subject::new::<Windlass<redis::Store, 0>>("redis", WINDLASS, defaults),
        Subject::new::<Windlass<redis::Store, 4>>("redis", PREFETCH, prefetch).reads_ahead(),
        Subject::new::<redis::Bare>("redis", BARE, redis),
        Subject::new::<Windlass<sqlite::Store, 0>>("sqlite", WINDLASS, defaults),
        Subject::new::<sqlite::Bare>("sqlite", BARE, sqlite),
    ]
}

/// A store to open.
trait Open: Send + Sync + 'static {
    type Store: Store;

    fn open(url: &str) -> impl Future<Output = Result<Client<Self::Store>, BoxError>> + Send;

    /// Runs a worker that completes each job in a transaction of its handler.
    fn work_in_transactions(
        client: &Client<Self::Store>,
        work: Work,
    ) -> impl Future<Output = Result<Guard, BoxError>> + Send;
}

/// Windlass on a store. The worker acquires up to `PREFETCH` jobs per slot in advance.
struct Windlass<O: Open, const PREFETCH: u32> {
    client: Client<O::Store>,
    /// The workload decides between a worker and a consumer of a queue.
    workload: Workload,
    queue: OnceCell<Queue<u64, u64>>,
}

impl<O: Open, const PREFETCH: u32> Windlass<O, PREFETCH> {
    async fn queue(&self) -> Result<&Queue<u64, u64>, BoxError> {
        let build = async || Ok(self.client.queue::<u64, u64>("round-trip").build()?);
        self.queue.get_or_try_init(build).await
    }
}

impl<O: Open, const PREFETCH: u32> Candidate for Windlass<O, PREFETCH> {
    async fn open(arguments: &Arguments) -> Result<Self, BoxError> {
        if PREFETCH > 0 && arguments.workload != Workload::Drain {
            return Err(Unsupported("the same as without a prefetch").into());
        }
        let client = O::open(&arguments.url).await?;
        Ok(Self { client, workload: arguments.workload, queue: OnceCell::new() })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result<(), BoxError> {
        self.client.start(NoOp { number }).await?;
        Ok(())
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result<(), BoxError> {
        self.client.start_many(numbers.map(|number| NoOp { number })).await?;
        Ok(())
    }

    async fn work(&self, work: Work) -> Result<Guard, BoxError> {
        if work.in_transactions {
            return O::work_in_transactions(&self.client, work).await;
        }
        if self.workload == Workload::RoundTrip {
            let echo = |item: Item<u64>| async move { Ok::<_, BoxError>(*item.payload()) };
            return Ok(Box::new(self.queue().await?.consume(echo).concurrency(work.slots).await?));
        }
        let worker = Worker::new(&self.client).concurrency(work.slots).prefetch(PREFETCH * work.slots);
        let worker = worker.data(work.handler).handle(count);
        Ok(Box::new(worker.start().await?))
    }

    async fn unfinished(&self) -> Result<u64, BoxError> {
        let counts = self.client.count(Types::All).await?.types;
        Ok(counts.iter().map(|count| count.blocked + count.pending + count.running).sum())
    }

    async fn round_trip(&self, number: u64) -> Result<(), BoxError> {
        let queue = self.queue().await?;
        let reply = queue.enqueue_and_wait(number.to_string(), number).await?;
        if reply == number { Ok(()) } else { Err("a request received the result of another".into()) }
    }
}

async fn count(job: Ctx<NoOp>, Data(handler): Data<Handler>) -> Result<u64, BoxError> {
    handler.call(job.input().number);
    Ok(job.input().number)
}

async fn finish<S: Transactional>(
    attempt: Attempt<NoOp, S>,
    Data(handler): Data<Handler>,
) -> Result<Done<NoOp, S>, BoxError> {
    let step = attempt.begin().await?;
    handler.call(attempt.input().number);
    Ok(step.done(attempt.input().number)?)
}

async fn work_in_transactions<S: Transactional>(client: &Client<S>, work: Work) -> Result<Guard, BoxError> {
    let worker = Worker::new(client).concurrency(work.slots).data(work.handler).handle(finish);
    Ok(Box::new(worker.start().await?))
}

/// Returns the error of a bare store that does not run a workload.
fn not_compared() -> BoxError {
    Unsupported("no goal compares with it").into()
}
