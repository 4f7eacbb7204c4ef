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

/// Environment variable with the server program. If it is not set, the kit searches `PATH`, then [`DEBIAN`].
const PROGRAM_VARIABLE: &str = "WINDLASS_NATS_SERVER";
/// Where Debian installs the server. This directory is not on every user's `PATH`.
const DEBIAN: &str = "/usr/sbin/nats-server";

/// Timeout of one check. Another process on the port may accept connections and stay silent.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A private NATS server with JetStream, on a free port of the loopback interface, with a temporary directory.
///
/// Dropping it kills the server and removes the directory. So does the end of the process, for whatever reason.
#[derive(Debug)]
pub struct NatsServer {
    server: Server<Nats>,
}

/// Builder for a [`NatsServer`].
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

    /// Requires TLS, with a self-signed certificate that is its own [authority](NatsServer::certificate).
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the server. Returns when it answers.
    ///
    /// # Panics
    ///
    /// Panics if no server is installed, or if it does not answer within two minutes. The message contains the server's
    /// log.
    pub async fn start(self) -> NatsServer {
        let directory = TempDir::with_prefix("windlass-nats-").expect("a temporary directory can be created");
        if self.tls {
            certificate::place(directory.path());
        }
        let nats = Nats { program: program(), arguments: self.arguments, tls: self.tls };
        NatsServer { server: Server::start(nats, directory, free_ports()).await }
    }
}

impl NatsServer {
    /// Starts a server with the default settings. Returns when it answers.
    ///
    /// # Panics
    ///
    /// Panics as [`NatsServerBuilder::start`] does.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns a builder for a server with other settings.
    pub fn builder() -> NatsServerBuilder {
        NatsServerBuilder::default()
    }

    /// Returns the URL for clients: `nats://127.0.0.1:<port>`, or `tls://` with TLS. A restart keeps it.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.server.program().tls { "tls" } else { "nats" };
        format!("{scheme}://{}:{}", Ipv4Addr::LOCALHOST, self.port())
    }

    /// Returns the path of the certificate to trust, for a server with [TLS](NatsServerBuilder::tls).
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.server.directory().join(certificate::CERTIFICATE)
    }

    /// Returns the port on 127.0.0.1. A restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Kills the server (SIGKILL). Returns when its process has ended. Does nothing if it is already stopped.
    ///
    /// # Panics
    ///
    /// Panics if the server does not end within two minutes.
    pub async fn kill(&mut self) {
        self.server.end("KILL").await;
    }

    /// Starts the server again with the same port and directory. Returns when it answers. [Kills](Self::kill) a running
    /// server first.
    ///
    /// # Panics
    ///
    /// Panics as [`NatsServerBuilder::start`] does, and if another process has taken the port in the meantime.
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

    fn command_line(&self, directory: &Path, port: u16) -> Vec<String> {
        let path = |name| directory.join(name).to_string_lossy().into_owned();
        let (certificate, key) = (path(certificate::CERTIFICATE), path(certificate::KEY));
        let (port, directory) = (port.to_string(), directory.to_string_lossy());
        // The name distinguishes this server from another one on the same port.
        let name = format!("windlass-{directory}");
        let words = ["-a", "127.0.0.1", "-p", &port, "-js", "-sd", &directory, "-n", &name];
        let tls = ["--tls", "--tlscert", &certificate, "--tlskey", &key];
        let tls: &[&str] = if self.tls { &tls } else { &[] };
        let words = words.iter().chain(tls).map(|word| (*word).to_owned());
        [self.program.clone()].into_iter().chain(words).chain(self.arguments.iter().cloned()).collect()
    }

    async fn answers(&self, directory: &Path, port: u16, _pid: u32) -> bool {
        let name = format!("\"server_name\":\"windlass-{}\"", directory.to_string_lossy());
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
