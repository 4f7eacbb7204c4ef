//! Runs programs that need newer libraries than the system has.
//!
//! The libraries are those of a newer Debian. apt downloads them from the mirror that the system uses, and verifies their
//! signatures. They are unpacked into a directory, and not installed.

use std::{
    ffi::OsString,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{Result, workspace};

/// The release of Debian that the libraries come from.
const RELEASE: &str = "trixie";

/// apt adds the packages that this one depends on: the C library and the runtime library of the compiler.
const PACKAGE: &str = "libstdc++6";

/// The keys that Debian signs its releases with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where the packages have their libraries and the loader.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Returns the path that starts a program: the program itself, or a script beside it that starts it with newer libraries.
/// The libraries are kept in `directory`.
///
/// # Errors
/// If the program does not print its version either way.
pub(crate) fn runnable(program: &Path, directory: &Path) -> Result<PathBuf> {
    let Err(reason) = check(program) else { return Ok(program.to_owned()) };
    let explain = |error| {
        format!(
            "{} does not run on this system: {reason}\nThe libraries of Debian {RELEASE} cannot be used: {error}",
            program.display()
        )
    };
    let libraries = provide(directory).map_err(explain)?;
    let script = write_script(program, &libraries).map_err(explain)?;
    check(&script).map_err(explain)?;
    Ok(script)
}

/// Checks that a program prints its version. An error is what it prints instead.
fn check(program: &Path) -> Result {
    let (text, outcome) = workspace::captured(Command::new(program).arg("--version").stdin(Stdio::null()))?;
    outcome.map_err(|error| if text.is_empty() { error } else { text.trim_end().to_owned() })
}

/// Returns the directory with the libraries. Downloads them if they are missing.
fn provide(directory: &Path) -> Result<PathBuf> {
    let release = directory.join(RELEASE);
    let libraries = release.join(LIBRARIES);
    if libraries.is_dir() {
        return Ok(libraries);
    }
    let explain = |error| format!("cannot unpack the libraries: {error}");
    let apt = Apt::new(&mirror()?).map_err(explain)?;
    let unpacked = TempDir::new_in(directory).map_err(explain)?;
    for package in apt.download(PACKAGE)? {
        workspace::run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(unpacked.path()))?;
    }
    // The directory has its name only when it is complete. Another process may have completed it first.
    if let Err(error) = fs::rename(unpacked.path(), &release)
        && !libraries.is_dir()
    {
        return Err(explain(error));
    }
    Ok(libraries)
}

/// Returns the URI of the system's mirror of Debian.
fn mirror() -> Result<String> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    let uris = workspace::output(command.args(["Origin: Debian", "Label: Debian", "Component: main"]))?;
    let uris = String::from_utf8_lossy(&uris);
    let uri =
        uris.lines().next().ok_or("apt has no index of Debian: run `apt-get update` on a Debian system")?;
    Ok(uri.to_owned())
}

/// apt with its own sources, status and cache, so that it neither reads nor changes which packages are installed.
struct Apt {
    directory: TempDir,
}

impl Apt {
    fn new(mirror: &str) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("windlass-apt-").tempdir()?;
        // Root downloads as the user `_apt`.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        let source = format!("deb [target=Packages signed-by={KEYRING}] {mirror} {RELEASE} main\n");
        fs::write(directory.path().join("sources"), source)?;
        fs::write(directory.path().join("status"), "")?;
        Ok(Self { directory })
    }

    /// Downloads a package and those that it depends on. Returns their files.
    fn download(&self, package: &str) -> Result<Vec<PathBuf>> {
        workspace::run(self.command().args(["update", "--error-on=any"]))?;
        let mut command = self.command();
        command.args(["install", "--download-only", "--yes", "--no-install-recommends", package]);
        workspace::run(&mut command)?;
        let archives = self.directory.path().join("archives");
        let entries = fs::read_dir(&archives).map_err(|error| format!("apt has no archives: {error}"))?;
        let files = entries.flatten().map(|entry| entry.path());
        Ok(files.filter(|file| file.extension().is_some_and(|extension| extension == "deb")).collect())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("apt-get");
        // Keep standard output free for the results of a benchmark.
        command.args(["--quiet", "--quiet"]).stdin(Stdio::null()).stdout(io::stderr());
        let own = |name: &str| self.directory.path().join(name).into_os_string();
        let options: [(&str, OsString); 9] = [
            ("Dir::Etc::sourcelist", own("sources")),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::Etc::preferences", "/dev/null".into()),
            ("Dir::Etc::preferencesparts", "/dev/null".into()),
            ("Dir::State", own("")),
            ("Dir::State::status", own("status")),
            ("Dir::Cache", own("")),
            ("APT::Default-Release", RELEASE.into()),
            ("Acquire::Retries", "5".into()),
        ];
        for (name, value) in options {
            let mut option = OsString::from(name);
            option.push("=");
            option.push(value);
            command.arg("--option").arg(option);
        }
        command
    }
}

