use clap::{Args, ValueEnum};
use windlass::{ChainId, Status, Timestamp, TypeName};

use super::value::{time, type_name};

/// List jobs, or show one with its attempts and neighbours
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass jobs --status failed
  windlass jobs --type resize --since 2026-11-15 --limit 200 --json | jq .error
  windlass jobs 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11")]
pub(crate) struct Jobs {
    /// Show this job
    #[arg(value_name = "ID", conflicts_with_all = ["types", "statuses", "chain_types", "chain"])]
    pub(crate) id: Option<windlass::JobId>,

    /// Of this type; may be given more than once
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) types: Vec<TypeName>,

    /// With this status; may be given more than once
    #[arg(long = "status", short = 's', value_name = "STATUS", value_enum)]
    pub(crate) statuses: Vec<Standing>,

    /// Of chains of this type
    #[arg(long = "chain-type", value_name = "TYPE", value_parser = type_name)]
    pub(crate) chain_types: Vec<TypeName>,

    /// Of this chain
    #[arg(long, value_name = "ID")]
    pub(crate) chain: Option<ChainId>,

    #[command(flatten)]
    pub(crate) when: When,
}

/// List chains, or show one with its jobs
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass chains --status running --status pending
  windlass chains --type order order-7")]
pub(crate) struct Chains {
    /// Show this chain: its id or that of one of its jobs; with --type, its key
    #[arg(value_name = "ID", conflicts_with_all = ["statuses", "top_level"])]
    pub(crate) name: Option<String>,

    /// Of this type; may be given more than once
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) types: Vec<TypeName>,

    /// With this status; may be given more than once
    #[arg(long = "status", short = 's', value_name = "STATUS", value_enum)]
    pub(crate) statuses: Vec<Standing>,

    /// Only chains that no job waits for
    #[arg(long)]
    pub(crate) top_level: bool,

    #[command(flatten)]
    pub(crate) when: When,
}

/// Which part of a list.
#[derive(Args, Debug)]
pub(crate) struct When {
    /// Created at this time or later (RFC 3339, UTC)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) since: Option<Timestamp>,

    /// Created at this time or earlier
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<Timestamp>,

    /// The oldest first
    #[arg(long)]
    pub(crate) oldest: bool,

    /// At most this many; 0 for all
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub(crate) limit: u64,
}

/// Count the jobs of queues and of other job types
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass queues thumbnails")]
pub(crate) struct Queues {
    /// Only these
    #[arg(value_name = "TYPE", value_parser = type_name)]
    pub(crate) types: Vec<TypeName>,
}

/// A status by its name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Standing {
    Blocked,
    Pending,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl From<Standing> for Status {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Blocked => Self::Blocked,
            Standing::Pending => Self::Pending,
            Standing::Running => Self::Running,
            Standing::Completed => Self::Completed,
            Standing::Failed => Self::Failed,
            Standing::Cancelled => Self::Cancelled,
        }
    }
}
