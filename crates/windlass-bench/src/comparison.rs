//! The comparison of Windlass with other libraries and with bare stores.
//!
//! Each library has a program ([`windlass_bench_harness`]); Windlass and the bare stores are subjects of this one. The
//! runner starts a program for each measurement, on an empty store. All subjects run a workload before any runs the
//! next one, and each round repeats all workloads, so that a disturbance affects all subjects.

mod chart;
mod goal;
mod page;
mod program;
mod runner;
mod server;

use std::path::Path;

use serde::Serialize;
use windlass::BoxError;
use windlass_bench_harness::{Description, Workload};

pub use goal::Ratio;
pub use program::Program;
pub use runner::run;

use crate::figure::{median, spread};

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many times to run each workload.
    pub rounds: u32,
    /// Runs only workloads whose names contain this text.
    pub only: Option<String>,
    /// Runs only Windlass, the bare store, and subjects whose names contain this text.
    pub subject: Option<String>,
    /// The workloads.
    pub workloads: Vec<Row>,
}

/// A workload with its size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the workload in tables.
    pub name: String,
    /// The workload.
    pub workload: Workload,
    /// Number of jobs, unless a subject runs only a share of them.
    pub jobs: u64,
    /// Number of slots of the worker.
    pub slots: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self { rounds: 3, only: None, subject: None, workloads: Self::rows(20_000, 100_000, 50_000, 500) }
    }
}

impl Plan {
    /// Returns a smaller plan, for a first impression.
    #[must_use]
    pub fn quick() -> Self {
        Self { workloads: Self::rows(10_000, 50_000, 20_000, 200), ..Self::default() }
    }

    /// Returns the workloads with these numbers of jobs: started, started in batches, drained, and run one by one.
    #[must_use]
    pub fn rows(started: u64, batched: u64, drained: u64, single: u64) -> Vec<Row> {
        let row = |name: &str, workload, jobs, slots| Row { name: name.to_owned(), workload, jobs, slots };
        vec![
            row("start, 16 producers", Workload::Start, started, 0),
            row("start, batches of 1000", Workload::StartBatched, batched, 0),
            row("drain, 10 slots", Workload::Drain, drained / 2, 10),
            row("drain, 100 slots", Workload::Drain, drained, 100),
            row("drain, 1000 slots", Workload::Drain, drained, 1_000),
            row("drain in transactions, 100 slots", Workload::DrainInTransactions, drained / 4, 100),
            row("sustained, 100 slots", Workload::Sustained, started, 100),
            row("latency", Workload::Latency, single, 10),
            row("round trip", Workload::RoundTrip, single, 10),
        ]
    }
}

/// The results of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name of the store.
    pub store: String,
    /// The server with its version and settings.
    pub server: String,
    /// The machine.
    pub machine: String,
    /// The command that repeats the comparison.
    pub command: String,
    /// How many times each workload was run.
    pub rounds: u32,
    /// The subjects, with their versions and settings.
    pub subjects: Vec<SubjectInfo>,
    /// Libraries that were not built or not run, and why.
    pub absent: Vec<Absent>,
    /// The results of each workload.
    pub results: Vec<RowResults>,
    /// Windlass compared with the others.
    pub ratios: Vec<Ratio>,
}

/// A subject of the comparison.
#[derive(Clone, Debug, Serialize)]
pub struct SubjectInfo {
    /// Version of its crate.
    pub version: String,
    /// What its program says about it.
    #[serde(flatten)]
    pub description: Description,
}

/// A library that was not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Absent {
    /// Name and version.
    pub name: String,
    /// The workload that it does not run, or `None` if it runs none.
    pub workload: Option<String>,
    /// Why not.
    pub reason: String,
}

/// The results of a workload.
#[derive(Clone, Debug, Serialize)]
pub struct RowResults {
    /// The workload.
    #[serde(flatten)]
    pub row: Row,
    /// The results of the subjects that ran it.
    pub subjects: Vec<Measured>,
}

/// The results of a subject.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name of the subject.
    pub subject: String,
    /// Number of jobs in each round.
    pub jobs: u64,
    /// Jobs per second, or the median time in microseconds, by round.
    pub rounds: Vec<f64>,
    /// The 99th percentile of the times in microseconds, by round. For a sustained load, from a start to its handler.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub p99_us: Vec<f64>,
    /// The usage of each round.
    pub usage: Vec<Usage>,
}

/// Resource usage per job, during the workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Processor time of the server in microseconds. A store without a server has none.
    pub server_us: Option<f64>,
    /// Processor time of the program in microseconds.
    pub client_us: f64,
    /// Bytes that the server has logged.
    pub log_bytes: Option<f64>,
    /// Peak memory of the program in bytes, not per job.
    pub peak_memory_bytes: u64,
}

