//! A private Redis or Valkey server.

use std::{
    env, fs,
    future::ready,
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{supervised::Supervised, wait::poll};

/// Names the server program; without it the first of [`PROGRAMS`] is taken that is installed.
const PROGRAM_VARIABLE: &str = "WINDLASS_REDIS_SERVER";
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// For one question to a server. Whoever else has the port may accept connections and stay silent.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
const START_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const PORT_ATTEMPTS: usize = 20;

/// A Redis or Valkey server of one's own: on a free port of the loopback interface, with a temporary
/// folder, and without persistence unless [asked for](RedisServerBuilder::arg).
///
/// Dropping it kills the server and removes the folder; so does the end of the process, whatever
/// ends it.
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
    // Before the folder: a server ends before its folder goes.
    process: Option<Supervised>,
    folder: TempDir,
    program: String,
    arguments: Vec<String>,
    port: u16,
}

/// Options of a [`RedisServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct RedisServerBuilder {
    arguments: Vec<String>,
}

impl RedisServerBuilder {
    /// Adds a setting, as on the server's command line: `.arg("--appendonly", "yes")`. It wins over
    /// the defaults of the kit.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.arguments.extend([name.into(), value.into()]);
        self
    }

    /// Starts the server, and returns when it answers.
    ///
    /// # Panics
    ///
    /// Panics when no server is installed, or when it does not answer within 10 seconds. The message
    /// contains the server's log.
    pub async fn start(self) -> RedisServer {
        self.start_on(free_ports()).await
    }

    async fn start_on(self, ports: impl Iterator<Item = u16>) -> RedisServer {
        let folder = TempDir::with_prefix("windlass-redis-").expect("a temporary folder can be made");
        let mut server =
            RedisServer { process: None, folder, program: program(), arguments: self.arguments, port: 0 };
        let mut failure = StartFailure::AddressInUse;
        for port in ports.take(PORT_ATTEMPTS) {
            server.port = port;
            match server.launch().await {
                Ok(()) => return server,
                // Someone else was faster between our look at the port and the server's use of it.
                Err(StartFailure::AddressInUse) => {}
                Err(other) => {
                    failure = other;
                    break;
                }
            }
        }
        panic!("{}", server.explain(&failure));
    }
}

#[derive(Debug)]
enum StartFailure {
    AddressInUse,
    Io(io::Error),
    Ended(String),
    Silent,
}

impl RedisServer {
    /// Starts a server with the defaults, and returns when it answers.
    ///
    /// # Panics
    ///
    /// Panics as [`RedisServerBuilder::start`] does.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Begins a server with settings of its own.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Where clients connect: `redis://127.0.0.1:<port>/`. It stays the same over restarts.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}:{}/", Ipv4Addr::LOCALHOST, self.port)
    }

    /// The port on 127.0.0.1. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The id of the server's process; `None` while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Supervised::pid)
    }

    /// The folder with the server's data. It stays the same over restarts.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the server has logged since its latest start.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    /// Stops the server as an operator would (SIGTERM): it saves what it is configured to save. Returns
    /// when its process has ended; a stopped server stays stopped.
    ///
    /// # Panics
    ///
    /// Panics when the server does not end within 10 seconds.
    pub async fn stop(&mut self) {
        self.end("TERM").await;
    }

    /// Kills the server (SIGKILL): it can save nothing. Returns when its process has ended; a stopped
    /// server stays stopped.
    ///
    /// # Panics
    ///
    /// Panics when the server does not end within 10 seconds.
    pub async fn kill(&mut self) {
        self.end("KILL").await;
    }

    /// Starts the server again with its port, folder and settings, and returns when it answers. A
    /// server that still runs is [stopped](Self::stop) first.
    ///
    /// # Panics
    ///
    /// Panics as [`RedisServerBuilder::start`] does, and when somebody else took the port meanwhile.
    pub async fn restart(&mut self) {
        self.stop().await;
        if let Err(failure) = self.launch().await {
            panic!("{}", self.explain(&failure));
        }
    }

    /// Ends the process, and leaves the folder.
    async fn end(&mut self, signal: &str) {
        let Some(mut process) = self.process.take() else { return };
        process.signal(signal).expect("the watchdog listens");
        let ended =
            poll(STOP_TIMEOUT, || ready(process.try_wait().expect("a child can be waited for"))).await;
        assert!(
            ended.is_some(),
            "{} has not ended {STOP_TIMEOUT:?} after SIG{signal}; its log:\n{}",
            self.program,
            self.log()
        );
    }

    /// Starts the process on the chosen port, and waits for its answer.
    async fn launch(&mut self) -> Result<(), StartFailure> {
        let arguments = self.command_line();
        let mut process = Supervised::start(&self.program, &arguments, self.folder.path(), &self.log_path())
            .map_err(StartFailure::Io)?;
        let (port, pid) = (self.port, process.pid());
        let outcome = poll(START_TIMEOUT, || {
            let ended = process.try_wait();
            async move {
                match ended {
                    Err(error) => Some(Err(StartFailure::Io(error))),
                    Ok(Some(status)) => Some(Err(StartFailure::Ended(status.to_string()))),
                    Ok(None) => answers(port, pid).await.then_some(Ok(())),
                }
            }
        })
        .await;
        match outcome {
            Some(Ok(())) => {
                self.process = Some(process);
                Ok(())
            }
            Some(Err(StartFailure::Ended(_))) if self.log().contains("Address already in use") => {
                Err(StartFailure::AddressInUse)
            }
            Some(Err(failure)) => Err(failure),
            None => {
                // Kept, so that its folder, and with it the log, is there for the explanation.
                self.process = Some(process);
                Err(StartFailure::Silent)
            }
        }
    }

    fn command_line(&self) -> Vec<String> {
        let (port, folder) = (self.port.to_string(), self.folder.path().to_string_lossy());
        let fixed = [
            ("--bind", "127.0.0.1"),
            ("--port", &port),
            ("--dir", &folder),
            ("--daemonize", "no"),
            ("--save", ""),
            ("--appendonly", "no"),
        ];
        let fixed = fixed.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]);
        fixed.chain(self.arguments.iter().cloned()).collect()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn explain(&self, failure: &StartFailure) -> String {
        let Self { program, port, .. } = self;
        let what = match failure {
            StartFailure::AddressInUse => format!("{program} found port {port} taken"),
            StartFailure::Io(error) => format!("{program} could not be started: {error}"),
            StartFailure::Ended(status) => format!("{program} ended at its start ({status})"),
            StartFailure::Silent => format!("{program} did not answer within {START_TIMEOUT:?}"),
        };
        format!("{what}; its log:\n{}", self.log())
    }
}

