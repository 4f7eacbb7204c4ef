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

/// Names the folder with `initdb`, `postgres` and `psql`; without it `PATH` is looked at, then [`DEBIAN`].
const PROGRAMS_VARIABLE: &str = "WINDLASS_POSTGRES_PROGRAMS";
/// Where Debian has the programs, below a folder for each version.
const DEBIAN: &str = "/usr/lib/postgresql";

pub(crate) const USER: &str = "windlass";
pub(crate) const DATABASE: &str = "postgres";
/// Below the server's folder.
const DATA: &str = "data";
/// A folder below the server's, and the tablespace in it.
const SMALL_DISK: &str = "small_disk";

/// Mounts a file system for the server alone: it is gone when the server is, whatever ends it.
const MOUNT: &str = r#"mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@""#;

/// A PostgreSQL server of one's own: on a free port of the loopback interface, with a temporary folder, and as durable
/// as PostgreSQL is by default (`fsync` and `synchronous_commit` are on).
///
/// Where the tests run as root, which PostgreSQL does not like, the server runs as `postgres` or `nobody`. Whoever may
/// connect on this machine may do anything with the server.
///
/// Dropping it ends the server and removes the folder; so does the end of the process, whatever ends it.
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

/// Options of a [`PostgresServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct PostgresServerBuilder {
    settings: Vec<(String, String)>,
    small_disk_mebibytes: Option<u32>,
    tls: bool,
}

impl PostgresServerBuilder {
    /// Adds a setting, as in `postgresql.conf`: `.setting("synchronous_commit", "off")`. It wins over the defaults of
    /// the kit.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Lets clients speak TLS, with a certificate that is its own [authority](PostgresServer::certificate).
    pub fn tls(mut self) -> Self {
        self.tls = true;
        // Relative to the data folder.
        self.setting("ssl", "on")
            .setting("ssl_cert_file", format!("../{}", certificate::CERTIFICATE))
            .setting("ssl_key_file", format!("../{}", certificate::KEY))
    }

    /// Puts all tables that are made onto a file system of this size, so that it can be filled. It does not last over a
    /// restart. Only who [may mount](PostgresServer::may_mount) can have it.
    pub fn small_disk(mut self, mebibytes: u32) -> Self {
        self.small_disk_mebibytes = Some(mebibytes);
        self.setting("default_tablespace", SMALL_DISK)
    }

    /// Starts the server, and returns when it takes connections. The first call in a process takes longer: it
    /// initialises the data folder that the others copy.
    ///
    /// # Panics
    ///
    /// Panics when PostgreSQL is not installed, or when it does not answer within two minutes. The message contains the
    /// server's log.
    pub async fn start(self) -> PostgresServer {
        let folder = TempDir::with_prefix("windlass-postgres-").expect("a temporary folder can be made");
        let programs = Programs::find();
        template::copy(&programs, &folder.path().join(DATA)).await;
        let small_disk = folder.path().join(SMALL_DISK);
        if self.small_disk_mebibytes.is_some() {
            fs::create_dir(&small_disk).expect("a folder can be made");
        }
        if self.tls {
            certificate::place(folder.path());
        }
        let account = Account::owning(folder.path());
        let Self { settings, small_disk_mebibytes, .. } = self;
        let postgres =
            Postgres { program: programs.path("postgres"), account, settings, small_disk_mebibytes };
        let server = PostgresServer { server: Server::start(postgres, folder, free_ports()).await };
        if small_disk_mebibytes.is_some() {
            server.query(&format!("CREATE TABLESPACE {SMALL_DISK} LOCATION '{}'", small_disk.display()));
        }
        server
    }
}

impl PostgresServer {
    /// Starts a server with the defaults, and returns when it takes connections.
    ///
    /// # Panics
    ///
    /// Panics as [`PostgresServerBuilder::start`] does.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Begins a server with settings of its own.
    pub fn builder() -> PostgresServerBuilder {
        PostgresServerBuilder::default()
    }

    /// Whether the tests may mount file systems: root may, unless its container forbids it.
    #[must_use]
    pub fn may_mount() -> bool {
        let tried = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    }

