//! A private PgBouncer.

use std::{env, fs, net::Ipv4Addr, path::Path};

use tempfile::TempDir;

use crate::{
    account::Account,
    postgres::{self, PostgresServer},
    server::{LOG, Program, Server, free_ports, is_installed, located},
};

/// Names the program; without it `PATH` is looked at, then [`DEBIAN`].
const PROGRAM_VARIABLE: &str = "WINDLASS_PGBOUNCER";
/// Debian has it in a folder that is not on everybody's `PATH`.
const DEBIAN: &str = "/usr/sbin/pgbouncer";

const USERS: &str = "users.txt";
const CONFIGURATION: &str = "pgbouncer.ini";

/// A PgBouncer in front of a [`PostgresServer`], in transaction mode: a session of a client has a connection to the
/// server for as long as a transaction, so that what belongs to a session (`LISTEN`, prepared statements, `SET`) is lost
/// or somebody else's.
///
/// Dropping it ends it; so does the end of the process, whatever ends it.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server<Bouncer>,
}

impl PgBouncer {
    /// Starts a pooler in front of a server, and returns when it takes connections.
    ///
    /// # Panics
    ///
    /// Panics when PgBouncer is not installed, or when it does not start within two minutes. The message contains its log.
    pub async fn start(server: &PostgresServer) -> Self {
        let folder = TempDir::with_prefix("windlass-pgbouncer-").expect("a temporary folder can be made");
        let users = format!("\"{}\" \"\"\n", postgres::USER);
        fs::write(folder.path().join(USERS), users).expect("a file can be written");
        let account = Account::owning(folder.path());
        let bouncer = Bouncer { program: program(), account, behind: server.port() };
        Self { server: Server::start(bouncer, folder, free_ports()).await }
    }

    /// Where clients connect, in place of the server's own address.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(postgres::DATABASE)
    }

    /// The same for another database.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        postgres::url(self.server.port(), database)
    }

    /// The port on 127.0.0.1. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// What it has logged since its latest start.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Kills it, and with it all connections through it. Returns when its process has ended; what is stopped stays
    /// stopped.
    ///
    /// # Panics
    ///
    /// Panics when it does not end within two minutes.
    pub async fn kill(&mut self) {
        self.server.end("KILL").await;
    }

    /// Starts it again on its port, and returns when it takes connections. One that still runs is [killed](Self::kill)
    /// first.
    ///
    /// # Panics
    ///
    /// Panics as [`start`](Self::start) does, and when somebody else took the port meanwhile.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.server.start_again().await;
    }
}

#[derive(Debug)]
struct Bouncer {
    program: String,
    account: Account,
    /// The port of the server.
    behind: u16,
}

impl Program for Bouncer {
    const LAST_SIGNAL: &str = "KILL";

    fn name(&self) -> &str {
        &self.program
    }

    /// The port is in a file, which has to be written first.
    fn command_line(&self, folder: &Path, port: u16) -> Vec<String> {
        let path = folder.join(CONFIGURATION);
        let (address, behind, user) = (Ipv4Addr::LOCALHOST, self.behind, postgres::USER);
        let users = folder.join(USERS);
        let users = users.display();
        // Most drivers send `extra_float_digits` as they connect; without the last line they are turned away.
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
             ignore_startup_parameters = extra_float_digits\n"
        );
        fs::write(&path, text).expect("a file can be written");
        self.account.give(&path).expect("root may give files away");
        let path = path.to_string_lossy().into_owned();
        self.account.command_line([self.program.clone(), path])
    }

    /// It says so in its log, which is its own.
    async fn answers(&self, folder: &Path, _port: u16, _pid: u32) -> bool {
        fs::read_to_string(folder.join(LOG)).is_ok_and(|log| log.contains("process up"))
    }
}

fn program() -> String {
    if let Ok(program) = env::var(PROGRAM_VARIABLE) {
        return located(PROGRAM_VARIABLE, program);
    }
    let program = if is_installed("pgbouncer") { "pgbouncer" } else { DEBIAN };
    program.to_owned()
}
