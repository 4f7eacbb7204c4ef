//! `cargo xtask bench --peers`: Windlass beside other libraries and bare stores, in one run.
//!
//! The program of `windlass-bench` measures. This module builds the programs of the libraries in `bench/`, each with its
//! own lockfile, and passes them on. A library that does not build is listed with the reason.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{Result, Workspace, bench, prerequisites, versions, workspace};

/// The directory with a package for each library, relative to the workspace.
const PEERS: &str = "bench";

/// The programs are built in one directory, so that they share what they have in common.
const TARGET: &str = "target/peers";

/// Compares all libraries on a store. Writes the results unless only a part of the comparison is run.
pub(crate) fn compare(store: &str, flags: &[&str]) -> Result {
    let workspace = Workspace::locate();
    let typed = typed(store, flags);
    let (server, flags) = take_server(flags)?;
    let variables = prerequisites::provide(true, server.is_some())?;
    let server = server.map(|name| versions::provide(&workspace, store, name)).transpose()?;
    let program = bench::build(&workspace)?;
    let mut command = Command::new(program);
    command.args(["compare", store]).args(&flags).envs(variables);
    if let Some(server) = &server {
        command.env(server.variable, &server.selected);
    }
    command.args(["--command", &typed]);
    if is_complete(&flags) {
        command.arg("--write").arg(workspace.root().join(bench::RESULTS));
    }
    for peer in list(&workspace, store)?.into_iter().filter(|peer| is_wanted(peer, &flags)) {
        match build(&workspace, &peer) {
            Ok(path) => command.args(["--program", &peer.name, &peer.version]).arg(path),
            Err(reason) => command.args(["--absent", &peer.name, &peer.version, &reason]),
        };
    }
    workspace::run(&mut command)
}

/// Returns the command as a person would type it.
fn typed(store: &str, flags: &[&str]) -> String {
    let quote = |word: &&str| if word.contains(' ') { format!("\"{word}\"") } else { (*word).to_owned() };
    let words = ["cargo xtask bench --peers", store].map(str::to_owned).into_iter();
    words.chain(flags.iter().map(quote)).collect::<Vec<_>>().join(" ")
}

/// Separates the name after `--server` from the other flags, which the program of `windlass-bench` reads.
fn take_server<'f>(flags: &[&'f str]) -> Result<(Option<&'f str>, Vec<&'f str>)> {
    let Some(at) = flags.iter().position(|flag| *flag == "--server") else {
        return Ok((None, flags.to_vec()));
    };
    let (before, after) = flags.split_at(at);
    let [_, name, after @ ..] = after else { return Err("`--server` needs a name".to_owned()) };
    Ok((Some(name), [before, after].concat()))
}

/// Whether all workloads run on all libraries.
fn is_complete(flags: &[&str]) -> bool {
    !flags.iter().any(|flag| ["--only", "--subject"].contains(flag))
}

/// Whether `--subject` selects a library. A program may have several subjects, whose names contain that of the crate.
fn is_wanted(peer: &Peer, flags: &[&str]) -> bool {
    let mut after = flags.iter().skip_while(|flag| **flag != "--subject").skip(1);
    after.next().is_none_or(|word| peer.name.contains(word) || word.contains(&peer.name))
}

/// A library to compare with.
#[derive(Debug, PartialEq, Eq)]
struct Peer {
    directory: PathBuf,
    /// Name of its crate.
    name: String,
    version: String,
}

/// Returns the libraries for a store, sorted by name.
fn list(workspace: &Workspace, store: &str) -> Result<Vec<Peer>> {
    let directory = workspace.root().join(PEERS);
    let entries = fs::read_dir(&directory).map_err(|error| format!("cannot read {PEERS}: {error}"))?;
    let mut peers = Vec::new();
    for entry in entries.flatten().filter(|entry| entry.path().join("Cargo.toml").is_file()) {
        let arguments = ["metadata", "--format-version=1", "--locked"];
        let metadata = workspace::output(workspace.cargo_command(&arguments).current_dir(entry.path()))?;
        let metadata: Value = serde_json::from_slice(&metadata).map_err(|error| error.to_string())?;
        peers.extend(peer(&entry.path(), &metadata, store)?);
    }
    peers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(peers)
}

/// Returns the library that a package compares on this store, if there is one: `[package.metadata.peer]` names its crate.
fn peer(directory: &Path, metadata: &Value, store: &str) -> Result<Option<Peer>> {
    let packages = || metadata.get("packages").and_then(Value::as_array).into_iter().flatten();
    let crates = packages().find_map(|package| package.get("metadata")?.get("peer"));
    let crates = crates.ok_or_else(|| format!("{}: no `[package.metadata.peer]`", directory.display()))?;
    let Some(name) = crates.get(store).and_then(Value::as_str) else { return Ok(None) };
    let found = packages().find(|package| package.get("name").and_then(Value::as_str) == Some(name));
    let version = found.and_then(|package| package.get("version")?.as_str());
    let version = version.ok_or_else(|| format!("{}: `{name}` is not a dependency", directory.display()))?;
    Ok(Some(Peer { directory: directory.to_owned(), name: name.to_owned(), version: version.to_owned() }))
}

