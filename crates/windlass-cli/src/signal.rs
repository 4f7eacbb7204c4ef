//! Handles signals to this process, and sends signals to the commands that it runs.

use tokio::process::Child;
use tokio_util::sync::CancellationToken;
use windlass::shutdown_signal;

use crate::exit::{Code, Failure, Result};

/// Ctrl-C or SIGTERM, for a command that changes the store in steps.
#[derive(Debug)]
pub(crate) struct Interrupt {
    first: CancellationToken,
    second: CancellationToken,
}

impl Interrupt {
    /// Installs the signal handlers.
    pub(crate) fn listen() -> Self {
        let (first, second) = (CancellationToken::new(), CancellationToken::new());
        let requested = shutdown_signal();
        let tokens = (first.clone(), second.clone());
        tokio::spawn(async move {
            requested.await;
            tokens.0.cancel();
            shutdown_signal().await;
            tokens.1.cancel();
        });
        Self { first, second }
    }

    /// Runs a query, which an interrupt cancels.
    pub(crate) async fn cancels<T>(&self, query: impl Future<Output = Result<T>>) -> Result<T> {
        self.first.run_until_cancelled(query).await.unwrap_or_else(|| Err(interrupted("interrupted")))
    }

    /// Runs a step unless an interrupt was requested. An interrupt during the step takes effect after it, unless it is
    /// requested a second time.
    pub(crate) async fn delayed_by<T>(&self, step: impl Future<Output = Result<T>>) -> Result<T> {
        if self.first.is_cancelled() {
            return Err(interrupted("interrupted"));
        }
        let ended = self.second.run_until_cancelled(step).await;
        ended.unwrap_or_else(|| Err(interrupted("interrupted; the last change may have been made or not")))
    }
}

fn interrupted(what: &str) -> Failure {
    Failure::new(Code::Interrupted, what)
}

/// Puts a command into its own process group. A signal then reaches everything that the command started, and Ctrl-C in
/// the terminal reaches only this process.
#[cfg(unix)]
pub(crate) fn use_own_process_group(command: &mut tokio::process::Command) {
    command.process_group(0);
}

/// The process group of a command, with everything that it started.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessGroup(Option<rustix::process::Pid>);

#[cfg(unix)]
impl ProcessGroup {
    pub(crate) fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?)))
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(self) {
        self.send(rustix::process::Signal::TERM);
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(self) {
        self.send(rustix::process::Signal::KILL);
    }

    fn send(self, signal: rustix::process::Signal) {
        if let Self(Some(group)) = self {
            // The group may have ended in the meantime.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}

#[cfg(not(unix))]
pub(crate) const fn use_own_process_group(_: &mut tokio::process::Command) {}

/// A placeholder where there are no signals. There, dropping the command's handle kills it.
#[cfg(not(unix))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessGroup;

#[cfg(not(unix))]
impl ProcessGroup {
    pub(crate) const fn of(_: &Child) -> Self {
        Self
    }

    pub(crate) const fn terminate(self) {}

    pub(crate) const fn kill(self) {}
}