impl Row {
    /// Whether the figures are times, of which less is better.
    #[must_use]
    pub fn is_time(&self) -> bool {
        matches!(self.workload, Workload::Latency | Workload::RoundTrip)
    }
}

impl Measured {
    fn median(&self) -> f64 {
        median(&self.rounds)
    }

    fn spread(&self) -> (f64, f64) {
        spread(&self.rounds)
    }

    /// Returns the median of a part of the usage, if every round has it.
    fn usage(&self, part: impl Fn(&Usage) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.usage.iter().map(part).collect();
        values.filter(|values| !values.is_empty()).map(|values| median(&values))
    }
}

impl Comparison {
    fn results(&self, workload: &str) -> &[Measured] {
        let found = self.results.iter().find(|results| results.row.name == workload);
        found.map_or(&[], |results| &results.subjects)
    }

    fn measured(&self, workload: &str, subject: &str) -> Option<&Measured> {
        self.results(workload).iter().find(|measured| measured.subject == subject)
    }

    /// Writes a page, a chart and the figures as JSON into a directory: `STORE.md`, `STORE.svg` and `STORE.json`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), BoxError> {
        std::fs::create_dir_all(directory)?;
        let file = |extension: &str| directory.join(format!("{}.{extension}", self.store));
        std::fs::write(file("json"), format!("{}\n", serde_json::to_string_pretty(self)?))?;
        std::fs::write(file("svg"), chart::render(self))?;
        std::fs::write(file("md"), page::render(self))?;
        Ok(())
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&page::tables(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(subject: &str, rounds: &[f64]) -> Measured {
        let usage =
            Usage { server_us: Some(1.0), client_us: 2.0, log_bytes: None, peak_memory_bytes: 3 << 20 };
        Measured {
            subject: subject.to_owned(),
            jobs: 10,
            rounds: rounds.to_vec(),
            p99_us: Vec::new(),
            usage: vec![usage; rounds.len()],
        }
    }

    fn info(name: &str, reads_ahead: bool) -> SubjectInfo {
        let text = |text: &str| text.to_owned();
        let description = Description {
            store: text("postgres"),
            name: text(name),
            settings: text("default"),
            share: 1.0,
            reads_ahead,
        };
        SubjectInfo { version: text("1.0"), description }
    }

    /// Three rounds with a library that reads ahead and one that does not.
    pub(super) fn comparison() -> Comparison {
        let text = |text: &str| text.to_owned();
        let rows = Plan::rows(10, 10, 10, 10);
        let results = |name: &str, figures: [(&str, [f64; 3]); 4], p99: &[f64]| RowResults {
            row: rows.iter().find(|row| row.name == name).unwrap().clone(),
            subjects: figures
                .iter()
                .map(|(subject, rounds)| Measured { p99_us: p99.to_vec(), ..measured(subject, rounds) })
                .collect(),
        };
        let rates = [
            ("Windlass", [5_000.0, 4_000.0, 6_000.0]),
            ("bare", [4_000.0; 3]),
            ("fast", [1_000.0; 3]),
            ("slow", [100.0; 3]),
        ];
        let times = [
            ("Windlass", [1_000.0; 3]),
            ("bare", [900.0; 3]),
            ("fast", [2_000.0; 3]),
            ("slow", [3_000.0; 3]),
        ];
        let mut comparison = Comparison {
            store: text("postgres"),
            server: text("PostgreSQL"),
            machine: text("two cores"),
            command: text("cargo xtask bench --peers postgres"),
            rounds: 3,
            subjects: ["Windlass", "bare", "fast", "slow"].map(|name| info(name, name == "fast")).to_vec(),
            absent: vec![Absent {
                name: text("broken 3"),
                workload: None,
                reason: text("it did\n| not build"),
            }],
            results: vec![
                results("start, 16 producers", rates, &[]),
                results("drain, 10 slots", rates, &[]),
                results("latency", times, &[1_500.0]),
            ],
            ratios: Vec::new(),
        };
        comparison.ratios = goal::ratios(&comparison);
        comparison
    }

    #[test]
    fn a_comparison_is_written_as_page_chart_and_json() {
        let directory = tempfile::tempdir().unwrap();
        comparison().write(directory.path()).unwrap();
        let json = std::fs::read(directory.path().join("postgres.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["results"][0]["subjects"][0]["rounds"][1], 4_000.0);
        assert_eq!(json["subjects"][2]["reads_ahead"], true);
        for file in ["postgres.md", "postgres.svg"] {
            assert!(directory.path().join(file).metadata().unwrap().len() > 0);
        }
    }

    #[test]
    fn usage_that_a_round_lacks_has_no_median() {
        let measured = measured("a", &[1.0, 2.0]);
        assert_eq!(measured.usage(|usage| usage.server_us), Some(1.0));
        assert_eq!(measured.usage(|usage| usage.log_bytes), None);
    }
}