fn program() -> String {
    if let Ok(program) = env::var(PROGRAM_VARIABLE) {
        return located(program);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = |program: &&str| env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let program = PROGRAMS.into_iter().find(installed);
    program.expect("redis-server or valkey-server is installed; `cargo xtask test` does that").to_owned()
}

/// A path made absolute: the server starts in a folder of its own. A relative one is meant from the working folder or,
/// since cargo runs tests in their package's folder, from the workspace's. A plain name is left to `PATH`.
fn located(program: String) -> String {
    if !program.contains('/') {
        return program;
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found =
        [Path::new("."), &workspace].into_iter().find_map(|from| from.join(&program).canonicalize().ok());
    let found = found
        .unwrap_or_else(|| panic!("{PROGRAM_VARIABLE} names `{program}`, which is not there: mend the path"));
    found.to_string_lossy().into_owned()
}

/// Random ports that nobody listens on at the moment.
///
/// They lie below the range from which the common systems give ports to outgoing connections. A port
/// of that range could be gone at a restart; and a client that tries to reconnect to it while the
/// server is down may be given that same port, and then it is connected to itself.
fn free_ports() -> impl Iterator<Item = u16> {
    std::iter::repeat_with(|| fastrand::u16(20_000..32_000))
        .filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
}

/// Whether the server with this process id serves commands on the port. An answer alone is not
/// enough: it may be another server's, started by another test on the same port.
async fn answers(port: u16, pid: u32) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"PING\r\nINFO server\r\nQUIT\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let Ok(Ok(answer)) = tokio::time::timeout(ANSWER_TIMEOUT, ask).await else { return false };
    // While it loads its data, a server answers INFO but refuses PING.
    let own = format!("process_id:{pid}");
    answer.starts_with("+PONG") && answer.lines().any(|line| line == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_program_is_found_from_the_packages_and_the_workspaces_folder() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap().join("Cargo.toml");
        let here = here.to_string_lossy();
        for given in ["./Cargo.toml", "crates/windlass-testkit/Cargo.toml", &here] {
            assert_eq!(located(given.to_owned()), here, "{given}");
        }
        assert_eq!(located("redis-server".to_owned()), "redis-server");
    }

    #[test]
    #[should_panic(expected = "WINDLASS_REDIS_SERVER names `./none`")]
    fn a_program_that_is_not_there_is_said() {
        located("./none".to_owned());
    }

    #[tokio::test]
    async fn another_port_is_tried_when_one_is_taken() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = RedisServer::start().await;
        let ports = [taken.local_addr().unwrap().port(), other.port()];
        let server = RedisServer::builder().start_on(ports.into_iter().chain(free_ports())).await;
        assert!(!ports.contains(&server.port()));
        assert_ne!(server.pid(), other.pid());
    }

    #[tokio::test]
    #[should_panic(expected = "taken; its log:")]
    async fn it_is_given_up_when_all_ports_are_taken() {
        let other = RedisServer::start().await;
        let _ = RedisServer::builder().start_on(std::iter::repeat(other.port())).await;
    }

    #[tokio::test]
    async fn another_servers_answer_does_not_count() {
        let server = RedisServer::start().await;
        let pid = server.pid().unwrap();
        assert!(answers(server.port(), pid).await);
        assert!(!answers(server.port(), pid + 1).await);
    }
}
