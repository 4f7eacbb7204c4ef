use std::path::PathBuf;

use clap::Args;
use windlass::name::TypeName;
use windlass::time::Timestamp;

use super::JobState;
use super::value::{past_time, type_name};

/// Chains named by id or key.
#[derive(Args, Debug)]
pub(crate) struct ChainNames {
    /// Ids of chains or of their jobs; with --type, keys
    #[arg(value_name = "ID", required = true)]
    pub(crate) names: Vec<String>,

    /// Treat each ID as the key of a chain of this type, or as the id of a job in this queue
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) key_type: Option<TypeName>,
}

/// Chains named by id or key, or selected by a filter.
#[derive(Args, Debug)]
pub(crate) struct ChainSelection {
    /// Ids of chains or of their jobs; with --type, keys. If there are none, the filter selects the chains
    #[arg(value_name = "ID", conflicts_with_all = ["statuses", "top_level", "since", "until", "closed_since", "closed_until", "dry_run"])]
    pub(crate) names: Vec<String>,

    /// Select only chains of this type; can be repeated. With IDs: treat each ID as the key of a chain of this type, or
    /// as the id of a job in this queue
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    #[arg(help_heading = FILTER)]
    pub(crate) types: Vec<TypeName>,

    /// Select only chains with this status; can be repeated
    #[arg(long = "status", short = 's', value_name = "STATUS", value_enum, help_heading = FILTER)]
    pub(crate) statuses: Vec<JobState>,

    /// Select only chains that no job waits or waited for
    #[arg(long, help_heading = FILTER)]
    pub(crate) top_level: bool,

    /// Select only chains created at or after this time (RFC 3339, in UTC), or this long ago, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = past_time, help_heading = FILTER)]
    pub(crate) since: Option<Timestamp>,

    /// Select only chains created at or before this time (RFC 3339, in UTC), or this long ago, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = past_time, help_heading = FILTER)]
    pub(crate) until: Option<Timestamp>,

    /// Select only chains closed at or after this time (RFC 3339, in UTC), or this long ago, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = past_time, help_heading = FILTER)]
    pub(crate) closed_since: Option<Timestamp>,

    /// Select only chains closed at or before this time (RFC 3339, in UTC), or this long ago, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = past_time, help_heading = FILTER)]
    pub(crate) closed_until: Option<Timestamp>,

    /// Only print the selected chains and their number, and change nothing
    #[arg(long, help_heading = FILTER)]
    pub(crate) dry_run: bool,
}

/// Help heading of the options that select chains.
const FILTER: &str = "Filter";

impl ChainSelection {
    /// Whether the filter selects the chains, because no ids or keys were given.
    pub(crate) const fn is_filter(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the filter is specific enough to select chains. A type alone is not: with it, a script whose list of keys
    /// is empty would change all chains of the type.
    pub(crate) const fn has_filter(&self) -> bool {
        !self.statuses.is_empty()
            || self.top_level
            || self.since.is_some()
            || self.until.is_some()
            || self.closed_since.is_some()
            || self.closed_until.is_some()
    }
}

/// Retry chains that failed or were cancelled
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass retry 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass retry --status failed --type mail --since 2h --dry-run
  windlass retry --status failed --type mail --since 2h

A filter without --status selects failed chains. See docs/cli.md for details.")]
pub(crate) struct Retry {
    #[command(flatten)]
    pub(crate) chains: ChainSelection,
}

/// Make pending jobs due now, all or none
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass trigger --type thumbnails a.jpg")]
pub(crate) struct Trigger {
    #[command(flatten)]
    pub(crate) chains: ChainNames,
}

/// Cancel chains
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass cancel 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass cancel --running --type thumbnails a.jpg
  windlass cancel --type thumbnails --until 1d --dry-run

A filter without --status selects open chains. Of these, running ones are cancelled only with --running.

With a shared notifier, a worker in another process is asked to stop immediately. Otherwise it learns of the request \
when it next renews the lease. Until the attempt ends, the state of the job is `stopping`. See docs/cli.md for details.")]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(crate) chains: ChainSelection,

