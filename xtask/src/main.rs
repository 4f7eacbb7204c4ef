//! Development tasks of the Windlass workspace. `cargo xtask help` lists them.
//!
//! To add a command, add a module and an arm of the `match` in [`run`].

#![forbid(unsafe_code)]

use std::{env, process::ExitCode};

mod bench;
mod package;
mod peers;
mod sim;
mod test;
mod tiers;
mod versions;

mod compiler;
mod examples;
mod libraries;
mod prerequisites;
mod programs;
mod steps;
mod tidy;
mod workspace;

use workspace::Workspace;

const HELP: &str = "\
usage: cargo xtask <command>

  test [--fast | --full] [--no-install]
        Everything a change must pass: formatting, lints, tidy, tests, docs, examples and packages.
        --fast        only what needs no server: for use between edits
        --full        every store with every notifier, the long tests (sets WINDLASS_FULL=1), other versions of the
                      servers, and packages that build
        --no-install  do not install missing prerequisites; list them instead
  bench memory [--quick] [--only WORD] [--json] [--instructions]
        The workloads on the memory store, optimized: three rounds, median and spread. Then the instructions
        per job, compared with the same work on a bare tokio channel with serde. Valgrind counts them and is
        installed if it is missing. Fails if the ratio exceeds the budget.
        --quick         fewer jobs
        --only WORD     only the workloads whose names contain WORD
        --json          the figures as JSON
        --instructions  only the instructions
  bench file [--quick] [--only WORD] [--rounds N] [--json]
        The same workloads on a folder, alternating with the same appends and syncs of a bare file; the cost per job; the
        ratios; the memory and disk space per stored job, and the longest pause of writers during compactions.
  bench sqlite|postgres|redis [--quick] [--only WORD] [--rounds N] [--json]
        The same workloads on a database with durable settings, alternating with bare statements on the same
        database (not on Redis); the cost per job; the ratios; and the round trips of a queue.
  bench telemetry [--quick] [--rounds N] [--store memory|postgres|redis] [--instructions]
        What telemetry costs. First the instructions per job without an observer, compared with a build whose observers
        are removed at compile time: fails at 2 % or more. Then the processor time per job of metrics and 1 % of traces, in
        alternating rounds: fails above 2 µs on PostgreSQL or Redis.
        --instructions  only the instructions, as `test --full` does
  bench gauges [--quick] [--rounds N] [--store sqlite|postgres|redis]
        What one query of the state gauges costs with 1,000,000 stored jobs.
  bench scale sqlite|postgres|redis [--quick] [--rounds N] [--json]
        The processor time per job with 10,000, 100,000 and 1,000,000 stored jobs. Fails if it grows by more than 30 %.
  bench callers sqlite|postgres|redis [--quick] [--rounds N] [--json]
        The answers per second of a queue with 1, 10, 100 and 1,000 callers. On Redis, with a log that is synced and
        without one.
  bench postgres-scale [--quick] [--only WORD] [--rounds N]
        What commands on PostgreSQL cost with up to 10,000,000 stored jobs, a backlog, 1,000 types, 50 workers, after
        1,000,000 jobs, and during an open snapshot. Takes half an hour. Writes the results into docs/benchmarks, unless
        it is quick.
  bench commits [--quick] [--rounds N]
        Commits transactions of the application on PostgreSQL, with hints and without, and compares them.
  bench --peers postgres|redis|sqlite [--quick] [--only WORD] [--subject WORD] [--rounds N] [--server NAME]
        Windlass beside other libraries and bare statements on the same server, in turns: three rounds, medians, spread,
        ratios and the cost per job. Builds the programs in bench/, each with its own lockfile. Writes the results
        into docs/benchmarks, unless only a part is run.
        --subject WORD  only the libraries whose names contain WORD, besides Windlass and the bare statements
        --server NAME   on a server of `versions` whose name contains NAME, such as `Redis 8`
  sim [--seeds N] [--start X] [--seed X]
        The seeded simulation (default: 500 seeds, starting at 0).
        --seed X      replay one seed, with its whole trace
  tiers
        The number of cases that each tier of the tests runs, by store and notifier. Fails if a case is missing.
  versions [NAME]
        The tests of the PostgreSQL and Redis stores on other versions of their servers (default: all), which
        are downloaded into the target directory.
        NAME          only the servers whose names contain NAME, such as `PostgreSQL 13` or `Redis 8`
  package [--verify]
        Package every published crate, and check that the packages are complete.
        --verify      also build each crate from its package
  tidy  Only the checks of the source text.
  help  This page.
";

/// The result of a task. Errors are messages for the terminal.
type Result<T = ()> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some(cfg) = env::var_os(bench::WRAPPER_CFG) {
        return bench::run_compiler(&arguments, &cfg);
    }
    if let Some(output) = env::var_os(compiler::RUSTDOC_OUTPUT) {
        return compiler::run_rustdoc(&arguments, &output);
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result {
    match words {
        ["test", flags @ ..] => test::run(test::Options::parse(flags)?),
        ["bench", "memory", flags @ ..] => bench::memory(flags),
        ["bench", "file", flags @ ..] => bench::file(flags),
        ["bench", "--peers", store @ ("postgres" | "redis" | "sqlite"), flags @ ..] => {
            peers::compare(store, flags)
        }
        ["bench", "telemetry", flags @ ..] => bench::telemetry(flags),
        ["bench", what @ ("scale" | "callers"), store @ ("sqlite" | "postgres" | "redis"), flags @ ..] => {
            bench::database(what, &[&[*store], flags].concat())
        }
        ["bench", "postgres-scale", flags @ ..] => bench::postgres_scale(flags),
        ["bench", store @ ("sqlite" | "postgres" | "redis" | "commits" | "gauges"), flags @ ..] => {
            bench::database(store, flags)
        }
        ["sim", words @ ..] => sim::run(sim::Options::parse(words)?),
        ["versions"] => versions::run(""),
        ["versions", name] => versions::run(name),
        ["tiers"] => tiers::run(&Workspace::locate()),
        ["package"] => package::run(&Workspace::locate(), false),
        ["package", "--verify"] => package::run(&Workspace::locate(), true),
        ["tidy"] => tidy::run(&Workspace::locate()),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => Err(format!("unknown command `{}`\n\n{HELP}", words.join(" "))),
    }
}