/// Builds the program of a library and returns its path.
fn build(workspace: &Workspace, peer: &Peer) -> Result<PathBuf> {
    println!("    {} {}", peer.name, peer.version);
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.root().join(TARGET), PathBuf::from);
    let target = target.to_string_lossy();
    let mut cargo = bench::build_command(workspace, &["--locked", "--target-dir", &target]);
    let (messages, outcome) = workspace::captured(cargo.current_dir(&peer.directory))?;
    outcome.map_err(|error| reason(&messages).unwrap_or(error))?;
    bench::program(&messages)
}

/// Returns the first error that cargo or the compiler reports.
fn reason(messages: &str) -> Option<String> {
    let error = messages.lines().find(|line| line.starts_with("error"))?;
    Some(format!("does not build: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata() -> Value {
        json!({"packages": [
            {"name": "bench-a", "version": "0.0.0", "metadata": {"peer": {"redis": "a-redis", "sqlite": "gone"}}},
            {"name": "a-redis", "version": "1.2.3", "metadata": null},
        ]})
    }

    #[test]
    fn a_package_names_the_crate_that_it_compares() {
        let directory = Path::new("bench/a");
        let found = peer(directory, &metadata(), "redis").unwrap().unwrap();
        let (name, version) = ("a-redis".to_owned(), "1.2.3".to_owned());
        assert_eq!(found, Peer { directory: directory.to_owned(), name, version });
        assert_eq!(peer(directory, &metadata(), "postgres"), Ok(None));
    }

    #[test]
    fn a_package_that_compares_nothing_is_an_error() {
        let error = |metadata: &Value, store| peer(Path::new("bench/a"), metadata, store).unwrap_err();
        assert_eq!(error(&metadata(), "sqlite"), "bench/a: `gone` is not a dependency");
        assert_eq!(error(&json!({"packages": []}), "redis"), "bench/a: no `[package.metadata.peer]`");
    }

    #[test]
    fn only_the_selected_libraries_are_built() {
        let peer = |name: &str| {
            let (name, version) = (name.to_owned(), "1".to_owned());
            Peer { directory: PathBuf::new(), name, version }
        };
        assert!(is_wanted(&peer("bullmq-official"), &["--quick"]));
        assert!(is_wanted(&peer("bullmq-official"), &["--quick", "--subject", "bullmq"]));
        assert!(is_wanted(&peer("graphile_worker"), &["--subject", "graphile_worker, local queue"]));
        assert!(!is_wanted(&peer("oxana"), &["--subject", "bullmq", "--quick"]));
    }

    #[test]
    fn every_package_of_the_comparison_names_its_libraries() {
        let directory = Workspace::locate().root().join(PEERS);
        let manifests =
            fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path().join("Cargo.toml"));
        let mut count = 0;
        for manifest in manifests.filter(|manifest| manifest.is_file()) {
            let text = fs::read_to_string(&manifest).unwrap();
            assert!(text.contains("\n[package.metadata.peer]\n"), "{}", manifest.display());
            assert!(manifest.with_file_name("Cargo.lock").is_file(), "{}", manifest.display());
            count += 1;
        }
        assert!(count > 0);
    }

    #[test]
    fn the_first_error_is_the_reason() {
        let messages =
            "{\"reason\":\"x\"}\nwarning: unused\nerror[E0432]: no `x`\n  --> a\nerror: aborting\n";
        assert_eq!(reason(messages).as_deref(), Some("does not build: error[E0432]: no `x`"));
        assert_eq!(reason("warning: unused\n"), None);
    }

    #[test]
    fn the_server_is_not_passed_on() {
        let (server, flags) = take_server(&["--quick", "--server", "Redis 8", "--only", "drain"]).unwrap();
        assert_eq!((server, flags), (Some("Redis 8"), vec!["--quick", "--only", "drain"]));
        assert_eq!(take_server(&["--quick"]), Ok((None, vec!["--quick"])));
        assert_eq!(take_server(&["--server"]), Err("`--server` needs a name".to_owned()));
    }

    #[test]
    fn the_command_can_be_typed_again() {
        let typed = typed("redis", &["--server", "Redis 8", "--quick"]);
        assert_eq!(typed, "cargo xtask bench --peers redis --server \"Redis 8\" --quick");
    }

    #[test]
    fn results_of_a_part_are_not_written() {
        assert!(is_complete(&["--quick", "--rounds", "5"]));
        assert!(!is_complete(&["--only", "drain"]));
        assert!(!is_complete(&["--quick", "--subject", "river"]));
    }
}
