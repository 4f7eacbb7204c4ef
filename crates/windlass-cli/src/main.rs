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

use arguments::Arguments;
use exit::Result;
use secret::Secrets;

fn main() -> ExitCode {
    // Whatever is printed, an error about the arguments too, goes without the passwords that they hold.
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
