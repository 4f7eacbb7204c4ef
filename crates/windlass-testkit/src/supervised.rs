//! A child process that does not outlive its owner.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
};

/// A server process under a watchdog.
///
/// `Drop` does not run when a test process is killed or exits with live statics, and asking the kernel for a signal at
/// the parent's death takes unsafe code. So a small shell script starts the server, and the owner holds the write end
/// of the script's standard input. The script reads signal names from it and forwards them to the server. The input
/// ends when the owner closes it, and also when the owner ends in any way, because the kernel then closes it. The
/// script then kills the server and removes its directory.
///
/// The script ends when the server does, with the same status, so waiting for the script means waiting for the server.
/// It runs in its own process group, so that a signal to the group of the tests, such as Ctrl-C, does not end it before
/// it has cleaned up.
#[derive(Debug)]
pub(crate) struct Supervised {
    watchdog: Child,
    signals: Option<ChildStdin>,
    pid: u32,
}

/// Two processes: the reader in the background notices the end of the owner, and the main one the end of the server.
/// The main one removes the directory only if the reader exits with 0, which means that the owner is gone. If the
/// server ended first, the main one kills the reader.
const WATCHDOG: &str = r#"
directory=$1
last=$2
shift 2
exec 3<&0
"$@" </dev/null >&2 3<&- &
server=$!
echo "$server"
{
    while read -r signal; do kill -s "$signal" "$server"; done
    trap '' TERM
    kill -s "$last" "$server"
    kill -s CONT "$server"
    exit 0
} <&3 >/dev/null &
reader=$!
wait "$server"
status=$?
kill -s TERM "$reader"
wait "$reader" && rm -rf -- "$directory"
exit "$status"
"#;

impl Supervised {
    /// Starts a program with its arguments in `directory`. Its output goes to the file `log`. `last` is the signal that
    /// ends it when its owner is gone, even if it is paused.
    pub(crate) fn start(
        command_line: &[String],
        directory: &Path,
        log: &Path,
        last: &str,
    ) -> io::Result<Self> {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(directory)
            .arg(last)
            .args(command_line)
            .current_dir(directory)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()?;
        let signals = watchdog.stdin.take();
        let stdout = watchdog.stdout.take().expect("the standard output is a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let pid = line.trim().parse().map_err(io::Error::other)?;
        Ok(Self { watchdog, signals, pid })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal, named without `SIG`. Does nothing if the server has ended already.
    pub(crate) fn signal(&mut self, name: &str) -> io::Result<()> {
        let signals = self.signals.as_mut().expect("only drop closes the pipe");
        match writeln!(signals, "{name}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns the server's status if it has ended.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.watchdog.try_wait()
    }
}

impl Drop for Supervised {
    /// Ends the server and removes its directory. If the server had already ended, keeps the directory, which the
    /// caller may still need. Blocks for a few milliseconds.
    fn drop(&mut self) {
        drop(self.signals.take());
        // An error means that there is no process to wait for.
        let _ = self.watchdog.wait();
    }
}
