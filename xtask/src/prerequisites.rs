//! Finds what the tests need besides Rust, and installs what is missing: a Redis or Valkey server, PostgreSQL,
//! PgBouncer, a NATS server, a browser with its driver, and a C compiler for the bundled SQLite. The benchmarks also need
//! valgrind.

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Result, workspace};

/// The prerequisites of the tests. The variables must match those that the test kit reads.
const NEEDS: [Need; 7] = [
    Need {
        what: "Redis server (`redis-server` or `valkey-server`) of version 7.0 or later, built with TLS",
        packages: &["redis-server"],
        variable: Some("WINDLASS_REDIS_SERVER"),
        find: find_redis,
    },
    Need {
        what: "PostgreSQL server (a directory with `postgres`, `initdb` and `psql`) of version 13 or later",
        packages: &["postgresql"],
        variable: Some("WINDLASS_POSTGRES_PROGRAMS"),
        find: find_postgres,
    },
    Need {
        what: "PgBouncer (`pgbouncer`)",
        packages: &["pgbouncer"],
        variable: Some("WINDLASS_PGBOUNCER"),
        find: find_pgbouncer,
    },
    Need {
        what: "NATS server (`nats-server`) of version 2.9 or later",
        packages: &["nats-server"],
        variable: Some("WINDLASS_NATS_SERVER"),
        find: find_nats,
    },
    Need {
        what: "browser (`chromium`)",
        packages: &["chromium", "fonts-dejavu-core"],
        variable: Some("WINDLASS_CHROMIUM"),
        find: |chosen| find_plain(chosen.unwrap_or("chromium")),
    },
    Need {
        what: "driver of the browser (`chromedriver`)",
        packages: &["chromium-driver"],
        variable: Some("WINDLASS_CHROMEDRIVER"),
        find: |chosen| find_plain(chosen.unwrap_or("chromedriver")),
    },
    Need {
        what: "C compiler (`cc`)",
        packages: &["gcc", "libc6-dev"],
        variable: None,
        find: find_c_compiler,
    },
];

/// What a full run needs besides, to download other versions of the servers.
const FULL_NEEDS: [Need; 2] = [
    Need {
        what: "package manager for JavaScript (`npm`)",
        packages: &["npm"],
        variable: None,
        find: |_| find_plain("npm"),
    },
    Need {
        what: "package manager for Python (`pip3`)",
        packages: &["python3-pip"],
        variable: None,
        find: |_| find_plain("pip3"),
    },
];

const REDIS_MINIMUM: (u32, u32) = (7, 0);
const POSTGRES_MINIMUM: (u32, u32) = (13, 0);
const NATS_MINIMUM: (u32, u32) = (2, 9);
/// Where Debian installs PostgreSQL's programs, in a directory per version.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

const POLICY_PATH: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str = "\
#!/bin/sh
# Placed by `cargo xtask test` of Windlass while it installs packages, so that no service is
# started. It is removed afterwards; a copy found at any other time may be deleted.
exit 101
";

/// Provides everything that the tests need, or a full run of them, and returns the environment variables that select the
/// programs to use. The selected program is not always the first one of that name in `PATH`.
///
/// # Errors
/// If something is missing and cannot or may not be installed.
pub(crate) fn provide(may_install: bool, full: bool) -> Result<Vec<(&'static str, String)>> {
    let needs = || NEEDS.iter().chain(FULL_NEEDS.iter().filter(|_| full));
    remove_leftover(Path::new(POLICY_PATH))?;
    for need in needs() {
        need.check_variable()?;
    }
    let missing: Vec<&Need> = needs().filter(|need| need.find().is_none()).collect();
    if !missing.is_empty() {
        let list = missing.iter().map(|need| format!("  - a {}\n", need.what)).collect::<String>();
        let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages.iter().copied()).collect();
        let advice = format!("on Debian or Ubuntu: apt-get install {}", packages.join(" "));
        let explain = |why: &str| format!("the tests need\n{list}{why}\n{advice}");
        if !may_install {
            return Err(explain("Nothing is installed because of --no-install."));
        }
        eprintln!("    missing:\n{list}");
        install(&packages).map_err(|why| explain(&why))?;
    }
    let mut variables = Vec::new();
    for need in needs() {
        let found = need.find().ok_or_else(|| need.explain_absence())?;
        eprintln!("    {found}");
        variables.extend(need.variable.map(|variable| (variable, found)));
    }
    Ok(variables)
}

/// Provides valgrind, which counts instructions.
pub(crate) fn provide_valgrind() -> Result {
    if output("valgrind").is_some() {
        return Ok(());
    }
    install(&["valgrind"]).map_err(|why| format!("counting instructions requires valgrind. {why}"))
}

/// Something that the tests need.
struct Need {
    /// Completes "a …".
    what: &'static str,
    packages: &'static [&'static str],
    /// The environment variable that selects the program.
    variable: Option<&'static str>,
    /// Returns the first suitable program. If one was selected, checks only that one.
    find: fn(Option<&str>) -> Option<String>,
}

