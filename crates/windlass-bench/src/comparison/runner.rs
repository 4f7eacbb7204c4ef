use std::fs;
use std::time::Duration;

use windlass::BoxError;
use windlass_bench_harness::{Arguments, Reply};

use super::server::{Server, StoreUsage};
use super::{Absent, Comparison, Measured, Plan, Program, Row, RowResults, SubjectInfo, Usage, goal};
use crate::candidate::{BARE, WINDLASS};
use crate::meter;

/// The least number of jobs, for subjects that run only a share of them.
const LEAST_JOBS: u64 = 200;

/// Compares the programs on a store. `absent` lists libraries that could not be built.
///
/// # Errors
/// If the store cannot be started. A library that fails is listed with the reason instead.
pub async fn run(
    store: &str,
    plan: &Plan,
    programs: &[Program],
    absent: Vec<Absent>,
    command: String,
) -> Result<Comparison, BoxError> {
    let mut server = Server::start(store).await?;
    let (subjects, mut absent) = list(store, plan, programs, absent);
    let wanted = |row: &&Row| plan.only.as_deref().is_none_or(|only| row.name.contains(only));
    let rows = plan.workloads.iter().filter(wanted).cloned();
    let mut results: Vec<RowResults> = rows.map(|row| RowResults { row, subjects: Vec::new() }).collect();
    for round in 1..=plan.rounds {
        for results in &mut results {
            for (program, info) in &subjects {
                let name = label(info);
                let workload = Some(results.row.name.clone());
                if absent.iter().any(|absent| absent.name == name && absent.workload == workload) {
                    continue;
                }
                if let Err(reason) = measure(&mut server, store, program, info, round, results).await {
                    let reason = reason.to_string();
                    eprintln!("{}: {name}: {reason}", results.row.name);
                    absent.push(Absent { name, workload, reason });
                }
            }
        }
    }
    let mut comparison = Comparison {
        store: store.to_owned(),
        server: server.describe(),
        machine: machine(),
        command,
        rounds: plan.rounds,
        subjects: subjects.into_iter().map(|(_, info)| info).collect(),
        absent,
        results,
        ratios: Vec::new(),
    };
    comparison.ratios = goal::ratios(&comparison);
    Ok(comparison)
}

