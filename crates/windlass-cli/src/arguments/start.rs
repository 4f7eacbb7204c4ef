use std::time::Duration;

use clap::{Args, ValueEnum};
use windlass::{ChainId, Key, KeyHold, Timestamp, TypeName};

use super::value::{chain_id, duration, key, time, type_name};

/// Start a chain with a job of the given type and print the chain's id
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass start resize '{\"file\": \"a.jpg\"}'
  windlass start resize --key a.jpg --delay 5m - < input.json
  windlass start report --blocked-by $(windlass start fetch) --wait
  jq -c '{input: .}' orders.ndjson | windlass start order --batch

A line of a batch is an object with `input` and, where they differ from the options given here, `type`, `key`, \
`delay`, `at`, `blocked_by`, `priority`, `max_attempts`. A thousand lines are started at once; a wrong line stops the \
batch before its thousand, and how far it came is said.")]
pub(crate) struct Start {
    /// Type of the chain's first job
    #[arg(value_name = "TYPE", value_parser = type_name, required_unless_present = "batch")]
    pub(crate) job_type: Option<TypeName>,

    /// Job input as JSON, or `-` to read it from standard input [default: null]
    #[arg(value_name = "INPUT|-", conflicts_with = "batch", allow_hyphen_values = true)]
    pub(crate) input: Option<String>,

    /// Start many chains: read one JSON object per line from standard input
    #[arg(long)]
    pub(crate) batch: bool,

    #[command(flatten)]
    pub(crate) options: Options,

    /// Wait for the chain to end and print its output instead of its id
    #[arg(long, conflicts_with = "batch")]
    pub(crate) wait: bool,

    /// Stop waiting after this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", requires = "wait")]
    pub(crate) timeout: Duration,
}

/// Options of a start besides type and input.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Options {
    /// Delay the job by this duration
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,

    /// Run the job no earlier than this time (RFC 3339, UTC)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at: Option<Timestamp>,

    /// Deduplicate by this key: if a chain of this type holds it, use that chain instead of starting a new one
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub(crate) key: Option<Key>,

    /// Keep holding the key after the chain ends with one of these outcomes [default: open]
    #[arg(long, value_name = "ENDS", value_enum, requires = "key")]
    pub(crate) hold: Option<Hold>,

    /// Wait for this chain to complete first; can be repeated
    #[arg(long, value_name = "CHAIN", value_parser = chain_id)]
    pub(crate) blocked_by: Vec<ChainId>,

    /// Set the priority, from -128 to 127; higher runs first
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) priority: Option<i8>,

    /// Fail permanently after this many attempts [default: no limit]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: Option<u32>,
}

/// The outcomes after which an ended chain still holds its key.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Hold {
    /// None: the key is free once the chain has ended
    Open,
    /// The chain completed
    Completed,
    /// The chain completed or failed
    CompletedOrFailed,
    /// Any outcome, cancellation included
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
  jq -c '{id: .file, payload: .}' photos.ndjson | windlass enqueue thumbnails

It prints `queued`; or `duplicate` and where the job stands, if the id is queued or running already; or `completed` and \
the result, if that is kept. Once it failed or its result is gone, the id can be queued again. Without an id, each line of standard input is an object with `id` and \
`payload`; a thousand are queued at once.")]
pub(crate) struct Enqueue {
    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = type_name)]
    pub(crate) queue: TypeName,

    /// Your id for the job, any text; omit it to read a batch from standard input
    #[arg(value_name = "ID", value_parser = key)]
    pub(crate) id: Option<Key>,

    /// Job payload as JSON, or `-` to read it from standard input [default: null]
    #[arg(value_name = "PAYLOAD|-", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    /// Fail permanently after this many attempts
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..), default_value = "3")]
    pub(crate) max_attempts: u32,

    /// Keep the result for this long
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub(crate) keep: Duration,

    /// Wait for the result and print it
    #[arg(long, requires = "id")]
    pub(crate) wait: bool,

    /// Stop waiting after this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", requires = "wait")]
    pub(crate) timeout: Duration,
}

/// Print the result of a job in a queue
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass result thumbnails a.jpg

A job that is not done yet is an error with exit code 5, one that failed or was cancelled with 1, and one that is not \
stored with 3. `windlass wait --type QUEUE ID` waits instead.")]
pub(crate) struct ResultOf {
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
    pub(crate) chosen: super::Chosen,

    /// Stop waiting after this time; the chains continue
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
}