/// Writes a script that starts a program with these libraries. The program replaces the script in its process.
fn write_script(program: &Path, libraries: &Path) -> Result<PathBuf> {
    let explain = |error| format!("cannot write a script for {}: {error}", program.display());
    let libraries = libraries.canonicalize().map_err(explain)?;
    let (loader, script) = (libraries.join(LOADER), program.with_extension("sh"));
    let (loader, libraries, path) = (quoted(&loader)?, quoted(&libraries)?, quoted(program)?);
    let text = format!("#!/bin/sh\nexec {loader} --library-path {libraries} {path} \"$@\"\n");
    fs::write(&script, text).map_err(explain)?;
    fs::set_permissions(&script, Permissions::from_mode(0o755)).map_err(explain)?;
    Ok(script)
}

/// Quotes a path for the shell.
fn quoted(path: &Path) -> Result<String> {
    let path = path.to_str().ok_or_else(|| format!("the path {} is not UTF-8", path.display()))?;
    Ok(format!("'{}'", path.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in a directory whose name has to be quoted. It cannot be run without the loader that is in
    /// `libraries/trixie`.
    struct Fixture {
        directory: TempDir,
    }

    impl Fixture {
        fn new(loader: &str) -> Self {
            let directory = tempfile::Builder::new().prefix("it's a ").tempdir().unwrap();
            let fixture = Self { directory };
            fixture.write("program", "echo too old >&2; exit 1");
            let libraries = fixture.libraries().join(RELEASE).join(LIBRARIES);
            fs::create_dir_all(&libraries).unwrap();
            fixture.write(libraries.join(LOADER).to_str().unwrap(), loader);
            fixture
        }

        fn program(&self) -> PathBuf {
            self.directory.path().join("program")
        }

        fn libraries(&self) -> PathBuf {
            self.directory.path().join("libraries")
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.directory.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn a_program_that_runs_needs_no_libraries() {
        let fixture = Fixture::new("exit 1");
        fixture.write("program", "exit 0");
        assert_eq!(runnable(&fixture.program(), &fixture.libraries()), Ok(fixture.program()));
    }

    #[test]
    fn a_script_starts_the_program_with_the_libraries_in_its_process() {
        let fixture = Fixture::new(r#"echo "$$"; printf '%s\n' "$@""#);
        let script = runnable(&fixture.program(), &fixture.libraries()).unwrap();
        let child = Command::new(script).args(["--port", "", "a b"]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id().to_string();
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let libraries = fixture.libraries().join(RELEASE).join(LIBRARIES).canonicalize().unwrap();
        let (libraries, program) = (libraries.to_string_lossy(), fixture.program());
        let program = program.to_string_lossy();
        let expected = [pid.as_str(), "--library-path", &libraries, &program, "--port", "", "a b"];
        assert_eq!(output.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_error_has_both_reasons() {
        let fixture = Fixture::new("echo no such library >&2; exit 1");
        let error = runnable(&fixture.program(), &fixture.libraries()).unwrap_err();
        assert!(error.contains("does not run on this system: too old\n"), "{error}");
        assert!(error.ends_with("The libraries of Debian trixie cannot be used: no such library"), "{error}");
    }
}
