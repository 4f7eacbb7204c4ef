use std::time::Duration;

use clap::{Args, ValueEnum};
use windlass::{ChainId, Key, KeyHold, Timestamp, TypeName};

use super::value::{chain_id, duration, key, time, type_name};

/// Start a chain with a job of any type, and print the chain's id
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
    /// The type of its first job
    #[arg(value_name = "TYPE", value_parser = type_name, required_unless_present = "batch")]
    pub(crate) job_type: Option<TypeName>,

    /// What the job takes, as JSON; `-` reads it from standard input [default: null]
    #[arg(value_name = "INPUT|-", conflicts_with = "batch", allow_hyphen_values = true)]
    pub(crate) input: Option<String>,

    /// Start many: read an object from each line of standard input
    #[arg(long)]
    pub(crate) batch: bool,

    #[command(flatten)]
    pub(crate) options: Options,

    /// Wait for the chain's end, and print what it gave instead of its id
    #[arg(long, conflicts_with = "batch")]
    pub(crate) wait: bool,

    /// How long to wait
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", requires = "wait")]
    pub(crate) timeout: Duration,
}

/// What a start may say beside type and input.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Options {
    /// Not before this long from now
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,

    /// Not before this time (RFC 3339, UTC)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at: Option<Timestamp>,

    /// A deduplication key: while a chain of this type holds it, that one is given instead
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub(crate) key: Option<Key>,

    /// Which ends of the chain go on holding the key
    #[arg(long, value_name = "ENDS", value_enum, requires = "key")]
    pub(crate) hold: Option<Hold>,

    /// A chain that must complete first; may be given more than once
    #[arg(long, value_name = "CHAIN", value_parser = chain_id)]
    pub(crate) blocked_by: Vec<ChainId>,

    /// From -128 to 127; higher runs first
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) priority: Option<i8>,

    /// After this many attempts a failure is final [default: no limit]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: Option<u32>,
}

/// Which ends of a chain hold its key.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Hold {
    /// None: the key is free when the chain has ended
    Open,
    Completed,
    CompletedOrFailed,
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

/// Give a queue a job under an id of your own, once; or a batch of them
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
    /// The queue's name
    #[arg(value_name = "QUEUE", value_parser = type_name)]
    pub(crate) queue: TypeName,

    /// The job's id: any text
    #[arg(value_name = "ID", value_parser = key)]
    pub(crate) id: Option<Key>,

    /// What the job takes, as JSON; `-` reads it from standard input [default: null]
    #[arg(value_name = "PAYLOAD|-", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    /// After this many attempts a failure is final
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..), default_value = "3")]
    pub(crate) max_attempts: u32,

    /// How long the result is kept
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub(crate) keep: Duration,

    /// Wait for the result, and print it
    #[arg(long, requires = "id")]
    pub(crate) wait: bool,

    /// How long to wait
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", requires = "wait")]
    pub(crate) timeout: Duration,
}

/// Print what a job of a queue gave
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass result thumbnails a.jpg

A job that is not done yet is an error with exit code 5, one that failed or was cancelled with 1, and one that is not \
stored with 3. `windlass wait --type QUEUE ID` waits instead.")]
pub(crate) struct ResultOf {
    /// The queue's name
    #[arg(value_name = "QUEUE", value_parser = type_name)]
    pub(crate) queue: TypeName,

    /// The job's id
    #[arg(value_name = "ID", value_parser = key)]
    pub(crate) id: Key,
}

/// Wait for chains to end, and print what each gave
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass wait 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass wait --type thumbnails a.jpg b.jpg --timeout 5m")]
pub(crate) struct Wait {
    #[command(flatten)]
    pub(crate) chosen: super::Chosen,

    /// How long to wait for all of them; they go on afterwards
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
}
