//! A private PostgreSQL server.

use std::{
    env, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    account::Account,
    certificate,
    server::{Program, Server, free_ports, is_installed, located},
};

mod template;

/// Environment variable with the directory of `initdb` and `postgres`. If it is not set, the kit searches `PATH`, then
/// [`DEBIAN`]. `psql` may be elsewhere: some packages have only the server.
const PROGRAMS_VARIABLE: &str = "WINDLASS_POSTGRES_PROGRAMS";
/// Where Debian installs the programs, in one directory per version.
const DEBIAN: &str = "/usr/lib/postgresql";

pub(crate) const USER: &str = "windlass";
pub(crate) const DATABASE: &str = "postgres";
/// The data directory, below the server's directory.
const DATA: &str = "data";
/// The mount point below the server's directory, and the name of the tablespace on it.
const SMALL_DISK: &str = "small_disk";

/// Mounts a file system in the mount namespace of the server, so that it is unmounted when the server ends, for whatever reason.
const MOUNT: &str = r#"mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@""#;

/// A private PostgreSQL server on a free port of the loopback interface, with a temporary directory. It is as durable
/// as PostgreSQL is by default (`fsync` and `synchronous_commit` are on).
///
/// If the tests run as root, the server runs as `postgres` or `nobody`, because PostgreSQL refuses to run as root.
/// Every user of this machine can connect as superuser.
///
/// Dropping it ends the server and removes the directory. So does the end of the process, for whatever reason.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use windlass_testkit::PostgresServer;
///
/// let mut server = PostgresServer::builder().setting("synchronous_commit", "off").start().await;
/// println!("{}", server.url());
/// server.crash().await;
/// server.restart().await; // same address, same data
/// # }
/// ```
#[derive(Debug)]
pub struct PostgresServer {
    server: Server<Postgres>,
}

/// Builder for a [`PostgresServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct PostgresServerBuilder {
    settings: Vec<(String, String)>,
    small_disk_mebibytes: Option<u32>,
    tls: bool,
}

impl PostgresServerBuilder {
    /// Adds a setting, as in `postgresql.conf`: `.setting("synchronous_commit", "off")`. Overrides the kit's defaults.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Enables TLS, with a self-signed certificate that is its own [authority](PostgresServer::certificate).
    pub fn tls(mut self) -> Self {
        self.tls = true;
        // Paths are relative to the data directory.
        self.setting("ssl", "on")
            .setting("ssl_cert_file", format!("../{}", certificate::CERTIFICATE))
            .setting("ssl_key_file", format!("../{}", certificate::KEY))
    }

    /// Puts all new tables on a file system of this size, so that tests can fill it. Its contents do not survive a
    /// restart. Requires permission to [mount](PostgresServer::may_mount).
    pub fn small_disk(mut self, mebibytes: u32) -> Self {
        self.small_disk_mebibytes = Some(mebibytes);
        self.setting("default_tablespace", SMALL_DISK)
    }

    /// Starts the server. Returns when it accepts connections. The first call in a process takes longer, because it
    /// initializes the data directory that the others copy.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL is not installed, or if it does not answer within two minutes. The message contains the
    /// server's log.
    pub async fn start(self) -> PostgresServer {
        let directory =
            TempDir::with_prefix("windlass-postgres-").expect("a temporary directory can be created");
        let programs = Programs::find();
        template::copy(&programs, &directory.path().join(DATA)).await;
        let small_disk = directory.path().join(SMALL_DISK);
        if self.small_disk_mebibytes.is_some() {
            fs::create_dir(&small_disk).expect("a directory can be created");
        }
        if self.tls {
            certificate::place(directory.path());
        }
        let account = Account::owning(directory.path());
        let Self { settings, small_disk_mebibytes, .. } = self;
        let postgres =
            Postgres { program: programs.path("postgres"), account, settings, small_disk_mebibytes };
        let server = PostgresServer { server: Server::start(postgres, directory, free_ports()).await };
        if small_disk_mebibytes.is_some() {
            server.query(&format!("CREATE TABLESPACE {SMALL_DISK} LOCATION '{}'", small_disk.display()));
        }
        server
    }
}

impl PostgresServer {
    /// Starts a server with the default settings. Returns when it accepts connections.
    ///
    /// # Panics
    ///
    /// Panics as [`PostgresServerBuilder::start`] does.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns a builder for a server with other settings.
    pub fn builder() -> PostgresServerBuilder {
        PostgresServerBuilder::default()
    }

