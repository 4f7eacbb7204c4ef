//! What a job costs in instructions.
//!
//! Times depend on the machine and its mood; the number of instructions hardly does. So the promise that a job
//! costs at most so many times the same work on a bare channel is kept in instructions of user code, as
//! valgrind counts them. What a run costs besides its jobs drops out of the difference of two runs. Both
//! versions run on one thread: then every run takes the same steps.

use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use windlass::BoxError;

/// At most so many times the instructions of the bare version may a job cost.
pub const BUDGET: f64 = 10.0;

/// The slots that the jobs are drained with.
pub const SLOTS: u32 = 64;

/// Instructions per job, started and drained.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Instructions {
    /// By client and worker on the memory store.
    pub windlass: f64,
    /// By the bare version.
    pub bare: f64,
}

impl Instructions {
    /// Counts them, with runs of as many jobs as the ends of `jobs` say. `program` is the program of this crate.
    pub fn count(program: &Path, jobs: &Range<u32>) -> Result<Self, BoxError> {
        let per_job = |what: &str| {
            let few = count(program, what, jobs.start)?;
            let many = count(program, what, jobs.end)?;
            Ok::<_, BoxError>((many - few) / f64::from(jobs.end - jobs.start))
        };
        Ok(Self { windlass: per_job("windlass")?, bare: per_job("bare")? })
    }

    /// How many times the instructions of the bare version a job costs.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.windlass / self.bare
    }

    /// The counts as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let (windlass, bare, ratio) = (self.windlass, self.bare, self.ratio());
        format!(
            "instructions per job, started and drained with {SLOTS} slots on one thread\n\
             {:<32}{windlass:>12.0}\n{:<32}{bare:>12.0}\n{:<32}{ratio:>12.1}  of at most {BUDGET:.1}\n",
            "windlass, memory", "bare tokio channel with serde", "ratio"
        )
    }
}

/// Whether instructions can be counted here.
#[must_use]
pub fn is_countable() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    valgrind.status().is_ok_and(|status| status.success())
}

/// The instructions of one run.
fn count(program: &Path, what: &str, jobs: u32) -> Result<f64, BoxError> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    command.args(["drain", what, &jobs.to_string(), &SLOTS.to_string()]);
    let output = command.output().map_err(|error| format!("cannot start valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind: {}\n{text}", output.status).into());
    }
    collected(&text)
        .ok_or_else(|| format!("valgrind did not say how many instructions it saw:\n{text}").into())
}

/// Reads `==123== Collected : 4567`.
fn collected(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_valgrind_is_read() {
        let text = "==1== Events    : Ir\n==1== Collected : 100703500\n==1==\n";
        assert_eq!(collected(text), Some(100_703_500.0));
        assert_eq!(collected("==1== nothing"), None);
    }

    #[test]
    fn a_table_shows_the_ratio_beside_the_budget() {
        let table = Instructions { windlass: 20_000.0, bare: 2_500.0 }.table();
        assert!(table.ends_with("         8.0  of at most 10.0\n"), "{table}");
    }
}
