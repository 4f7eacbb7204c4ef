use clap::Args;
use windlass::TypeName;

use super::value::type_name;

/// Which chains.
#[derive(Args, Debug)]
pub(crate) struct Chosen {
    /// Ids of chains or of their jobs; with --type, keys
    #[arg(value_name = "ID", required = true)]
    pub(crate) names: Vec<String>,

    /// Take the names as keys of chains of this type, or as ids of this queue's jobs
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) key_type: Option<TypeName>,
}

/// Open chains again that failed or were cancelled
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass retry 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass jobs --status failed --json | jq -r .chain | xargs windlass retry")]
pub(crate) struct Retry {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
}

/// Make pending jobs due at once, all or none
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass trigger --type thumbnails a.jpg")]
pub(crate) struct Trigger {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
}

/// Call chains off
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass cancel 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass cancel --running --type thumbnails a.jpg

A worker in another process hears of it at once where there is a notifier between the two, and with the next renewal \
of its lease otherwise: `asked to stop` means that it will. docs/cli.md says which is when.")]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(crate) chosen: Chosen,

    /// Ask running jobs to stop too; without it they are left alone
    #[arg(long)]
    pub(crate) running: bool,
}

/// End a chain's current job without a worker: an approval, a webhook
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass complete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11 '{\"approved\": true}'
  windlass complete --type approval order-7 --then ship '{\"order\": 7}'
  windlass complete --type approval order-8 --fail 'refused by Ada'")]
pub(crate) struct Complete {
    /// The chain's id or that of one of its jobs; with --type, its key
    #[arg(value_name = "ID")]
    pub(crate) name: String,

    /// What the chain gives, as JSON; `-` reads it from standard input [default: null]
    #[arg(value_name = "OUTPUT|-", allow_hyphen_values = true, conflicts_with = "fail")]
    pub(crate) value: Option<String>,

    /// Take the name as a key of a chain of this type
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) key_type: Option<TypeName>,

    /// Go on with a job of this type, which takes the value
    #[arg(long, value_name = "TYPE", value_parser = type_name, conflicts_with = "fail")]
    pub(crate) then: Option<TypeName>,

    /// The job failed for good, with this error
    #[arg(long, value_name = "ERROR")]
    pub(crate) fail: Option<String>,
}

/// Remove chains with all their jobs, all or none
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass delete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass delete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11 --cascade --running

With a chain among them that runs, nothing is removed and the exit code is 1, unless --running is given.")]
pub(crate) struct Delete {
    #[command(flatten)]
    pub(crate) chosen: Chosen,

    /// Also chains that run: their attempts are told to stop, and what they give is lost
    #[arg(long)]
    pub(crate) running: bool,

    /// Also the chains that they wait or waited for
    #[arg(long)]
    pub(crate) cascade: bool,
}

/// Let no worker take jobs of these types; jobs that run go on
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass pause thumbnails resize")]
pub(crate) struct Pause {
    /// Job types or queues
    #[arg(value_name = "TYPE", value_parser = type_name, required = true)]
    pub(crate) types: Vec<TypeName>,
}

/// Let workers take jobs of these types again
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass resume thumbnails")]
pub(crate) struct Resume {
    /// Job types or queues
    #[arg(value_name = "TYPE", value_parser = type_name, required = true)]
    pub(crate) types: Vec<TypeName>,
}

/// Make the store's tables, or bring older ones up to date
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass migrate --store postgres://localhost/app
  windlass migrate --status
  windlass migrate --sql > windlass.sql")]
pub(crate) struct Migrate {
    /// Only look: exit code 1 if there is something to do
    #[arg(long, conflicts_with = "sql")]
    pub(crate) status: bool,

    /// Only print the statements, for those who run migrations by other means
    #[arg(long)]
    pub(crate) sql: bool,
}

/// Look for what is wrong with the store, the notifier and the work
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass doctor
  windlass doctor --store postgres://localhost/app --notifier nats://localhost

Each finding has its cure. The exit code is 0 if there is none, 1 if there are some, and 4 if the store cannot be \
opened at all.")]
pub(crate) struct Doctor {}
