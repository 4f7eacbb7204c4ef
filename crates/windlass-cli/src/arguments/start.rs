use std::time::Duration;

use clap::{Args, ValueEnum};
use windlass::name::{Key, TypeName};
use windlass::time::Timestamp;
use windlass::{ChainId, KeyHold};

use super::value::{chain_id, duration, key, time, type_name};

/// Start a chain with a job of the given type and print the chain's id
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass start resize '{\"file\": \"a.jpg\"}'
  windlass start resize --key a.jpg --delay 5m - < input.json
  windlass start report --blocked-by $(windlass start fetch) --wait
  jq -c '{input: .}' orders.ndjson | windlass start order --batch

Each line of a batch is a JSON object with the optional fields `input`, `type`, `key`, `delay`, `at`, `blocked_by`, \
`priority` and `max_attempts`. Fields override the command-line options. Lines are sent to the store in groups of up to \
1,000. An invalid line stops the batch: neither its group nor later lines are sent. The error names the last line that \
was sent.")]
pub(crate) struct Start {
    /// Type of the chain's first job
    #[arg(value_name = "TYPE", value_parser = type_name, required_unless_present = "batch")]
    pub(crate) job_type: Option<TypeName>,

    /// Job input as JSON, or `-` to read it from standard input [default: null]
    #[arg(value_name = "INPUT|-", conflicts_with = "batch", allow_hyphen_values = true)]
    pub(crate) input: Option<String>,

    /// Start a chain for each line of standard input, a JSON object
    #[arg(long)]
    pub(crate) batch: bool,

    #[command(flatten)]
    pub(crate) options: StartOptions,

    /// Wait for the chain to end and print its output instead of its id
    #[arg(long, conflicts_with = "batch")]
    pub(crate) wait: bool,

    /// Time to wait before giving up; the chain continues
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", requires = "wait")]
    pub(crate) timeout: Duration,
}

/// When a new job is due, and its priority.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct JobOptions {
    /// Delay before the job is due, e.g. `90s` or `1h 30m` [default: none]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,

    /// Time when the job is due (RFC 3339, in UTC) [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at: Option<Timestamp>,

    /// Priority from -128 to 127; higher runs first [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) priority: Option<i8>,
}

/// Options of a start besides type and input.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StartOptions {
    #[command(flatten)]
    pub(crate) job: JobOptions,

    /// Deduplication key: if a chain of this type holds it, return that chain instead of starting one
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub(crate) key: Option<Key>,

    /// Outcomes after which the chain keeps its key [default: open]
    #[arg(long, value_name = "OUTCOME", value_enum, requires = "key")]
    pub(crate) hold: Option<Hold>,

    /// Chain that must complete before the job runs; can be repeated
    #[arg(long, value_name = "CHAIN", value_parser = chain_id)]
    pub(crate) blocked_by: Vec<ChainId>,

    /// Maximum number of attempts before the job fails permanently [default: 25]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: Option<u32>,
}

/// The outcomes after which an ended chain still holds its key.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Hold {
    /// None: the key is free when the chain ends
    Open,
    /// Completed
    Completed,
    /// Completed or failed
    CompletedOrFailed,
    /// Completed, failed or cancelled
    Any,
}

impl From<Hold> for KeyHold {
    fn from(hold: Hold) -> Self {
        match hold {
            Hold::Open => Self::Open,
            Hold::Completed => Self::Completed,
            Hold::CompletedOrFailed => Self::CompletedOrFailed,
            Hold::Any => Self::Any,
        }
    }
}

/// Enqueue a job once under your own id, or a batch of jobs from standard input
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass enqueue thumbnails a.jpg '{\"file\": \"a.jpg\"}'
  windlass enqueue thumbnails a.jpg - --wait < payload.json
  windlass enqueue thumbnails b.jpg --delay 5m --priority 3
  jq -c '{id: .file, payload: .}' photos.ndjson | windlass enqueue thumbnails

The output is `queued`, or `duplicate` and the state of the job if the id is already queued or running, or `completed` \
and the result if it is still stored. An id can be enqueued again after its job failed or its result expired.

Without ID, each line of standard input is a JSON object with `id` and the optional fields `payload`, `delay`, `at` and \
`priority`. Fields override the command-line options. Lines are sent to the store in groups of up to 1,000.")]
pub(crate) struct Enqueue {
    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = type_name)]
    pub(crate) queue: TypeName,

    /// Your id for the job, any text; without it, read a batch from standard input
    #[arg(value_name = "ID", value_parser = key)]
    pub(crate) id: Option<Key>,

    /// Job payload as JSON, or `-` to read it from standard input [default: null]
    #[arg(value_name = "PAYLOAD|-", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    #[command(flatten)]
    pub(crate) job: JobOptions,

    /// Maximum number of attempts before the job fails permanently
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..), default_value = "4")]
    pub(crate) max_attempts: u32,

    /// Time to keep the result
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub(crate) keep: Duration,

    /// Wait for the result and print it
    #[arg(long, requires = "id")]
    pub(crate) wait: bool,

    /// Time to wait before giving up; the job continues
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", requires = "wait")]
    pub(crate) timeout: Duration,
}

/// Print the result of a job in a queue
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass result thumbnails a.jpg

The exit code is 5 if the job has not ended yet, 1 if it failed or was cancelled, and 3 if it is not stored. To wait for \
the result, use `windlass wait --type QUEUE ID`.")]
pub(crate) struct QueueResult {
    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = type_name)]
    pub(crate) queue: TypeName,

    /// Id of the job
    #[arg(value_name = "ID", value_parser = key)]
    pub(crate) id: Key,
}

/// Wait for chains to end and print their outputs
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass wait 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass wait --type thumbnails a.jpg b.jpg --timeout 5m")]
pub(crate) struct Wait {
    #[command(flatten)]
    pub(crate) chains: super::ChainNames,

    /// Time to wait before giving up; the chains continue
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
}
