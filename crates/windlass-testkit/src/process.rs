//! Signals to other processes, their children and their state.

use std::{fs, process::Command, time::Duration};

use crate::wait::poll;

const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a signal, named without `SIG`. Ignores processes that have ended.
pub(crate) fn signal(name: &str, pids: &[u32]) {
    if pids.is_empty() {
        return;
    }
    // Use the shell's built-in `kill`: not every system has it as a program.
    let mut command = Command::new("sh");
    command.args(["-c", r#"kill -s "$@" 2>/dev/null; exit 0"#, "sh", name]);
    command.args(pids.iter().map(u32::to_string));
    let status = command.status().expect("`sh` is installed");
    assert!(status.success(), "the shell could not send SIG{name}: {status}");
}

/// Returns the children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("the test kit finds processes in /proc, as Linux has it");
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).is_some_and(|(_, its_parent)| its_parent == parent))
        .collect()
}

/// Waits until the processes are stopped or gone. Sending a signal returns before it takes effect.
pub(crate) async fn wait_until_stopped(pids: &[u32]) {
    let still = |pid: &u32| stat(*pid).is_some_and(|(state, _)| !"TtZX".contains(state));
    let stopped = poll(STOP_TIMEOUT, || std::future::ready((!pids.iter().any(still)).then_some(()))).await;
    assert!(stopped.is_some(), "some of the processes {pids:?} still run {STOP_TIMEOUT:?} after SIGSTOP");
}

/// Returns the state and the parent of a process, or `None` if it is gone.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain any character.
    let (_, facts) = text.rsplit_once(") ")?;
    let mut facts = facts.split(' ');
    Some((facts.next()?.chars().next()?, facts.next()?.parse().ok()?))
}
