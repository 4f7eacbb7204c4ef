//! The commands, a module for each family.

mod batch;
mod bench;
mod complete;
mod demo;
mod doctor;
mod enqueue;
mod generate;
mod look;
mod manage;
mod migrate;
mod show;
mod start;
mod target;
mod wait;
mod work;

use crate::arguments::{Arguments, Command, Global};
use crate::exit::{Failure, Result};
use crate::output::Output;
use crate::store::{Access, Connection, Place};

/// Does what was asked for.
pub(crate) fn run(arguments: Arguments) -> Result {
    let Arguments { global, command } = arguments;
    match command {
        Command::Completions(wanted) => generate::completions(&wanted, Output::new(false)),
        Command::Man(wanted) => generate::man(&wanted),
        command => {
            let runtime = tokio::runtime::Runtime::new();
            let runtime =
                runtime.map_err(|error| Failure::failed(format!("no thread can be started: {error}")))?;
            let context = Context::new(&global)?;
            let done = runtime.block_on(run_in(context, command));
            // What still hangs in a read of standard input does not hold the end up.
            runtime.shutdown_background();
            done
        }
    }
}

async fn run_in(context: Context, command: Command) -> Result {
    match command {
        Command::Demo(demo) => demo::run(&context, &demo).await,
        Command::Start(start) => start::run(&context, start).await,
        Command::Enqueue(enqueue) => enqueue::enqueue(&context, &enqueue).await,
        Command::Work(work) => work::run(&context, *work).await,
        Command::Wait(wait) => wait::run(&context, &wait).await,
        Command::Result(wanted) => enqueue::result(&context, &wanted).await,
        Command::Complete(complete) => complete::run(&context, complete).await,
        Command::Cancel(cancel) => manage::cancel(&context, &cancel).await,
        Command::Retry(named) => manage::retry(&context, &named).await,
        Command::Trigger(named) => manage::trigger(&context, &named).await,
        Command::Delete(delete) => manage::delete(&context, &delete).await,
        Command::Pause(types) => manage::pause(&context, types, true).await,
        Command::Resume(types) => manage::pause(&context, types, false).await,
        Command::Jobs(jobs) => look::jobs(&context, jobs).await,
        Command::Chains(chains) => look::chains(&context, chains).await,
        Command::Queues(queues) => look::queues(&context, queues).await,
        Command::Workers => look::workers(&context).await,
        Command::Stats => look::stats(&context).await,
        Command::Migrate(migrate) => migrate::run(&context, &migrate).await,
        Command::Doctor(_) => doctor::run(&context).await,
        Command::Bench(bench) => bench::run(&context, &bench).await,
        Command::Completions(_) | Command::Man(_) => Ok(()),
    }
}

/// What every command has.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) place: Place,
    pub(crate) output: Output,
    /// The store as it was given, for the commands that a worker runs; none if it was not.
    pub(crate) store_url: Option<String>,
}

impl Context {
    fn new(global: &Global) -> Result<Self> {
        let (place, output) = (Place::new(global)?, Output::new(global.json));
        Ok(Self { place, output, store_url: global.store.clone() })
    }

    pub(crate) async fn open(&self, access: Access) -> Result<Connection> {
        self.place.open(access).await
    }
}
