//! Runs the workloads on the memory store. `cargo xtask bench` builds it, runs it, and counts instructions
//! with it.

use std::env;
use std::process::{self, ExitCode};

use tokio::runtime::Builder;
use windlass::{BoxError, Client, MemoryStore};
use windlass_bench::suite::{self, Plan};
use windlass_bench::{bare, table, workload};

const HELP: &str = "\
usage: windlass-bench memory [--json]
       windlass-bench drain windlass|bare JOBS SLOTS

  memory  All workloads on the memory store.
  drain   Starts jobs and works them off, once, on one thread: for the counting of instructions.
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
        ["memory"] => print!("{}", table(&measure()?)),
        ["memory", "--json"] => println!("{}", serde_json::to_string_pretty(&measure()?)?),
        ["drain", what @ ("windlass" | "bare"), jobs, slots] => {
            // One thread: then every run takes the same steps, and their number is worth comparing.
            let runtime = Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(start_and_drain(what, jobs.parse()?, slots.parse()?))?;
            // The work is done; freeing what is stored is no part of it.
            process::exit(0);
        }
        _ => return Err(HELP.into()),
    }
    Ok(())
}

fn measure() -> Result<Vec<windlass_bench::Figure>, BoxError> {
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
