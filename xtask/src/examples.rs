//! Runs every example: those of the crates, and the packages under `examples/`.
//!
//! An example must end by itself, succeed, and run in any directory.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{Result, Workspace, compiler};

const LIMIT: Duration = Duration::from_secs(60);
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// Examples that need a server and arguments. A test of their crate runs them.
const RUN_BY_TESTS: [&str; 2] = ["windlass/orders", "windlass/signup"];

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Example {
    name: String,
    executable: PathBuf,
}

pub(crate) fn run(workspace: &Workspace) -> Result {
    let examples = build(workspace)?;
    for example in &examples {
        let start = Instant::now();
        run_one(workspace, example)?;
        println!("    {} succeeded after {:.1} s", example.name, start.elapsed().as_secs_f64());
    }
    println!("    {} examples", examples.len());
    Ok(())
}

/// Builds the examples. Cargo reports where the executables are, so the name of the target directory is not assumed.
/// The profile is that of `cargo test`, which has already built them.
fn build(workspace: &Workspace) -> Result<Vec<Example>> {
    let arguments = ["--workspace", "--exclude=xtask", "--all-features", "--examples", "--bins"];
    let messages = compiler::build(workspace, &[&["build", "--profile=test"], &arguments[..]].concat())?;
    let mut examples: Vec<Example> =
        messages.lines().filter_map(|line| example_of(line, workspace.root())).collect();
    examples.retain(|example| !RUN_BY_TESTS.contains(&example.name.as_str()));
    examples.sort();
    Ok(examples)
}

/// Returns the example that a cargo message reports: an example target of any package, or a program of a package under
/// `examples/`.
fn example_of(message: &str, root: &Path) -> Option<Example> {
    let message: Value = serde_json::from_str(message).ok()?;
    let executable = message.get("executable")?.as_str()?;
    let target = message.get("target")?;
    let is = |kind: &str| {
        target
            .get("kind")
            .and_then(Value::as_array)
            .is_some_and(|kinds| kinds.iter().any(|value| value == kind))
    };
    let package = Path::new(message.get("manifest_path")?.as_str()?).parent()?;
    if !(is("example") || is("bin") && package.starts_with(root.join("examples"))) {
        return None;
    }
    let package = package.file_name()?.to_str()?;
    let name = format!("{package}/{}", target.get("name")?.as_str()?);
    Some(Example { name, executable: executable.into() })
}

/// Runs an example in a temporary directory. Prints its output if it fails.
fn run_one(workspace: &Workspace, Example { name, executable }: &Example) -> Result {
    let explain = |error| format!("cannot run the example {name}: {error}");
    let directory = tempfile::tempdir().map_err(explain)?;
    let log = tempfile::NamedTempFile::new().map_err(explain)?;
    let writer = || File::options().append(true).open(log.path()).map(Stdio::from).map_err(explain);
    let mut child = workspace
        .command(executable)
        .current_dir(directory.path())
        .stdout(writer()?)
        .stderr(writer()?)
        .spawn()
        .map_err(explain)?;
    let failure = match wait(&mut child, LIMIT).map_err(explain)? {
        Some(status) if status.success() => return Ok(()),
        Some(status) => status.to_string(),
        None => format!("still running after {} s", LIMIT.as_secs()),
    };
    print!("{}", fs::read_to_string(log.path()).map_err(explain)?);
    Err(format!("example {name}: {failure}"))
}

/// Waits for the child to end. Kills it if it exceeds the limit, and then returns `None`.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn check(kind: &str, manifest: &str, executable: &str, expected: Option<&str>) {
        let message = format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/repo/{manifest}","target":{{"kind":["{kind}"],"name":"hello"}},"executable":{executable}}}"#
        );
        let found = example_of(&message, Path::new("/repo")).map(|example| example.name);
        assert_eq!(found.as_deref(), expected, "{message}");
    }

    #[test]
    fn examples_are_distinguished_from_other_artifacts() {
        check("example", "crates/windlass/Cargo.toml", r#""/t/hello""#, Some("windlass/hello"));
        check("bin", "examples/shop/Cargo.toml", r#""/t/hello""#, Some("shop/hello"));
        check("bin", "crates/windlass-cli/Cargo.toml", r#""/t/hello""#, None);
        check("lib", "crates/windlass/Cargo.toml", "null", None);
        assert_eq!(example_of(r#"{"reason":"build-finished","success":true}"#, Path::new("/repo")), None);
        assert_eq!(example_of("not a message", Path::new("/repo")), None);
    }

    #[test]
    fn a_child_over_its_limit_is_killed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert_eq!(wait(&mut child, Duration::ZERO).unwrap(), None);
        assert!(child.try_wait().unwrap().is_some_and(|status| !status.success()));
    }

    #[test]
    fn the_status_of_an_example_counts() {
        let example = |program: &str| Example { name: "crate/it".into(), executable: program.into() };
        let workspace = Workspace::locate();
        assert_eq!(run_one(&workspace, &example("true")), Ok(()));
        let failure = run_one(&workspace, &example("false"));
        assert_eq!(failure, Err("example crate/it: exit status: 1".to_owned()));
    }
}
