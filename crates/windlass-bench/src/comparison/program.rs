use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use windlass::BoxError;
use windlass_bench_harness::protocol::READY;
use windlass_bench_harness::{Arguments, Description, Reply};

/// A program that runs a library.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of the crate.
    pub name: String,
    /// Version of the crate.
    pub version: String,
    /// The program.
    pub path: PathBuf,
    /// Arguments that come before those of the comparison.
    pub prefix: Vec<String>,
}

/// Timeout of each part of a measurement: preparing the store, and the workload.
const TIMEOUT: Duration = Duration::from_secs(45);

impl Program {
    /// Returns the subjects of the program on a store.
    pub(super) fn list(&self, store: &str) -> Result<Vec<Description>, BoxError> {
        let output = self.command().args(["--list", store]).stdin(Stdio::null()).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Runs a workload. Calls `measure` with the process id immediately before and after it.
    pub(super) fn run<T>(
        &self,
        arguments: &Arguments,
        measure: impl Fn(Moment, u32) -> Result<T, BoxError>,
    ) -> Result<Run<T>, BoxError> {
        let mut process = Process::start(self.command().args(arguments.words()))?;
        let first = process.line()?;
        if first != READY {
            return Ok(Run { reply: serde_json::from_str(&first)?, usage: None });
        }
        let before = measure(Moment::Before, process.id())?;
        process.go_on()?;
        let reply = process.line()?;
        let after = measure(Moment::After, process.id())?;
        process.go_on()?;
        Ok(Run { reply: serde_json::from_str(&reply)?, usage: Some((before, after)) })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.prefix);
        command
    }
}

/// When something is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Before,
    After,
}

/// A workload that has run.
pub(super) struct Run<T> {
    pub(super) reply: Reply,
    /// What was measured before and after it.
    pub(super) usage: Option<(T, T)>,
}

/// A running program. Dropping it ends the program.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Self, BoxError> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("the output of the program is not piped")?;
        Ok(Self { child, lines: read(BufReader::new(output).lines()) })
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> Result<String, BoxError> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(format!("no answer within {} s", TIMEOUT.as_secs()).into()),
            Err(RecvTimeoutError::Disconnected) => Err(format!("ended with {}", self.child.wait()?).into()),
        }
    }

    fn go_on(&mut self) -> Result<(), BoxError> {
        let input = self.child.stdin.as_mut().ok_or("the input of the program is not piped")?;
        Ok(writeln!(input)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines on a thread, so that a program that hangs can be noticed.
fn read(lines: Lines<BufReader<ChildStdout>>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bench_harness::Workload;

    /// A program of which a shell script is all.
    fn script(text: &str) -> Program {
        Program {
            name: "test".to_owned(),
            version: "1".to_owned(),
            path: "/bin/sh".into(),
            prefix: ["-c", text, "test"].map(str::to_owned).to_vec(),
        }
    }

    fn arguments() -> Arguments {
        let text = || "x".to_owned();
        Arguments {
            store: text(),
            subject: text(),
            url: text(),
            workload: Workload::Start,
            jobs: 1,
            slots: 1,
        }
    }

    #[test]
    fn usage_is_measured_around_the_workload() {
        let rate = r#"{"rate":{"jobs":1,"seconds":1.0,"jobs_per_second":1.0}}"#;
        let program = script(&format!("echo ready; read line; echo '{rate}'; read line"));
        let run = program.run(&arguments(), |_, _| Ok(())).unwrap();
        assert_eq!(run.reply, Reply::Rate { jobs: 1, seconds: 1.0, jobs_per_second: 1.0, p99_us: None });
        assert!(run.usage.is_some());
    }

    #[test]
    fn a_program_may_refuse_before_it_is_ready() {
        let run = script(r#"echo '{"unsupported":"why"}'"#).run(&arguments(), |_, _| Ok(())).unwrap();
        assert_eq!(run.reply, Reply::Unsupported("why".to_owned()));
        assert!(run.usage.is_none());
    }

    #[test]
    fn the_end_of_a_program_is_an_error() {
        let error = script("echo ready; exit 3").run(&arguments(), |_, _| Ok(())).err().unwrap().to_string();
        assert!(error.contains("exit status: 3") || error.contains("Broken pipe"), "{error}");
    }
}
