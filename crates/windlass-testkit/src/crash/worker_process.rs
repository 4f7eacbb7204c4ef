//! One worker process.

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

/// A worker in a process of its own. Dropping it kills the process; when the test process ends, it is asked to stop.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    /// Its end asks the worker to stop.
    input: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
    transcript: Arc<Mutex<Transcript>>,
}

impl WorkerProcess {
    /// Starts a process, and returns when its worker has started.
    ///
    /// # Panics
    ///
    /// Panics when the command cannot be run, or its worker has not started within a minute.
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
            assert!(ended.is_none(), "a worker process ended at its start: {ended:?}");
            lock(&process.transcript).ready
        })
        .await;
        process
    }

    /// What it has reported up to now.
    #[must_use]
    pub fn transcript(&self) -> Transcript {
        lock(&self.transcript).clone()
    }

    /// Whether attempts are under way, by its reports.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !lock(&self.transcript).running().is_empty()
    }

    /// Kills it (SIGKILL), and returns all that it had reported.
    #[must_use]
    pub fn kill(mut self) -> Transcript {
        self.end();
        self.transcript()
    }

    /// Pauses it (SIGSTOP), and returns when it does nothing any more. It needs Linux.
    ///
    /// # Panics
    ///
    /// Panics when it does not stop within a minute.
    pub async fn pause(&mut self) {
        let pids = [self.child.id()];
        process::signal("STOP", &pids);
        process::wait_until_stopped(&pids).await;
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        process::signal("CONT", &[self.child.id()]);
    }

    /// Asks it to stop, and returns all that it has reported when it has ended.
    ///
    /// # Panics
    ///
    /// Panics when it has not ended within a minute, or when it failed.
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

    /// Ends the process, and reads what is left of its output.
    fn end(&mut self) {
        // Neither fails for a child that has not been waited for; of one that has there is nothing to wait for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A child of its own may still have the output open. It gets no more input.
        drop(self.input.take());
        if let Some(reader) = self.reader.take() {
            reader.join().expect("worker processes report what the harness knows");
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