/// Returns the subjects of all programs, and what is absent.
fn list<'a>(
    store: &str,
    plan: &Plan,
    programs: &'a [Program],
    mut absent: Vec<Absent>,
) -> (Vec<(&'a Program, SubjectInfo)>, Vec<Absent>) {
    let mut subjects = Vec::new();
    for program in programs {
        match program.list(store) {
            Ok(descriptions) => {
                subjects.extend(descriptions.into_iter().map(|description| {
                    (program, SubjectInfo { version: program.version.clone(), description })
                }))
            }
            Err(reason) => absent.push(Absent {
                name: format!("{} {}", program.name, program.version),
                workload: None,
                reason: reason.to_string(),
            }),
        }
    }
    let wanted = |name: &str| {
        [WINDLASS, BARE].contains(&name) || plan.subject.as_deref().is_none_or(|word| name.contains(word))
    };
    subjects.retain(|(_, info)| wanted(&info.description.name));
    (subjects, absent)
}

fn label(info: &SubjectInfo) -> String {
    format!("{} {}", info.description.name, info.version).trim_end().to_owned()
}

/// Runs a workload once and adds its result.
async fn measure(
    server: &mut Server,
    store: &str,
    program: &Program,
    info: &SubjectInfo,
    round: u32,
    results: &mut RowResults,
) -> Result<(), BoxError> {
    let description = &info.description;
    let jobs = jobs(&results.row, description.share);
    let arguments = Arguments {
        store: store.to_owned(),
        subject: description.name.clone(),
        url: server.empty().await?,
        workload: results.row.workload,
        jobs,
        slots: results.row.slots,
    };
    let run = program.run(&arguments, |moment, process| {
        let process = process.to_string();
        let snapshot = (server.usage(moment)?, meter::cpu_time(&process), meter::peak_memory(&process));
        // The peak of the workload, without that of the preparations.
        meter::reset_peak_memory(&process);
        Ok(snapshot)
    })?;
    let (value, p99) = match run.reply {
        Reply::Rate { jobs_per_second, p99_us, .. } => (jobs_per_second, p99_us),
        Reply::Times { p50_us, p99_us, .. } => (p50_us, Some(p99_us)),
        Reply::Unsupported(reason) => return Err(reason.into()),
    };
    eprintln!("round {round}, {}: {}: {value:.0}", results.row.name, description.name);
    let usage = run.usage.map(|(before, after)| usage(jobs, before, after)).unwrap_or_default();
    results.add(&description.name, jobs, value, p99, usage);
    Ok(())
}

impl RowResults {
    /// Adds the result of a round.
    fn add(&mut self, subject: &str, jobs: u64, value: f64, p99: Option<f64>, usage: Usage) {
        if !self.subjects.iter().any(|measured| measured.subject == subject) {
            let (rounds, p99_us, usage) = (Vec::new(), Vec::new(), Vec::new());
            self.subjects.push(Measured { subject: subject.to_owned(), jobs, rounds, p99_us, usage });
        }
        for measured in self.subjects.iter_mut().filter(|measured| measured.subject == subject) {
            measured.rounds.push(value);
            measured.p99_us.extend(p99);
            measured.usage.push(usage);
        }
    }
}

/// Returns the number of jobs that a subject runs. Times of single jobs do not depend on how fast it is.
#[expect(clippy::cast_precision_loss, reason = "a number of jobs is far below 2^52")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of them is too")]
fn jobs(row: &Row, share: f64) -> u64 {
    if row.is_time() {
        return row.jobs;
    }
    ((row.jobs as f64 * share) as u64).max(LEAST_JOBS).min(row.jobs)
}

type Snapshot = (StoreUsage, Duration, u64);

#[expect(clippy::cast_precision_loss, reason = "rounded for display")]
fn usage(jobs: u64, before: Snapshot, after: Snapshot) -> Usage {
    let jobs = jobs as f64;
    let micros = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e6 / jobs;
    let bytes = |from: u64, to: u64| to.saturating_sub(from) as f64 / jobs;
    Usage {
        server_us: before.0.cpu.zip(after.0.cpu).map(|(from, to)| micros(from, to)),
        client_us: micros(before.1, after.1),
        log_bytes: before.0.log_bytes.zip(after.0.log_bytes).map(|(from, to)| bytes(from, to)),
        peak_memory_bytes: after.2,
    }
}

/// Returns the number of processors, their model, and the operating system.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    format!("{cores} cores, {model}, {}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bench_harness::Workload;

    #[test]
    fn a_share_of_the_jobs_has_a_least_number() {
        let row = |workload, jobs| Row { name: String::new(), workload, jobs, slots: 1 };
        assert_eq!(jobs(&row(Workload::Drain, 10_000), 0.5), 5_000);
        assert_eq!(jobs(&row(Workload::Drain, 10_000), 0.001), 200);
        assert_eq!(jobs(&row(Workload::Drain, 50), 0.1), 50);
        assert_eq!(jobs(&row(Workload::Latency, 300), 0.1), 300);
    }

    #[test]
    fn usage_is_the_difference_per_job() {
        let at = |millis, bytes| {
            let cpu = Duration::from_millis(millis);
            (StoreUsage { cpu: Some(cpu), log_bytes: Some(bytes) }, cpu, bytes)
        };
        let usage = usage(10, at(10, 100), at(30, 600));
        assert_eq!(usage.server_us.map(f64::round), Some(2_000.0));
        assert_eq!((usage.client_us.round(), usage.log_bytes), (2_000.0, Some(50.0)));
        assert_eq!(usage.peak_memory_bytes, 600);
    }
}
