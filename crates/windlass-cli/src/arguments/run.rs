use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::Shell;
use windlass::TypeName;

use super::value::{duration, shell_command, type_name};

/// Show everything at work: a small shop that takes orders for about ten seconds
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass demo
  windlass demo --store postgres://localhost/app --orders 20

Where there are transactions, some orders are rolled back on purpose: they leave neither a row nor a chain. \
Without --store it runs on SQLite in a folder that it removes. On another store it uses a namespace of its own, and \
removes that. What it tells at the end was looked up in the store; the exit code is 1 if something was amiss.")]
pub(crate) struct Demo {
    /// How many orders
    #[arg(long, value_name = "NUMBER", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) orders: u32,
}

/// Run a command for each job of these types
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
    /// Job types or queues
    #[arg(value_name = "TYPE", value_parser = type_name, required = true)]
    pub(crate) types: Vec<TypeName>,

    /// The command, for the shell
    #[arg(long, value_name = "COMMAND", value_parser = shell_command)]
    pub(crate) exec: String,

    /// How many run at once
    #[arg(long, short, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// After this long a command is asked to stop
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    /// The delay after the first failure; it doubles with each further one
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub(crate) backoff: Duration,

    /// The longest delay after a failure
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    pub(crate) max_backoff: Duration,

    /// How long a job is held without a sign of life; renewed each half of it
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub(crate) lease: Duration,

    /// How long a command has between SIGTERM and SIGKILL
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,

    /// How long commands may go on when the worker stops
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) stop_timeout: Duration,

    /// How often to look for jobs without being told of any
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub(crate) poll: Duration,

    /// A name for people
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// End when no job is due or running
    #[arg(long)]
    pub(crate) drain: bool,
}

/// Measure the store: starts, drains, latencies
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass bench --store postgres://localhost/app
  windlass bench --jobs 1000 --json

It uses a namespace of its own, and removes it; without --store, SQLite in a folder that it makes in the current one and \
removes.")]
pub(crate) struct Bench {
    /// How many jobs each workload has
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// How many jobs run at once
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// How many start jobs at once, one by one
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) producers: u64,

    /// How many jobs are started by one command
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) batch: u64,

    /// How large an input is
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) payload: u32,
}

/// Print what a shell needs to complete the commands
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  windlass completions bash > ~/.local/share/bash-completion/completions/windlass"
)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Write man pages into a folder
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass man ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// The folder, which is made if it is missing
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}