impl Need {
    fn find(&self) -> Option<String> {
        (self.find)(self.chosen().as_deref())
    }

    fn chosen(&self) -> Option<String> {
        env::var(self.variable?).ok()
    }

    fn check_variable(&self) -> Result {
        if let (Some(variable), Some(chosen)) = (self.variable, self.chosen())
            && self.find().is_none()
        {
            return Err(format!("{variable} names `{chosen}`, which is not a {}", self.what));
        }
        Ok(())
    }

    fn explain_absence(&self) -> String {
        let name_it = self.variable.map(|variable| format!(", or name it in {variable}")).unwrap_or_default();
        format!("there is still no {} after the installation; install one by hand{name_it}", self.what)
    }
}

fn find_redis(chosen: Option<&str>) -> Option<String> {
    let candidates = chosen.map_or_else(|| vec!["redis-server", "valkey-server"], |program| vec![program]);
    let fit = |program: &&str| {
        output(program).is_some_and(|text| redis_version(&text).is_some_and(|found| found >= REDIS_MINIMUM))
    };
    candidates.into_iter().find(fit).map(str::to_owned)
}

/// Returns the directory of PostgreSQL's programs.
fn find_postgres(chosen: Option<&str>) -> Option<String> {
    let candidates = match chosen {
        Some(directory) => vec![PathBuf::from(directory)],
        None => postgres_directories(),
    };
    let fit = |directory: &PathBuf| {
        let version = |program: &str| postgres_version(&output(directory.join(program).to_str()?)?);
        ["postgres", "initdb", "psql"]
            .into_iter()
            .all(|program| version(program).is_some_and(|found| found >= POSTGRES_MINIMUM))
    };
    candidates.into_iter().find(fit).map(|directory| directory.to_string_lossy().into_owned())
}

/// Returns the directories to search: those in `PATH`, then Debian's, newest version first.
fn postgres_directories() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir(DEBIAN_POSTGRES).into_iter().flatten().flatten();
    let mut versions: Vec<u32> =
        versions.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    let debian = versions.into_iter().map(|version| format!("{DEBIAN_POSTGRES}/{version}/bin").into());
    env::split_paths(&path).filter(|directory| directory.join("postgres").is_file()).chain(debian).collect()
}

/// Also checks Debian's location, which is not in every user's `PATH`.
fn find_pgbouncer(chosen: Option<&str>) -> Option<String> {
    let candidates = chosen.map_or_else(|| vec!["pgbouncer", "/usr/sbin/pgbouncer"], |program| vec![program]);
    let fit = |program: &&str| output(program).is_some_and(|text| text.starts_with("PgBouncer "));
    candidates.into_iter().find(fit).map(str::to_owned)
}

fn find_nats(chosen: Option<&str>) -> Option<String> {
    let candidates =
        chosen.map_or_else(|| vec!["nats-server", "/usr/sbin/nats-server"], |program| vec![program]);
    let fit = |program: &&str| {
        output(program).is_some_and(|text| nats_version(&text).is_some_and(|found| found >= NATS_MINIMUM))
    };
    candidates.into_iter().find(fit).map(str::to_owned)
}

fn find_plain(program: &str) -> Option<String> {
    output(program).map(|_| program.to_owned())
}

fn find_c_compiler(_chosen: Option<&str>) -> Option<String> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    output(&compiler).map(|_| compiler)
}

/// Returns the output of `--version`, or `None` if the program cannot be run.
fn output(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses a text like `Redis server v=7.0.15 sha=…`.
fn redis_version(text: &str) -> Option<(u32, u32)> {
    numbers(text.split_whitespace().find_map(|word| word.strip_prefix("v="))?)
}

/// Parses a text like `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`. Returns `None` for prereleases like
/// `19beta1`.
fn postgres_version(text: &str) -> Option<(u32, u32)> {
    let (_, version) = text.split_once("(PostgreSQL) ")?;
    numbers(version.split_whitespace().next()?)
}

/// Parses a text like `nats-server: v2.9.10`.
fn nats_version(text: &str) -> Option<(u32, u32)> {
    numbers(text.trim().strip_prefix("nats-server: v")?)
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn install(packages: &[&str]) -> Result {
    if !fs::read_to_string("/etc/os-release").is_ok_and(|text| is_debian(&text)) {
        return Err("They can be installed for you on Debian and Ubuntu only.".to_owned());
    }
    let rights = Rights::find()?;
    let _policy = Policy::place(Path::new(POLICY_PATH), rights)?;
    rights.apt_get(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    rights.apt_get(&arguments)
}

fn is_debian(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split_whitespace())
        .any(|id| id == "debian" || id == "ubuntu")
}

/// How to run a command that changes the system.
#[derive(Clone, Copy, Debug)]
enum Rights {
    AsWeAre,
    Sudo,
}

impl Rights {
    fn find() -> Result<Self> {
        let user = workspace::output(Command::new("id").arg("-u"))?;
        if user.trim_ascii() == b"0" {
            return Ok(Self::AsWeAre);
        }
        // `-n`: the run must fail instead of asking for a password.
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
        if sudo.status().is_ok_and(|status| status.success()) {
            return Ok(Self::Sudo);
        }
        Err("Installing them takes root, or sudo without a password.".to_owned())
    }

    fn command(self, program: &str) -> Command {
        let mut command = match self {
            Self::AsWeAre => Command::new(program),
            Self::Sudo => {
                let mut sudo = Command::new("sudo");
                sudo.args(["-n", program]);
                sudo
            }
        };
        // Keep standard output free for the results of a benchmark.
        command.stdin(Stdio::null()).stdout(io::stderr());
        command
    }

    fn apt_get(self, arguments: &[&str]) -> Result {
        // Set the variable through `env`, because sudo does not pass on the environment. The system's own update may
        // hold the lock for a short time, so wait for it.
        let mut command = self.command("env");
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]);
        command
            .args(["--option", "DPkg::Lock::Timeout=120", "--option", "Acquire::Retries=5"])
            .args(arguments);
        workspace::run(&mut command)
    }
}

