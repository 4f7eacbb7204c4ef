//! The common part of all private servers: port, directory, log, start and stop.

use std::{
    env, fs,
    future::ready,
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use crate::{process, supervised::Supervised, wait::poll};

const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
const PORT_ATTEMPTS: usize = 20;

/// The log file in a server's directory. Each start truncates it.
pub(crate) const LOG: &str = "server.log";

/// A kind of server.
pub(crate) trait Program: Send + Sync {
    /// The signal that the watchdog sends to end the server when its owner is gone.
    const LAST_SIGNAL: &str;

    /// The name of the program, for messages.
    fn name(&self) -> &str;

    /// Returns the program and its arguments.
    fn command_line(&self, directory: &Path, port: u16) -> Vec<String>;

    /// Whether this very process accepts clients, and not another one that has taken the port.
    fn answers(&self, directory: &Path, port: u16, pid: u32) -> impl Future<Output = bool> + Send;
}

/// A server on a port of the loopback interface. A restart keeps its address, directory and settings.
#[derive(Debug)]
pub(crate) struct Server<P> {
    // Declared before the directory, so that the server ends before its directory is removed.
    process: Option<Supervised>,
    directory: TempDir,
    program: P,
    port: Port,
    paused: bool,
}

#[derive(Debug)]
enum StartFailure {
    AddressInUse,
    Io(io::Error),
    Ended(String),
    Silent,
}

impl<P: Program> Server<P> {
    /// Starts the server on the first free port of `ports`. Returns when it answers, or panics with the server's log.
    pub(crate) async fn start(program: P, directory: TempDir, ports: impl Iterator<Item = Port>) -> Self {
        let mut server = Self { process: None, directory, program, port: Port::default(), paused: false };
        let mut failure = StartFailure::AddressInUse;
        for port in ports.take(PORT_ATTEMPTS) {
            server.port = port;
            match server.launch().await {
                Ok(()) => return server,
                // Another process took the port after we had found it free.
                Err(StartFailure::AddressInUse) => {}
                Err(other) => {
                    failure = other;
                    break;
                }
            }
        }
        panic!("{}", server.explain(&failure));
    }

    pub(crate) fn program(&self) -> &P {
        &self.program
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Supervised::pid)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the log since the latest start.
    pub(crate) fn log(&self) -> String {
        fs::read(self.log_path()).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    /// Ends the process with a signal, and keeps the directory.
    pub(crate) async fn end(&mut self, signal: &str) {
        let Some(process) = &mut self.process else { return };
        process.signal(signal).expect("the watchdog is running");
        // A stopped process handles the signal only after it is resumed.
        self.resume();
        let Some(mut process) = self.process.take() else { return };
        let ended =
            poll(STOP_TIMEOUT, || ready(process.try_wait().expect("a child can be waited for"))).await;
        assert!(
            ended.is_some(),
            "{} has not ended {STOP_TIMEOUT:?} after SIG{signal}; its log:\n{}",
            self.program.name(),
            self.log()
        );
    }

    /// Starts the process on its previous port, and waits until it answers.
    pub(crate) async fn start_again(&mut self) {
        if let Err(failure) = self.launch().await {
            panic!("{}", self.explain(&failure));
        }
    }

    /// Stops the process and its children (SIGSTOP). Returns when none of them runs any more.
    pub(crate) async fn pause(&mut self) {
        let process = self.process.as_mut().expect("only a server that runs can be paused");
        self.paused = true;
        // Stop the parent first, so that it cannot fork more children.
        process.signal("STOP").expect("the watchdog is running");
        process::wait_until_stopped(&[process.pid()]).await;
        let children = process::children(process.pid());
        process::signal("STOP", &children);
        process::wait_until_stopped(&children).await;
    }

    async fn launch(&mut self) -> Result<(), StartFailure> {
        let command_line = self.program.command_line(self.directory.path(), self.port());
        let mut process =
            Supervised::start(&command_line, self.directory.path(), &self.log_path(), P::LAST_SIGNAL)
                .map_err(StartFailure::Io)?;
        let (this, pid) = (&*self, process.pid());
        let outcome = poll(START_TIMEOUT, || {
            let ended = process.try_wait();
            async move {
                match ended {
                    Err(error) => Some(Err(StartFailure::Io(error))),
                    Ok(Some(status)) => Some(Err(StartFailure::Ended(status.to_string()))),
                    Ok(None) => {
                        this.program.answers(this.directory.path(), this.port(), pid).await.then_some(Ok(()))
                    }
                }
            }
        })
        .await;
        match outcome {
            Some(Ok(())) => {
                self.process = Some(process);
                Ok(())
            }
            Some(Err(StartFailure::Ended(_))) if self.log().contains("ddress already in use") => {
                Err(StartFailure::AddressInUse)
            }
            Some(Err(failure)) => Err(failure),
            None => {
                // Keep the process, so that its directory and log still exist for the error message.
                self.process = Some(process);
                Err(StartFailure::Silent)
            }
        }
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join(LOG)
    }

    fn explain(&self, failure: &StartFailure) -> String {
        let (name, port) = (self.program.name(), self.port());
        let what = match failure {
            StartFailure::AddressInUse => format!("{name} found port {port} taken"),
            StartFailure::Io(error) => format!("{name} could not be started: {error}"),
            StartFailure::Ended(status) => format!("{name} exited during startup ({status})"),
            StartFailure::Silent => format!("{name} did not answer within {START_TIMEOUT:?}"),
        };
        format!("{what}; its log:\n{}", self.log())
    }
}

impl<P> Server<P> {
    /// Resumes a paused server.
    pub(crate) fn resume(&mut self) {
        let Some(process) = &mut self.process else { return };
        if std::mem::take(&mut self.paused) {
            process.signal("CONT").expect("the watchdog is running");
            process::signal("CONT", &process::children(process.pid()));
        }
    }
}

impl<P> Drop for Server<P> {
    /// Resumes the children of a paused server, so that they can end.
    fn drop(&mut self) {
        self.resume();
    }
}

/// A port that no other test process uses as long as this exists, even while nothing listens on it.
#[derive(Debug, Default)]
pub struct Port {
    number: u16,
    /// A file that is locked, and unlocked when it is closed.
    _reserved: Option<fs::File>,
}

impl Port {
    /// Reserves a free port.
    ///
    /// # Panics
    ///
    /// Never: the search goes on until a port is free.
    #[must_use]
    pub fn free() -> Self {
        free_ports().next().expect("the search does not end")
    }

    /// Returns the number of the port.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Reserves a port. Returns `None` if it is reserved already, or if a process listens on it.
    fn reserve(number: u16) -> Option<Self> {
        let file = match fs::File::create(env::temp_dir().join(format!("windlass-port-{number}"))) {
            // The file belongs to another user, who may use the port.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
            file => file.expect("a temporary file can be created"),
        };
        file.try_lock().ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _reserved: Some(file) })
    }

    /// Returns a port that may be taken.
    #[cfg(test)]
    pub(crate) fn unreserved(number: u16) -> Self {
        Self { number, _reserved: None }
    }
}

