//! One attempt: runs the shell command, writes its input and reads its output.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, stderr};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use windlass::BoxError;
use windlass::command::Outcome;
use windlass::limit::PAYLOAD_MAX_BYTES;
use windlass::record::JobRecord;
use windlass::worker::{Abort, AbortReason, AnyAttempt};

use super::outcome::{Ended, OutcomeFile};
use crate::signal::{self, ProcessGroup};
use crate::trace::TRACEPARENT;
use crate::view::Content;

/// How many bytes of standard error to keep as the job's error.
const ERROR_KEPT_BYTES: usize = 4_000;

/// Runs the shell command for each attempt.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) command: String,
    /// Directory for the outcome and blocker files.
    pub(super) directory: PathBuf,
    /// Time between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    /// Cancelled when a stopping worker no longer waits for its commands.
    pub(super) stop_now: CancellationToken,
    /// Variables that let the command call `windlass` on the same store.
    pub(super) environment: [(&'static str, String); 3],
}

impl Runner {
    pub(super) async fn run(&self, attempt: &AnyAttempt) -> Result<Outcome, BoxError> {
        let files = Files::new(&self.directory, attempt).await?;
        let child = self.spawn(attempt, &files)?;
        let outcome = self.supervise(child, attempt, &files).await;
        files.remove().await;
        outcome
    }

    fn spawn(&self, attempt: &AnyAttempt, files: &Files) -> Result<Child, BoxError> {
        let mut command = shell(&self.command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        signal::use_own_process_group(&mut command);
        command
            .envs(self.environment.clone())
            .envs(job_variables(attempt))
            .env("WINDLASS_OUTCOME", &files.outcome)
            // A trace of the worker's own surroundings does not concern the job.
            .env_remove(TRACEPARENT);
        // The stored context, so that the spans of the command join the trace that started the job.
        if let Some(trace) = attempt.trace() {
            command.env(TRACEPARENT, trace.as_str());
        }
        if !attempt.blockers().is_empty() {
            command.env("WINDLASS_BLOCKERS", &files.blockers);
        }
        command.spawn().map_err(|error| format!("cannot start the command: {error}").into())
    }

    /// Runs the command to its end. If the attempt is aborted, sends SIGTERM, then SIGKILL after the grace period.
    async fn supervise(
        &self,
        child: Child,
        attempt: &AnyAttempt,
        files: &Files,
    ) -> Result<Outcome, BoxError> {
        let group = ProcessGroup::of(&child);
        let mut communication = pin!(communicate(child, attempt.job().input.bytes()));
        let ended = tokio::select! {
            ended = &mut communication => ended,
            reason = self.stop_required(attempt.aborted()) => {
                group.terminate();
                // Keep reading its pipes: a command that writes to a closed pipe would be killed by SIGPIPE.
                if timeout(self.grace, &mut communication).await.is_err() {
                    group.kill();
                    let _ = timeout(self.grace, &mut communication).await;
                }
                return Err(format!("the command was terminated: {}", abort_message(reason)).into());
            }
        };
        // If reading failed, e.g. because the output is too large, the command must not keep running.
        let (status, stdout, error) = ended.inspect_err(|_| group.kill())?;
        let file = OutcomeFile::read(&files.outcome).await?;
        Ended { status, stdout, error, file }.outcome()
    }

    /// Waits until the command must end and returns the reason. If the worker is stopping, the command may continue
    /// until `stop_now` is cancelled.
    async fn stop_required(&self, abort: &Abort) -> AbortReason {
        let reason = abort.wait().await;
        if reason == AbortReason::WorkerStopping {
            self.stop_now.cancelled().await;
        }
        reason
    }
}

const fn abort_message(reason: AbortReason) -> &'static str {
    match reason {
        AbortReason::TimedOut => "it ran longer than --timeout",
        AbortReason::Cancelled => "the chain was cancelled",
        AbortReason::WorkerStopping => "the worker is stopping",
        AbortReason::StoreError => "its lease could not be renewed",
        _ => "the job was closed or taken over by another worker",
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

/// Returns the environment variables that describe the job.
fn job_variables(attempt: &AnyAttempt) -> Vec<(&'static str, String)> {
    let JobRecord { id, chain, index, job_type, chain_type, priority, due_at, max_attempts, .. } =
        attempt.job();
    let mut job_variables = vec![
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
    job_variables.extend(max_attempts.map(|max| ("WINDLASS_MAX_ATTEMPTS", max.to_string())));
    job_variables.extend(attempt.key().map(|key| ("WINDLASS_KEY", key.to_owned())));
    job_variables
}

/// The files of one attempt.
struct Files {
    outcome: PathBuf,
    blockers: PathBuf,
}

impl Files {
    async fn new(directory: &Path, attempt: &AnyAttempt) -> Result<Self, BoxError> {
        let name = format!("{}-{}", attempt.job().id, attempt.job().fence.0);
        let files = Self {
            outcome: directory.join(format!("{name}-outcome.json")),
            blockers: directory.join(format!("{name}-blockers.json")),
        };
        if !attempt.blockers().is_empty() {
            let outputs = attempt.blockers().iter().map(|blocker| blocker.output.as_ref().map(Content::of));
            let outputs = serde_json::to_vec(&outputs.collect::<Vec<_>>())?;
            tokio::fs::write(&files.blockers, outputs).await?;
        }
        Ok(files)
    }

    async fn remove(&self) {
        // Ignore errors: the directory is removed when the worker exits.
        let _ = tokio::join!(tokio::fs::remove_file(&self.outcome), tokio::fs::remove_file(&self.blockers));
    }
}

/// Writes the input and reads both outputs until the command has ended. All of it runs concurrently, because the
/// command may block on any of its pipes.
async fn communicate(mut child: Child, input: &[u8]) -> Result<(ExitStatus, Vec<u8>, String), BoxError> {
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin.take() {
            // The command may end without reading its input.
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
        return Err(format!(
            "the output is larger than {PAYLOAD_MAX_BYTES} bytes: store it elsewhere and print a reference"
        )
        .into());
    }
    Ok(output)
}

/// Forwards standard error and returns its last `ERROR_KEPT_BYTES` bytes.
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
