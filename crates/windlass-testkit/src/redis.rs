//! A private Redis or Valkey server.

use std::{
    env, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use crate::certificate;
use crate::server::{Port, Program, Server, free_ports, is_installed, located};

/// Environment variable with the server program. If it is not set, the kit uses the first of [`PROGRAMS`] that is
/// installed.
const PROGRAM_VARIABLE: &str = "WINDLASS_REDIS_SERVER";
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// The Unix socket in the server's directory, through which the kit checks a server whose port requires TLS.
const SOCKET: &str = "socket";

/// Timeout of one check. Another process on the port may accept connections and stay silent.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A private Redis or Valkey server on a free port of the loopback interface, with a temporary directory. Persistence
/// is off unless [enabled](RedisServerBuilder::arg).
///
/// Dropping it kills the server and removes the directory. So does the end of the process, for whatever reason.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use windlass_testkit::RedisServer;
///
/// let mut server = RedisServer::builder().arg("--appendonly", "yes").start().await;
/// println!("{}", server.url());
/// server.kill().await;
/// server.restart().await; // same address, same data
/// # }
/// ```
#[derive(Debug)]
pub struct RedisServer {
    server: Server<Redis>,
}

/// Builder for a [`RedisServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct RedisServerBuilder {
    arguments: Vec<String>,
    tls: bool,
}

impl RedisServerBuilder {
    /// Adds a setting, as on the server's command line: `.arg("--appendonly", "yes")`. Overrides the kit's defaults.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.arguments.extend([name.into(), value.into()]);
        self
    }

    /// Requires TLS on the port, with a self-signed certificate that is its own [authority](RedisServer::certificate).
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
    pub async fn start(self) -> RedisServer {
        self.start_on(free_ports()).await
    }

    async fn start_on(self, ports: impl Iterator<Item = Port>) -> RedisServer {
        let directory =
            TempDir::with_prefix("windlass-redis-").expect("a temporary directory can be created");
        if self.tls {
            certificate::place(directory.path());
        }
        let redis = Redis { program: program(), arguments: self.arguments, tls: self.tls };
        RedisServer { server: Server::start(redis, directory, ports).await }
    }
}

impl RedisServer {
    /// Starts a server with the default settings. Returns when it answers.
    ///
    /// # Panics
    ///
    /// Panics as [`RedisServerBuilder::start`] does.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns a builder for a server with other settings.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Returns the URL for clients: `redis://127.0.0.1:<port>/`, or `rediss://` with TLS. A restart keeps it.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.server.program().tls { "rediss" } else { "redis" };
        format!("{scheme}://{}:{}/", Ipv4Addr::LOCALHOST, self.port())
    }

    /// Returns the path of the certificate to trust, for a server with [TLS](RedisServerBuilder::tls).
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory().join(certificate::CERTIFICATE)
    }

    /// Returns the port on 127.0.0.1. A restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns the id of the server's process, or `None` while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Returns the directory with the server's data. A restart keeps it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// Returns the log since the latest start.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Stops the server as an operator would (SIGTERM): it saves its data if configured to. Returns when its process
    /// has ended. Does nothing if it is already stopped.
    ///
    /// # Panics
    ///
    /// Panics if the server does not end within two minutes.
    pub async fn stop(&mut self) {
        self.server.end("TERM").await;
    }

    /// Kills the server (SIGKILL), so that it cannot save its data. Returns when its process has ended. Does nothing if
    /// it is already stopped.
    ///
    /// # Panics
    ///
    /// Panics if the server does not end within two minutes.
    pub async fn kill(&mut self) {
        self.server.end("KILL").await;
    }

    /// Starts the server again with the same port, directory and settings. Returns when it answers. [Stops](Self::stop)
    /// a running server first.
    ///
    /// # Panics
    ///
    /// Panics as [`RedisServerBuilder::start`] does, and if another process has taken the port in the meantime.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.server.start_again().await;
    }

    /// Pauses the server (SIGSTOP): connections stay open but get no answers. Returns when the process has stopped
    /// running. Pausing a paused server has no effect.
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
struct Redis {
    program: String,
    arguments: Vec<String>,
    tls: bool,
}

