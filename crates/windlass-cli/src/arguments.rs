//! Command-line arguments: global options, subcommands and their help texts.

mod list;
mod manage;
mod run;
mod schedule;
mod serve;
mod start;
mod value;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

pub(crate) use list::{Chains, JobState, Jobs, ListOptions, Queues, Stats, Workers};
pub(crate) use manage::{
    Backup, Cancel, ChainNames, ChainSelection, Complete, Delete, Doctor, Migrate, Pause, Resume, Retry,
    Trigger,
};
pub(crate) use run::{Bench, Completions, Demo, Man, Work};
pub(crate) use schedule::{PutSchedule, ScheduleAction, ScheduleNames, Schedules};
pub(crate) use serve::{CreateToken, RevokeToken, Serve, ServeAction, TokenAction};
pub(crate) use start::{Enqueue, JobOptions, QueueResult, Start, StartOptions, Wait};
pub(crate) use value::{chain_id, duration, time};

use crate::exit::{self, Code, Failure, Result};

/// Run durable background jobs: chains and queues on SQLite, a folder, PostgreSQL or Redis.
#[derive(Debug, Parser)]
#[command(
    name = "windlass",
    version,
    max_term_width = 100,
    subcommand_required = true,
    after_help = "Run `windlass demo` to see all features at work, and `windlass help COMMAND` for examples.",
    after_long_help = exit::PAGE,
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Parses the arguments of this process.
    ///
    /// # Errors
    /// A usage failure with a one-line message if the arguments are invalid. If help or the version was requested,
    /// prints it and returns a failure without a message.
    pub(crate) fn read() -> Result<Self> {
        Self::try_parse().map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                // The reader may have closed the pipe.
                let _ = error.print();
                Failure::silent(if error.use_stderr() { Code::Usage } else { Code::Success })
            }
            _ => Failure::usage(in_one_line(&error.render().to_string())),
        })
    }
}

/// Shortens clap's error text to one line: drops the usage section and adds a pointer to `windlass help`.
fn in_one_line(text: &str) -> String {
    let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|mark| text.find(mark)).min();
    let (problem, _) = text.split_at(end.unwrap_or(text.len()));
    let problem = problem.strip_prefix("error: ").unwrap_or(problem);
    let definitions = Arguments::command();
    let mut words = std::env::args_os().skip(1);
    let command = words.find_map(|word| definitions.find_subcommand(word).map(clap::Command::get_name));
    let help = command.map_or("windlass help".to_owned(), |name| format!("windlass help {name}"));
    format!("{problem}; see `{help}`")
}

/// Options that every command accepts.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// Store URL: `sqlite:PATH`, `file:FOLDER`, `postgres://…`, `redis://…`, or `memory:` (demo and bench only)
    /// [default: sqlite:windlass.db]
    ///
    /// To keep a password out of the process list, set the environment variable instead.
    #[arg(long, global = true, env = "WINDLASS_STORE", hide_env_values = true, value_name = "URL")]
    #[arg(help_heading = "Store")]
    pub(crate) store: Option<String>,

    /// Notifier URL: `postgres://…`, `redis://…`, `nats://…`, or `none` to rely on polling [default: the store's
    /// notifier]
    #[arg(long, global = true, env = "WINDLASS_NOTIFIER", hide_env_values = true, value_name = "URL")]
    #[arg(help_heading = "Store")]
    pub(crate) notifier: Option<String>,

    /// Table prefix (SQLite), subfolder (file), schema (PostgreSQL) or key namespace (Redis) [default: `windlass`;
    /// `default` on Redis; none for a folder]
    #[arg(long, global = true, env = "WINDLASS_NAMESPACE", hide_env_values = true, value_name = "NAME")]
    #[arg(help_heading = "Store")]
    pub(crate) namespace: Option<String>,

    /// Print JSON, one object per line
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,

    /// Log more to standard error; can be repeated
    #[arg(long, short, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,
}

impl Global {
    /// Returns the store URL, if one was given. An empty variable counts as not set, here and in the methods below.
    pub(crate) fn named_store(&self) -> Option<&str> {
        self.store.as_deref().filter(|url| !url.is_empty())
    }

    pub(crate) fn named_notifier(&self) -> Option<&str> {
        self.notifier.as_deref().filter(|url| !url.is_empty())
    }

    pub(crate) fn named_namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|name| !name.is_empty())
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(Demo),
    Start(Start),
    Enqueue(Enqueue),
    Work(Box<Work>),
    Wait(Wait),
    Result(QueueResult),
    Complete(Complete),
    Cancel(Cancel),
    Retry(Retry),
    Trigger(Trigger),
    Delete(Delete),
    Pause(Pause),
    Resume(Resume),
    Jobs(Jobs),
    Chains(Chains),
    Queues(Queues),
    Workers(Workers),
    Schedules(Schedules),
    Stats(Stats),
    Serve(Box<Serve>),
    Migrate(Migrate),
    Backup(Backup),
    Doctor(Doctor),
    Bench(Bench),
    Completions(Completions),
    Man(Man),
}

impl Command {
    /// Whether the command handles interrupts itself, because it has work to finish or data to remove.
    pub(crate) const fn handles_interrupts(&self) -> bool {
        match self {
            Self::Demo(_) | Self::Bench(_) | Self::Work(_) => true,
            Self::Serve(serve) => serve.action.is_none(),
            Self::Start(start) => start.batch,
            Self::Enqueue(enqueue) => enqueue.id.is_none(),
            Self::Cancel(Cancel { chains, .. })
            | Self::Retry(Retry { chains })
            | Self::Delete(Delete { chains, .. }) => chains.is_filter(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Arguments::command().get_subcommands() {
            let help = [command.get_after_help(), command.get_after_long_help()].into_iter().flatten();
            let has_example = help.into_iter().any(|help| help.to_string().contains("Example"));
            assert!(has_example, "{}", command.get_name());
        }
    }

    #[test]
    fn clap_errors_are_shortened_to_one_line() {
        let text = "error: unexpected argument '--foo' found\n\n  tip: try '--for'\n\nUsage: windlass start\n\nFor \
                    more information, try '--help'.\n";
        assert_eq!(
            Failure::usage(in_one_line(text)).line().as_deref(),
            Some("unexpected argument '--foo' found tip: try '--for'; see `windlass help`")
        );
    }
}
