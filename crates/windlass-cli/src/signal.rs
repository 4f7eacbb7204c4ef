//! Handles signals to this process, and sends signals to the commands that it runs.

use tokio::process::Child;

/// Waits for Ctrl-C or SIGTERM. The handlers are installed by the call itself, so a signal that arrives before the
/// first poll is not lost.
#[cfg(unix)]
pub(crate) fn shutdown_requested() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal).into_iter().flatten();
    let signals = (signals.next(), signals.next());
    async {
        match signals {
            (Some(mut interrupt), Some(mut terminate)) => {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            }
            // Without handlers, the signals keep their default effect.
            _ => std::future::pending().await,
        }
    }
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
pub(crate) async fn shutdown_requested() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
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
