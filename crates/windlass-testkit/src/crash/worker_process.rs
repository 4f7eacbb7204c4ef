//! A single worker process.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use super::report::Transcript;
use crate::{process, wait::poll, wait_until};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// A worker in its own process. Dropping it kills the process. If the test process ends, the worker is asked to stop.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    /// Closing it asks the worker to stop.
    input: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
    transcript: Arc<Mutex<Transcript>>,
}

impl WorkerProcess {
    /// Starts a process. Returns when its worker has started.
    ///
    /// # Panics
    ///
    /// Panics if the command cannot be run, or if its worker has not started within a minute.
    pub async fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program can be run");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("the output is a pipe"));
        let transcript = Arc::new(Mutex::new(Transcript::default()));
        let shared = Arc::clone(&transcript);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                lock(&shared).take(&line);
            }
        });
        let mut process = Self { child, input, reader: Some(reader), transcript };
        wait_until("a worker process has started its worker", START_TIMEOUT, async || {
            let ended = process.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "a worker process exited during startup: {ended:?}");
            lock(&process.transcript).ready
        })
        .await;
        process
    }

    /// Returns all reports so far.
    #[must_use]
    pub fn transcript(&self) -> Transcript {
        lock(&self.transcript).clone()
    }

    /// Whether attempts are running, according to the reports.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !lock(&self.transcript).running().is_empty()
    }

    /// Kills the process (SIGKILL). Returns all its reports.
    #[must_use]
    pub fn kill(mut self) -> Transcript {
        self.end();
        self.transcript()
    }

    /// Pauses the process (SIGSTOP). Returns when it has stopped running. Requires Linux.
    ///
    /// # Panics
    ///
    /// Panics if it does not stop within a minute.
    pub async fn pause(&mut self) {
        let pids = [self.child.id()];
        process::signal("STOP", &pids);
        process::wait_until_stopped(&pids).await;
    }

    /// Resumes the process.
    pub fn resume(&mut self) {
        process::signal("CONT", &[self.child.id()]);
    }

    /// Asks the worker to stop. Returns all its reports when the process has ended.
    ///
    /// # Panics
    ///
    /// Panics if it has not ended within a minute, or if it failed.
    pub async fn stop(mut self) -> Transcript {
        drop(self.input.take());
        let child = &mut self.child;
        let status =
            poll(STOP_TIMEOUT, || std::future::ready(child.try_wait().expect("a child can be waited for")))
                .await;
        let status = status.expect("a worker process ends within a minute after it was asked to stop");
        assert!(status.success(), "a worker process failed: {status}");
        self.end();
        self.transcript()
    }

    /// Kills the process and reads the rest of its output.
    fn end(&mut self) {
        // These only fail if the child has been waited for already. Then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A child of the process may still hold the output open. Closing the input makes it end too.
        drop(self.input.take());
        if let Some(reader) = self.reader.take() {
            reader.join().expect("worker processes send only known reports");
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock(transcript: &Mutex<Transcript>) -> MutexGuard<'_, Transcript> {
    transcript.lock().unwrap_or_else(PoisonError::into_inner)
}
