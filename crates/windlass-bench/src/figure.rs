use std::fmt;

use serde::Serialize;

/// What a workload reached: one value for each round.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The workload.
    pub workload: String,
    /// What the values count.
    pub unit: Unit,
    /// The values, in ascending order.
    pub rounds: Vec<f64>,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// More is better.
    #[serde(rename = "jobs/s")]
    JobsPerSecond,
    /// Less is better.
    #[serde(rename = "µs")]
    Microseconds,
}

impl Figure {
    /// The figure of these rounds.
    #[must_use]
    pub fn new(workload: String, unit: Unit, mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        Self { workload, unit, rounds }
    }

    /// The value in the middle.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.rounds.get(self.rounds.len() / 2).copied().unwrap_or_default()
    }

    /// The least and the greatest value.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        let end = |value: Option<&f64>| value.copied().unwrap_or_default();
        (end(self.rounds.first()), end(self.rounds.last()))
    }
}

/// The figures as a table for people.
#[must_use]
pub fn table(figures: &[Figure]) -> String {
    let mut table = format!("{:<32}{:>12}  {:<22}\n", "workload", "median", "spread");
    for figure in figures {
        let (least, greatest) = figure.spread();
        let spread = format!("{} – {}", grouped(least), grouped(greatest));
        let (workload, median, unit) = (&figure.workload, grouped(figure.median()), figure.unit);
        table += &format!("{workload:<32}{median:>12}  {spread:<22}{unit}\n");
    }
    table
}

/// A whole number with its thousands apart.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JobsPerSecond => "jobs/s",
            Self::Microseconds => "µs",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_the_middle_and_the_ends() {
        let rounds = vec![1_234_567.4, 999.6, 40_000.0];
        let figure = Figure::new("drain, 64 slots".to_owned(), Unit::JobsPerSecond, rounds);
        let table = table(&[figure]);
        let line = table.lines().last().unwrap();
        assert_eq!(line, "drain, 64 slots                       40,000  1,000 – 1,234,567     jobs/s");
    }
}
