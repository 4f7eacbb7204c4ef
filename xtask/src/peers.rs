//! `cargo xtask bench effectum`: the SQLite store beside effectum, in one run.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use serde_json::Value;

use crate::{Result, Workspace, bench, workspace};

/// The program that runs effectum, relative to the workspace. It has its own lockfile.
const PROGRAM: &str = "bench/effectum";

/// How often the two run, in turn.
const ROUNDS: usize = 3;

/// Numbers of jobs: started one by one, started in batches, drained. Those of `windlass-bench`.
const JOBS: [&str; 3] = ["20000", "100000", "50000"];

/// The workloads that both run, with the ratio to reach.
const WORKLOADS: [(&str, f64); 3] =
    [("start, 16 producers", 4.0), ("start, batches of 1000", 1.0), ("drain, 100 slots", 3.0)];

/// Runs both in turn and prints the medians, at the same `synchronous` setting.
pub(crate) fn effectum() -> Result {
    let workspace = Workspace::locate();
    let ours = bench::build(&workspace)?;
    let theirs = build(&workspace)?;
    let (mut our_rates, mut their_rates) = (Rates::new(), Rates::new());
    for _ in 0..ROUNDS {
        for (workload, _) in WORKLOADS {
            let mut command = Command::new(&ours);
            command.args(["sqlite", "--normal", "--rounds", "1", "--json", "--only", workload]);
            read_ours(&workspace::output(&mut command)?, workload, &mut our_rates)?;
        }
        read_theirs(&workspace::output(Command::new(&theirs).args(JOBS))?, &mut their_rates);
    }
    println!("jobs per second, `synchronous = normal`, median of {ROUNDS} rounds in turn\n");
    println!("{:26} {:>10} {:>10} {:>7} {:>9}", "workload", "Windlass", "effectum", "ratio", "at least");
    for (workload, goal) in WORKLOADS {
        let (ours, theirs) = (median(our_rates.get(workload)), median(their_rates.get(workload)));
        println!("{workload:26} {ours:>10.0} {theirs:>10.0} {:>7.2} {goal:>9.1}", ours / theirs);
    }
    Ok(())
}

type Rates = BTreeMap<String, Vec<f64>>;

fn build(workspace: &Workspace) -> Result<PathBuf> {
    let directory = workspace.root().join(PROGRAM);
    let mut cargo = workspace.cargo_command(&["build", "--release", "--locked"]);
    workspace::run(cargo.current_dir(&directory))?;
    Ok(directory.join("target/release/bench-effectum"))
}

fn read_ours(output: &[u8], workload: &str, rates: &mut Rates) -> Result {
    let report: Value =
        serde_json::from_slice(output).map_err(|error| format!("cannot read the figures: {error}"))?;
    let figures = report.as_object().into_iter().flat_map(serde_json::Map::values);
    let figures = figures.filter_map(|report| report.get("figures")?.as_array()).flatten();
    for figure in figures.filter(|figure| figure.get("workload").and_then(Value::as_str) == Some(workload)) {
        let rounds = figure.get("rounds").and_then(Value::as_array).into_iter().flatten();
        rates.entry(workload.to_owned()).or_default().extend(rounds.filter_map(Value::as_f64));
    }
    Ok(())
}

fn read_theirs(output: &[u8], rates: &mut Rates) {
    for line in String::from_utf8_lossy(output).lines() {
        if let Some((workload, rate)) = line.split_once('\t')
            && let Ok(rate) = rate.parse()
        {
            rates.entry(workload.to_owned()).or_default().push(rate);
        }
    }
}

fn median(rates: Option<&Vec<f64>>) -> f64 {
    let mut rates = rates.cloned().unwrap_or_default();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_both_programs_are_read() {
        let mut rates = Rates::new();
        let report = br#"{"SQLite, NORMAL":{"figures":[{"workload":"drain, 100 slots","rounds":[3.0]},
            {"workload":"bare","rounds":[9.0]}]}}"#;
        read_ours(report, "drain, 100 slots", &mut rates).unwrap();
        read_theirs(b"drain, 100 slots\t1\nno figure\n", &mut rates);
        read_theirs(b"drain, 100 slots\t2\n", &mut rates);
        assert_eq!(rates["drain, 100 slots"], [3.0, 1.0, 2.0]);
        assert!((median(rates.get("drain, 100 slots")) - 2.0).abs() < 1e-9);
        assert!(median(None).is_nan());
    }
}
