//! Tests of the test kit with real servers and processes.

#![expect(clippy::unwrap_used, reason = "clippy knows test functions only, not what they call")]

use std::process::Command;

mod crash;
mod owner;
mod pgbouncer;
mod postgres;
mod proxy;
mod redis;
mod session;
mod shared;
mod wait;

/// Whether a process exists. Uses the shell's built-in `kill`: not every system has it as a program.
fn is_alive(pid: u32) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", "kill -0 \"$1\" 2>/dev/null", "sh", &pid.to_string()]);
    command.status().unwrap().success()
}
