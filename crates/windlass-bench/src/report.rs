use std::fmt::{self, Write};

use serde::Serialize;

use crate::figure::{Figure, median, spread};
use crate::round_trip::{self, RoundTrips};

/// The results of a suite. Its `Display` output is a set of tables.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Results of the workloads and of the bare work.
    pub figures: Vec<Figure>,
    /// Cost per job, by workload.
    pub costs: Vec<Cost>,
    /// Workloads compared with bare work.
    pub ratios: Vec<Ratio>,
    /// Round trips of the queue, from enqueueing a job to receiving its result.
    pub round_trips: Vec<RoundTrips>,
}

/// Cost per job of a workload: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Name of the workload.
    pub workload: String,
    /// Requests sent and answered.
    pub round_trips: f64,
    /// Durable writes, as counted by the store.
    pub commits: f64,
    /// Bytes that the database logged, if it reports them.
    pub log_bytes: Option<f64>,
    /// CPU time of this process, which contains client, worker and an embedded database.
    pub own_cpu_us: f64,
    /// CPU time of the server, if there is one.
    pub server_cpu_us: Option<f64>,
    /// Peak memory of this process during the workload, in bytes: the highest of all rounds, not per job.
    pub peak_memory_bytes: u64,
}

/// The rate of a workload divided by the rate of bare work, per round.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// Name of the workload.
    pub workload: String,
    /// Name of the bare work.
    pub bare: String,
    /// The ratios, in the order of the rounds.
    pub rounds: Vec<f64>,
    /// The required ratio, if there is one.
    pub at_least: Option<f64>,
}

impl Ratio {
    /// Returns the median of the rounds.
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
            // Writing to a `String` cannot fail.
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

/// Formats a number as an integer with thousands separators.
pub(crate) fn grouped(value: f64) -> String {
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
    fn tables_show_median_and_range() {
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
    fn negative_numbers_keep_their_sign() {
        assert_eq!(grouped(-1_234.0), "-1,234");
        assert_eq!(grouped(-0.2), "0");
    }
}
