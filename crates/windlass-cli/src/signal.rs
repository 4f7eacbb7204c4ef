//! Signals to this process, and from it to the commands that it runs.

use tokio::process::Child;

/// Waits until this process is asked to end: by Ctrl-C, or by SIGTERM where there is such a thing. What comes between
/// the call and the wait is heard too.
#[cfg(unix)]
pub(crate) fn end_requested() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut asked = [SignalKind::interrupt(), SignalKind::terminate()].map(signal).into_iter().flatten();
    let asked = (asked.next(), asked.next());
    async {
        match asked {
            (Some(mut interrupt), Some(mut terminate)) => {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            }
            // Without handlers the signals do what they do to every process.
            _ => std::future::pending().await,
        }
    }
}

/// Lets a command have a group of its own, so that a signal reaches all that it started, and Ctrl-C only this
/// process.
#[cfg(unix)]
pub(crate) fn set_apart(command: &mut tokio::process::Command) {
    command.process_group(0);
}

/// A command that was set apart, with all that it started.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group(Option<rustix::process::Pid>);

#[cfg(unix)]
impl Group {
    pub(crate) fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?)))
    }

    /// Asks it to end.
    pub(crate) fn terminate(self) {
        self.send(rustix::process::Signal::TERM);
    }

    /// Ends it.
    pub(crate) fn kill(self) {
        self.send(rustix::process::Signal::KILL);
    }

    fn send(self, signal: rustix::process::Signal) {
        if let Self(Some(group)) = self {
            // One that has ended meanwhile needs no signal.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}

#[cfg(not(unix))]
pub(crate) async fn end_requested() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

#[cfg(not(unix))]
pub(crate) const fn set_apart(_: &mut tokio::process::Command) {}

/// Without signals a command ends when nobody holds it any more.
#[cfg(not(unix))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group;

#[cfg(not(unix))]
impl Group {
    pub(crate) const fn of(_: &Child) -> Self {
        Self
    }

    pub(crate) const fn terminate(self) {}

    pub(crate) const fn kill(self) {}
}
