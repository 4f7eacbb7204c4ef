//! How many answers per second a queue returns, by the number of callers that wait for one.

use std::fmt;

use serde::Serialize;
use windlass::BoxError;

use crate::Subject;
use crate::figure::{median, spread};
use crate::report::grouped;
use crate::round_trip::{self, Scenario};

/// What @platformatic/job-queue 0.5 reached with 100 callers on a Redis server without a log, and how many times as much a
/// Windlass queue should reach.
pub const REFERENCE_PER_SECOND: f64 = 5_500.0;
/// See [`REFERENCE_PER_SECOND`].
pub const GOAL: f64 = 2.0;

/// Payload of each request.
const PAYLOAD_BYTES: usize = 100;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many times to measure each number of callers.
    pub rounds: u32,
    /// Numbers of callers, and of requests.
    pub callers: Vec<(u64, u64)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { rounds: 3, callers: vec![(1, 1_000), (10, 5_000), (100, 20_000), (1_000, 50_000)] }
    }
}

impl Plan {
    /// Returns a smaller plan, for a first impression.
    #[must_use]
    pub fn quick() -> Self {
        let callers = Self::default().callers.into_iter().map(|(callers, requests)| (callers, requests / 5));
        Self { callers: callers.collect(), ..Self::default() }
    }
}

/// The results by number of callers.
#[derive(Clone, Debug, Serialize)]
pub struct Callers {
    /// The store and its settings.
    pub store: String,
    /// One entry for each number of callers.
    pub steps: Vec<Step>,
}

/// The results of one number of callers, by round.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Number of callers. Each sends its next request when the previous one is answered.
    pub callers: u64,
    /// Number of requests in a round.
    pub requests: u64,
    /// Answers per second, over all callers.
    pub per_second: Vec<f64>,
    /// The median time of a request in microseconds.
    pub p50_us: Vec<f64>,
    /// The 99th percentile.
    pub p99_us: Vec<f64>,
}

/// Measures a queue on a store.
///
/// # Errors
/// If the store fails, or a request receives the result of another.
pub async fn run<T: Subject>(subject: &mut T, store: &str, plan: &Plan) -> Result<Callers, BoxError> {
    let empty = |(callers, requests): &(u64, u64)| Step {
        callers: *callers,
        requests: *requests,
        per_second: Vec::new(),
        p50_us: Vec::new(),
        p99_us: Vec::new(),
    };
    let mut steps: Vec<Step> = plan.callers.iter().map(empty).collect();
    for round in 1..=plan.rounds {
        for step in &mut steps {
            let Step { callers, requests, .. } = *step;
            let scenario = Scenario { requests, callers, payload_bytes: PAYLOAD_BYTES };
            let client = subject.open().await?;
            let measured = round_trip::run(&client, scenario).await?;
            client.close().await?;
            let (rate, p50) = (measured.per_second, measured.p50);
            eprintln!("round {round}, {callers} callers: {rate:.0} answers/s, p50 {p50:.0} µs");
            step.per_second.push(rate);
            step.p50_us.push(p50);
            step.p99_us.push(measured.p99);
        }
    }
    Ok(Callers { store: store.to_owned(), steps })
}

impl Callers {
    /// Returns the answers per second with 100 callers divided by [`REFERENCE_PER_SECOND`], if they were measured.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let step = self.steps.iter().find(|step| step.callers == 100)?;
        Some(median(&step.per_second) / REFERENCE_PER_SECOND)
    }
}

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.store)?;
        writeln!(f, "{:>8}{:>12}{:>22}{:>12}{:>12}", "callers", "answers/s", "spread", "p50, µs", "p99, µs")?;
        for Step { callers, per_second, p50_us, p99_us, .. } in &self.steps {
            let (least, greatest) = spread(per_second);
            let range = format!("{} – {}", grouped(least), grouped(greatest));
            let [rate, p50, p99] = [per_second, p50_us, p99_us].map(|values| grouped(median(values)));
            writeln!(f, "{callers:>8}{rate:>12}{range:>22}{p50:>12}{p99:>12}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_with_100_callers_is_compared() {
        let step = |callers, rates: &[f64]| Step {
            callers,
            requests: 10,
            per_second: rates.to_vec(),
            p50_us: vec![1_500.0],
            p99_us: vec![2_000.0],
        };
        let steps = vec![step(1, &[900.0]), step(100, &[12_000.0, 11_000.0, 10_000.0])];
        let callers = Callers { store: "test".to_owned(), steps };
        assert_eq!(callers.ratio().map(f64::round), Some(GOAL));
        let text = callers.to_string();
        assert!(
            text.contains("     100      11,000       10,000 – 12,000       1,500       2,000\n"),
            "{text}"
        );
    }
}
