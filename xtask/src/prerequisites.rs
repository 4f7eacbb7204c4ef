//! What the tests need besides Rust, and how it is installed where it is missing: a Redis or
//! Valkey server, and a C compiler for the bundled SQLite. What the benchmarks need: valgrind.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Result, workspace};

/// Names the server program that the tests start; kept in step with the test kit.
pub(crate) const REDIS_VARIABLE: &str = "WINDLASS_REDIS_SERVER";

const REDIS_MINIMUM: (u32, u32) = (7, 0);
const POLICY_PATH: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str = "\
#!/bin/sh
# Placed by `cargo xtask test` of Windlass while it installs packages, so that no service is
# started. It is removed afterwards; a copy found at any other time may be deleted.
exit 101
";

/// Makes sure that all is there, and returns the name of the Redis server program.
pub(crate) fn provide(may_install: bool) -> Result<String> {
    remove_leftover(Path::new(POLICY_PATH))?;
    if let Ok(program) = env::var(REDIS_VARIABLE)
        && find_redis().is_none()
    {
        let (major, minor) = REDIS_MINIMUM;
        return Err(format!(
            "{REDIS_VARIABLE} names `{program}`, which is no Redis or Valkey server of version \
             {major}.{minor} or later"
        ));
    }
    let missing = missing();
    if !missing.is_empty() {
        let list = missing.iter().map(|need| format!("  - {}\n", need.what)).collect::<String>();
        let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages.iter().copied()).collect();
        let advice = format!("on Debian or Ubuntu: apt-get install {}", packages.join(" "));
        let explain = |why: &str| format!("the tests need\n{list}{why}\n{advice}");
        if !may_install {
            return Err(explain("Nothing is installed because of --no-install."));
        }
        println!("    missing:\n{list}");
        install(&packages).map_err(|why| explain(&why))?;
    }
    if !has_c_compiler() {
        return Err("there is still no C compiler (`cc`) after the installation".to_owned());
    }
    let (program, version) = find_redis().ok_or_else(|| {
        let (major, minor) = REDIS_MINIMUM;
        format!(
            "there is still no redis-server or valkey-server of version {major}.{minor} or later \
             after the installation; install a newer one, or name its program in {REDIS_VARIABLE}"
        )
    })?;
    println!("    {program} {}.{}, C compiler", version.0, version.1);
    Ok(program)
}

/// Makes sure that valgrind is there, which counts instructions.
pub(crate) fn provide_valgrind() -> Result {
    if answers("valgrind".as_ref()) {
        return Ok(());
    }
    install(&["valgrind"]).map_err(|why| format!("the counting of instructions needs valgrind. {why}"))
}

struct Need {
    what: &'static str,
    packages: &'static [&'static str],
}

fn missing() -> Vec<Need> {
    let mut missing = Vec::new();
    if find_redis().is_none() {
        let what = "a Redis server (`redis-server` or `valkey-server`) of version 7.0 or later";
        missing.push(Need { what, packages: &["redis-server"] });
    }
    if !has_c_compiler() {
        missing.push(Need { what: "a C compiler (`cc`)", packages: &["gcc", "libc6-dev"] });
    }
    missing
}

fn has_c_compiler() -> bool {
    answers(&env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Whether a program is there and tells its version.
fn answers(program: &OsStr) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The first server that is new enough.
fn find_redis() -> Option<(String, (u32, u32))> {
    let chosen = env::var(REDIS_VARIABLE).ok();
    let candidates = match &chosen {
        Some(program) => vec![program.as_str()],
        None => vec!["redis-server", "valkey-server"],
    };
    candidates.into_iter().find_map(|program| {
        let output = Command::new(program).arg("--version").output().ok()?;
        let version = redis_version(&String::from_utf8_lossy(&output.stdout))?;
        (version >= REDIS_MINIMUM).then(|| (program.to_owned(), version))
    })
}

/// Reads `Redis server v=7.0.15 sha=…` and the like.
fn redis_version(text: &str) -> Option<(u32, u32)> {
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
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

/// How a command that changes the system is run.
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
        // `-n`: a test run must not stop at a question for a password.
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
        command.stdin(Stdio::null());
        command
    }

    fn apt_get(self, arguments: &[&str]) -> Result {
        // Through `env`, because sudo does not hand the environment on. The lock may be held by the
        // system's own update run, which ends soon.
        let mut command = self.command("env");
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]);
        command.args(["--option", "DPkg::Lock::Timeout=120"]).args(arguments);
        workspace::run(&mut command)
    }
}

/// Keeps packages from starting services for as long as it lives: Debian's maintainer scripts ask
/// `policy-rc.d` first. Where the system has such a file already, its owner's policy stands.
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
        // The guard exists before the file, so that a copy that failed midway is removed as well.
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

/// A run that was killed could not remove its policy file; the next run does.
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
    fn versions_are_read() {
        let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=d81b8";
        assert_eq!(redis_version(redis), Some((7, 0)));
        assert_eq!(redis_version("Valkey server v=8.1.4 sha=00000000:0 malloc=libc"), Some((8, 1)));
        assert_eq!(redis_version("something else"), None);
        assert_eq!(redis_version("v=new"), None);
    }

    #[test]
    fn debian_and_its_children_are_known() {
        assert!(is_debian("NAME=\"Debian GNU/Linux\"\nID=debian\n"));
        assert!(is_debian("ID=ubuntu\nID_LIKE=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\nVARIANT_ID=debian-like\n"));
    }

    #[test]
    fn the_policy_file_lives_as_long_as_its_guard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy-rc.d");
        let policy = Policy::place(&path, Rights::AsWeAre).unwrap();
        assert_eq!(Command::new(&path).status().unwrap().code(), Some(101));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        drop(policy);
        assert!(!path.exists());
    }

    #[test]
    fn the_policy_file_of_the_system_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy-rc.d");
        fs::write(&path, "the owner's").unwrap();
        drop(Policy::place(&path, Rights::AsWeAre).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "the owner's");
    }

    #[test]
    fn only_a_leftover_of_ours_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let theirs = folder.path().join("theirs");
        fs::write(&theirs, "#!/bin/sh\nexit 101\n").unwrap();
        remove_leftover(&theirs).unwrap();
        assert!(theirs.exists());
        assert_eq!(remove_leftover(&folder.path().join("none")), Ok(()));
    }
}
