//! `windlass`: durable background work from the shell and from any language. docs/cli.md is its page.

mod arguments;
mod command;
mod exit;
mod input;
mod logging;
mod output;
mod secret;
mod signal;
mod store;
mod view;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;
use secret::Secrets;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let global = &arguments.global;
    let secrets = Secrets::of([&global.store, &global.notifier].into_iter().flatten().map(String::as_str));
    logging::start(&arguments, secrets.clone());
    match command::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(line) = failure.line() {
                output::note(&format!("\x1b[1;31merror:\x1b[0m {}", secrets.hide(&line)));
            }
            failure.exit_code()
        }
    }
}
