use clap::{Args, ValueEnum};
use windlass::{ChainId, JobRecord, Status, Timestamp, TypeName};

use super::value::{chain_id, job_id, time, type_name};

/// List jobs, or show one with its attempts and neighbours
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass jobs --status failed
  windlass jobs --type resize --since 2026-11-15 --limit 200 --json | jq .error
  windlass jobs 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11")]
pub(crate) struct Jobs {
    /// Show this job
    #[arg(value_name = "ID", value_parser = job_id, conflicts_with_all = ["types", "statuses", "chain_types", "chain"])]
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
    #[arg(long, value_name = "ID", value_parser = chain_id)]
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
    pub(crate) limit: usize,
}

/// Count the jobs of queues and of other job types
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass queues thumbnails")]
pub(crate) struct Queues {
    /// Only these
    #[arg(value_name = "TYPE", value_parser = type_name)]
    pub(crate) types: Vec<TypeName>,
}

/// List the workers that were heard of lately
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass workers --json | jq -r .name

How many slots are busy is as each worker told when it was seen last: it tells every ten seconds.")]
pub(crate) struct Workers {}

/// Count everything that is stored
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass stats --json | jq .pending")]
pub(crate) struct Stats {}

/// Where a job stands: its status, or more precisely what it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Standing {
    /// Waits for other chains
    Blocked,
    /// Waits for its time and a worker: also those that are scheduled or failing
    Pending,
    /// Pending, and due later
    Scheduled,
    /// Pending, after an attempt that failed
    Failing,
    /// A worker has it: also those that are stopping
    Running,
    /// Running, and asked to stop
    Stopping,
    Completed,
    Failed,
    Cancelled,
}

impl Standing {
    /// What people are told of a job.
    pub(crate) fn of(job: &JobRecord) -> Self {
        match job.status {
            Status::Blocked => Self::Blocked,
            Status::Pending if job.error.is_some() && job.attempt > 0 => Self::Failing,
            Status::Pending if job.due_at > Timestamp::now() => Self::Scheduled,
            Status::Pending => Self::Pending,
            Status::Running if job.cancel_requested => Self::Stopping,
            Status::Running => Self::Running,
            Status::Completed => Self::Completed,
            Status::Failed => Self::Failed,
            Status::Cancelled => Self::Cancelled,
        }
    }

    /// Whether a job stands so.
    pub(crate) fn is_of(self, job: &JobRecord) -> bool {
        self == Self::of(job) || (self.is_status() && self.status() == job.status)
    }

    /// Whether it is a status of its own, which stores know.
    pub(crate) const fn is_status(self) -> bool {
        !matches!(self, Self::Scheduled | Self::Failing | Self::Stopping)
    }

    /// The status of those who stand so.
    pub(crate) const fn status(self) -> Status {
        match self {
            Self::Blocked => Status::Blocked,
            Self::Pending | Self::Scheduled | Self::Failing => Status::Pending,
            Self::Running | Self::Stopping => Status::Running,
            Self::Completed => Status::Completed,
            Self::Failed => Status::Failed,
            Self::Cancelled => Status::Cancelled,
        }
    }

    /// The word for it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Pending => "pending",
            Self::Scheduled => "scheduled",
            Self::Failing => "failing",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}
