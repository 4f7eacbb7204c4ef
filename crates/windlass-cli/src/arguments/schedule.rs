use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use windlass::name::TypeName;
use windlass::schedule::{MissedRuns, Overlap};
use windlass::time::Timestamp;

use super::start::StartOptions;
use super::value::{duration, time, type_name};

/// List schedules, show one, or change one
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  windlass schedules put nightly --cron '0 3 * * *' --zone Europe/Berlin report '{\"of\": \"sales\"}'
  windlass schedules put poll --every 90s check-mail
  windlass schedules
  windlass schedules nightly
  windlass schedules pause nightly
  windlass schedules run nightly"
)]
pub(crate) struct Schedules {
    #[command(subcommand)]
    pub(crate) action: Option<ScheduleAction>,

    /// Show the schedule with this name, its last runs and next times [default: list all]
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleAction {
    /// Create a schedule, or change what it starts and when
    Put(Box<PutSchedule>),
    /// Pause schedules: their occurrences are dropped until they are resumed
    Pause(ScheduleNames),
    /// Resume schedules
    Resume(ScheduleNames),
    /// Start the job of schedules now, in addition to their occurrences
    Run(ScheduleNames),
    /// Accept a rollback: apply the declaration that was refused because a newer one had replaced it
    Accept(ScheduleNames),
    /// Delete schedules; the chains that they have started are kept
    Delete(ScheduleNames),
}

#[derive(Args, Debug)]
pub(crate) struct ScheduleNames {
    /// Names of schedules
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("when").required(true).args(["cron", "every", "once"]))]
pub(crate) struct PutSchedule {
    /// Name of the schedule
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Type of the job to start
    #[arg(value_name = "TYPE", value_parser = type_name)]
    pub(crate) job_type: TypeName,

    /// Input of the job as JSON; `-` reads it from standard input [default: null]
    #[arg(value_name = "INPUT")]
    pub(crate) input: Option<String>,

    /// Cron expression: minute hour day month weekday, or six fields with the second first; or `@daily` and the like
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) cron: Option<String>,

    /// Time zone of the cron expression [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) zone: Option<String>,

    /// Fixed interval, e.g. `90s`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) every: Option<Duration>,

    /// Single time (RFC 3339, in UTC)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) once: Option<Timestamp>,

    /// Earliest occurrence (RFC 3339, in UTC)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) from: Option<Timestamp>,

    /// Latest occurrence (RFC 3339, in UTC)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) to: Option<Timestamp>,

    /// Delay each start by up to this time; the delay is the same for all occurrences [default: none]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) jitter: Option<Duration>,

    /// What to do with occurrences that no worker started in time: skip, once, or the number of the newest to start
    /// [default: once]
    #[arg(long, value_name = "POLICY", value_parser = missed)]
    pub(crate) missed: Option<MissedRuns>,

    /// How late an occurrence may start before it counts as missed [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,

    /// What to do while the previous chain is open [default: skip]
    #[arg(long, value_name = "POLICY", value_enum)]
    pub(crate) overlap: Option<OverlapPolicy>,

    #[command(flatten)]
    pub(crate) options: StartOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OverlapPolicy {
    /// Start another chain
    Allow,
    /// Skip the occurrence
    Skip,
    /// Start it when the previous chain has closed; one occurrence waits at most
    Wait,
    /// Ask the previous chain to stop, and then wait
    Cancel,
}

impl From<OverlapPolicy> for Overlap {
    fn from(policy: OverlapPolicy) -> Self {
        match policy {
            OverlapPolicy::Allow => Self::Allow,
            OverlapPolicy::Skip => Self::Skip,
            OverlapPolicy::Wait => Self::Wait,
            OverlapPolicy::Cancel => Self::Cancel,
        }
    }
}

fn missed(text: &str) -> Result<MissedRuns, String> {
    match text {
        "skip" => Ok(MissedRuns::Skip),
        "once" => Ok(MissedRuns::RunOnce),
        number => number
            .parse()
            .map(MissedRuns::RunLatest)
            .map_err(|_| format!("invalid policy `{text}`: use `skip`, `once` or a number from 1 to 100")),
    }
}