    /// Whether the tests may mount file systems. Root may, unless its container forbids it.
    #[must_use]
    pub fn may_mount() -> bool {
        let tried = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    }

    /// Returns the URL for clients, as the superuser: `postgres://windlass@127.0.0.1:<port>/postgres`. A restart keeps
    /// it.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// Returns the URL of another database.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        url(self.port(), database)
    }

    /// Returns the port on 127.0.0.1. A restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns the id of the server's main process, or `None` while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Returns the directory with the server's data. A restart keeps it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// Returns the path of the certificate to trust, for a server with [TLS](PostgresServerBuilder::tls).
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory().join(certificate::CERTIFICATE)
    }

    /// Returns the log since the latest start.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Runs SQL in the default database. Returns its rows, one per line, with `|` between columns. Blocks the thread,
    /// which is fine in a test.
    ///
    /// # Panics
    ///
    /// Panics with the server's message if the SQL fails.
    #[expect(clippy::must_use_candidate, reason = "it is also called for its effect")]
    pub fn query(&self, sql: &str) -> String {
        self.query_in(DATABASE, sql)
    }

    /// Runs SQL in another database. See [`query`](Self::query).
    ///
    /// # Panics
    ///
    /// Panics with the server's message if the SQL fails.
    #[expect(clippy::must_use_candidate, reason = "it is also called for its effect")]
    pub fn query_in(&self, database: &str, sql: &str) -> String {
        query(&url(self.port(), database), sql)
    }

    /// Ends the connections of all clients (`pg_terminate_backend`). Returns how many it ended. Clients may reconnect
    /// immediately.
    ///
    /// # Panics
    ///
    /// Panics if the server is stopped.
    #[expect(clippy::must_use_candidate, reason = "it is also called for its effect")]
    pub fn kill_backends(&self) -> usize {
        let count = self.query(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        );
        count.parse().expect("a count is a number")
    }

    /// Stops the server as an operator would (`fast`, SIGINT): it closes connections, rolls back transactions, and
    /// writes everything to disk. Returns when its processes have ended. Does nothing if it is already stopped.
    ///
    /// # Panics
    ///
    /// Panics if the server does not end within two minutes.
    pub async fn stop(&mut self) {
        self.server.end("INT").await;
    }

    /// Ends the server immediately (`immediate`, SIGQUIT), like a crash: the next start recovers committed data from
    /// the write-ahead log. Returns when its processes have ended. Does nothing if it is already stopped.
    ///
    /// # Panics
    ///
    /// Panics if the server does not end within two minutes.
    pub async fn crash(&mut self) {
        self.server.end("QUIT").await;
    }

    /// Starts the server again with the same port, directory and settings. Returns when it accepts connections.
    /// [Stops](Self::stop) a running server first.
    ///
    /// # Panics
    ///
    /// Panics as [`PostgresServerBuilder::start`] does, and if another process has taken the port in the meantime.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.server.start_again().await;
    }

    /// Restarts the server as a hot standby, which accepts queries but no writes. It has no primary.
    ///
    /// # Panics
    ///
    /// Panics as [`restart`](Self::restart) does.
    pub async fn become_standby(&mut self) {
        self.stop().await;
        fs::write(self.directory().join(DATA).join("standby.signal"), "").expect("a file can be written");
        self.server.start_again().await;
    }

    /// Pauses all processes of the server (SIGSTOP): connections stay open but get no answers. Returns when the
    /// processes have stopped running. Requires Linux.
    ///
    /// # Panics
    ///
    /// Panics if the server is stopped.
    pub async fn pause(&mut self) {
        self.server.pause().await;
    }

    /// Resumes a paused server.
    pub fn resume(&mut self) {
        self.server.resume();
    }
}

#[derive(Debug)]
struct Postgres {
    program: String,
    account: Account,
    settings: Vec<(String, String)>,
    small_disk_mebibytes: Option<u32>,
}

impl Postgres {
    /// Returns the command that mounts the small disk and then executes the server.
    fn mounting(&self, directory: &Path) -> Vec<String> {
        let Some(mebibytes) = self.small_disk_mebibytes else { return Vec::new() };
        let (user, group) = self.account.ids().expect("only root may mount");
        let options = format!("size={mebibytes}m,mode=0700,uid={user},gid={group}");
        let small_disk = directory.join(SMALL_DISK).to_string_lossy().into_owned();
        let words = ["unshare", "--mount", "sh", "-c", MOUNT, "sh", &options, &small_disk];
        words.map(str::to_owned).to_vec()
    }
}

