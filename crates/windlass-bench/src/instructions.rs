//! The cost of a job in instructions.
//!
//! Times vary with the machine and its load; instruction counts hardly do. The budget for a job is therefore a multiple
//! of the instructions that the same work takes on a bare channel. Valgrind counts them, in user code only. The count
//! per job is the difference between two runs with different numbers of jobs, so fixed costs cancel out. Both versions
//! run on one thread, which makes runs repeatable.

use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use windlass::BoxError;

/// The maximum cost of a job, as a multiple of the bare version's instructions.
pub const BUDGET: f64 = 5.5;

/// The slots that drain the jobs.
pub const SLOTS: u32 = 64;

/// Instructions per job, to start and drain it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Instructions {
    /// With client and worker on the memory store.
    pub windlass: f64,
    /// With the bare version.
    pub bare: f64,
}

impl Instructions {
    /// Counts the instructions with two runs, of `jobs.start` and `jobs.end` jobs. `program` is the `windlass-bench`
    /// executable.
    ///
    /// # Errors
    /// If valgrind cannot be started, fails or reports no count.
    pub fn count(program: &Path, jobs: &Range<u32>) -> Result<Self, BoxError> {
        Ok(Self { windlass: per_job(program, "windlass", jobs)?, bare: per_job(program, "bare", jobs)? })
    }

    /// Returns the cost of a job as a multiple of the bare version's instructions.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.windlass / self.bare
    }

    /// Formats the counts as a table.
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

/// Whether valgrind is installed.
#[must_use]
pub fn is_countable() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    valgrind.status().is_ok_and(|status| status.success())
}

/// Returns the instructions per job: the difference between two runs with different numbers of jobs.
pub(crate) fn per_job(program: &Path, what: &str, jobs: &Range<u32>) -> Result<f64, BoxError> {
    let few = count(program, what, jobs.start)?;
    let many = count(program, what, jobs.end)?;
    Ok((many - few) / f64::from(jobs.end - jobs.start))
}

/// Counts the instructions of one run.
fn count(program: &Path, what: &str, jobs: u32) -> Result<f64, BoxError> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    command.args(["drain", what, &jobs.to_string(), &SLOTS.to_string()]);
    let output = command.output().map_err(|error| format!("cannot start valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind: {}\n{text}", output.status).into());
    }
    collected(&text).ok_or_else(|| format!("valgrind reported no instruction count:\n{text}").into())
}

/// Parses the count from a line like `==123== Collected : 4567`.
fn collected(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_count_of_valgrind_is_parsed() {
        let text = "==1== Events    : Ir\n==1== Collected : 100703500\n==1==\n";
        assert_eq!(collected(text), Some(100_703_500.0));
        assert_eq!(collected("==1== nothing"), None);
    }

    #[test]
    fn the_table_shows_the_ratio_and_the_budget() {
        let table = Instructions { windlass: 20_000.0, bare: 2_500.0 }.table();
        assert!(table.ends_with("         8.0  of at most 5.5\n"), "{table}");
    }
}
