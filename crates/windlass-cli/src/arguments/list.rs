use clap::{Args, ValueEnum};
use windlass::name::{Key, TypeName};
use windlass::record::JobRecord;
use windlass::time::Timestamp;
use windlass::{ChainId, Status};

use super::value::{chain_id, key, past_time, type_name};

/// List jobs, or show one with its attempts, blockers and chain
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass jobs --status failed
  windlass jobs --type resize --since 2026-11-15 --limit 200 --json | jq .error
  windlass jobs 019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11
  windlass jobs --type thumbnails a.jpg")]
pub(crate) struct Jobs {
    /// Show the job with this id; with --type, the job with this id in the queue, or the latest job of the chain with
    /// this key
    #[arg(value_name = "ID", conflicts_with_all = ["statuses", "chain_types", "chain"])]
    pub(crate) name: Option<String>,

    /// List only jobs of this type; can be repeated
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) types: Vec<TypeName>,

    /// List only jobs with this status; can be repeated
    #[arg(long = "status", short = 's', value_name = "STATUS", value_enum)]
    pub(crate) statuses: Vec<JobState>,

    /// List only jobs in chains of this type; can be repeated
    #[arg(long = "chain-type", value_name = "TYPE", value_parser = type_name)]
    pub(crate) chain_types: Vec<TypeName>,

    /// List only jobs of this chain
    #[arg(long, value_name = "ID", value_parser = chain_id)]
    pub(crate) chain: Option<ChainId>,

    #[command(flatten)]
    pub(crate) when: ListOptions,
}

/// List chains, or show one with its jobs, blockers and dependents
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass chains --status running --status pending
  windlass chains --type order order-7")]
pub(crate) struct Chains {
    /// Show the chain with this id or with a job of this id; with --type, the chain with this key
    #[arg(value_name = "ID", conflicts_with_all = ["statuses", "key", "top_level"])]
    pub(crate) name: Option<String>,

    /// List only chains of this type; can be repeated
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = type_name)]
    pub(crate) types: Vec<TypeName>,

    /// List only chains with this status; can be repeated
    #[arg(long = "status", short = 's', value_name = "STATUS", value_enum)]
    pub(crate) statuses: Vec<JobState>,

    /// List only chains that were created with this key
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub(crate) key: Option<Key>,

    /// List only chains that no job waits or waited for
    #[arg(long)]
    pub(crate) top_level: bool,

    #[command(flatten)]
    pub(crate) when: ListOptions,
}

/// Time range, order and limit of a list.
#[derive(Args, Debug)]
pub(crate) struct ListOptions {
    /// List only entries created at or after this time (RFC 3339, in UTC), or this long ago, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    pub(crate) since: Option<Timestamp>,

    /// List only entries created at or before this time (RFC 3339, in UTC), or this long ago, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    pub(crate) until: Option<Timestamp>,

    /// List only entries closed at or after this time (RFC 3339, in UTC), or this long ago, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    pub(crate) closed_since: Option<Timestamp>,

    /// List only entries closed at or before this time (RFC 3339, in UTC), or this long ago, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    pub(crate) closed_until: Option<Timestamp>,

    /// List the oldest entries first [default: newest first]
    #[arg(long)]
    pub(crate) oldest: bool,

    /// Maximum number of entries; 0 for no limit
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub(crate) limit: usize,
}

/// Count jobs by queue or job type, and by status
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass queues thumbnails")]
pub(crate) struct Queues {
    /// Queues or job types to count [default: all]
    #[arg(value_name = "TYPE", value_parser = type_name)]
    pub(crate) types: Vec<TypeName>,
}

/// List live workers
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  windlass workers --json | jq -r .name

Each worker reports every 10 seconds. BUSY is the number of slots in use at its last report.")]
pub(crate) struct Workers {}

/// Print totals for the whole store
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  windlass stats --json | jq .pending")]
pub(crate) struct Stats {}

/// The state of a job as shown to users: its status, or a more specific state of a pending or running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobState {
    /// Waiting for other chains to complete
    Blocked,
    /// Waiting for its due time and a worker; includes scheduled and failing
    Pending,
    /// Pending, and due in the future
    Scheduled,
    /// Pending, after a failed attempt
    Failing,
    /// Leased by a worker; includes stopping
    Running,
    /// Running, and asked to stop
    Stopping,
    Completed,
    Failed,
    Cancelled,
}

impl JobState {
    /// Returns the most specific state of a job.
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

    /// Whether the job matches this state. `Pending` and `Running` also match their more specific states.
    pub(crate) fn matches(self, job: &JobRecord) -> bool {
        self == Self::of(job) || (self.is_status() && self.status() == job.status)
    }

    /// Whether this is a stored status, by which a store can filter.
    pub(crate) const fn is_status(self) -> bool {
        !matches!(self, Self::Scheduled | Self::Failing | Self::Stopping)
    }

    /// Returns the stored status of jobs with this state.
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

    /// Returns the name that is shown to users and accepted by `--status`.
    pub(crate) const fn as_str(self) -> &'static str {
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
