//! The subcommands, one module per group of related commands.

mod backup;
mod batch;
mod bench;
mod bulk;
mod complete;
mod demo;
mod doctor;
mod enqueue;
mod generate;
mod list;
mod manage;
mod migrate;
mod schedule;
mod serve;
mod show;
mod start;
mod target;
mod wait;
mod why;
mod work;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use windlass::{Client, Observer, Store, shutdown_signal};

use crate::arguments::{Arguments, Command, Global, Pause, Resume};
use crate::exit::{Code, Failure, Result};
use crate::output::{Output, note};
use crate::store::{Connection, OpenMode, StoreConfig};
use crate::trace::Propagation;

/// How long a command that is done waits for its notifications and its store.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the subcommand. All but `completions` and `man` run on a tokio runtime.
pub(crate) fn run(arguments: Arguments) -> Result {
    let Arguments { global, command } = arguments;
    match command {
        Command::Completions(wanted) => generate::completions(&wanted, Output::new(false)),
        Command::Man(wanted) => generate::man(&wanted),
        command => {
            let runtime = tokio::runtime::Runtime::new();
            let runtime =
                runtime.map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))?;
            let context = Context::new(&global)?;
            let done = runtime.block_on(run_until_interrupted(context, command));
            // Leak the runtime, because the process exits now. Dropping it would wait for a thread that hangs in a read
            // of standard input. `shutdown_background` would stop timers and I/O under a command that still runs on a
            // blocking thread.
            std::mem::forget(runtime);
            done
        }
    }
}

/// Runs the command, or returns early when the process is interrupted. Each call to the store is applied completely or
/// not at all, so most commands have nothing to clean up.
async fn run_until_interrupted(context: Context, command: Command) -> Result {
    let opened = Arc::clone(&context.opened);
    let done = if command.handles_interrupts() {
        dispatch(&context, command).await
    } else {
        // Run on a separate thread, so that a blocking read or write does not delay the response to a signal.
        let running = spawn_blocking(move || Handle::current().block_on(dispatch(&context, command)));
        tokio::select! {
            done = running => done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())),
            () = shutdown_signal() => return Err(Failure::new(Code::Interrupted, "interrupted")),
        }
    };
    // The command is done. Neither an interrupt nor an error of the store changes its result now.
    if let Some(client) = opened.get() {
        tokio::select! {
            _ = timeout(CLOSE_TIMEOUT, client.close()) => {}
            () = shutdown_signal() => {}
        }
    }
    done
}

async fn dispatch(context: &Context, command: Command) -> Result {
    match command {
        Command::Demo(demo) => demo::run(context, &demo).await,
        Command::Start(start) => start::run(context, start).await,
        Command::Enqueue(enqueue) => enqueue::enqueue(context, &enqueue).await,
        Command::Work(work) => work::run(context, *work).await,
        Command::Wait(wait) => wait::run(context, &wait).await,
        Command::Result(wanted) => enqueue::result(context, &wanted).await,
        Command::Complete(complete) => complete::run(context, complete).await,
        Command::Cancel(cancel) => manage::cancel(context, &cancel).await,
        Command::Retry(retry) => manage::retry(context, &retry).await,
        Command::Trigger(trigger) => manage::trigger(context, &trigger).await,
        Command::Delete(delete) => manage::delete(context, &delete).await,
        Command::Pause(Pause { types }) => manage::pause(context, types, true).await,
        Command::Resume(Resume { types }) => manage::pause(context, types, false).await,
        Command::Jobs(jobs) => list::jobs(context, jobs).await,
        Command::Chains(chains) => list::chains(context, chains).await,
        Command::Queues(queues) => list::queues(context, queues).await,
        Command::Workers(_) => list::workers(context).await,
        Command::Schedules(schedules) => schedule::run(context, schedules).await,
        Command::Stats(_) => list::stats(context).await,
        Command::Serve(serve) => serve::run(context, *serve).await,
        Command::Migrate(migrate) => migrate::run(context, &migrate).await,
        Command::Backup(backup) => backup::run(context, &backup).await,
        Command::Doctor(_) => doctor::run(context).await,
        Command::Bench(bench) => bench::run(context, &bench).await,
        Command::Completions(_) | Command::Man(_) => Ok(()),
    }
}

/// What every command needs: the store, the output and whether a store was named.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) config: StoreConfig,
    pub(crate) output: Output,
    /// Whether a store URL was given. If not, `demo` and `bench` use a temporary SQLite file.
    pub(crate) is_store_named: bool,
    /// The client that the command uses.
    opened: Arc<OnceLock<Client<dyn Store>>>,
}

impl Context {
    fn new(global: &Global) -> Result<Self> {
        let (config, output) = (StoreConfig::new(global)?, Output::new(global.json));
        let (is_store_named, opened) = (global.named_store().is_some(), Arc::default());
        Ok(Self { config, output, is_store_named, opened })
    }

    /// Opens the store for a command. Reports if that creates the default store, because a command in the wrong
    /// directory or without its environment would otherwise write to a new store unnoticed.
    pub(crate) async fn open(&self, mode: OpenMode) -> Result<Connection> {
        self.open_observed(mode, Propagation::of_caller()).await
    }

    /// Like [`open`](Self::open). The observer receives the client's events.
    pub(crate) async fn open_observed(&self, mode: OpenMode, observer: impl Observer) -> Result<Connection> {
        let creates_default = !self.is_store_named && self.config.is_missing();
        let connection = self.config.open(mode, observer).await?;
        if creates_default {
            note(&format!(
                "created the default store `{}`: to use another, pass --store URL or set WINDLASS_STORE",
                self.config.store.absolute()
            ));
        }
        let _ = self.opened.set(connection.client());
        Ok(connection)
    }
}