/// Random ports on which no process listens at the moment.
///
/// They are below the range that common systems use for outgoing connections. A port in that range could be taken by
/// the time of a restart. Also, a client that reconnects while the server is down could get that same port as its
/// source port, and would then be connected to itself.
pub(crate) fn free_ports() -> impl Iterator<Item = Port> {
    std::iter::repeat_with(|| fastrand::u16(20_000..32_000)).filter_map(Port::reserve)
}

/// Whether `PATH` contains a program.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns the absolute path of the program or directory that a variable names, because servers start in their own
/// directory. A relative path is resolved from the working directory or from the workspace, because cargo runs tests in
/// the directory of their package. A plain name is left to `PATH`.
pub(crate) fn located(variable: &str, given: String) -> String {
    if !given.contains('/') {
        return given;
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found =
        [Path::new("."), &workspace].into_iter().find_map(|from| from.join(&given).canonicalize().ok());
    let found =
        found.unwrap_or_else(|| panic!("{variable} names `{given}`, which does not exist: correct the path"));
    found.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_reserved_once() {
        let port = free_ports().next().unwrap();
        assert!(Port::reserve(port.number()).is_none());
    }

    #[test]
    fn a_relative_program_is_found_from_the_packages_and_the_workspaces_directory() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap().join("Cargo.toml");
        let here = here.to_string_lossy();
        for given in ["./Cargo.toml", "crates/windlass-testkit/Cargo.toml", &here] {
            assert_eq!(located("VARIABLE", given.to_owned()), here, "{given}");
        }
        assert_eq!(located("VARIABLE", "redis-server".to_owned()), "redis-server");
    }

    #[test]
    #[should_panic(expected = "VARIABLE names `./none`")]
    fn a_missing_program_is_reported() {
        located("VARIABLE", "./none".to_owned());
    }
}