impl Program for Postgres {
    /// On SIGQUIT the server ends its children too. If it were killed, they would notice only later, in a directory
    /// that is gone.
    const LAST_SIGNAL: &str = "QUIT";

    fn name(&self) -> &str {
        &self.program
    }

    fn command_line(&self, directory: &Path, port: u16) -> Vec<String> {
        let data = directory.join(DATA).to_string_lossy().into_owned();
        let settings = [
            ("listen_addresses", Ipv4Addr::LOCALHOST.to_string()),
            ("port", port.to_string()),
            ("unix_socket_directories", String::new()),
            ("max_connections", "300".to_owned()),
        ];
        let own = settings.into_iter().map(|(name, value)| format!("{name}={value}"));
        let asked = self.settings.iter().map(|(name, value)| format!("{name}={value}"));
        let settings = own.chain(asked).flat_map(|setting| ["-c".to_owned(), setting]);
        let words = [self.program.clone(), "-D".to_owned(), data];
        let mut command_line = self.mounting(directory);
        command_line.extend(self.account.command_line(words.into_iter().chain(settings)));
        command_line
    }

    /// The server's lock file has its process id in line 1 and its state in line 8.
    async fn answers(&self, directory: &Path, _port: u16, pid: u32) -> bool {
        let Ok(text) = fs::read_to_string(directory.join(DATA).join("postmaster.pid")) else { return false };
        let mut lines = text.lines().map(str::trim);
        lines.next().is_some_and(|line| line == pid.to_string())
            && matches!(lines.nth(6), Some("ready" | "standby"))
    }
}

/// The directory of the PostgreSQL programs.
#[derive(Clone, Debug)]
struct Programs {
    directory: PathBuf,
}

impl Programs {
    fn find() -> Self {
        if let Ok(directory) = env::var(PROGRAMS_VARIABLE) {
            return Self { directory: located(PROGRAMS_VARIABLE, directory).into() };
        }
        if is_installed("postgres") && is_installed("initdb") {
            return Self { directory: PathBuf::new() };
        }
        Self::of_debian("postgres").expect("PostgreSQL is installed; `cargo xtask test` does that")
    }

    /// Returns the programs of the newest version that Debian has installed with this program.
    fn of_debian(program: &str) -> Option<Self> {
        let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
        let newest = versions
            .filter_map(|entry| {
                Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin")))
            })
            .filter(|(_, directory)| directory.join(program).is_file())
            .max();
        newest.map(|(_, directory)| Self { directory })
    }

    /// Returns the path of `psql`. Any version works with any server.
    fn psql(&self) -> String {
        let beside = self.directory.join("psql");
        if self.directory.as_os_str().is_empty() || beside.is_file() {
            return self.path("psql");
        }
        Self::of_debian("psql").map_or_else(|| "psql".to_owned(), |programs| programs.path("psql"))
    }

    /// Returns the path of a program. If the directory is empty, that is the plain name, which is found through `PATH`.
    fn path(&self, program: &str) -> String {
        self.directory.join(program).to_string_lossy().into_owned()
    }
}

pub(crate) fn url(port: u16, database: &str) -> String {
    format!("postgres://{USER}@{}:{port}/{database}", Ipv4Addr::LOCALHOST)
}

fn query(url: &str, sql: &str) -> String {
    let output = Command::new(Programs::find().psql())
        // A test may shorten the role's timeouts. They are not meant for its own statements.
        .env("PGOPTIONS", "-c statement_timeout=0 -c lock_timeout=0")
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
        .args(["--command", sql, url])
        .stdin(Stdio::null())
        .output()
        .expect("psql is installed with PostgreSQL");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "psql could not run `{sql}`: {said}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psql_may_be_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let programs = Programs { directory: directory.path().to_owned() };
        let elsewhere = programs.psql();
        assert!(
            Command::new(elsewhere).arg("--version").output().is_ok_and(|output| output.status.success())
        );
        fs::write(directory.path().join("psql"), "").unwrap();
        assert_eq!(programs.psql(), programs.path("psql"));
    }
}
