//! `windlass`: durable background jobs from the shell and from any language. See docs/cli.md.

#![forbid(unsafe_code)]

mod arguments;
mod command;
mod exit;
mod input;
mod logging;
mod output;
mod secret;
mod shell;
mod signal;
mod store;
mod trace;
mod view;

use std::process::ExitCode;

use arguments::Arguments;
use exit::Result;
use secret::Secrets;

fn main() -> ExitCode {
    // Collect the secrets before parsing: errors about the arguments must not print passwords either.
    let secrets = Secrets::of_process();
    match run(&secrets) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(line) = failure.line() {
                output::note(&format!("\x1b[1;31merror:\x1b[0m {}", secrets.hide(&line)));
            }
            failure.exit_code()
        }
    }
}

fn run(secrets: &Secrets) -> Result {
    let arguments = Arguments::read()?;
    logging::start(&arguments, secrets.clone());
    command::run(arguments)
}
