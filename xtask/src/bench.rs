//! `cargo xtask bench`: measures a store.
//!
//! The program of `windlass-bench` measures. This module builds it and provides what it needs.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::PathBuf,
    process::{Command, ExitCode},
};

use serde_json::Value;

use crate::{Result, Workspace, prerequisites, workspace};

const PACKAGE: &str = "windlass-bench";

/// Where results are written, relative to the workspace.
pub(crate) const RESULTS: &str = "docs/benchmarks";

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

/// Measures how PostgreSQL scales. Writes the results, unless they are only a first impression.
pub(crate) fn postgres_scale(flags: &[&str]) -> Result {
    let results = Workspace::locate().root().join(RESULTS);
    let results = results.to_str().ok_or("the path of the workspace is not UTF-8")?;
    let words = [&["cargo xtask bench postgres-scale"], flags].concat().join(" ");
    let write: &[&str] = if flags.contains(&"--quick") { &[] } else { &["--write", results] };
    database("postgres-scale", &[flags, &["--command", &words], write].concat())
}

/// Measures what telemetry costs.
pub(crate) fn telemetry(flags: &[&str]) -> Result {
    prerequisites::provide_valgrind()?;
    let variables = prerequisites::provide(true, false)?;
    let unobserved = build_unobserved(&Workspace::locate())?;
    let unobserved = unobserved.to_str().ok_or("the path of the program is not UTF-8")?;
    measure("telemetry", &[flags, &["--unobserved", unobserved]].concat(), &variables)
}

/// The variable that makes this program a wrapper of the compiler. Its value is passed to `--cfg`.
pub(crate) const WRAPPER_CFG: &str = "WINDLASS_XTASK_CFG";

/// Builds the program without observers: the core compiles their calls out. Returns the path of a copy, because the next
/// build replaces the program.
///
/// Only the crates of the workspace are compiled again: cargo runs this program in place of the compiler for them.
/// `RUSTFLAGS` would apply to all dependencies too.
fn build_unobserved(workspace: &Workspace) -> Result<PathBuf> {
    let wrapper = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = build_command(workspace, &["--package", PACKAGE]);
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper).env(WRAPPER_CFG, "windlass_unobserved");
    let built = program(&String::from_utf8_lossy(&workspace::output(&mut command)?))?;
    let copy = built.with_file_name("windlass-bench-unobserved");
    fs::copy(&built, &copy).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    Ok(copy)
}

/// Runs the compiler with one more `--cfg`. Cargo passes its path, and then its arguments.
pub(crate) fn run_compiler(arguments: &[String], cfg: &OsStr) -> ExitCode {
    let Some((compiler, arguments)) = arguments.split_first() else { return ExitCode::FAILURE };
    let status = Command::new(compiler).args(arguments).arg("--cfg").arg(cfg).status();
    if status.is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
