//! The reports of worker processes to the harness: lines on standard output.

use std::{
    collections::HashSet,
    env,
    fmt::Display,
    io::{self, Write},
    process::Command,
    time::Duration,
};

use windlass_core::{AnyAttempt, BoxError, Ended, Fence, Inner, JobId, Running, Store};

/// Environment variable that is set in worker processes.
const VARIABLE: &str = "WINDLASS_WORKER_PROCESS";
/// Prefix of a report. All other output of a process is ignored.
const MARK: &str = "windlass-report ";
/// How long a worker may take to release or finish its running attempts once it was asked to stop.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Returns a command that runs this test program again as a worker process. It only runs the test with this name, which
/// is the main function of the process.
///
/// # Panics
///
/// Panics if the path of the program is unknown.
#[must_use]
pub fn this_test(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of the current program is known"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(VARIABLE, "1");
    command
}

/// Whether this process was started with [`this_test`].
#[must_use]
pub fn is_worker_process() -> bool {
    env::var_os(VARIABLE).is_some()
}

/// Runs a worker process: reports that its worker has started, waits until the harness asks it to stop or is gone, and
/// stops the worker.
pub async fn serve<S: Store + ?Sized>(worker: Running<S>) {
    say("ready");
    let input_ends = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    // An error while reading counts as the end of the input.
    let _ = input_ends.await;
    worker.stop(STOP_DEADLINE).await;
}

/// Middleware that reports when an attempt starts, and when its end has been written.
pub async fn reporting(attempt: AnyAttempt, inner: Inner) -> Result<Ended, BoxError> {
    let (job, Fence(fence)) = (attempt.job().id, attempt.job().fence);
    say(format_args!("started {job} {fence}"));
    let ended = inner.run(attempt).await;
    let how = if matches!(ended, Ended::Lost(_)) { "lost" } else { "settled" };
    say(format_args!("{how} {job} {fence}"));
    Ok(ended)
}

/// Reports an effect as one line of text.
pub fn applied(effect: impl Display) {
    say(format_args!("applied {effect}"));
}

/// Writes a line in one piece: it is short enough for an atomic write to a pipe. Ignores errors, since the harness may
/// be gone.
fn say(report: impl Display) {
    let line = format!("{MARK}{report}\n");
    let _ = io::stdout().lock().write_all(line.as_bytes());
}

/// One acquisition of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// The job.
    pub job: JobId,
    /// The fence under which it was acquired.
    pub fence: Fence,
}

/// The reports of a worker process.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// Whether the worker has started.
    pub ready: bool,
    /// Attempts that it started, in order.
    pub started: Vec<Run>,
    /// Attempts whose end it wrote.
    pub settled: HashSet<Run>,
    /// Attempts that lost their job before they ended.
    pub lost: HashSet<Run>,
    /// Effects of its handlers, in order.
    pub applied: Vec<String>,
}

impl Transcript {
    /// Returns the attempts that were running when the transcript ended.
    #[must_use]
    pub fn running(&self) -> Vec<Run> {
        let is_running = |run: &&Run| !self.settled.contains(run) && !self.lost.contains(run);
        self.started.iter().filter(is_running).copied().collect()
    }

    /// Adds a line of output. The test runner may have printed a prefix on the same line.
    pub(super) fn take(&mut self, line: &str) {
        let Some((_, report)) = line.split_once(MARK) else { return };
        let (kind, rest) = report.split_once(' ').unwrap_or((report, ""));
        match kind {
            "ready" => self.ready = true,
            "applied" => self.applied.push(rest.to_owned()),
            "started" => self.started.extend(run(rest)),
            "settled" => self.settled.extend(run(rest)),
            "lost" => self.lost.extend(run(rest)),
            unknown => panic!("a worker process reported `{unknown}`, which the harness does not know"),
        }
    }
}

fn run(text: &str) -> Option<Run> {
    let (job, fence) = text.split_once(' ')?;
    Some(Run { job: job.parse().ok()?, fence: Fence(fence.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_lists_running_attempts() {
        let jobs = [JobId::new(), JobId::new(), JobId::new()];
        let mut transcript = Transcript::default();
        transcript.take("running 1 test");
        transcript.take(&format!("test worker_process ... {MARK}ready"));
        for job in jobs {
            transcript.take(&format!("{MARK}started {job} 7"));
        }
        transcript.take(&format!("{MARK}applied two words"));
        transcript.take(&format!("{MARK}settled {} 7", jobs[0]));
        transcript.take(&format!("{MARK}lost {} 7", jobs[1]));
        // An earlier acquisition of the same job.
        transcript.take(&format!("{MARK}settled {} 6", jobs[2]));
        assert!(transcript.ready);
        assert_eq!(transcript.applied, ["two words"]);
        assert_eq!(transcript.running(), [Run { job: jobs[2], fence: Fence(7) }]);
    }
}
