//! apalis on PostgreSQL, Redis and SQLite.

mod postgres;
mod redis;
mod sqlite;

use std::process::ExitCode;
use std::time::Duration;

use apalis::prelude::{BoxDynError, Data};
use serde::{Deserialize, Serialize};
use windlass_bench_harness::{Handler, Subject};

/// Producers that each have a storage of their own, because a storage starts one job at a time.
const PRODUCERS: u64 = 16;

const QUEUE: &str = "no-op";

/// How often a worker looks for jobs without a notification.
const POLL: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let notified = "batch_size and concurrency = slots, `with_pubsub`, poll interval 10 ms";
    let polling = "batch_size and concurrency = slots, poll interval 10 ms";
    windlass_bench_harness::main(&[
        Subject::new::<postgres::Postgres>("postgres", "apalis-postgres", notified).share(0.25).reads_ahead(),
        Subject::new::<redis::Redis>("redis", "apalis-redis", polling).share(0.2).reads_ahead(),
        Subject::new::<sqlite::Sqlite>("sqlite", "apalis-sqlite", polling).share(0.1).reads_ahead(),
    ])
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct NoOp {
    number: u64,
}

async fn no_op(job: NoOp, handler: Data<Handler>) -> Result<(), BoxDynError> {
    handler.call(job.number);
    Ok(())
}

/// Returns the index of a producer's storage.
fn index(producer: u64) -> usize {
    usize::try_from(producer % PRODUCERS).unwrap_or_default()
}
