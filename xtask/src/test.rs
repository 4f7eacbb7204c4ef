//! `cargo xtask test`: the command that every change must pass.

use crate::{
    HELP, Result, Workspace, examples, prerequisites,
    programs::{self, Program},
    steps::Steps,
    tidy, tiers,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    fast: bool,
    full: bool,
    no_install: bool,
}

impl Options {
    pub(crate) fn parse(flags: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        for flag in flags {
            match *flag {
                "--fast" => options.fast = true,
                "--full" => options.full = true,
                "--no-install" => options.no_install = true,
                unknown => return Err(format!("unknown option `{unknown}` of `test`\n\n{HELP}")),
            }
        }
        if options.fast && options.full {
            return Err(format!("`--fast` and `--full` exclude each other\n\n{HELP}"));
        }
        Ok(options)
    }
}

pub(crate) fn run(options: Options) -> Result {
    let mut workspace = Workspace::locate();
    // Some tests run handlers that panic. Their backtraces would hide the failures.
    workspace.set("RUST_BACKTRACE", "0");
    if options.full {
        workspace.set(programs::FULL_VARIABLE, "1");
    }
    let mut steps = Steps::default();
    let outcome = if options.fast {
        run_fast(&mut workspace, &mut steps)
    } else {
        run_steps(options, &mut workspace, &mut steps)
    };
    steps.print_summary();
    outcome
}

/// Number of simulation seeds in a fast run.
const FAST_SEEDS: &str = "50";

/// The tests of a fast run: those that need no server and take seconds.
const FAST_TESTS: [(&str, &[&str]); 10] = [
    ("windlass-macros", &["lib"]),
    ("windlass-core", &["lib", "it", "sim"]),
    ("windlass-conformance", &["memory", "in_process", "behavior", "covered"]),
    ("windlass-sqlite", &["lib", "conformance"]),
    ("windlass-postgres", &["lib"]),
    ("windlass-redis", &["lib"]),
    ("windlass-nats", &["lib"]),
    ("windlass-bench", &["lib", "bin"]),
    ("windlass-cli", &["lib", "bin"]),
    ("xtask", &["bin"]),
];

/// Whether a fast run includes a test program.
pub(crate) fn is_fast(program: &Program) -> bool {
    FAST_TESTS
        .iter()
        .any(|(package, tests)| *package == program.package && tests.contains(&program.target.as_str()))
}

/// The checks to run between edits.
fn run_fast(workspace: &mut Workspace, steps: &mut Steps) -> Result {
    workspace.set("WINDLASS_SEEDS", FAST_SEEDS);
    let workspace = &*workspace;
    check_source(workspace, steps)?;
    let programs = steps.run("build", || programs::build(workspace, &fast_arguments()))?;
    let mut programs = programs.iter().filter(|program| is_fast(program));
    steps.run("test", || programs.try_for_each(|program| program.run(workspace)))
}

/// Returns the arguments that select the tests of a fast run, and a few more. One build of all packages is much faster
/// than one per package: cargo unifies the features of the selected packages, so each selection compiles the shared
/// packages again.
fn fast_arguments() -> Vec<&'static str> {
    let mut arguments = vec!["--lib", "--bins"];
    for (package, tests) in FAST_TESTS {
        arguments.extend(["--package", package]);
        let tests = tests.iter().filter(|test| !["lib", "bin"].contains(test));
        arguments.extend(tests.flat_map(|test| ["--test", test]));
    }
    arguments
}

/// Runs the steps, cheap checks first, so that a formatting error is reported before the long build. Every build uses
/// all features, so that dependencies are built only once.
fn run_steps(options: Options, workspace: &mut Workspace, steps: &mut Steps) -> Result {
    for (name, value) in steps.run("prerequisites", || prerequisites::provide(!options.no_install))? {
        workspace.set(name, &value);
    }
    let workspace = &*workspace;
    check_source(workspace, steps)?;
    let programs = steps.run("build", || programs::build(workspace, &["--workspace"]))?;
    steps.run("test", || programs::run_all(workspace, programs))?;
    steps.run("doctest", || workspace.cargo(&["test", "--workspace", "--all-features", "--doc"]))?;
    steps.run("tiers", || tiers::run(workspace))?;
    steps.run("doc", || document(workspace))?;
    steps.run("examples", || examples::run(workspace))
}

fn check_source(workspace: &Workspace, steps: &mut Steps) -> Result {
    steps.run("format", || workspace.cargo(&["fmt", "--all", "--check"]))?;
    steps.run("tidy", || tidy::run(workspace))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"];
    steps.run("clippy", || workspace.cargo(&clippy))
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
    fn options_are_parsed_in_any_order() {
        assert_eq!(Options::parse(&[]), Ok(Options::default()));
        let both = Options { full: true, no_install: true, ..Options::default() };
        assert_eq!(Options::parse(&["--no-install", "--full"]), Ok(both));
    }

    #[test]
    fn an_unknown_option_is_named() {
        let message = Options::parse(&["--quick"]).unwrap_err();
        assert!(message.starts_with("unknown option `--quick`"), "{message}");
    }

    #[test]
    fn a_fast_run_is_not_a_full_one() {
        assert!(Options::parse(&["--fast"]).is_ok_and(|options| options.fast));
        let message = Options::parse(&["--fast", "--full"]).unwrap_err();
        assert!(message.contains("exclude each other"), "{message}");
    }
}
