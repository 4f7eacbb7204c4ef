//! Whether the cost of a job depends on how many jobs are stored.
//!
//! One store grows from step to step. A third of the stored jobs is completed, a third is of a type that no worker takes,
//! and a third is due much later. After each step, the same number of jobs is started and drained, and the processor time
//! of server and client is measured.

use std::fmt::{self, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use windlass::BoxError;

use crate::figure::{median, spread};
use crate::report::grouped;
use crate::{Subject, meter, workload};

/// The largest ratio of the cost with the most stored jobs to the cost with the fewest.
pub const GOAL: f64 = 1.3;

/// Concurrent callers that start the measured jobs one by one.
const PRODUCERS: u64 = 16;

/// Slots of the worker.
const SLOTS: u32 = 100;

/// Jobs per call when jobs are stored between measurements.
const BATCH: u64 = 1_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many times to fill a store.
    pub rounds: u32,
    /// The numbers of stored jobs, in ascending order.
    pub stored: Vec<u64>,
    /// The number of jobs to start and to drain at each step.
    pub measured: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { rounds: 3, stored: vec![10_000, 100_000, 1_000_000], measured: 20_000 }
    }
}

impl Plan {
    /// Returns a smaller plan, for a first impression.
    #[must_use]
    pub fn quick() -> Self {
        Self { rounds: 1, stored: vec![10_000, 100_000], measured: 10_000 }
    }
}

/// The cost of a job by the number of stored jobs.
#[derive(Clone, Debug, Serialize)]
pub struct Scale {
    /// The store and its settings.
    pub store: String,
    /// The number of jobs that were started and drained at each step.
    pub measured: u64,
    /// One entry for each number of stored jobs, in ascending order.
    pub steps: Vec<Step>,
}

/// The costs with one number of stored jobs.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The number of jobs that were stored before.
    pub stored: u64,
    /// Jobs that were started one by one.
    pub start: Cost,
    /// Jobs that were drained.
    pub drain: Cost,
}

/// The cost of a job, by round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cost {
    /// Jobs per second.
    pub jobs_per_second: Vec<f64>,
    /// Processor time of the server in microseconds. Empty for a store without a server.
    pub server_us: Vec<f64>,
    /// Processor time of this process in microseconds.
    pub own_us: Vec<f64>,
}

impl Cost {
    /// Returns the median processor time of the server, or of this process if there is no server.
    #[must_use]
    pub fn micros(&self) -> f64 {
        median(if self.server_us.is_empty() { &self.own_us } else { &self.server_us })
    }
}

/// Measures a store.
///
/// # Errors
/// If the store fails.
pub async fn run<T: Subject>(subject: &mut T, store: &str, plan: &Plan) -> Result<Scale, BoxError> {
    let empty = |stored: &u64| Step { stored: *stored, start: Cost::default(), drain: Cost::default() };
    let mut steps: Vec<Step> = plan.stored.iter().map(empty).collect();
    for round in 1..=plan.rounds {
        let client = subject.open().await?;
        let mut stored = 0;
        for step in &mut steps {
            let more = step.stored.saturating_sub(stored) / 3;
            workload::start_all(&client, more, BATCH).await?;
            workload::drain_all(&client, more, SLOTS).await?;
            workload::start_others(&client, more).await?;
            workload::start_for_later(&client, more).await?;
            let run = async || workload::start(&client, plan.measured, PRODUCERS).await;
            step.start.add(subject, plan.measured, run).await?;
            let run = async || workload::drain_all(&client, plan.measured, SLOTS).await;
            step.drain.add(subject, plan.measured, run).await?;
            stored += 3 * more + plan.measured;
            // A run takes minutes: print each figure to show progress.
            let latest =
                |cost: &Cost| cost.server_us.last().or(cost.own_us.last()).copied().unwrap_or_default();
            let (start, drain) = (latest(&step.start), latest(&step.drain));
            eprintln!(
                "round {round}, {} stored: start {start:.1} µs, drain {drain:.1} µs",
                grouped_count(step.stored)
            );
        }
        client.close().await?;
    }
    Ok(Scale { store: store.to_owned(), measured: plan.measured, steps })
}

