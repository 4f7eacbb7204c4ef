//! All workloads, several times.

use std::time::Duration;

use windlass::{BoxError, Client, Store};

use crate::workload::{drain, latency, round_trip, start, start_batched};
use crate::{Figure, Unit};

/// How much is done. The default is what figures are compared by.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often each workload is run, each time on an empty store.
    pub rounds: u32,
    /// Jobs that are started one by one, and by how many producers.
    pub starts: (u64, u64),
    /// Jobs that are started in batches, and how many a batch.
    pub batched: (u64, u64),
    /// Jobs that are drained.
    pub drained: u64,
    /// Jobs whose latency is taken, one at a time.
    pub single: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { rounds: 3, starts: (20_000, 16), batched: (100_000, 1_000), drained: 50_000, single: 1_000 }
    }
}

/// The slots that jobs are drained with.
const SLOTS: [u32; 3] = [10, 64, 100];

/// Runs all workloads. `open` gives a client of an empty store each time.
pub async fn run<S: Store>(
    plan: Plan,
    open: impl AsyncFn() -> Result<Client<S>, BoxError>,
) -> Result<Vec<Figure>, BoxError> {
    let mut figures = Vec::new();
    let (jobs, producers) = plan.starts;
    let mut rates = Vec::new();
    for _ in 0..plan.rounds {
        rates.push(rate(jobs, start(&open().await?, jobs, producers).await?));
    }
    figures.push(Figure::new(format!("start, {producers} producers"), Unit::JobsPerSecond, rates));

    let (jobs, batch) = plan.batched;
    let mut rates = Vec::new();
    for _ in 0..plan.rounds {
        rates.push(rate(jobs, start_batched(&open().await?, jobs, batch).await?));
    }
    figures.push(Figure::new(format!("start, batches of {batch}"), Unit::JobsPerSecond, rates));

    for slots in SLOTS {
        let mut rates = Vec::new();
        for _ in 0..plan.rounds {
            rates.push(rate(plan.drained, drain(&open().await?, plan.drained, slots).await?));
        }
        figures.push(Figure::new(format!("drain, {slots} slots"), Unit::JobsPerSecond, rates));
    }

    let (mut latencies, mut round_trips) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        latencies.push(latency(&open().await?, plan.single).await?);
        round_trips.push(round_trip(&open().await?, plan.single).await?);
    }
    for (name, rounds) in [("latency to the handler", latencies), ("round trip", round_trips)] {
        for percent in [50, 99] {
            let values = rounds.iter().map(|times| percentile(times, percent)).collect();
            figures.push(Figure::new(format!("{name}, p{percent}"), Unit::Microseconds, values));
        }
    }
    Ok(figures)
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn rate(jobs: u64, took: Duration) -> f64 {
    jobs as f64 / took.as_secs_f64()
}

/// The time that so many percent of these do not exceed, in microseconds.
fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(at).copied().unwrap_or_default().as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        let near = |percent, expected: f64| assert!((percentile(&times, percent) - expected).abs() < 1e-6);
        near(50, 100.0);
        near(99, 198.0);
        near(100, 200.0);
        assert!(percentile(&[], 50).abs() < 1e-6);
    }
}
