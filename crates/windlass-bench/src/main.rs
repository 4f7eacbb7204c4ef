//! Runs the workloads on the memory store, and counts instructions. `cargo xtask bench` builds and runs it.

use std::env;
use std::process::{self, ExitCode};

use serde_json::json;
use tokio::runtime::Builder;
use windlass::{BoxError, Client, MemoryStore};
use windlass_bench::instructions::{BUDGET, Cost};
use windlass_bench::suite::{self, Plan};
use windlass_bench::{Figure, bare, table, workload};

const HELP: &str = "\
usage: windlass-bench memory [--json] [--instructions]
       windlass-bench drain windlass|bare JOBS SLOTS

  memory  All workloads on the memory store; then the instructions per job, which valgrind counts.
          --json          the figures as JSON
          --instructions  only the instructions
  drain   Starts jobs and works them off, once, on one thread: what is counted.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), BoxError> {
    match words {
        ["memory", flags @ ..] => {
            if let Some(unknown) = flags.iter().find(|flag| !["--json", "--instructions"].contains(flag)) {
                return Err(format!("unknown option `{unknown}`\n\n{HELP}").into());
            }
            measure(flags.contains(&"--json"), flags.contains(&"--instructions"))
        }
        ["drain", what @ ("windlass" | "bare"), jobs, slots] => {
            let runtime = Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(start_and_drain(what, jobs.parse()?, slots.parse()?))?;
            // The work is done; freeing what is stored is no part of it.
            process::exit(0);
        }
        _ => Err(HELP.into()),
    }
}

fn measure(as_json: bool, only_instructions: bool) -> Result<(), BoxError> {
    let figures = if only_instructions { Vec::new() } else { run_workloads()? };
    if !as_json && !only_instructions {
        println!("{}", table(&figures));
    }
    let cost = Cost::count(&env::current_exe()?, &(2_000..12_000))?;
    if as_json {
        let instructions = json!({ "per_job": cost, "ratio": cost.ratio(), "budget": BUDGET });
        println!("{:#}", json!({ "workloads": figures, "instructions": instructions }));
    } else {
        print!("{}", cost.table());
    }
    if cost.ratio() <= BUDGET {
        return Ok(());
    }
    let ratio = cost.ratio();
    Err(format!(
        "a job costs {ratio:.1} times the instructions of the bare version, and may cost {BUDGET}: look with \
         `valgrind --tool=callgrind` where `windlass-bench drain windlass 12000 64` spends them"
    )
    .into())
}

fn run_workloads() -> Result<Vec<Figure>, BoxError> {
    let runtime = Builder::new_multi_thread().enable_time().build()?;
    runtime.block_on(suite::run(Plan::default(), async || Ok(Client::new(MemoryStore::new()))))
}

async fn start_and_drain(what: &str, jobs: u64, slots: u32) -> Result<(), BoxError> {
    if what == "bare" {
        return bare::start_and_drain(jobs, slots).await;
    }
    let client = Client::new(MemoryStore::new());
    workload::start_all(&client, jobs, 1_000).await?;
    workload::work_off(&client, jobs, slots).await
}
