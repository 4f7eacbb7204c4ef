//! What the program takes: commands, their arguments, and their help.

mod look;
mod manage;
mod run;
mod start;
mod value;

use clap::{Args, Parser, Subcommand};

pub(crate) use look::{Chains, Jobs, Queues, When};
pub(crate) use manage::{Cancel, Chosen, Complete, Delete, Doctor, Migrate, Named, Types};
pub(crate) use run::{Bench, Completions, Demo, Man, Work};
pub(crate) use start::{Enqueue, Options, ResultOf, Start, Wait};

use crate::exit;

/// Durable background work: job chains and queues on the store you have.
#[derive(Debug, Parser)]
#[command(
    name = "windlass",
    version,
    max_term_width = 100,
    subcommand_required = true,
    after_help = "The store is `sqlite:windlass.db` unless --store or WINDLASS_STORE says otherwise.\n\
                  `windlass demo` shows everything at work; `windlass help COMMAND` has examples.",
    after_long_help = exit::PAGE,
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// Where jobs live: `sqlite:PATH`, `postgres://…`, `redis://…`; `memory:` for demo and bench
    ///
    /// The environment variable keeps a password out of the list of processes.
    #[arg(long, global = true, env = "WINDLASS_STORE", hide_env_values = true, value_name = "URL")]
    #[arg(help_heading = "Store")]
    pub(crate) store: Option<String>,

    /// Who tells that something happened: `postgres://…`, `redis://…` or `none`; the store's own unless given
    #[arg(long, global = true, env = "WINDLASS_NOTIFIER", hide_env_values = true, value_name = "URL")]
    #[arg(help_heading = "Store")]
    pub(crate) notifier: Option<String>,

    /// The part of the store to use: a table prefix (SQLite), a schema (PostgreSQL), a namespace (Redis)
    #[arg(long, global = true, env = "WINDLASS_NAMESPACE", value_name = "NAME", help_heading = "Store")]
    pub(crate) namespace: Option<String>,

    /// Print JSON, one object a line
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,

    /// Say more on standard error; twice for all of it
    #[arg(long, short, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(Demo),
    Start(Start),
    Enqueue(Enqueue),
    Work(Box<Work>),
    Wait(Wait),
    Result(ResultOf),
    Complete(Complete),
    Cancel(Cancel),
    /// Open chains again that failed or were cancelled
    Retry(Named),
    /// Make pending jobs due at once, all or none
    Trigger(Named),
    Delete(Delete),
    /// Let no worker take jobs of these types; jobs that run go on
    Pause(Types),
    /// Let workers take jobs of these types again
    Resume(Types),
    Jobs(Jobs),
    Chains(Chains),
    Queues(Queues),
    /// List the workers that were heard of lately
    Workers,
    /// Count everything that is stored
    Stats,
    Migrate(Migrate),
    Doctor(Doctor),
    Bench(Bench),
    Completions(Completions),
    Man(Man),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Arguments::command().debug_assert();
    }
}
