//! A private NATS server.

use std::{
    env,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
};

use crate::certificate;
use crate::server::{Program, Server, free_ports, is_installed, located};

/// Names the server program; without it `PATH` is looked at, then [`DEBIAN`].
const PROGRAM_VARIABLE: &str = "WINDLASS_NATS_SERVER";
/// Debian has it in a folder that is not on everybody's `PATH`.
const DEBIAN: &str = "/usr/sbin/nats-server";

/// For one question to a server. Whoever else has the port may accept connections and stay silent.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A NATS server of one's own, with JetStream: on a free port of the loopback interface, with a temporary folder.
///
/// Dropping it kills the server and removes the folder; so does the end of the process, whatever ends it.
#[derive(Debug)]
pub struct NatsServer {
    server: Server<Nats>,
}

/// Options of a [`NatsServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct NatsServerBuilder {
    arguments: Vec<String>,
    tls: bool,
}

impl NatsServerBuilder {
    /// Adds a setting, as on the server's command line: `.arg("--user", "ada")`.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.arguments.extend([name.into(), value.into()]);
        self
    }

    /// Has clients speak TLS, with a certificate that is its own [authority](NatsServer::certificate).
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the server, and returns when it answers.
    ///
    /// # Panics
    ///
    /// Panics when no server is installed, or when it does not answer within two minutes. The message contains the
    /// server's log.
    pub async fn start(self) -> NatsServer {
        let folder = TempDir::with_prefix("windlass-nats-").expect("a temporary folder can be made");
        if self.tls {
            certificate::place(folder.path());
        }
        let nats = Nats { program: program(), arguments: self.arguments, tls: self.tls };
        NatsServer { server: Server::start(nats, folder, free_ports()).await }
    }
}

impl NatsServer {
    /// Starts a server with the defaults, and returns when it answers.
    ///
    /// # Panics
    ///
    /// Panics as [`NatsServerBuilder::start`] does.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Begins a server with settings of its own.
    pub fn builder() -> NatsServerBuilder {
        NatsServerBuilder::default()
    }

    /// Where clients connect: `nats://127.0.0.1:<port>`, or `tls://` for TLS. It stays the same over restarts.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.server.program().tls { "tls" } else { "nats" };
        format!("{scheme}://{}:{}", Ipv4Addr::LOCALHOST, self.port())
    }

    /// The file with the certificate to trust, of a server that speaks [TLS](NatsServerBuilder::tls).
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.server.folder().join(certificate::CERTIFICATE)
    }

    /// The port on 127.0.0.1. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Kills the server (SIGKILL). Returns when its process has ended; a stopped server stays stopped.
    ///
    /// # Panics
    ///
    /// Panics when the server does not end within two minutes.
    pub async fn kill(&mut self) {
        self.server.end("KILL").await;
    }

    /// Starts the server again with its port and folder, and returns when it answers. One that still runs is
    /// [killed](Self::kill) first.
    ///
    /// # Panics
    ///
    /// Panics as [`NatsServerBuilder::start`] does, and when somebody else took the port meanwhile.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.server.start_again().await;
    }
}

#[derive(Debug)]
struct Nats {
    program: String,
    arguments: Vec<String>,
    tls: bool,
}

impl Program for Nats {
    const LAST_SIGNAL: &str = "KILL";

    fn name(&self) -> &str {
        &self.program
    }

    fn command_line(&self, folder: &Path, port: u16) -> Vec<String> {
        let path = |name| folder.join(name).to_string_lossy().into_owned();
        let (certificate, key) = (path(certificate::CERTIFICATE), path(certificate::KEY));
        let (port, folder) = (port.to_string(), folder.to_string_lossy());
        // Its name lets it be told from another server on the port.
        let name = format!("windlass-{folder}");
        let words = ["-a", "127.0.0.1", "-p", &port, "-js", "-sd", &folder, "-n", &name];
        let tls = ["--tls", "--tlscert", &certificate, "--tlskey", &key];
        let tls: &[&str] = if self.tls { &tls } else { &[] };
        let words = words.iter().chain(tls).map(|word| (*word).to_owned());
        [self.program.clone()].into_iter().chain(words).chain(self.arguments.iter().cloned()).collect()
    }

    async fn answers(&self, folder: &Path, port: u16, _pid: u32) -> bool {
        let name = format!("\"server_name\":\"windlass-{}\"", folder.to_string_lossy());
        let ask = async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            let mut greeting = String::new();
            BufReader::new(stream).read_line(&mut greeting).await?;
            std::io::Result::Ok(greeting)
        };
        matches!(tokio::time::timeout(ANSWER_TIMEOUT, ask).await, Ok(Ok(greeting)) if greeting.contains(&name))
    }
}

fn program() -> String {
    if let Ok(program) = env::var(PROGRAM_VARIABLE) {
        return located(PROGRAM_VARIABLE, program);
    }
    let program = if is_installed("nats-server") { "nats-server" } else { DEBIAN };
    program.to_owned()
}
