//! One attempt: a command, what it is given, and what it says.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, stderr};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use windlass::command::Outcome;
use windlass::limit::PAYLOAD_MAX_BYTES;
use windlass::{Abort, AbortReason, AnyAttempt, BoxError, JobRecord};

use super::outcome::{Ended, Said};
use crate::signal::{self, Group};
use crate::view::Content;

/// How much of standard error is kept as a job's error, in bytes.
const ERROR_KEPT_BYTES: usize = 4_000;

/// Runs the command.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) command: String,
    /// Where the commands' files are.
    pub(super) folder: PathBuf,
    /// How long a command has between being asked to end and being ended.
    pub(super) grace: Duration,
    /// Cancelled when a worker that stops waits no longer.
    pub(super) hurry: CancellationToken,
    /// For commands that call this program themselves.
    pub(super) environment: [(&'static str, String); 3],
}

impl Runner {
    pub(super) async fn run(&self, attempt: &AnyAttempt) -> Result<Outcome, BoxError> {
        let files = Files::new(&self.folder, attempt).await?;
        let child = self.spawn(attempt, &files)?;
        let outcome = self.attend(child, attempt, &files).await;
        files.remove().await;
        outcome
    }

    fn spawn(&self, attempt: &AnyAttempt, files: &Files) -> Result<Child, BoxError> {
        let mut command = shell(&self.command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        signal::set_apart(&mut command);
        command.envs(self.environment.clone()).envs(facts(attempt)).env("WINDLASS_OUTCOME", &files.outcome);
        if !attempt.blockers().is_empty() {
            command.env("WINDLASS_BLOCKERS", &files.blockers);
        }
        command.spawn().map_err(|error| format!("the command cannot be run: {error}").into())
    }

    /// Talks to the command until it has ended. One that is to end is asked to, and ended if it does not.
    async fn attend(&self, child: Child, attempt: &AnyAttempt, files: &Files) -> Result<Outcome, BoxError> {
        let group = Group::of(&child);
        let mut talk = pin!(talk(child, attempt.job().input.bytes()));
        let ended = tokio::select! {
            ended = &mut talk => ended,
            reason = self.must_end(attempt.aborted()) => {
                group.terminate();
                // It is still listened to: whoever writes to nobody is ended by that.
                if timeout(self.grace, &mut talk).await.is_err() {
                    group.kill();
                    let _ = timeout(self.grace, &mut talk).await;
                }
                return Err(format!("the command was ended: {}", because(reason)).into());
            }
        };
        let (status, stdout, error) = ended.inspect_err(|_| group.kill())?;
        let said = Said::read(&files.outcome).await?;
        Ended { status, stdout, error, said }.outcome()
    }

    /// Returns when the command is to end. While a worker stops, its commands may go on for a while.
    async fn must_end(&self, abort: &Abort) -> AbortReason {
        let reason = abort.wait().await;
        if reason == AbortReason::WorkerStopping {
            self.hurry.cancelled().await;
        }
        reason
    }
}

const fn because(reason: AbortReason) -> &'static str {
    match reason {
        AbortReason::TimedOut => "it took longer than --timeout",
        AbortReason::Cancelled => "the chain was cancelled",
        AbortReason::WorkerStopping => "the worker stops",
        AbortReason::StoreError => "its lease could not be renewed",
        _ => "another has the job, or it is closed",
    }
}

#[cfg(unix)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]);
    shell
}

#[cfg(not(unix))]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("cmd");
    shell.args(["/C", command]);
    shell
}

/// What is known of the job, for the environment.
fn facts(attempt: &AnyAttempt) -> Vec<(&'static str, String)> {
    let JobRecord { id, chain, index, job_type, chain_type, priority, due_at, max_attempts, .. } =
        attempt.job();
    let mut facts = vec![
        ("WINDLASS_JOB_ID", id.to_string()),
        ("WINDLASS_JOB_TYPE", job_type.to_string()),
        ("WINDLASS_JOB_INDEX", index.to_string()),
        ("WINDLASS_CHAIN_ID", chain.to_string()),
        ("WINDLASS_CHAIN_TYPE", chain_type.to_string()),
        ("WINDLASS_ATTEMPT", attempt.attempt().to_string()),
        ("WINDLASS_PRIORITY", priority.to_string()),
        ("WINDLASS_DUE_AT", due_at.to_string()),
        ("WINDLASS_WORKER_ID", attempt.worker().to_string()),
    ];
    facts.extend(max_attempts.map(|max| ("WINDLASS_MAX_ATTEMPTS", max.to_string())));
    facts.extend(attempt.key().map(|key| ("WINDLASS_KEY", key.to_owned())));
    facts
}

/// The files of one attempt.
struct Files {
    outcome: PathBuf,
    blockers: PathBuf,
}

impl Files {
    async fn new(folder: &Path, attempt: &AnyAttempt) -> Result<Self, BoxError> {
        let name = format!("{}-{}", attempt.job().id, attempt.job().fence.0);
        let files = Self {
            outcome: folder.join(format!("{name}-outcome.json")),
            blockers: folder.join(format!("{name}-blockers.json")),
        };
        if !attempt.blockers().is_empty() {
            let outputs = attempt.blockers().iter().map(|blocker| blocker.output.as_ref().map(Content::of));
            let outputs = serde_json::to_vec(&outputs.collect::<Vec<_>>())?;
            tokio::fs::write(&files.blockers, outputs).await?;
        }
        Ok(files)
    }

    async fn remove(&self) {
        // The folder goes with the worker in any case.
        let _ = tokio::join!(tokio::fs::remove_file(&self.outcome), tokio::fs::remove_file(&self.blockers));
    }
}

/// Hands the input over, and reads what comes back until the command has ended.
async fn talk(mut child: Child, input: &[u8]) -> Result<(ExitStatus, Vec<u8>, String), BoxError> {
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin.take() {
            // A command need not read its input.
            let _ = stdin.write_all(input).await;
        }
        Ok(())
    };
    let wait = async { child.wait().await.map_err(BoxError::from) };
    let (status, (), stdout, error) = tokio::try_join!(wait, write, read_output(stdout), read_error(stderr))?;
    Ok((status, stdout, error))
}

async fn read_output(stdout: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, BoxError> {
    let mut output = Vec::new();
    if let Some(stdout) = stdout {
        stdout.take(PAYLOAD_MAX_BYTES as u64 + 1).read_to_end(&mut output).await?;
    }
    if output.len() > PAYLOAD_MAX_BYTES {
        return Err(format!("the output is larger than {PAYLOAD_MAX_BYTES} bytes: store it elsewhere").into());
    }
    Ok(output)
}

/// Passes standard error on, and keeps its end.
async fn read_error(from: Option<impl AsyncRead + Unpin>) -> Result<String, BoxError> {
    let Some(mut from) = from else { return Ok(String::new()) };
    let (mut kept, mut chunk, mut to) = (Vec::new(), vec![0; ERROR_KEPT_BYTES], stderr());
    loop {
        let length = match from.read(&mut chunk).await {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let read = chunk.get(..length).unwrap_or_default();
        let _ = to.write_all(read).await;
        kept.extend_from_slice(read);
        kept.drain(..kept.len().saturating_sub(ERROR_KEPT_BYTES));
    }
    let _ = to.flush().await;
    Ok(String::from_utf8_lossy(&kept).trim().to_owned())
}