    /// Where clients connect, as the superuser: `postgres://windlass@127.0.0.1:<port>/postgres`. It stays the same over
    /// restarts.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// The same for another database.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        url(self.port(), database)
    }

    /// The port on 127.0.0.1. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The id of the server's first process; `None` while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// The folder with the server's data. It stays the same over restarts.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// The file with the certificate to trust, of a server that speaks [TLS](PostgresServerBuilder::tls).
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.folder().join(certificate::CERTIFICATE)
    }

    /// What the server has logged since its latest start.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Runs SQL in the first database, and returns what it gives: a line for a row, with `|` between the columns. It
    /// blocks, which a test can afford.
    ///
    /// # Panics
    ///
    /// Panics with the server's message when the SQL fails.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does, too")]
    pub fn query(&self, sql: &str) -> String {
        self.query_in(DATABASE, sql)
    }

    /// The same in another database.
    ///
    /// # Panics
    ///
    /// Panics with the server's message when the SQL fails.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does, too")]
    pub fn query_in(&self, database: &str, sql: &str) -> String {
        query(&url(self.port(), database), sql)
    }

    /// Ends the connections of all clients (`pg_terminate_backend`), and returns how many. Clients may connect again at
    /// once.
    ///
    /// # Panics
    ///
    /// Panics when the server is stopped.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does, too")]
    pub fn kill_backends(&self) -> usize {
        let count = self.query(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        );
        count.parse().expect("a count is a number")
    }

    /// Stops the server as an operator would (`fast`, SIGINT): connections end, transactions roll back, and all is
    /// written. Returns when its processes have ended; a stopped server stays stopped.
    ///
    /// # Panics
    ///
    /// Panics when the server does not end within two minutes.
    pub async fn stop(&mut self) {
        self.server.end("INT").await;
    }

    /// Ends the server at once (`immediate`, SIGQUIT), as a crash does: what is committed is in the write-ahead log
    /// only, from which the next start recovers. Returns when its processes have ended; a stopped server stays stopped.
    ///
    /// # Panics
    ///
    /// Panics when the server does not end within two minutes.
    pub async fn crash(&mut self) {
        self.server.end("QUIT").await;
    }

    /// Starts the server again with its port, folder and settings, and returns when it takes connections. A server that
    /// still runs is [stopped](Self::stop) first.
    ///
    /// # Panics
    ///
    /// Panics as [`PostgresServerBuilder::start`] does, and when somebody else took the port meanwhile.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.server.start_again().await;
    }

    /// Stops the server and starts it again as a hot standby: it takes queries and no writes. It follows no primary.
    ///
    /// # Panics
    ///
    /// Panics as [`restart`](Self::restart) does.
    pub async fn become_standby(&mut self) {
        self.stop().await;
        fs::write(self.folder().join(DATA).join("standby.signal"), "").expect("a file can be written");
        self.server.start_again().await;
    }

    /// Pauses all processes of the server (SIGSTOP): connections stay, and nothing is answered. Returns when they do
    /// nothing any more. It needs Linux.
    ///
    /// # Panics
    ///
    /// Panics when the server is stopped.
    pub async fn pause(&mut self) {
        self.server.pause().await;
    }

    /// Lets a paused server go on.
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
    /// What mounts the small disk before it becomes the server.
    fn mounting(&self, folder: &Path) -> Vec<String> {
        let Some(mebibytes) = self.small_disk_mebibytes else { return Vec::new() };
        let (user, group) = self.account.ids().expect("only root may mount");
        let options = format!("size={mebibytes}m,mode=0700,uid={user},gid={group}");
        let small_disk = folder.join(SMALL_DISK).to_string_lossy().into_owned();
        let words = ["unshare", "--mount", "sh", "-c", MOUNT, "sh", &options, &small_disk];
        words.map(str::to_owned).to_vec()
    }
}

impl Program for Postgres {
    /// Ends its children too; killed, it would leave them to notice by themselves, in a folder that is gone.
    const LAST_SIGNAL: &str = "QUIT";

    fn name(&self) -> &str {
        &self.program
    }

    fn command_line(&self, folder: &Path, port: u16) -> Vec<String> {
        let data = folder.join(DATA).to_string_lossy().into_owned();
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
        let mut command_line = self.mounting(folder);
        command_line.extend(self.account.command_line(words.into_iter().chain(settings)));
        command_line
    }

    /// The server says so in the file that locks its folder: in the first line its process, in the eighth how it is.
    async fn answers(&self, folder: &Path, _port: u16, pid: u32) -> bool {
        let Ok(text) = fs::read_to_string(folder.join(DATA).join("postmaster.pid")) else { return false };
        let mut lines = text.lines().map(str::trim);
        lines.next().is_some_and(|line| line == pid.to_string())
            && matches!(lines.nth(6), Some("ready" | "standby"))
    }
}

/// The folder of PostgreSQL's programs.
#[derive(Clone, Debug)]
struct Programs {
    folder: PathBuf,
}

impl Programs {
    fn find() -> Self {
        if let Ok(folder) = env::var(PROGRAMS_VARIABLE) {
            return Self { folder: located(PROGRAMS_VARIABLE, folder).into() };
        }
        if is_installed("postgres") && is_installed("initdb") {
            return Self { folder: PathBuf::new() };
        }
        let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
        let newest = versions
            .filter_map(|entry| {
                Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin")))
            })
            .filter(|(_, folder)| folder.join("postgres").is_file())
            .max();
        let (_, folder) = newest.expect("PostgreSQL is installed; `cargo xtask test` does that");
        Self { folder }
    }

    /// A program; with an empty folder it is left to `PATH`.
    fn path(&self, program: &str) -> String {
        self.folder.join(program).to_string_lossy().into_owned()
    }
}

pub(crate) fn url(port: u16, database: &str) -> String {
    format!("postgres://{USER}@{}:{port}/{database}", Ipv4Addr::LOCALHOST)
}

pub(crate) fn query(url: &str, sql: &str) -> String {
    let output = Command::new(Programs::find().path("psql"))
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
        .args(["--command", sql, url])
        .stdin(Stdio::null())
        .output()
        .expect("psql is installed with PostgreSQL");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "psql could not run `{sql}`: {said}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}
