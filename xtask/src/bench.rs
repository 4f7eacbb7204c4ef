//! `cargo xtask bench`: measures a store.
//!
//! The program of `windlass-bench` measures. This module builds it and provides what it needs.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

use crate::{Result, Workspace, prerequisites, workspace};

const PACKAGE: &str = "windlass-bench";

/// Measures the memory store and counts instructions.
pub(crate) fn memory(flags: &[&str]) -> Result {
    prerequisites::provide_valgrind()?;
    measure("memory", flags, &[])
}

/// Measures the file store.
pub(crate) fn file(flags: &[&str]) -> Result {
    measure("file", flags, &[])
}

/// Measures a store on a database.
pub(crate) fn database(store: &str, flags: &[&str]) -> Result {
    measure(store, flags, &prerequisites::provide(true, false)?)
}

fn measure(store: &str, flags: &[&str], variables: &[(&str, String)]) -> Result {
    let program = build(&Workspace::locate())?;
    let variables = variables.iter().map(|(name, value)| (name, value));
    workspace::run(Command::new(program).arg(store).args(flags).envs(variables))
}

/// Builds the program with optimizations and returns its path.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let messages = workspace::output(&mut build_command(workspace, &["--package", PACKAGE]))?;
    program(&String::from_utf8_lossy(&messages))
}

/// Returns the command that builds a program with optimizations and reports its path.
pub(crate) fn build_command(workspace: &Workspace, arguments: &[&str]) -> Command {
    let build = ["build", "--release", "--message-format=json-render-diagnostics"];
    workspace.cargo_command(&[&build, arguments].concat())
}

/// Returns the path of the program that cargo reports.
pub(crate) fn program(messages: &str) -> Result<PathBuf> {
    messages.lines().find_map(executable).ok_or_else(|| "cargo built no program".to_owned())
}

fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    message.get("executable")?.as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_in_cargo_messages() {
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
        assert_eq!(executable(r#"{"executable":"target/release/a"}"#), Some("target/release/a".into()));
        assert_eq!(executable("no message"), None);
    }
}
