//! Lints while compiling, and documents while testing docs.
//!
//! `cargo clippy` and `cargo doc` compile everything on their own: neither uses what a build has compiled. Clippy's
//! compiler, however, can also generate code, and `cargo test --doc` calls rustdoc with everything that it needs to
//! create the documentation. On two cores, a fresh clone saves five minutes.

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use serde_json::Value;

use crate::{Result, Workspace, workspace};

/// If this variable is set, this program is called as rustdoc. Its value is the directory for the documentation.
pub(crate) const RUSTDOC_OUTPUT: &str = "XTASK_RUSTDOC_OUTPUT";

/// Returns a cargo command that compiles the crates of the workspace with Clippy's compiler.
pub(crate) fn linting(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = workspace.cargo_command(arguments);
    command.env("RUSTC_WORKSPACE_WRAPPER", tool("clippy-driver"));
    command
}

/// Runs a cargo command that compiles, and returns the messages of cargo, one JSON value per line. Fails on warnings.
pub(crate) fn build(workspace: &Workspace, arguments: &[&str]) -> Result<String> {
    let arguments = [arguments, &["--message-format=json"]].concat();
    let (messages, outcome) = workspace::piped(&mut linting(workspace, &arguments))?;
    let diagnostics: Vec<_> = messages.lines().filter_map(diagnostic).collect();
    for diagnostic in &diagnostics {
        eprintln!("{diagnostic}");
    }
    outcome?;
    match diagnostics.len() {
        0 => Ok(messages),
        count => Err(format!("{count} warnings")),
    }
}

/// Returns the text of a warning or an error.
fn diagnostic(message: &str) -> Option<String> {
    let message: Value = serde_json::from_str(message).ok()?;
    let message = message.get("message")?;
    let is_problem = ["warning", "error"].contains(&message.get("level")?.as_str()?);
    is_problem.then(|| message.get("rendered")?.as_str().map(str::to_owned))?
}

/// Tests the examples in the documentation, and creates the documentation. Fails on warnings.
pub(crate) fn test_docs(workspace: &Workspace) -> Result {
    let output = tempfile::tempdir().map_err(|error| error.to_string())?;
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = linting(workspace, &["test", "--workspace", "--all-features", "--doc"]);
    command.env("RUSTDOC", this).env(RUSTDOC_OUTPUT, output.path());
    workspace::run(&mut command)
}

/// Runs rustdoc in place of this program: to create the documentation if cargo tests it, and then as cargo asks.
pub(crate) fn run_rustdoc(arguments: &[String], output: &OsString) -> ExitCode {
    let rustdoc = tool("rustdoc");
    let mut calls = vec![arguments.to_vec()];
    if let Some(mut document) = without_test(arguments) {
        document.extend(["--deny".to_owned(), "warnings".to_owned(), "-o".to_owned()]);
        document.push(output.to_string_lossy().into_owned());
        calls.insert(0, document);
    }
    for call in calls {
        match Command::new(&rustdoc).args(call).status() {
            Ok(status) if status.success() => {}
            Ok(_) => return ExitCode::FAILURE,
            Err(error) => {
                let _ = writeln!(io::stderr(), "cannot start `{}`: {error}", rustdoc.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Returns the arguments for the documentation of a crate, or `None` if cargo does not test it.
fn without_test(arguments: &[String]) -> Option<Vec<String>> {
    let mut kept = Vec::new();
    let (mut tests, mut arguments) = (false, arguments.iter());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--test" => tests = true,
            "--no-run" => {}
            "--test-run-directory" | "--test-args" => drop(arguments.next()),
            _ => kept.push(argument.clone()),
        }
    }
    tests.then_some(kept)
}

/// Returns the path of a program of the toolchain that runs this program, or its name if cargo does not say where it is.
fn tool(name: &str) -> PathBuf {
    let beside = env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name(name));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_problems() {
        let message = |level: &str| {
            format!(r#"{{"reason":"compiler-message","message":{{"level":"{level}","rendered":"text"}}}}"#)
        };
        assert_eq!(diagnostic(&message("warning")), Some("text".to_owned()));
        assert_eq!(diagnostic(&message("error")), Some("text".to_owned()));
        assert_eq!(diagnostic(&message("note")), None);
        assert_eq!(diagnostic(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(diagnostic("Compiling"), None);
    }

    #[test]
    fn only_the_arguments_about_tests_are_dropped() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let test = words("--crate-name a --test src/lib.rs --test-run-directory /w --extern b=b.rlib");
        let expected = words("--crate-name a src/lib.rs --extern b=b.rlib");
        assert_eq!(without_test(&test), Some(expected));
        assert_eq!(without_test(&words("-vV")), None);
    }
}