    /// Also ask running jobs to stop [default: leave them running]
    #[arg(long)]
    pub(crate) running: bool,
}

/// Complete, continue or fail a chain's current job from outside, e.g. after an approval or a webhook
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass complete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11 '{\"approved\": true}'
  windlass complete --type approval order-7 --then ship '{\"order\": 7}'
  windlass complete --type approval order-8 --fail 'rejected by Ada'")]
pub(crate) struct Complete {
    /// Id of the chain or of one of its jobs; with --type, its key
    #[arg(value_name = "ID")]
    pub(crate) name: String,

    /// Chain output as JSON, or `-` to read it from standard input [default: null]
    #[arg(value_name = "OUTPUT|-", allow_hyphen_values = true, conflicts_with = "fail")]
    pub(crate) value: Option<String>,

    /// Treat ID as the key of a chain of this type
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) key_type: Option<TypeName>,

    /// Continue the chain with a job of this type, with OUTPUT as its input
    #[arg(long, value_name = "TYPE", value_parser = type_name, conflicts_with = "fail")]
    pub(crate) then: Option<TypeName>,

    /// Fail the job permanently with this error
    #[arg(long, value_name = "ERROR")]
    pub(crate) fail: Option<String>,
}

/// Delete chains with all their jobs
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass delete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass delete 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11 --cascade --running
  windlass delete --status completed --until 30d --dry-run
  windlass delete --status completed --until 30d --yes

Chains named by id are deleted all or none: if one of them is running, nothing is deleted and the exit code is 1, unless \
you pass --running. A filter without --status selects closed chains. It skips running chains, and chains that change \
before they are deleted.")]
pub(crate) struct Delete {
    #[command(flatten)]
    pub(crate) chains: ChainSelection,

    /// Confirm that the chains selected by the filter are to be deleted
    #[arg(long, help_heading = FILTER)]
    pub(crate) yes: bool,

    /// Also delete running chains: abort their attempts and discard their results
    #[arg(long)]
    pub(crate) running: bool,

    /// Also delete the chains that block or blocked their jobs; only with IDs
    #[arg(long)]
    pub(crate) cascade: bool,
}

/// Pause job types: workers acquire no more jobs of these types; running jobs continue
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass pause thumbnails resize")]
pub(crate) struct Pause {
    /// Job types or queues to pause
    #[arg(value_name = "TYPE", value_parser = type_name, required = true)]
    pub(crate) types: Vec<TypeName>,
}

/// Resume paused job types
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
    /// Only check, and exit with code 1 if a migration is needed
    #[arg(long, conflicts_with = "sql")]
    pub(crate) status: bool,

    /// Only print the SQL statements, for use with another migration tool
    #[arg(long)]
    pub(crate) sql: bool,

    /// Only print the migrations after this version [default: all]
    #[arg(long, value_name = "VERSION", requires = "sql", default_value_t = 0, hide_default_value = true)]
    pub(crate) from: u32,

    /// Only print the SQL statements that create a reader, a producer and a worker role (PostgreSQL)
    #[arg(long, conflicts_with_all = ["sql", "status"])]
    pub(crate) roles: bool,
}

/// Copy a folder (`file:FOLDER`) that is in use to a new folder
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass backup --store file:queue backups/queue-monday

The copy contains everything that was committed before the command began. Other processes may go on using the folder. \
To restore the copy, move it to where the folder was. For other stores, use the tools of the database.")]
pub(crate) struct Backup {
    /// New folder to create; it must not exist
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: PathBuf,
}

/// Check the store, the clock, the notifier and the workers for problems
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass doctor
  windlass doctor --store postgres://localhost/app --notifier nats://localhost

Each problem is printed with its remedy. The exit code is 0 if there are no problems, 1 if there are some, and 4 if the \
store cannot be opened.")]
pub(crate) struct Doctor {}
