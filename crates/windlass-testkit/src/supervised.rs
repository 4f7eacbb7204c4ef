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
/// `Drop` does not run when a test process is killed or exits with statics alive, and asking the
/// kernel for a signal at the parent's death takes unsafe code. So a small shell script starts the
/// server, and the owner holds the writing end of the script's standard input. The script reads
/// names of signals from it and passes them on. The input ends when the owner closes it, and also,
/// by the kernel's doing, when the owner ends in any way: then the script kills the server and
/// removes its folder.
///
/// The script ends when the server does, with its status, so that waiting for the script is waiting
/// for the server. It is in a process group of its own, so that a signal to the group of the tests,
/// such as Ctrl-C, does not end it before its work is done.
#[derive(Debug)]
pub(crate) struct Supervised {
    watchdog: Child,
    signals: Option<ChildStdin>,
    pid: u32,
}

/// Two processes: the reader in the background knows of the owner's end, the main one of the
/// server's. The reader's status tells the main one whether the owner is gone (0) or the reader was
/// ended because the server ended first.
const WATCHDOG: &str = r#"
folder=$1
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
wait "$reader" && rm -rf -- "$folder"
exit "$status"
"#;

impl Supervised {
    /// Starts a program, with its arguments, that works in `folder`. What it writes goes to the file `log`. `last` is
    /// the signal that ends it with its owner, also when it is paused.
    pub(crate) fn start(command_line: &[String], folder: &Path, log: &Path, last: &str) -> io::Result<Self> {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(folder)
            .arg(last)
            .args(command_line)
            .current_dir(folder)
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

    /// Sends a signal by its name without `SIG`. A server that has ended already is fine.
    pub(crate) fn signal(&mut self, name: &str) -> io::Result<()> {
        let signals = self.signals.as_mut().expect("only drop closes the pipe");
        match writeln!(signals, "{name}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome,
        }
    }

    /// The server's status, once it has ended.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.watchdog.try_wait()
    }
}

impl Drop for Supervised {
    /// Ends the server and removes its folder, unless the server has ended before: then whoever
    /// ended it may want the folder. Blocks for the milliseconds that takes.
    fn drop(&mut self) {
        drop(self.signals.take());
        // An error means that there is nothing to wait for.
        let _ = self.watchdog.wait();
    }
}
