//! `cargo xtask test`: the command that every change must pass.

use crate::{HELP, Result, Workspace, examples, prerequisites, steps::Steps, tidy};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    full: bool,
    no_install: bool,
}

impl Options {
    pub(crate) fn parse(flags: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        for flag in flags {
            match *flag {
                "--full" => options.full = true,
                "--no-install" => options.no_install = true,
                unknown => return Err(format!("unknown option `{unknown}` of `test`\n\n{HELP}")),
            }
        }
        Ok(options)
    }
}

pub(crate) fn run(options: Options) -> Result {
    let mut workspace = Workspace::locate();
    // Some tests run handlers that panic. Their backtraces would hide the failures.
    workspace.set("RUST_BACKTRACE", "0");
    if options.full {
        workspace.set("WINDLASS_FULL", "1");
    }
    let mut steps = Steps::default();
    let outcome = run_steps(options, &mut workspace, &mut steps);
    steps.print_summary();
    outcome
}

/// Runs the steps, cheap checks first, so that a formatting error is reported before the long build. Every build uses
/// all features, so that dependencies are built only once.
fn run_steps(options: Options, workspace: &mut Workspace, steps: &mut Steps) -> Result {
    for (name, value) in steps.run("prerequisites", || prerequisites::provide(!options.no_install))? {
        workspace.set(name, &value);
    }
    let workspace = &*workspace;
    steps.run("format", || workspace.cargo(&["fmt", "--all", "--check"]))?;
    steps.run("tidy", || tidy::run(workspace))?;
    steps.run("clippy", || {
        workspace.cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "--deny",
            "warnings",
        ])
    })?;
    steps.run("test", || workspace.cargo(&["test", "--workspace", "--all-features", "--no-fail-fast"]))?;
    steps.run("doc", || document(workspace))?;
    steps.run("examples", || examples::run(workspace))
}

fn document(workspace: &Workspace) -> Result {
    let mut strict = workspace.clone();
    strict.set("RUSTDOCFLAGS", "--deny warnings");
    strict.cargo(&["doc", "--workspace", "--no-deps", "--all-features"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_any_order() {
        assert_eq!(Options::parse(&[]), Ok(Options::default()));
        let both = Options { full: true, no_install: true };
        assert_eq!(Options::parse(&["--no-install", "--full"]), Ok(both));
    }

    #[test]
    fn an_unknown_option_is_named() {
        let message = Options::parse(&["--fast"]).unwrap_err();
        assert!(message.starts_with("unknown option `--fast`"), "{message}");
    }
}
