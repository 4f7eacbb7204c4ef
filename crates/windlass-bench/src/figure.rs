use std::fmt;

use serde::Serialize;

/// The result of a workload: one value per round.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Name of the workload.
    pub workload: String,
    /// Unit of the values.
    pub unit: Unit,
    /// The values, in the order of the rounds.
    pub rounds: Vec<f64>,
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// More is better.
    #[serde(rename = "jobs/s")]
    JobsPerSecond,
    /// Less is better.
    #[serde(rename = "µs")]
    Microseconds,
    /// Pages that a command touched. Less is better.
    #[serde(rename = "buffers")]
    Buffers,
}

impl Figure {
    /// Returns the median of the rounds.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }

    /// Returns the smallest and the largest value.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        spread(&self.rounds)
    }
}

/// Returns the median; for an even count, the upper of the two middle values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Returns the smallest and the largest value.
pub(crate) fn spread(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().min_by(f64::total_cmp);
    let greatest = values.iter().copied().max_by(f64::total_cmp);
    (least.unwrap_or_default(), greatest.unwrap_or_default())
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JobsPerSecond => "jobs/s",
            Self::Microseconds => "µs",
            Self::Buffers => "buffers",
        })
    }
}