impl Cost {
    /// Runs a workload and adds its cost.
    #[expect(clippy::cast_precision_loss, reason = "rounded for display")]
    async fn add<T: Subject>(
        &mut self,
        subject: &T,
        jobs: u64,
        run: impl AsyncFn() -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        let (server, own, began) =
            (subject.usage().await?.server_cpu, meter::precise_cpu_time(), Instant::now());
        run().await?;
        let (took, own_after) = (began.elapsed(), meter::precise_cpu_time());
        let server_after = subject.usage().await?.server_cpu;
        let per_job =
            |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e6 / jobs as f64;
        self.jobs_per_second.push(jobs as f64 / took.as_secs_f64());
        self.server_us.extend(server.zip(server_after).map(|(from, to)| per_job(from, to)));
        self.own_us.push(per_job(own, own_after));
        Ok(())
    }
}

impl Scale {
    /// Returns the cost with the most stored jobs divided by that with the fewest: of starts and of drains. The median of
    /// the ratios of the rounds.
    #[must_use]
    pub fn ratios(&self) -> (f64, f64) {
        let ratio = |cost: fn(&Step) -> &Cost| match (self.steps.first(), self.steps.last()) {
            (Some(first), Some(last)) => cost(last).micros() / cost(first).micros(),
            _ => 1.0,
        };
        (ratio(|step| &step.start), ratio(|step| &step.drain))
    }

    /// Whether both ratios are within [`GOAL`].
    #[must_use]
    pub fn is_flat(&self) -> bool {
        let (start, drain) = self.ratios();
        start <= GOAL && drain <= GOAL
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: processor time of the server (or of this process) per job, in µs\n", self.store)?;
        let head =
            ["start", "start, jobs/s", "drain", "drain, jobs/s"].map(|name| format!("{name:>24}")).concat();
        writeln!(f, "{:>12}{head}", "stored jobs")?;
        for step in &self.steps {
            let mut line = format!("{:>12}", grouped_count(step.stored));
            for cost in [&step.start, &step.drain] {
                let of = if cost.server_us.is_empty() { &cost.own_us } else { &cost.server_us };
                let (least, greatest) = spread(of);
                let rate = grouped(median(&cost.jobs_per_second));
                let micros = format!("{:.1} ({least:.1} – {greatest:.1})", cost.micros());
                // Writing to a `String` cannot fail.
                let _ = write!(line, "{micros:>24}{rate:>24}");
            }
            writeln!(f, "{line}")?;
        }
        let (start, drain) = self.ratios();
        writeln!(
            f,
            "\nfrom the fewest to the most: start {start:.2}, drain {drain:.2} (goal: at most {GOAL})"
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of jobs is far below 2^52")]
fn grouped_count(count: u64) -> String {
    grouped(count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(stored: u64, start: &[f64], drain: &[f64]) -> Step {
        let cost = |micros: &[f64]| Cost {
            jobs_per_second: vec![1_000.0; micros.len()],
            server_us: micros.to_vec(),
            own_us: vec![1.0; micros.len()],
        };
        Step { stored, start: cost(start), drain: cost(drain) }
    }

    #[test]
    fn the_most_stored_jobs_are_compared_with_the_fewest() {
        let steps =
            vec![step(10, &[10.0, 12.0, 11.0], &[20.0; 3]), step(1_000, &[11.0; 3], &[30.0, 28.0, 90.0])];
        let scale = Scale { store: "test".to_owned(), measured: 5, steps };
        assert_eq!(scale.ratios(), (1.0, 1.5));
        assert!(!scale.is_flat());
        let text = scale.to_string();
        assert!(text.contains("       1,000"), "{text}");
        assert!(text.contains("30.0 (28.0 – 90.0)"), "{text}");
        assert!(text.ends_with("start 1.00, drain 1.50 (goal: at most 1.3)\n"), "{text}");
    }

    #[test]
    fn without_a_server_the_time_of_this_process_counts() {
        let cost = Cost { jobs_per_second: vec![1.0], server_us: Vec::new(), own_us: vec![3.0, 5.0, 4.0] };
        assert_eq!(cost.micros().round(), 4.0);
    }
}
