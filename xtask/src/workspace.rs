//! The workspace, and how to run commands in it.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::Result;

#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Workspace {
    pub(crate) fn locate() -> Self {
        // Cargo sets the package directory when it runs a program. That is correct even if several checkouts share a
        // target directory. The directory of the build is only the fallback.
        let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&package).parent().expect("the package is a directory of the workspace");
        Self { root: root.to_owned(), environment: Vec::new() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Sets an environment variable for all commands created from now on.
    pub(crate) fn set(&mut self, name: &'static str, value: &str) {
        self.environment.push((name, value.to_owned()));
    }

    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(&self.root).stdin(Stdio::null());
        // `cargo run` describes this package in variables that the build scripts of some dependencies depend on, such as
        // that of ring. If they were passed on, `cargo xtask test` and `cargo test` would rebuild what the other built.
        for (name, _) in env::vars_os().filter(|(name, _)| describes_package(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }

    pub(crate) fn cargo_command(&self, arguments: &[&str]) -> Command {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.command(PathBuf::from(cargo));
        command.args(arguments);
        command
    }

    pub(crate) fn cargo(&self, arguments: &[&str]) -> Result {
        run(&mut self.cargo_command(arguments))
    }
}

/// Whether cargo sets this variable for the package that it runs.
fn describes_package(variable: &str) -> bool {
    variable.starts_with("CARGO_MANIFEST_") || variable.starts_with("CARGO_PKG_")
}

/// Runs a command to its end, with its output on the terminal.
pub(crate) fn run(command: &mut Command) -> Result {
    let status =
        command.status().map_err(|error| format!("cannot start `{}`: {error}", describe(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}`: {status}", describe(command))) }
}

/// Runs a command to its end. Returns everything that it printed, and whether it succeeded.
pub(crate) fn captured(command: &mut Command) -> Result<(String, Result)> {
    let output =
        command.output().map_err(|error| format!("cannot start `{}`: {error}", describe(command)))?;
    let text =
        [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
    let outcome = if output.status.success() {
        Ok(())
    } else {
        Err(format!("`{}`: {}", describe(command), output.status))
    };
    Ok((text, outcome))
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let (text, outcome) = piped(command)?;
    outcome.map(|()| text.into_bytes())
}

/// Runs a command to its end. Returns its standard output, and whether it succeeded.
pub(crate) fn piped(command: &mut Command) -> Result<(String, Result)> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start `{}`: {error}", describe(command)))?;
    let outcome = if output.status.success() {
        Ok(())
    } else {
        Err(format!("`{}`: {}", describe(command), output.status))
    };
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), outcome))
}

/// Formats the command as a person would type it, without the directory of the program.
fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text += &argument.to_string_lossy();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command() {
        let mut workspace = Workspace::locate();
        assert!(workspace.root().join("xtask/Cargo.toml").is_file());
        workspace.set("XTASK_STATUS", "3");
        let mut command = workspace.command("/bin/sh");
        command.args(["-c", "exit $XTASK_STATUS"]);
        assert_eq!(run(&mut command), Err("`sh -c exit $XTASK_STATUS`: exit status: 3".to_owned()));
    }

    #[test]
    fn variables_of_this_package_are_not_passed_on() {
        assert!(describes_package("CARGO_MANIFEST_DIR") && describes_package("CARGO_PKG_NAME"));
        assert!(!describes_package("CARGO_TARGET_DIR") && !describes_package("CARGO_HOME"));
        let removed = |name: &str| {
            Workspace::locate()
                .command("sh")
                .get_envs()
                .any(|(found, value)| found == name && value.is_none())
        };
        assert!(removed("CARGO_MANIFEST_DIR") && removed("CARGO_PKG_NAME"));
    }

    #[test]
    fn captured_output_includes_that_of_a_failure() {
        let mut command = Workspace::locate().command("sh");
        let (text, outcome) = captured(command.args(["-c", "printf abc; printf def >&2; exit 3"])).unwrap();
        assert_eq!(text, "abcdef");
        assert!(outcome.is_err_and(|error| error.ends_with("exit status: 3")));
    }

    #[test]
    fn output_is_returned() {
        let mut command = Workspace::locate().command("sh");
        assert_eq!(output(command.args(["-c", "printf abc"])), Ok(b"abc".to_vec()));
    }
}
