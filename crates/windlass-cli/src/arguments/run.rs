use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::Shell;
use windlass::name::TypeName;

use super::value::{duration, shell_command, type_name};

/// Run a demo: a small shop that processes orders for about ten seconds
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass demo
  windlass demo --store postgres://localhost/app --orders 20
  windlass demo --serve

On stores with transactions, some orders are rolled back on purpose and must leave neither a row nor a chain. At the \
end, the demo compares what the store contains with what it should contain, and exits with code 1 if they differ.

Without --store, the demo uses SQLite in a temporary directory. With --store, it uses a temporary namespace of that \
store. Either is removed at the end.")]
pub(crate) struct Demo {
    /// Number of orders to place
    #[arg(long, value_name = "NUMBER", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) orders: u32,

    /// Keep the shop open until Ctrl-C, and serve a dashboard to watch it
    #[arg(long, conflicts_with = "orders")]
    pub(crate) serve: bool,

    /// Loopback address and port of the dashboard [default: 127.0.0.1:8080, or a free port if it is taken]
    #[arg(long, value_name = "ADDRESS", requires = "serve")]
    pub(crate) listen: Option<SocketAddr>,
}

/// Run a shell command for each job of the given types
#[derive(Args, Debug)]
#[command(after_long_help = "\
The command receives the job's input on standard input. Its standard output becomes the job's output: as JSON if it is \
valid JSON, otherwise as a string. Environment variables describe the job: WINDLASS_JOB_ID, WINDLASS_JOB_TYPE, \
WINDLASS_CHAIN_ID, WINDLASS_ATTEMPT and others. The exit code determines the outcome:

  0      completed
  65     failed permanently: no more attempts
  75     run again later, without counting the attempt; after 1 minute by default
  other  failed: retried after the backoff; the end of standard error is stored as the error

The command can write a JSON object to the file $WINDLASS_OUTCOME. With exit code 75, {\"again_in\": \"5m\"} sets the \
delay. With exit code 0, {\"then\": {\"type\": \"ship\", \"input\": 7}} continues the chain with another job. See \
docs/cli.md for all variables and fields.

Examples:
  windlass work resize --exec './resize.sh' --concurrency 4
  windlass work a b --exec 'python3 worker.py' --timeout 5m --max-backoff 1m
  windlass work resize --exec './resize.sh' --drain

SIGTERM or Ctrl-C stops the worker gracefully: it acquires no more jobs and lets running commands finish. After \
--stop-timeout, it terminates the remaining commands and requeues their jobs without counting the attempt. A second \
signal does so immediately.")]
pub(crate) struct Work {
    /// Job types or queues to handle
    #[arg(value_name = "TYPE", value_parser = type_name, required = true)]
    pub(crate) types: Vec<TypeName>,

    /// Shell command to run for each job
    #[arg(long, value_name = "COMMAND", value_parser = shell_command)]
    pub(crate) exec: String,

    /// Maximum number of commands to run at the same time
    #[arg(long, short, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// Terminate a command that runs longer than this [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    /// Delay before the first retry; it doubles with each further failure
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub(crate) backoff: Duration,

    /// Maximum delay between retries
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub(crate) max_backoff: Duration,

    /// Lease duration; while a command runs, its lease is renewed every half of this duration
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub(crate) lease: Duration,

    /// Time between SIGTERM and SIGKILL when a command is terminated
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) grace: Duration,

    /// Time that running commands get to finish when the worker stops
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) stop_timeout: Duration,

    /// Poll interval, in case a notification is lost [default: 5s while notifications arrive, 1.5s otherwise]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) poll: Option<Duration>,

    /// Worker name, shown by `windlass workers`
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Serve metrics for Prometheus at this address, at /metrics [example: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Exit when no job of these types is due or running
    #[arg(long)]
    pub(crate) drain: bool,
}

/// Benchmark the store: start and drain rates, latencies
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass bench --store postgres://localhost/app
  windlass bench --jobs 1000 --json

Without --store, the benchmark uses SQLite in a temporary directory inside the current one. With --store, it uses a \
temporary namespace of that store. Either is removed at the end.")]
pub(crate) struct Bench {
    /// Number of jobs in each workload
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// Maximum number of jobs to run at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,

    /// Number of concurrent producers that start jobs one by one
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) producers: u64,

    /// Number of jobs per batch
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) batch: u64,

    /// Padding added to each job's input, in bytes
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
    /// Directory to write to; created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}
