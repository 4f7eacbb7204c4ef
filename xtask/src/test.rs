//! `cargo xtask test`: the command that every change must pass.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{self, Command},
};

use tempfile::TempDir;

use crate::{
    HELP, Result, Workspace, bench, compiler, examples, package, prerequisites,
    programs::{self, Program},
    steps::Steps,
    tidy, tiers, versions, workspace,
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

/// Where Linux keeps files in memory, and how many bytes of it must be free to use it.
const MEMORY: &str = "/dev/shm";
const MEMORY_MIN: u64 = 4 << 30;

/// Creates a directory in memory for the temporary files of the tests, which start hundreds of servers. On a disk, most of
/// the time would go into copying their files and syncing them. What the tests kill are processes, not the machine.
///
/// Returns `None` if there is too little memory, or if the caller has set `TMPDIR`.
fn directory_in_memory() -> Option<TempDir> {
    if env::var_os("TMPDIR").is_some() {
        return None;
    }
    let free =
        workspace::output(Command::new("df").args(["--block-size=1", "--output=avail", MEMORY])).ok()?;
    let free: u64 = String::from_utf8_lossy(&free).lines().last()?.trim().parse().ok()?;
    if free.min(available_memory()?) < MEMORY_MIN {
        return None;
    }
    remove_leftovers();
    let prefix = format!("{PREFIX}{}-", process::id());
    let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(MEMORY).ok()?;
    // Servers run as other users.
    fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).ok()?;
    Some(directory)
}

/// Prefix of the directories in memory. The id of their process follows.
const PREFIX: &str = "windlass-test-";

/// Returns how many bytes of memory the machine can give away.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

/// Removes the directories of runs that were killed.
fn remove_leftovers() {
    for entry in fs::read_dir(MEMORY).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let Some(process) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        if !Path::new("/proc").join(process).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

pub(crate) fn run(options: Options) -> Result {
    let mut workspace = Workspace::locate();
    let directory = directory_in_memory();
    if let Some(path) = directory.as_ref().and_then(|directory| directory.path().to_str()) {
        workspace.set("TMPDIR", path);
    }
    // Some tests run handlers that panic. Their backtraces would hide the failures.
    workspace.set("RUST_BACKTRACE", "0");
    // A build that is never repeated needs no incremental compilation, which would double the size of its target directory.
    if env::var_os("CI").is_some() {
        workspace.set("CARGO_INCREMENTAL", "0");
    }
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

/// The tests of a fast run: those that need no server and take seconds. The unit tests of `windlass-postgres`
/// and `windlass-testkit` start servers.
const FAST_TESTS: [(&str, &[&str]); 13] = [
    ("windlass-macros", &["lib"]),
    ("windlass-core", &["lib", "it", "sim"]),
    ("windlass-conformance", &["memory", "in_process", "behavior", "covered"]),
    ("windlass-sqlite", &["lib", "conformance"]),
    ("windlass-file", &["lib", "conformance"]),
    ("windlass-redis", &["lib"]),
    ("windlass-nats", &["lib"]),
    ("windlass-server", &["lib", "it"]),
    ("windlass-otel", &["lib", "it"]),
    ("windlass-bench", &["lib", "bin"]),
    ("windlass-bench-harness", &["lib"]),
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
    // A fast run builds only some of the tests, and lints all code.
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"];
    steps.run("clippy", || workspace.cargo(&clippy))?;
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
    for (name, value) in
        steps.run("prerequisites", || prerequisites::provide(!options.no_install, options.full))?
    {
        workspace.set(name, &value);
    }
    let workspace = &*workspace;
    check_source(workspace, steps)?;
    let programs = steps.run("build and lint", || programs::build(workspace, &["--workspace"]))?;
    steps.run("test", || programs::run_all(workspace, programs.clone()))?;
    if options.full {
        steps.run("versions", || versions::run_on(workspace, &programs, ""))?;
        // Unlike the step `docs`, this finds links to crates that only the tests depend on.
        steps.run("doc", || document(workspace))?;
        steps.run("observers", || bench::telemetry(&["--instructions"]))?;
    }
    steps.run("docs", || compiler::test_docs(workspace))?;
    steps.run("tiers", || tiers::run(workspace))?;
    steps.run("examples", || examples::run(workspace))?;
    // Building from the packages compiles every crate once more.
    steps.run("package", || package::run(workspace, options.full))
}

fn check_source(workspace: &Workspace, steps: &mut Steps) -> Result {
    steps.run("format", || workspace.cargo(&["fmt", "--all", "--check"]))?;
    steps.run("tidy", || tidy::run(workspace))
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
