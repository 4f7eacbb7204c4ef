use clap::Args;
use windlass::TypeName;

use super::value::type_name;

/// The chains that a command applies to.
#[derive(Args, Debug)]
pub(crate) struct Chosen {
    /// Ids of chains or of their jobs; with --type, keys
    #[arg(value_name = "ID", required = true)]
    pub(crate) names: Vec<String>,

    /// Treat each ID as a key of a chain of this type, or as the id of a job in this queue
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) key_type: Option<TypeName>,
}

/// Reopen chains that failed or were cancelled
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass retry 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass jobs --status failed --json | jq -r .chain | xargs windlass retry")]
pub(crate) struct Retry {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
}

/// Make pending jobs due now, all or none
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass trigger --type thumbnails a.jpg")]
pub(crate) struct Trigger {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
}

/// Cancel chains
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

    /// Also ask running jobs to stop; by default they are left alone
    #[arg(long)]
    pub(crate) running: bool,
}

/// Complete, continue or fail a chain's current job without a worker, e.g. on an approval or a webhook
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass complete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11 '{\"approved\": true}'
  windlass complete --type approval order-7 --then ship '{\"order\": 7}'
  windlass complete --type approval order-8 --fail 'refused by Ada'")]
pub(crate) struct Complete {
    /// Id of the chain or of one of its jobs; with --type, its key
    #[arg(value_name = "ID")]
    pub(crate) name: String,

    /// Output of the chain as JSON, or `-` to read it from standard input [default: null]
    #[arg(value_name = "OUTPUT|-", allow_hyphen_values = true, conflicts_with = "fail")]
    pub(crate) value: Option<String>,

    /// Treat ID as a key of a chain of this type
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) key_type: Option<TypeName>,

    /// Continue with a job of this type, with OUTPUT as its input
    #[arg(long, value_name = "TYPE", value_parser = type_name, conflicts_with = "fail")]
    pub(crate) then: Option<TypeName>,

    /// Fail the job permanently with this error
    #[arg(long, value_name = "ERROR")]
    pub(crate) fail: Option<String>,
}

/// Delete chains with all their jobs, all or none
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass delete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass delete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11 --cascade --running

With a chain among them that runs, nothing is removed and the exit code is 1, unless --running is given.")]
pub(crate) struct Delete {
    #[command(flatten)]
    pub(crate) chosen: Chosen,

    /// Also delete running chains: abort their attempts and discard their results
    #[arg(long)]
    pub(crate) running: bool,

    /// Also delete the chains that they wait or waited for
    #[arg(long)]
    pub(crate) cascade: bool,
}

/// Stop workers from taking jobs of these types; running jobs continue
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass pause thumbnails resize")]
pub(crate) struct Pause {
    /// Job types or queues to pause
    #[arg(value_name = "TYPE", value_parser = type_name, required = true)]
    pub(crate) types: Vec<TypeName>,
}

/// Let workers take jobs of these types again
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass resume thumbnails")]
pub(crate) struct Resume {
    /// Job types or queues to resume
    #[arg(value_name = "TYPE", value_parser = type_name, required = true)]
    pub(crate) types: Vec<TypeName>,
}

/// Create the store's tables, or migrate them to the current version
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass migrate --store postgres://localhost/app
  windlass migrate --status
  windlass migrate --sql > windlass.sql")]
pub(crate) struct Migrate {
    /// Only check; exit with code 1 if a migration is needed
    #[arg(long, conflicts_with = "sql")]
    pub(crate) status: bool,

    /// Only print the SQL statements, to run with another migration tool
    #[arg(long)]
    pub(crate) sql: bool,
}

/// Check the store, the clock, the notifier and the workers for problems
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass doctor
  windlass doctor --store postgres://localhost/app --notifier nats://localhost

Each finding has its cure. The exit code is 0 if there is none, 1 if there are some, and 4 if the store cannot be \
opened at all.")]
pub(crate) struct Doctor {}
