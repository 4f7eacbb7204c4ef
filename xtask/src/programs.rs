//! The test programs that cargo builds.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
};

use serde_json::Value;

use crate::{Result, Workspace, compiler, workspace};

/// Environment variable of a full run.
pub(crate) const FULL_VARIABLE: &str = "WINDLASS_FULL";

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// The name of the integration test, or `lib` or `bin` for the unit tests of a library or a program.
    pub(crate) target: String,
    executable: PathBuf,
    directory: PathBuf,
}

impl Program {
    /// Runs the tests, in the directory of their package as cargo does. `cargo run` has set the library path that the tests
    /// of procedural macros need.
    pub(crate) fn run(&self, workspace: &Workspace) -> Result {
        println!("\n    {}", self.name());
        workspace::run(&mut self.command(workspace))
    }

    /// Runs the tests of a normal run like [`run`](Self::run), with more variables and arguments.
    pub(crate) fn run_with(
        &self,
        workspace: &Workspace,
        variables: &[(&str, &OsStr)],
        arguments: &[&str],
    ) -> Result {
        println!("\n    {}", self.name());
        let mut command = self.command(workspace);
        command.env_remove(FULL_VARIABLE).envs(variables.iter().copied()).args(arguments);
        workspace::run(&mut command)
    }

    /// Runs the tests like [`run`](Self::run). Prints their output when they have ended. An error contains the messages
    /// of the tests that failed.
    fn run_quietly(&self, workspace: &Workspace) -> Result {
        println!("    {} started", self.name());
        let (output, outcome) = workspace::captured(&mut self.command(workspace))?;
        println!("\n    {}\n{output}", self.name());
        outcome.map_err(|error| format!("{}: {error}\n{}", self.name(), failures(&output)))
    }

    fn command(&self, workspace: &Workspace) -> Command {
        let mut command = workspace.command(&self.executable);
        command.current_dir(&self.directory);
        command.env("CARGO_MANIFEST_DIR", &self.directory).env("CARGO_PKG_NAME", &self.package);
        command
    }

    fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    /// Returns the list of the tests in a normal or a full run.
    pub(crate) fn list(&self, workspace: &Workspace, full: bool) -> Result<String> {
        let mut command = workspace.command(&self.executable);
        command.arg("--list").env_remove(FULL_VARIABLE);
        if full {
            command.env(FULL_VARIABLE, "1");
        }
        Ok(String::from_utf8_lossy(&workspace::output(&mut command)?).into_owned())
    }
}

/// Builds and lints tests, and returns their programs. The arguments select packages and targets.
pub(crate) fn build(workspace: &Workspace, arguments: &[&str]) -> Result<Vec<Program>> {
    let test = ["test", "--all-features", "--no-run"];
    let messages = compiler::build(workspace, &[&test, arguments].concat())?;
    Ok(messages.lines().filter_map(program).collect())
}

/// Number of test programs that run at the same time. Many tests wait for servers, so one program leaves cores idle.
const CONCURRENCY: usize = 2;

/// The test programs that take longest, slowest first. They start first, so that the run does not end with one long
/// program.
const SLOWEST: [(&str, &str); 12] = [
    ("windlass-postgres", "it"),
    ("windlass-server", "browser"),
    ("windlass-redis", "it"),
    ("windlass-cli", "it"),
    ("windlass-postgres", "conformance"),
    ("windlass-sqlite", "it"),
    ("windlass-postgres", "behavior"),
    ("windlass-bench", "it"),
    ("windlass-core", "it"),
    ("windlass-macros", "compile_fail"),
    ("windlass-core", "sim"),
    ("windlass-redis", "behavior"),
];

/// Runs all programs, also after one has failed.
pub(crate) fn run_all(workspace: &Workspace, mut programs: Vec<Program>) -> Result {
    // The last one starts first.
    let rank = |program: &Program| {
        SLOWEST.iter().position(|(package, target)| *package == program.package && *target == program.target)
    };
    programs.sort_by_key(|program| rank(program).map_or(0, |rank| SLOWEST.len() - rank));
    let (waiting, failed) = (Mutex::new(programs), Mutex::new(Vec::new()));
    let next = || waiting.lock().expect("no thread panics with the lock").pop();
    let run = || {
        while let Some(program) = next() {
            if let Err(error) = program.run_quietly(workspace) {
                failed.lock().expect("no thread panics with the lock").push(error);
            }
        }
    };
    thread::scope(|scope| (0..CONCURRENCY).for_each(|_| drop(scope.spawn(run))));
    let failed = failed.into_inner().expect("no thread panics with the lock");
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Returns the messages of the tests that failed. A run prints them once more at its end, where they are easy to find.
fn failures(output: &str) -> &str {
    let start = output.find("\nfailures:\n").unwrap_or(output.len());
    let part = output.get(start..).unwrap_or_default();
    let end = part.find("\ntest result: ").unwrap_or(part.len());
    part.get(..end).unwrap_or_default().trim()
}

/// Returns the test program that a cargo message reports.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message.get("profile")?.get("test")? != true {
        return None;
    }
    let (target, directory) =
        (message.get("target")?, Path::new(message.get("manifest_path")?.as_str()?).parent()?);
    let target = match target.get("kind")?.get(0)?.as_str()? {
        "test" => target.get("name")?.as_str()?,
        "bin" => "bin",
        _ => "lib",
    };
    Some(Program {
        package: directory.file_name()?.to_str()?.to_owned(),
        target: target.to_owned(),
        executable: message.get("executable")?.as_str()?.into(),
        directory: directory.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_failed_tests_are_found() {
        let output = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\npanicked: 1\n\nfailures:\n    a\n\n\
                      test result: FAILED. 0 passed\n";
        assert_eq!(failures(output), "failures:\n\n---- a stdout ----\npanicked: 1\n\nfailures:\n    a");
        assert_eq!(failures("test a ... ok\n\ntest result: ok. 1 passed\n"), "");
        assert_eq!(failures("killed"), "");
    }

    #[test]
    fn only_tests_are_programs() {
        let message = |kind: &str, test: bool, executable: &str| {
            format!(
                r#"{{"manifest_path":"/w/crates/a/Cargo.toml","target":{{"kind":["{kind}"],"name":"it"}},
                "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = program(&message("test", true, r#""/t/it-1""#)).unwrap();
        assert_eq!((found.package.as_str(), found.target.as_str()), ("a", "it"));
        assert_eq!(
            (found.directory.as_path(), found.executable.as_path()),
            (Path::new("/w/crates/a"), Path::new("/t/it-1"))
        );
        assert_eq!(program(&message("proc-macro", true, r#""/t/a-1""#)).unwrap().target, "lib");
        assert_eq!(program(&message("bin", false, r#""/t/a""#)), None);
        assert_eq!(program(&message("lib", false, "null")), None);
        assert_eq!(program("Compiling"), None);
    }
}