/// Prevents packages from starting services while this guard exists: Debian's maintainer scripts ask `policy-rc.d`
/// first. A policy file that already exists is left alone.
struct Policy {
    placed: Option<PathBuf>,
    rights: Rights,
}

impl Policy {
    fn place(path: &Path, rights: Rights) -> Result<Self> {
        if path.exists() {
            return Ok(Self { placed: None, rights });
        }
        let explain = |error| format!("cannot write a temporary file: {error}");
        let mut source = tempfile::NamedTempFile::new().map_err(explain)?;
        source.write_all(POLICY_TEXT.as_bytes()).map_err(explain)?;
        // Create the guard before the file, so that a partial copy is removed as well.
        let policy = Self { placed: Some(path.to_owned()), rights };
        workspace::run(rights.command("install").arg("--mode=755").arg(source.path()).arg(path))?;
        Ok(policy)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if let Some(path) = &self.placed
            && let Err(message) = workspace::run(self.rights.command("rm").arg("-f").arg(path))
        {
            eprintln!("warning: {} must be removed by hand: {message}", path.display());
        }
    }
}

/// Removes our policy file if an earlier run was killed before it could.
fn remove_leftover(path: &Path) -> Result {
    if fs::read_to_string(path).is_ok_and(|text| text == POLICY_TEXT) {
        workspace::run(Rights::find()?.command("rm").arg("-f").arg(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn versions_are_parsed() {
        let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=d81b8";
        assert_eq!(redis_version(redis), Some((7, 0)));
        assert_eq!(redis_version("Valkey server v=8.1.4 sha=00000000:0 malloc=libc"), Some((8, 1)));
        assert_eq!(redis_version("something else"), None);
        assert_eq!(redis_version("v=new"), None);
        assert_eq!(nats_version("nats-server: v2.9.10\n"), Some((2, 9)));
        assert_eq!(nats_version("something else"), None);
        let postgres = "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)";
        assert_eq!(postgres_version(postgres), Some((15, 14)));
        assert_eq!(postgres_version("psql (PostgreSQL) 18.0"), Some((18, 0)));
        assert_eq!(postgres_version("postgres (PostgreSQL) 19beta1"), None);
        assert_eq!(postgres_version("something else"), None);
    }

    #[test]
    fn only_the_selected_program_is_checked() {
        for need in &NEEDS {
            if need.variable.is_some() {
                assert_eq!((need.find)(Some("./none")), None, "{}", need.what);
            }
        }
    }

    #[test]
    fn debian_and_its_derivatives_are_recognized() {
        assert!(is_debian("NAME=\"Debian GNU/Linux\"\nID=debian\n"));
        assert!(is_debian("ID=ubuntu\nID_LIKE=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\nVARIANT_ID=debian-like\n"));
    }

    #[test]
    fn the_policy_file_lives_as_long_as_its_guard() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy-rc.d");
        let policy = Policy::place(&path, Rights::AsWeAre).unwrap();
        assert_eq!(Command::new(&path).status().unwrap().code(), Some(101));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        drop(policy);
        assert!(!path.exists());
    }

    #[test]
    fn the_policy_file_of_the_system_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy-rc.d");
        fs::write(&path, "the owner's").unwrap();
        drop(Policy::place(&path, Rights::AsWeAre).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "the owner's");
    }

    #[test]
    fn only_a_leftover_of_ours_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let theirs = directory.path().join("theirs");
        fs::write(&theirs, "#!/bin/sh\nexit 101\n").unwrap();
        remove_leftover(&theirs).unwrap();
        assert!(theirs.exists());
        assert_eq!(remove_leftover(&directory.path().join("none")), Ok(()));
    }
}
