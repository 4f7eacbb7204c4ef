use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::Shell;
use windlass::TypeName;

use super::value::{duration, shell_command, type_name};

/// Run a demo: a small shop that processes orders for about ten seconds
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass demo
  windlass demo --store postgres://localhost/app --orders 20

Where there are transactions, some orders are rolled back on purpose: they leave neither a row nor a chain. \
Without --store it runs on SQLite in a folder that it removes. On another store it uses a namespace of its own, and \
removes that. What it tells at the end was looked up in the store; the exit code is 1 if something was amiss.")]
pub(crate) struct Demo {
    /// Place this many orders
    #[arg(long, value_name = "NUMBER", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) orders: u32,
}

/// Run a shell command for each job of the given types
#[derive(Args, Debug)]
#[command(after_long_help = "\
The command gets the job's input on standard input, and what it writes to standard output is what the job gives: JSON, \
or else a text. Facts are in the environment: WINDLASS_JOB_ID, WINDLASS_JOB_TYPE, WINDLASS_CHAIN_ID, WINDLASS_ATTEMPT, \
and more. Its exit code decides:

  0      done
  65     no more attempts: the job failed for good
  75     again later, uncounted; {\"again_in\": \"5m\"} in $WINDLASS_OUTCOME says when
  other  failed: tried again after the backoff; the end of standard error is the error

{\"then\": {\"type\": \"ship\", \"input\": 7}} in $WINDLASS_OUTCOME and exit code 0 let the chain go on with another \
job. docs/cli.md has all of it.

Examples:
  windlass work resize --exec './resize.sh' --concurrency 4
  windlass work a b --exec 'python3 worker.py' --timeout 5m --max-backoff 1m
  windlass work resize --exec './resize.sh' --drain

SIGTERM or Ctrl-C stops gracefully: nothing new is taken, commands may end, and what is left after --stop-timeout goes \
back uncounted. A second one ends the commands at once.")]
pub(crate) struct Work {
    /// Job types or queues to work on
    #[arg(value_name = "TYPE", value_parser = type_name, required = true)]
    pub(crate) types: Vec<TypeName>,

    /// Shell command to run for each job
    #[arg(long, value_name = "COMMAND", value_parser = shell_command)]
    pub(crate) exec: String,

    /// Run up to this many commands at once
    #[arg(long, short, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// Terminate a command that runs longer than this [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    /// Wait this long after the first failure; the delay doubles with each further failure
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub(crate) backoff: Duration,

    /// Limit the delay between retries
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    pub(crate) max_backoff: Duration,

    /// Lease a job for this long; the lease is renewed after half of it
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub(crate) lease: Duration,

    /// Wait this long between SIGTERM and SIGKILL
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,

    /// Let commands continue for this long when the worker stops
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) stop_timeout: Duration,

    /// Poll for jobs at this interval in case no notification arrives
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub(crate) poll: Duration,

    /// Name this worker; `windlass workers` shows the name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Exit when no job is due or running
    #[arg(long)]
    pub(crate) drain: bool,
}

/// Benchmark the store: start and drain rates, latencies
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass bench --store postgres://localhost/app
  windlass bench --jobs 1000 --json

It uses a namespace of its own, and removes it; without --store, SQLite in a folder that it makes in the current one and \
removes.")]
pub(crate) struct Bench {
    /// Run this many jobs in each workload
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// Run up to this many jobs at once
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// Start single jobs from this many concurrent producers
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) producers: u64,

    /// Start this many jobs per batch
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) batch: u64,

    /// Pad each job's input by this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) payload: u32,
}

/// Print a shell completion script
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  windlass completions bash > ~/.local/share/bash-completion/completions/windlass"
)]
pub(crate) struct Completions {
    /// Shell to generate the script for
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Write man pages to a directory
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass man ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// Directory to write to; created if missing
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}
