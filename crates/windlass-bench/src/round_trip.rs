//! Measures the queue: the time from enqueueing a job to receiving its result.
//!
//! The method is that of the library on which Windlass's queue is modeled: one consumer with 100 slots, callers that
//! wait for a result before they send the next request, and 100 requests to warm up. Each caller times its own
//! requests.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use windlass::queue::Item;
use windlass::{BoxError, Client, Queue, Store};

/// The requests of one measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scenario {
    /// Total number of requests.
    pub requests: u64,
    /// Number of concurrent callers.
    pub callers: u64,
    /// Size of each payload.
    pub payload_bytes: usize,
}

/// The scenarios of that library's own benchmark.
pub const SCENARIOS: [Scenario; 5] = [
    Scenario { requests: 100, callers: 1, payload_bytes: 100 },
    Scenario { requests: 500, callers: 10, payload_bytes: 100 },
    Scenario { requests: 1_000, callers: 50, payload_bytes: 100 },
    Scenario { requests: 200, callers: 10, payload_bytes: 10_000 },
    Scenario { requests: 2_000, callers: 100, payload_bytes: 100 },
];

/// Slots of the consumer.
const SLOTS: u32 = 100;
/// Requests before the measurement starts.
const WARM_UP: u64 = 100;
/// Timeout for stopping the consumer, which is idle by then.
const STOP: Duration = Duration::from_secs(10);

/// The results of a scenario. Times are in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct RoundTrips {
    /// The scenario.
    pub scenario: Scenario,
    /// Answers per second, over all callers.
    pub per_second: f64,
    /// Shortest time of a request.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Longest time of a request.
    pub max: f64,
    /// Mean.
    pub mean: f64,
}

/// Runs a scenario. The client's store should be empty.
///
/// # Errors
/// If the queue returns an error, or the result of another request.
pub async fn run<S: Store>(client: &Client<S>, scenario: Scenario) -> Result<RoundTrips, BoxError> {
    let queue = client.queue::<String, usize>("round-trip").build()?;
    let length = |item: Item<String>| async move { Ok::<_, BoxError>(item.payload().len()) };
    let consumer = queue.consume(length).concurrency(SLOTS).await?;
    let warm_up = Scenario { requests: WARM_UP, callers: 1, ..scenario };
    ask(&queue, "warm-up", warm_up).await?;
    let began = Instant::now();
    let times = ask(&queue, "request", scenario).await?;
    let took = began.elapsed();
    consumer.stop(STOP).await;
    Ok(summary(scenario, took, times))
}

/// Formats the results as a table.
#[must_use]
pub fn table(measured: &[RoundTrips]) -> String {
    let mut table = format!(
        "{:<34}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n",
        "round trip, µs", "answers/s", "min", "p50", "p95", "p99", "max", "mean"
    );
    for RoundTrips { scenario, per_second, min, p50, p95, p99, max, mean } in measured {
        let Scenario { requests, callers, payload_bytes } = scenario;
        let name = format!("{requests} × {callers} callers, {payload_bytes} B");
        let _ = writeln!(
            table,
            "{name:<34}{per_second:>10.0}{min:>10.0}{p50:>10.0}{p95:>10.0}{p99:>10.0}{max:>10.0}{mean:>10.0}"
        );
    }
    table
}

/// Sends requests from several callers and returns the time of each request. A caller sends its next request after the
/// previous one was answered.
async fn ask(
    queue: &Queue<String, usize>,
    name: &'static str,
    scenario: Scenario,
) -> Result<Vec<Duration>, BoxError> {
    let Scenario { requests, callers, payload_bytes } = scenario;
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (queue, next, payload) = (queue.clone(), Arc::clone(&next), "x".repeat(payload_bytes));
        tasks.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return Ok::<_, BoxError>(times);
                }
                let began = Instant::now();
                let length = queue.enqueue_and_wait(format!("{name} {number}"), &payload).await?;
                times.push(began.elapsed());
                if length != payload_bytes {
                    return Err("a request received the result of another".into());
                }
            }
        });
    }
    let mut times = Vec::new();
    while let Some(task) = tasks.join_next().await {
        times.extend(task??);
    }
    Ok(times)
}

#[expect(clippy::cast_precision_loss, reason = "rounded for display")]
fn summary(scenario: Scenario, took: Duration, mut times: Vec<Duration>) -> RoundTrips {
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let at = |percent: usize| {
        let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
        micros(times.get(index).copied().unwrap_or_default())
    };
    let count = times.len().max(1) as f64;
    RoundTrips {
        scenario,
        per_second: times.len() as f64 / took.as_secs_f64(),
        min: at(0),
        p50: at(50),
        p95: at(95),
        p99: at(99),
        max: at(100),
        mean: micros(times.iter().sum::<Duration>()) / count,
    }
}
