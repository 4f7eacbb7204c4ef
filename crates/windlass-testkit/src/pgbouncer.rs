//! A private PgBouncer.

use std::{env, fs, net::Ipv4Addr, path::Path};

use tempfile::TempDir;

use crate::{
    account::Account,
    postgres::{self, PostgresServer},
    server::{LOG, Program, Server, free_ports, is_installed, located},
};

/// Environment variable with the program. If it is not set, the kit searches `PATH`, then [`DEBIAN`].
const PROGRAM_VARIABLE: &str = "WINDLASS_PGBOUNCER";
/// Where Debian installs the program. This directory is not on every user's `PATH`.
const DEBIAN: &str = "/usr/sbin/pgbouncer";

const USERS: &str = "users.txt";
const CONFIGURATION: &str = "pgbouncer.ini";

/// A PgBouncer in front of a [`PostgresServer`], in transaction mode. A client session holds a server connection only
/// during a transaction, so session state (`LISTEN`, prepared statements, `SET`) is lost or belongs to another client.
/// Apart from that it has its defaults, so it refuses startup parameters such as `extra_float_digits`.
///
/// Dropping it ends the process. So does the end of the test process, for whatever reason.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server<Bouncer>,
}

impl PgBouncer {
    /// Starts a pooler in front of a server. Returns when it accepts connections.
    ///
    /// # Panics
    ///
    /// Panics if PgBouncer is not installed, or if it does not start within two minutes. The message contains its log.
    pub async fn start(server: &PostgresServer) -> Self {
        let directory =
            TempDir::with_prefix("windlass-pgbouncer-").expect("a temporary directory can be created");
        let users = format!("\"{}\" \"\"\n", postgres::USER);
        fs::write(directory.path().join(USERS), users).expect("a file can be written");
        let account = Account::owning(directory.path());
        let bouncer = Bouncer { program: program(), account, behind: server.port() };
        Self { server: Server::start(bouncer, directory, free_ports()).await }
    }

    /// Returns the URL for clients, to use instead of the server's own.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(postgres::DATABASE)
    }

    /// Returns the URL of another database.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        postgres::url(self.server.port(), database)
    }

    /// Returns the port on 127.0.0.1. A restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns the log since the latest start.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Kills the pooler, and all connections through it. Returns when its process has ended. Does nothing if it is
    /// already stopped.
    ///
    /// # Panics
    ///
    /// Panics if it does not end within two minutes.
    pub async fn kill(&mut self) {
        self.server.end("KILL").await;
    }

    /// Starts the pooler again on the same port. Returns when it accepts connections. [Kills](Self::kill) a running one
    /// first.
    ///
    /// # Panics
    ///
    /// Panics as [`start`](Self::start) does, and if another process has taken the port in the meantime.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.server.start_again().await;
    }
}

#[derive(Debug)]
struct Bouncer {
    program: String,
    account: Account,
    /// The port of the PostgreSQL server.
    behind: u16,
}

impl Program for Bouncer {
    const LAST_SIGNAL: &str = "KILL";

    fn name(&self) -> &str {
        &self.program
    }

    /// Writes the configuration file first, because it contains the port.
    fn command_line(&self, directory: &Path, port: u16) -> Vec<String> {
        let path = directory.join(CONFIGURATION);
        let (address, behind, user) = (Ipv4Addr::LOCALHOST, self.behind, postgres::USER);
        let users = directory.join(USERS);
        let users = users.display();
        let text = format!(
            "[databases]\n\
             * = host={address} port={behind}\n\
             [pgbouncer]\n\
             listen_addr = {address}\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = trust\n\
             auth_file = {users}\n\
             admin_users = {user}\n\
             pool_mode = transaction\n\
             max_client_conn = 500\n\
             server_login_retry = 1\n"
        );
        fs::write(&path, text).expect("a file can be written");
        self.account.chown(&path).expect("root can change the owner of a file");
        let path = path.to_string_lossy().into_owned();
        self.account.command_line([self.program.clone(), path])
    }

    /// PgBouncer reports this in its log, which no other process writes to.
    async fn answers(&self, directory: &Path, _port: u16, _pid: u32) -> bool {
        fs::read_to_string(directory.join(LOG)).is_ok_and(|log| log.contains("process up"))
    }
}

fn program() -> String {
    if let Ok(program) = env::var(PROGRAM_VARIABLE) {
        return located(PROGRAM_VARIABLE, program);
    }
    let program = if is_installed("pgbouncer") { "pgbouncer" } else { DEBIAN };
    program.to_owned()
}
