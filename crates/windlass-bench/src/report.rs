use std::fmt::{self, Write};

use serde::Serialize;

use crate::figure::{Figure, median, spread};
use crate::round_trip::{self, RoundTrips};

/// What a suite came to. It displays as tables for people.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What each workload reached, and each piece of bare work.
    pub figures: Vec<Figure>,
    /// What a job took, by workload.
    pub costs: Vec<Cost>,
    /// Workloads beside the bare work that they are compared with.
    pub ratios: Vec<Ratio>,
    /// From the enqueueing of a job to its answer.
    pub round_trips: Vec<RoundTrips>,
}

/// What a job took in one workload: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The workload.
    pub workload: String,
    /// Requests sent and answered.
    pub round_trips: f64,
    /// Writes made durable, as the store counts them.
    pub commits: f64,
    /// What the database logged, where it tells.
    pub log_bytes: Option<f64>,
    /// Processor time of this process: client, worker and an embedded database.
    pub own_cpu_us: f64,
    /// Processor time of the server, where there is one.
    pub server_cpu_us: Option<f64>,
    /// The most memory that this process has had meanwhile, in bytes; not by job.
    pub peak_memory_bytes: u64,
}

/// A workload beside the bare work: their rates in the same rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// The workload.
    pub workload: String,
    /// The bare work.
    pub bare: String,
    /// The ratios, in the order of the rounds.
    pub rounds: Vec<f64>,
    /// What is to be reached, if that is said.
    pub at_least: Option<f64>,
}

impl Ratio {
    /// The value in the middle.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<48}{:>12}  {:<22}", "workload", "median", "spread")?;
        for figure in &self.figures {
            let (least, greatest) = figure.spread();
            let spread = format!("{} – {}", grouped(least), grouped(greatest));
            let (workload, median, unit) = (&figure.workload, grouped(figure.median()), figure.unit);
            writeln!(f, "{workload:<48}{median:>12}  {spread:<22}{unit}")?;
        }
        if !self.costs.is_empty() {
            let head = ["round trips", "commits", "log bytes", "own µs", "server µs", "peak MiB"];
            let head = head.map(|name| format!("{name:>12}")).concat();
            writeln!(f, "\n{:<36}{head}", "per job")?;
            self.costs.iter().try_for_each(|cost| writeln!(f, "{}", cost.line()))?;
        }
        if !self.ratios.is_empty() {
            writeln!(f, "\n{:<48}{:>12}  {:<22}at least", "ratio", "median", "spread")?;
            self.ratios.iter().try_for_each(|ratio| writeln!(f, "{}", ratio.line()))?;
        }
        if !self.round_trips.is_empty() {
            write!(f, "\n{}", round_trip::table(&self.round_trips))?;
        }
        Ok(())
    }
}

impl Cost {
    fn line(&self) -> String {
        let mebibytes = f64::from(u32::try_from(self.peak_memory_bytes >> 20).unwrap_or(u32::MAX));
        let mut line = format!("{:<36}{:>12.3}{:>12.3}", self.workload, self.round_trips, self.commits);
        for value in [self.log_bytes, Some(self.own_cpu_us), self.server_cpu_us, Some(mebibytes)] {
            // Writing to a text does not fail.
            let _ = match value {
                Some(value) => write!(line, "{value:>12.0}"),
                None => write!(line, "{:>12}", "–"),
            };
        }
        line
    }
}

impl Ratio {
    fn line(&self) -> String {
        let (least, greatest) = spread(&self.rounds);
        let what = format!("{} / {}", self.workload, self.bare);
        let spread = format!("{least:.2} – {greatest:.2}");
        let at_least = self.at_least.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        format!("{what:<48}{:>12.2}  {spread:<22}{at_least}", self.median()).trim_end().to_owned()
    }
}

/// A whole number with its thousands apart.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value <= -0.5 { "-".to_owned() } else { String::new() };
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unit;

    #[test]
    fn tables_show_the_middle_and_the_ends() {
        let workload = "drain, 64 slots".to_owned();
        let rounds = vec![1_234_567.4, 999.6, 40_000.0];
        let figure = Figure { workload: workload.clone(), unit: Unit::JobsPerSecond, rounds };
        let bare = "bare: claim".to_owned();
        let ratio = Ratio { workload, bare, rounds: vec![0.5, 0.75, 2.0], at_least: Some(0.6) };
        let report =
            Report { figures: vec![figure], costs: Vec::new(), ratios: vec![ratio], ..Report::default() };
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let space = " ".repeat(33);
        assert_eq!(lines[1], format!("drain, 64 slots{space}      40,000  1,000 – 1,234,567     jobs/s"));
        let space = " ".repeat(19);
        assert_eq!(
            lines[4],
            format!("drain, 64 slots / bare: claim{space}        0.75  0.50 – 2.00           0.60")
        );
    }

    #[test]
    fn numbers_below_zero_keep_their_sign() {
        assert_eq!(grouped(-1_234.0), "-1,234");
        assert_eq!(grouped(-0.2), "0");
    }
}