impl Redis {
    /// Returns the settings for TLS on the port.
    fn tls_settings(&self, directory: &Path, port: u16) -> Vec<String> {
        let path = |name| directory.join(name).to_string_lossy().into_owned();
        let settings = [
            ("--port", "0".to_owned()),
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", path(certificate::CERTIFICATE)),
            ("--tls-key-file", path(certificate::KEY)),
            ("--tls-auth-clients", "no".to_owned()),
            ("--unixsocket", path(SOCKET)),
        ];
        settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}

impl Program for Redis {
    const LAST_SIGNAL: &str = "KILL";

    fn name(&self) -> &str {
        &self.program
    }

    fn command_line(&self, directory: &Path, port: u16) -> Vec<String> {
        let tls = if self.tls { self.tls_settings(directory, port) } else { Vec::new() };
        let (port, directory) = (port.to_string(), directory.to_string_lossy());
        let fixed = [
            ("--bind", "127.0.0.1"),
            ("--port", &port),
            ("--dir", &directory),
            ("--daemonize", "no"),
            ("--save", ""),
            ("--appendonly", "no"),
            // By default a server waits five seconds for further replicas before it sends its data to the first.
            ("--repl-diskless-sync-delay", "0"),
        ];
        let fixed = fixed.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]);
        let given = self.arguments.iter().cloned();
        [self.program.clone()].into_iter().chain(fixed).chain(tls).chain(given).collect()
    }

    async fn answers(&self, directory: &Path, port: u16, pid: u32) -> bool {
        if self.tls {
            answers(UnixStream::connect(directory.join(SOCKET)), pid).await
        } else {
            answers(TcpStream::connect((Ipv4Addr::LOCALHOST, port)), pid).await
        }
    }
}

fn program() -> String {
    if let Ok(program) = env::var(PROGRAM_VARIABLE) {
        return located(PROGRAM_VARIABLE, program);
    }
    let program = PROGRAMS.into_iter().find(|program| is_installed(program));
    program.expect("redis-server or valkey-server is installed; `cargo xtask test` does that").to_owned()
}

/// Whether the server with this process id serves commands on a connection. An answer alone is not enough: it may come
/// from another server that another test started on the same port.
async fn answers<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl Future<Output = io::Result<S>>,
    pid: u32,
) -> bool {
    let ask = async {
        let mut stream = connect.await?;
        stream.write_all(b"PING\r\nINFO server\r\nQUIT\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let Ok(Ok(answer)) = tokio::time::timeout(ANSWER_TIMEOUT, ask).await else { return false };
    // A server that is still loading its data answers INFO but rejects PING.
    let own = format!("process_id:{pid}");
    answer.starts_with("+PONG") && answer.lines().any(|line| line == own)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::wait_until;

    #[tokio::test]
    async fn another_port_is_tried_when_one_is_taken() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = RedisServer::start().await;
        let ports = [taken.local_addr().unwrap().port(), other.port()];
        let both = ports.into_iter().map(Port::unreserved);
        let server = RedisServer::builder().start_on(both.chain(free_ports())).await;
        assert!(!ports.contains(&server.port()));
        assert_ne!(server.pid(), other.pid());
    }

    #[tokio::test]
    #[should_panic(expected = "taken; its log:")]
    async fn starting_fails_when_all_ports_are_taken() {
        let other = RedisServer::start().await;
        let taken = std::iter::repeat_with(|| Port::unreserved(other.port()));
        let _ = RedisServer::builder().start_on(taken).await;
    }

    #[tokio::test]
    async fn another_servers_answer_does_not_count() {
        let server = RedisServer::start().await;
        let pid = server.pid().unwrap();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()));
        wait_until("the server answers", Duration::from_secs(60), async || answers(connect(), pid).await)
            .await;
        assert!(!answers(connect(), pid + 1).await);
    }
}
