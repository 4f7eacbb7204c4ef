//! The lockfiles of the packages outside the workspace. A normal build does not use them, so nothing else notices that a
//! dependency of the workspace is missing there.

use std::{ffi::OsStr, path::Path};

use crate::{Workspace, workspace};

/// The part of cargo's message if a lockfile is not current.
const STALE: &str = "because --locked was passed";

/// What is wrong with a lockfile.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    Stale(String),
    /// It could not be checked, for example without a network.
    Unchecked(String),
}

/// Whether the path is that of a lockfile to check. `cargo xtask bench --peers` builds the packages in `bench/` with
/// `--locked`, and resolving the dependencies of all of them takes too long here.
pub(super) fn is_separate(path: &str) -> bool {
    path.ends_with("/Cargo.lock") && !path.starts_with("bench/")
}

/// Checks that a lockfile has all dependencies. It may have older versions than the latest.
pub(super) fn check(workspace: &Workspace, path: &str) -> Option<Problem> {
    let directory = workspace.root().join(path).parent().map(Path::to_owned)?;
    let update = |flags: &[&str]| {
        let mut command = workspace.cargo_command(&["update", "--workspace", "--locked"]);
        workspace::captured(command.args(flags.iter().map(OsStr::new)).current_dir(&directory))
    };
    // Most of the time, the index of the registry is cached.
    if matches!(update(&["--offline"]), Ok((_, Ok(())))) {
        return None;
    }
    match update(&[]) {
        Ok((_, Ok(()))) => None,
        Ok((text, Err(_))) => Some(problem(&text)),
        Err(error) => Some(Problem::Unchecked(error)),
    }
}

fn problem(text: &str) -> Problem {
    if text.contains(STALE) {
        return Problem::Stale(
            "it is not current: run `cargo update --workspace` in this directory".to_owned(),
        );
    }
    let error = text.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed");
    Problem::Unchecked(error.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[test]
    fn only_lockfiles_of_other_packages_are_checked() {
        assert!(is_separate("fuzz/Cargo.lock"));
        assert!(
            ["Cargo.lock", "fuzz/Cargo.toml", "bench/a/Cargo.lock"]
                .into_iter()
                .all(|path| !is_separate(path))
        );
    }

    /// Packages in directories, which need no registry.
    #[test]
    fn a_lockfile_without_a_new_dependency_is_stale() {
        let workspace = Workspace::locate();
        let directory = tempfile::tempdir().unwrap();
        let package = |name: &str, dependencies: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.join("src")).unwrap();
            fs::write(path.join("src/lib.rs"), "").unwrap();
            let manifest =
                format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n{dependencies}\n[workspace]\n");
            fs::write(path.join("Cargo.toml"), manifest).unwrap();
            path
        };
        package("added", "");
        let path = package("tool", "");
        let lockfile = path.join("Cargo.lock");
        let check = || check(&workspace, lockfile.to_str().unwrap());
        workspace::output(Command::new("cargo").args(["update", "--offline"]).current_dir(&path)).unwrap();
        assert_eq!(check(), None);
        package("tool", "[dependencies]\nadded.path = \"../added\"");
        assert!(matches!(check(), Some(Problem::Stale(_))), "{:?}", check());
    }

    #[test]
    fn without_a_network_nothing_is_reported_as_stale() {
        let text = "    Updating the index\nerror: failed to get `a` as a dependency\n";
        assert_eq!(problem(text), Problem::Unchecked("error: failed to get `a` as a dependency".to_owned()));
    }
}
